//! `GET /v1/models`: the models clients may ask for.

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::domain::Capabilities;
use crate::request_manager::admission::Offer;

/// One model as OpenAI describes it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Model {
    /// The name to put into `model`.
    pub id: String,
    object: &'static str,
    /// Unix time in seconds.
    pub created: u64,
    /// Who offers it.
    pub owned_by: String,
    /// Further keys; clients keep them, some read `max_model_len`.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Model {
    /// A model called `id` that this router offers since `created` (Unix seconds).
    #[must_use]
    pub fn new(id: impl Into<String>, created: u64) -> Self {
        Self { id: id.into(), object: "model", created, owned_by: "cema-router".into(), extra: Map::new() }
    }

    /// Says what is behind the name, in keys beyond OpenAI's: `max_model_len` as vLLM does, where it is known, and
    /// `capabilities` by their names in the configuration.
    #[must_use]
    pub fn offering(mut self, offer: &Offer) -> Self {
        if let Some(context) = offer.context {
            self.extra.insert("max_model_len".to_owned(), json!(context.get() as u64));
        }
        let named =
            Capabilities::NAMED.iter().filter(|(_, capability)| offer.capabilities.offers(*capability));
        let names: Vec<&str> = named.map(|(name, _)| *name).collect();
        self.extra.insert("capabilities".to_owned(), json!(names));
        self
    }

    /// The body of `GET /v1/models/{id}`.
    #[must_use]
    pub fn to_body(&self) -> Bytes {
        to_json(self)
    }
}

/// All models, on one page.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelList {
    data: Vec<Model>,
}

#[derive(Serialize)]
struct Page<'a> {
    object: &'static str,
    data: Vec<&'a Model>,
}

impl ModelList {
    /// The list of `models`, in the order clients are to see.
    #[must_use]
    pub const fn new(models: Vec<Model>) -> Self {
        Self { data: models }
    }

    /// The model called `id`, percent-decoded by the caller.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<&Model> {
        self.data.iter().find(|model| model.id == id)
    }

    /// The body of `GET /v1/models` with the models that `is_shown` picks by id.
    #[must_use]
    pub fn to_body(&self, is_shown: impl Fn(&str) -> bool) -> Bytes {
        let data: Vec<&Model> = self.data.iter().filter(|model| is_shown(&model.id)).collect();
        to_json(&Page { object: "list", data })
    }
}

/// Serialises a type whose keys are strings, which cannot fail.
fn to_json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Tokens;

    #[test]
    fn bodies_are_those_of_openai() {
        let list = ModelList::new(vec![
            Model::new("auto", 1_700_000_000),
            Model::new("acme/x", 1_700_000_000).offering(&Offer {
                context: Some(Tokens(8192.0)),
                capabilities: Capabilities::CHAT.with(Capabilities::JSON),
            }),
        ]);
        let auto = r#"{"id":"auto","object":"model","created":1700000000,"owned_by":"cema-router"}"#;
        let x = r#"{"id":"acme/x","object":"model","created":1700000000,"owned_by":"cema-router","capabilities":["chat","json"],"max_model_len":8192}"#;
        assert_eq!(list.to_body(|_| true), format!(r#"{{"object":"list","data":[{auto},{x}]}}"#));
        assert_eq!(list.to_body(|id| id != "auto"), format!(r#"{{"object":"list","data":[{x}]}}"#));
        assert_eq!(list.get("acme/x").unwrap().to_body(), x);
        assert_eq!(list.get("acme"), None);
        assert_eq!(ModelList::new(Vec::new()).to_body(|_| true), r#"{"object":"list","data":[]}"#);
    }
}
