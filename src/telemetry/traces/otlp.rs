//! Spans as OTLP over HTTP has them, in its JSON form: small, stable since OTLP 1.0, and taken by every collector on
//! the port of its binary form.

use serde_json::{Value as Json, json};

use super::{Span, Value, unix_nanos};

/// Where a collector takes traces, below its endpoint.
pub const PATH: &str = "/v1/traces";

/// The body of an export request.
#[must_use]
pub fn export_request(spans: &[Span]) -> Json {
    let version = env!("CARGO_PKG_VERSION");
    let resource = [("service.name", Value::from("cema-router")), ("service.version", version.into())];
    json!({"resourceSpans": [{
        "resource": {"attributes": resource.iter().map(attribute).collect::<Vec<_>>()},
        "scopeSpans": [{
            "scope": {"name": "cema-router", "version": version},
            "spans": spans.iter().map(span).collect::<Vec<_>>(),
        }],
    }]})
}

fn span(span: &Span) -> Json {
    let mut json = json!({
        "traceId": format!("{:032x}", span.trace_id),
        "spanId": format!("{:016x}", span.span_id),
        "name": span.name,
        "kind": span.kind as u8,
        // 64-bit numbers are text in JSON.
        "startTimeUnixNano": unix_nanos(span.start).to_string(),
        "endTimeUnixNano": unix_nanos(span.end).to_string(),
        "attributes": span.attributes.iter().map(attribute).collect::<Vec<_>>(),
    });
    if let Some(parent) = span.parent {
        json["parentSpanId"] = format!("{parent:016x}").into();
    }
    if let Some(error) = span.error {
        json["status"] = json!({"code": 2, "message": error});
    }
    json
}

fn attribute((key, value): &(&'static str, Value)) -> Json {
    let value = match value {
        Value::Text(text) => json!({"stringValue": text}),
        Value::Int(number) => json!({"intValue": number.to_string()}),
        Value::Double(number) => json!({"doubleValue": number}),
    };
    json!({"key": key, "value": value})
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::telemetry::traces::SpanKind;

    #[test]
    fn the_form_is_that_of_the_protocol() {
        let at = |ns: u64| UNIX_EPOCH + Duration::from_nanos(ns);
        let failed = Span {
            trace_id: 0x5b8e_fff7_9803_8103_d269_b633_813f_c60c,
            span_id: 0xeee1_9b7e_c3c1_b174,
            parent: Some(0xeee1_9b7e_c3c1_b173),
            name: "chat m".to_owned(),
            kind: SpanKind::Client,
            start: at(1_544_712_660_000_000_000),
            end: at(1_544_712_661_000_000_000),
            attributes: vec![
                ("gen_ai.request.model", "m".into()),
                ("gen_ai.usage.input_tokens", Value::Int(7)),
                ("cema.predicted.quality", Value::Double(0.5)),
            ],
            error: Some("timeout"),
        };
        let request = export_request(&[failed]);
        assert_eq!(
            request["resourceSpans"][0]["resource"]["attributes"][0],
            json!({"key": "service.name", "value": {"stringValue": "cema-router"}})
        );
        assert_eq!(
            request["resourceSpans"][0]["scopeSpans"][0]["spans"],
            json!([{
                "traceId": "5b8efff798038103d269b633813fc60c",
                "spanId": "eee19b7ec3c1b174",
                "parentSpanId": "eee19b7ec3c1b173",
                "name": "chat m",
                "kind": 3,
                "startTimeUnixNano": "1544712660000000000",
                "endTimeUnixNano": "1544712661000000000",
                "attributes": [
                    {"key": "gen_ai.request.model", "value": {"stringValue": "m"}},
                    {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "7"}},
                    {"key": "cema.predicted.quality", "value": {"doubleValue": 0.5}},
                ],
                "status": {"code": 2, "message": "timeout"},
            }])
        );
    }
}
