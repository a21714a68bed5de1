//! The part of JSON Schema that answers of models are held against.
//!
//! What is not here is refused when the schema is read, so that no keyword is silently without effect.

use regex::Regex;
use serde_json::{Map, Value};

/// Levels of a schema.
const DEPTH_MAX: usize = 32;

/// Keywords that say nothing of a value.
const ANNOTATIONS: [&str; 6] = ["$schema", "$id", "title", "description", "default", "examples"];

/// A schema, checked.
#[derive(Debug, Clone)]
pub struct Schema(Node);

/// Why a schema cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`schema`{at}: {problem}")]
pub struct SchemaError {
    /// Where, as a JSON pointer.
    at: String,
    problem: String,
}

/// A schema of one place. `None` and empty lists = no constraint.
#[derive(Debug, Clone, Default)]
struct Node {
    never: bool,
    types: Vec<&'static str>,
    values: Option<Vec<Value>>,
    properties: Vec<(String, Node)>,
    required: Vec<String>,
    others: Option<Box<Node>>,
    items: Option<Box<Node>>,
    /// Least and most of: numbers, lengths of texts, of lists.
    number: [Option<f64>; 2],
    text: [Option<f64>; 2],
    list: [Option<f64>; 2],
    pattern: Option<Regex>,
}

const TYPES: [&str; 7] = ["object", "array", "string", "number", "integer", "boolean", "null"];

impl Schema {
    /// Reads a schema made of `type`, `enum`, `const`, `properties`, `required`, `additionalProperties`, `items`,
    /// `minimum`, `maximum`, `minLength`, `maxLength`, `minItems`, `maxItems` and `pattern`.
    ///
    /// # Errors
    /// What is not understood.
    pub fn new(schema: &Value) -> Result<Self, SchemaError> {
        read(schema, "", 0).map(Self)
    }

    /// Whether `value` is as the schema has it.
    #[must_use]
    pub fn accepts(&self, value: &Value) -> bool {
        self.0.accepts(value)
    }
}

fn error(at: &str, problem: impl Into<String>) -> SchemaError {
    SchemaError { at: at.to_owned(), problem: problem.into() }
}

fn read(schema: &Value, at: &str, depth: usize) -> Result<Node, SchemaError> {
    if depth > DEPTH_MAX {
        return Err(error(at, format!("more than {DEPTH_MAX} levels")));
    }
    let keywords = match schema {
        Value::Bool(accepts) => return Ok(Node { never: !accepts, ..Node::default() }),
        Value::Object(keywords) => keywords,
        _ => return Err(error(at, "must be an object or a boolean")),
    };
    let mut node = Node::default();
    for (keyword, value) in keywords {
        let at = format!("{at}/{keyword}");
        match keyword.as_str() {
            "type" => node.types = read_types(value, &at)?,
            "enum" => node.values = Some(list(value, &at)?.clone()),
            "const" => node.values = Some(vec![value.clone()]),
            "properties" => {
                let of = |(name, schema): (&String, &Value)| {
                    Ok((name.clone(), read(schema, &format!("{at}/{name}"), depth + 1)?))
                };
                node.properties = object(value, &at)?.iter().map(of).collect::<Result<_, _>>()?;
            }
            "required" => {
                let name = |name: &Value| {
                    name.as_str().map(str::to_owned).ok_or_else(|| error(&at, "must be a list of names"))
                };
                node.required = list(value, &at)?.iter().map(name).collect::<Result<_, _>>()?;
            }
            "additionalProperties" => node.others = Some(Box::new(read(value, &at, depth + 1)?)),
            "items" => node.items = Some(Box::new(read(value, &at, depth + 1)?)),
            "minimum" => node.number[0] = Some(number(value, &at)?),
            "maximum" => node.number[1] = Some(number(value, &at)?),
            "minLength" => node.text[0] = Some(number(value, &at)?),
            "maxLength" => node.text[1] = Some(number(value, &at)?),
            "minItems" => node.list[0] = Some(number(value, &at)?),
            "maxItems" => node.list[1] = Some(number(value, &at)?),
            "pattern" => {
                let pattern = value.as_str().and_then(|pattern| Regex::new(pattern).ok());
                node.pattern = Some(pattern.ok_or_else(|| error(&at, "is no regular expression"))?);
            }
            name if ANNOTATIONS.contains(&name) => {}
            name => return Err(error(&at, format!("keyword `{name}` is not supported"))),
        }
    }
    Ok(node)
}

fn read_types(value: &Value, at: &str) -> Result<Vec<&'static str>, SchemaError> {
    let one = |value: &Value| {
        let known = value.as_str().and_then(|name| TYPES.into_iter().find(|known| *known == name));
        known.ok_or_else(|| error(at, format!("must be one of {}", TYPES.join(", "))))
    };
    match value {
        Value::Array(all) => all.iter().map(one).collect(),
        value => Ok(vec![one(value)?]),
    }
}

