//! What the trace of a request tells: by the GenAI semantic conventions of OpenTelemetry (`gen_ai.*`) where they have
//! a word for it, `cema.*` else. No content, no key.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use tokio::time::Instant;

use super::record::{Dispatch, Finished, Outcome};
use crate::domain::ApiCall;
use crate::scheduler::Placement;
use crate::telemetry::traces::{Attributes, Ending, Part, RequestTrace, Tracer, Value};
use crate::units::{Seconds, Tokens};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The trace of a request, if it is traced.
#[derive(Debug, Default)]
pub struct Traced(Option<Box<Noted>>);

/// What is noted of a request until its spans are complete.
#[derive(Debug)]
struct Noted {
    trace: RequestTrace,
    kind: ApiCall,
    /// As its client names it.
    model: String,
    /// Since when it has been waiting for a place.
    since: Instant,
    /// What is known of the call under way, and the model it asks for.
    call: (Attributes, String),
}

impl Traced {
    /// The trace of a request of this kind for `model` that goes on with `headers`.
    pub(super) fn begin(
        tracer: &Tracer,
        (kind, model): (ApiCall, &str),
        headers: &[(HeaderName, HeaderValue)],
    ) -> Self {
        let traceparent = || {
            let found = headers.iter().find(|(name, _)| *name == TRACEPARENT);
            found.map(|(_, value)| value.as_bytes())
        };
        Self(tracer.begin(traceparent).map(|trace| {
            let since = trace.began();
            Box::new(Noted { trace, kind, model: model.to_owned(), since, call: Default::default() })
        }))
    }

    /// Whether the request is traced.
    pub(super) const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The request has a place and is about to be sent there, to a server of software `provider`: the headers for that.
    pub(super) fn placed(
        &mut self,
        placement: &Placement,
        (dispatch, provider): (&Dispatch, &'static str),
        headers: &Arc<[(HeaderName, HeaderValue)]>,
    ) -> Arc<[(HeaderName, HeaderValue)]> {
        let Some(noted) = &mut self.0 else { return Arc::clone(headers) };
        let now = dispatch.at;
        noted.planned(placement, dispatch);
        let destination = dispatch.destination();
        let upstream = destination.upstream_model.to_string();
        let attributes = vec![
            ("gen_ai.operation.name", noted.kind.as_str().into()),
            ("gen_ai.provider.name", provider.into()),
            ("gen_ai.request.model", text(&upstream)),
            ("cema.destination", text(destination.id.as_str())),
        ];
        noted.call = (attributes, upstream);
        let mut sent = headers.to_vec();
        sent.retain(|(name, _)| *name != TRACEPARENT);
        if let Ok(value) = HeaderValue::try_from(noted.trace.begin_call(now)) {
            sent.push((TRACEPARENT, value));
        }
        sent.into()
    }

    /// The call under way failed for `reason`.
    pub(super) fn attempt_failed(&mut self, reason: &'static str) {
        if let Some(noted) = &mut self.0 {
            let now = Instant::now();
            noted.end_call(now, Some(reason), None);
            noted.since = now;
        }
    }

    /// The request is over.
    pub(super) fn end(&mut self, now: Instant, (id, attempts): (&str, u32), finished: &Finished<'_>) {
        let Some(mut noted) = self.0.take() else { return };
        let error = (finished.outcome != Outcome::Ok).then(|| finished.outcome.as_str());
        noted.end_call(now, error, Some(finished));
        let Noted { trace, kind, model, .. } = *noted;
        let mut attributes = vec![
            ("gen_ai.operation.name", kind.as_str().into()),
            ("gen_ai.request.model", text(&model)),
            ("cema.request_id", text(id)),
            ("cema.outcome", finished.outcome.as_str().into()),
            ("cema.attempts", Value::Int(attempts.into())),
        ];
        if let Some(dispatch) = finished.dispatch {
            let destination = dispatch.destination();
            attributes.push(("gen_ai.response.model", text(&destination.model)));
            attributes.push(("cema.destination", text(destination.id.as_str())));
        }
        if let Some(first) = finished.to_first_content {
            attributes.push(("cema.first_content_s", Value::Double(first.0)));
        }
        count_tokens(&mut attributes, finished);
        attributes.extend(error.map(|error| ("error.type", error.into())));
        trace.end(now, Ending { name: format!("{} {model}", kind.as_str()), attributes, error });
    }
}

impl Noted {
    /// The wait for a place is over: what it was for, and what was predicted.
    fn planned(&mut self, placement: &Placement, dispatch: &Dispatch) {
        let (estimate, now) = (&dispatch.estimate, dispatch.at);
        let attributes = vec![
            ("cema.plan", Value::Int(i64::try_from(placement.plan).unwrap_or(i64::MAX))),
            ("cema.policy", placement.policy.into()),
            ("cema.batch_size", Value::Int(i64::try_from(placement.batch_size).unwrap_or(i64::MAX))),
            ("cema.predicted.quality", Value::Double(estimate.quality.get())),
            ("cema.predicted.usd", Value::Double(estimate.usd.get())),
            ("cema.predicted.joules", Value::Double(estimate.joules.get())),
            ("cema.predicted.seconds", Value::Double(estimate.completion.get())),
        ];
        let part = |name, from, to| Part { name, from, to, attributes: Vec::new() };
        let span = |s: Seconds| Duration::try_from_secs_f64(s.0).unwrap_or_default();
        // After a fail-over nothing is gathered.
        let held_from = now.checked_sub(span(placement.held)).map_or(self.since, |from| from.max(self.since));
        let is_first = self.since == self.trace.began();
        let waits = [part("window", self.since, held_from), part("hold", held_from, now)];
        let plan = Part { attributes, ..part("plan", self.since, now) };
        self.trace.part(plan, waits.into_iter().filter(|_| is_first));
    }

    fn end_call(&mut self, now: Instant, error: Option<&'static str>, finished: Option<&Finished<'_>>) {
        let (mut attributes, upstream) = std::mem::take(&mut self.call);
        let kind = self.kind.as_str();
        self.trace.end_call(now, || {
            if let Some(finished) = finished {
                count_tokens(&mut attributes, finished);
            }
            attributes.extend(error.map(|error| ("error.type", error.into())));
            Ending { name: format!("{kind} {upstream}"), attributes, error }
        });
    }
}

fn count_tokens(attributes: &mut Attributes, finished: &Finished<'_>) {
    let count = |tokens: Tokens| Value::Int(tokens.0 as i64);
    let counts =
        [("gen_ai.usage.input_tokens", finished.prompt), ("gen_ai.usage.output_tokens", finished.completion)];
    attributes.extend(counts.into_iter().filter_map(|(name, tokens)| Some((name, count(tokens?)))));
}

fn text(text: &str) -> Value {
    Value::Text(Cow::Owned(text.to_owned()))
}
