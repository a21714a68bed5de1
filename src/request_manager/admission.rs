//! Admission: from what a client asked for to a request the router can place (paper III-A).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::domain::{
    CachedPrefix, Capabilities, Constraints, Destination, ModelTarget, RoutingRequest, TimeTerm, Weights,
};
use crate::units::{Bytes, Tokens};

/// A name clients may ask for that stands for a choice among destinations.
#[derive(Debug, Clone, PartialEq)]
pub struct VirtualModel {
    /// The name.
    pub name: Arc<str>,
    /// Hard constraints of every request for it.
    pub constraints: Constraints,
    /// Weights of its requests.
    pub weights: Option<Weights>,
    /// Time term of its requests.
    pub time: Option<TimeTerm>,
}

/// What a client asked for.
#[derive(Debug, Clone)]
pub struct Ask<'a> {
    /// The model's name as given.
    pub model: &'a str,
    /// What it needs of a model.
    pub needs: Capabilities,
    /// Estimated prompt length, all prompts together.
    pub prompt_tokens: Tokens,
    /// Estimated length of the longest prompt.
    pub longest_prompt: Tokens,
    /// The client's cap on the completion.
    pub max_completion_tokens: Option<Tokens>,
    /// Completions asked for.
    pub choices: u32,
    /// Body size.
    pub upload: Bytes,
    /// Constraints of request headers.
    pub constraints: Constraints,
    /// Weights of request headers.
    pub weights: Option<Weights>,
}

/// Why a request was not admitted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    /// No model of this name.
    #[error("the model `{0}` does not exist")]
    UnknownModel(String),
    /// The request's placement contradicts its virtual model's.
    #[error(
        "the model `{model}` is placed on {model_placement} nodes, the request on {request_placement} nodes"
    )]
    PlacementConflict {
        /// The virtual model.
        model: String,
        /// Where it may run.
        model_placement: &'static str,
        /// Where the request may run.
        request_placement: &'static str,
    },
}

/// What is behind a name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Offer {
    /// The largest context; `None` = one of them takes prompts of a length that is not known.
    pub context: Option<Tokens>,
    /// What at least one of them can do.
    pub capabilities: Capabilities,
}

/// Every name clients may ask for.
#[derive(Debug, Clone, Default)]
pub struct ModelDirectory {
    public: BTreeSet<Arc<str>>,
    virtual_models: BTreeMap<Arc<str>, VirtualModel>,
}

impl ModelDirectory {
    /// The public models of `destinations` and the virtual ones.
    #[must_use]
    pub fn new(destinations: &[Destination], virtual_models: Vec<VirtualModel>) -> Self {
        Self {
            public: destinations.iter().map(|d| Arc::clone(&d.model)).collect(),
            virtual_models: virtual_models.into_iter().map(|v| (Arc::clone(&v.name), v)).collect(),
        }
    }

    /// All names: virtual models first, each group in order of name.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.virtual_models.keys().chain(&self.public).map(|name| &**name)
    }

    /// What the `destinations` behind `name` offer together; `None` if there is none.
    #[must_use]
    pub fn offer(&self, name: &str, destinations: &[Destination]) -> Option<Offer> {
        let placement = self.virtual_models.get(name).map(|model| model.constraints.placement);
        let is_behind = |d: &&Destination| match placement {
            Some(placement) => placement.is_none_or(|class| d.class == class),
            None => *d.model == *name,
        };
        let offer = |d: &Destination| Offer { context: d.context, capabilities: d.capabilities };
        destinations.iter().filter(is_behind).map(offer).reduce(|a, b| Offer {
            context: a.context.zip(b.context).map(|(a, b)| a.max(b)),
            capabilities: a.capabilities.with(b.capabilities),
        })
    }

    /// Admits a request under `id`. Request constraints only tighten those of the virtual model. Nothing of its
    /// prompt is known to be cached yet.
    ///
    /// # Errors
    /// See [`AdmissionError`].
    pub fn admit(&self, id: Arc<str>, ask: &Ask<'_>) -> Result<RoutingRequest, AdmissionError> {
        let found = (self.virtual_models.get(ask.model), self.public.get(ask.model));
        let (target, own, weights, time) = match found {
            (Some(model), _) => (ModelTarget::Any, model.constraints, model.weights, model.time),
            (None, Some(name)) => (ModelTarget::Named(Arc::clone(name)), Constraints::default(), None, None),
            (None, None) => return Err(AdmissionError::UnknownModel(ask.model.to_owned())),
        };
        Ok(RoutingRequest {
            id,
            target,
            needs: ask.needs,
            prompt_tokens: ask.prompt_tokens,
            longest_prompt: ask.longest_prompt,
            cached: CachedPrefix::NOWHERE,
            max_completion_tokens: ask.max_completion_tokens,
            choices: ask.choices,
            upload: ask.upload,
            constraints: tightened(ask.model, own, ask.constraints)?,
            weights: ask.weights.or(weights),
            time,
        })
    }
}