fn list<'a>(value: &'a Value, at: &str) -> Result<&'a Vec<Value>, SchemaError> {
    value.as_array().ok_or_else(|| error(at, "must be a list"))
}

fn object<'a>(value: &'a Value, at: &str) -> Result<&'a Map<String, Value>, SchemaError> {
    value.as_object().ok_or_else(|| error(at, "must be an object"))
}

fn number(value: &Value, at: &str) -> Result<f64, SchemaError> {
    value.as_f64().ok_or_else(|| error(at, "must be a number"))
}

impl Node {
    fn accepts(&self, value: &Value) -> bool {
        let is_typed = self.types.is_empty() || self.types.iter().any(|name| is_of_type(value, name));
        let is_listed =
            self.values.as_ref().is_none_or(|values| values.iter().any(|one| is_equal(one, value)));
        !self.never && is_typed && is_listed && self.accepts_inside(value)
    }

    fn accepts_inside(&self, value: &Value) -> bool {
        match value {
            Value::Object(members) => {
                self.required.iter().all(|name| members.contains_key(name))
                    && members.iter().all(|(name, member)| {
                        let known = self.properties.iter().find(|(known, _)| known == name);
                        let node = known.map(|(_, node)| node).or(self.others.as_deref());
                        node.is_none_or(|node| node.accepts(member))
                    })
            }
            Value::Array(items) => {
                is_within(items.len() as f64, self.list)
                    && self.items.as_ref().is_none_or(|node| items.iter().all(|item| node.accepts(item)))
            }
            Value::String(text) => {
                is_within(text.chars().count() as f64, self.text)
                    && self.pattern.as_ref().is_none_or(|pattern| pattern.is_match(text))
            }
            Value::Number(number) => is_within(number.as_f64().unwrap_or(f64::NAN), self.number),
            Value::Bool(_) | Value::Null => true,
        }
    }
}

fn is_within(value: f64, [least, most]: [Option<f64>; 2]) -> bool {
    least.is_none_or(|least| value >= least) && most.is_none_or(|most| value <= most)
}

fn is_of_type(value: &Value, name: &str) -> bool {
    match value {
        Value::Object(_) => name == "object",
        Value::Array(_) => name == "array",
        Value::String(_) => name == "string",
        Value::Bool(_) => name == "boolean",
        Value::Null => name == "null",
        // 1.0 is an integer too.
        Value::Number(n) => {
            name == "number"
                || (name == "integer" && n.as_f64().is_some_and(|n| n.fract().abs() < f64::EPSILON))
        }
    }
}

/// As JSON Schema has it: 1 and 1.0 are one number.
fn is_equal(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a.total_cmp(&b).is_eq(),
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_keyword_has_its_effect() {
        let schema = Schema::new(&json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "required": ["name", "age"],
            "additionalProperties": false,
            "properties": {
                "name": {"type": "string", "minLength": 2, "maxLength": 4, "pattern": "^[a-z]+$"},
                "age": {"type": "integer", "minimum": 0, "maximum": 150},
                "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 2},
                "kind": {"const": 1},
                "note": {"type": ["string", "null"]},
            },
        }))
        .unwrap();
        let good = json!({"name": "bob", "age": 3.0, "tags": ["a"], "kind": 1.0, "note": null});
        assert!(schema.accepts(&good));
        for (member, bad) in [
            ("name", json!("b")),
            ("name", json!("bobby")),
            ("name", json!("Bob")),
            ("name", json!(1)),
            ("age", json!(-1)),
            ("age", json!(151)),
            ("age", json!(1.5)),
            ("tags", json!([])),
            ("tags", json!(["a", "b", "a"])),
            ("tags", json!(["c"])),
            ("kind", json!(2)),
            ("note", json!(false)),
            ("other", json!(1)),
        ] {
            let mut value = good.clone();
            value[member] = bad;
            assert!(!schema.accepts(&value), "{value}");
        }
        assert!(!schema.accepts(&json!({"name": "bob"})) && !schema.accepts(&json!([])));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for (schema, said) in [
            (json!({"properties": {"a": {"oneOf": []}}}), "`schema`/properties/a/oneOf: keyword `oneOf`"),
            (json!({"type": "text"}), "/type: must be one of object"),
            (json!({"required": "a"}), "/required: must be a list"),
            (json!({"items": 7}), "/items: must be an object or a boolean"),
            (json!({"pattern": "("}), "no regular expression"),
            (json!({"minimum": "1"}), "must be a number"),
        ] {
            let error = Schema::new(&schema).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        let mut deep = json!(true);
        for _ in 0..100 {
            deep = json!({"items": deep});
        }
        assert!(Schema::new(&deep).unwrap_err().to_string().contains("levels"));
    }
}
