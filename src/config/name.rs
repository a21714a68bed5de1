//! Names that operators give: they travel in ids, headers, URL paths and metric labels.

use std::sync::Arc;

use super::reader::Field;

/// Longest name.
const MAX_NAME: usize = 128;

/// A name of a node, endpoint or key: no slash, since slashes separate the parts of a destination id.
pub(super) fn plain_name(field: &Field<'_>) -> Option<Arc<str>> {
    named(field, "up to 128 visible ASCII characters without `/`", |name| !name.contains('/'))
}

/// A public model name, which may have slashes inside.
pub(super) fn model_name(field: &Field<'_>) -> Option<Arc<str>> {
    named(field, "up to 128 visible ASCII characters, not starting or ending with `/`", |name| {
        !name.starts_with('/') && !name.ends_with('/')
    })
}

fn named(field: &Field<'_>, allowed: &str, accept: impl Fn(&str) -> bool) -> Option<Arc<str>> {
    let name = field.text(allowed)?;
    let visible = name.len() <= MAX_NAME && name.bytes().all(|b| b.is_ascii_graphic());
    if !visible || !accept(name) {
        field.fault("not usable as a name", allowed);
        return None;
    }
    Some(name.into())
}