fn tightened(model: &str, own: Constraints, asked: Constraints) -> Result<Constraints, AdmissionError> {
    let placement = match (own.placement, asked.placement) {
        (Some(a), Some(b)) if a != b => {
            return Err(AdmissionError::PlacementConflict {
                model: model.to_owned(),
                model_placement: a.as_str(),
                request_placement: b.as_str(),
            });
        }
        (a, b) => a.or(b),
    };
    let stricter = |a: Option<f64>, b: Option<f64>, pick: fn(f64, f64) -> f64| match (a, b) {
        (Some(a), Some(b)) => Some(pick(a, b)),
        (a, b) => a.or(b),
    };
    let quality = |c: Constraints| c.min_quality.map(|q| q.0);
    let deadline = |c: Constraints| c.deadline.map(|d| d.0);
    Ok(Constraints {
        placement,
        min_quality: stricter(quality(own), quality(asked), f64::max).map(crate::units::Quality),
        deadline: stricter(deadline(own), deadline(asked), f64::min).map(crate::units::Seconds),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::NodeClass;
    use crate::domain::fixture::destination;
    use crate::units::{Quality, Seconds};

    #[test]
    fn a_name_offers_what_those_behind_it_do_together() {
        let of = |n: u32, model: &str, class: NodeClass, context: Option<f64>, capabilities: Capabilities| {
            let context = context.map(Tokens);
            Destination { model: model.into(), class, context, capabilities, ..destination(n, 1, 1) }
        };
        let (chat, tools) = (Capabilities::CHAT, Capabilities::CHAT.with(Capabilities::TOOLS));
        let fleet = [
            of(0, "small", NodeClass::Edge, Some(4096.0), chat),
            of(1, "small", NodeClass::Cloud, Some(8192.0), tools),
            of(2, "other", NodeClass::Edge, None, Capabilities::EMBEDDING),
        ];
        let everywhere = VirtualModel {
            name: "auto".into(),
            constraints: Constraints::default(),
            weights: None,
            time: None,
        };
        let on_edges = Constraints { placement: Some(NodeClass::Edge), ..Constraints::default() };
        let edge = VirtualModel { name: "edge".into(), constraints: on_edges, ..everywhere.clone() };
        let directory = ModelDirectory::new(&fleet, vec![everywhere, edge]);
        let offer = |name: &str| directory.offer(name, &fleet);
        assert_eq!(offer("small"), Some(Offer { context: Some(Tokens(8192.0)), capabilities: tools }));
        let chat_and_vectors = Offer { context: None, capabilities: chat.with(Capabilities::EMBEDDING) };
        assert_eq!(offer("edge"), Some(chat_and_vectors));
        assert_eq!(offer("auto").unwrap().capabilities, tools.with(Capabilities::EMBEDDING));
        assert_eq!(offer("nothing"), None);
    }

    fn directory() -> ModelDirectory {
        let constraints = Constraints {
            placement: Some(NodeClass::Edge),
            min_quality: Some(Quality(0.6)),
            deadline: Some(Seconds(10.0)),
        };
        let strict =
            VirtualModel { name: "strict".into(), constraints, weights: Some(Weights::EQUAL), time: None };
        ModelDirectory {
            public: BTreeSet::from(["org/large".into()]),
            virtual_models: BTreeMap::from([("strict".into(), strict)]),
        }
    }

    fn ask(model: &str, constraints: Constraints) -> Ask<'_> {
        Ask {
            model,
            needs: Capabilities::CHAT,
            prompt_tokens: Tokens(10.0),
            longest_prompt: Tokens(10.0),
            max_completion_tokens: None,
            choices: 1,
            upload: Bytes(100.0),
            constraints,
            weights: None,
        }
    }

    #[test]
    fn headers_only_tighten() {
        let looser =
            Constraints { placement: None, min_quality: Some(Quality(0.2)), deadline: Some(Seconds(99.0)) };
        let admitted = directory().admit("r".into(), &ask("strict", looser)).unwrap();
        assert_eq!(admitted.target, ModelTarget::Any);
        assert_eq!(admitted.constraints.placement, Some(NodeClass::Edge));
        assert_eq!(admitted.constraints.min_quality, Some(Quality(0.6)));
        assert_eq!(admitted.constraints.deadline, Some(Seconds(10.0)));
        let stricter =
            Constraints { min_quality: Some(Quality(0.9)), deadline: Some(Seconds(1.0)), ..looser };
        let admitted = directory().admit("r".into(), &ask("strict", stricter)).unwrap();
        assert_eq!(admitted.constraints.min_quality, Some(Quality(0.9)));
        assert_eq!(admitted.constraints.deadline, Some(Seconds(1.0)));
    }

    #[test]
    fn contradictions_and_unknown_names_are_refused() {
        let cloud = Constraints { placement: Some(NodeClass::Cloud), ..Constraints::default() };
        let error = directory().admit("r".into(), &ask("strict", cloud)).unwrap_err();
        assert!(matches!(error, AdmissionError::PlacementConflict { .. }));
        let error = directory().admit("r".into(), &ask("nope", Constraints::default())).unwrap_err();
        assert_eq!(error, AdmissionError::UnknownModel("nope".into()));
        let admitted = directory().admit("r".into(), &ask("org/large", cloud)).unwrap();
        assert_eq!(admitted.target, ModelTarget::Named("org/large".into()));
    }
}
