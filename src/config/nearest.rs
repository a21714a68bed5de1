//! The known name a mistyped one most likely meant.

/// Longest name compared; a longer one is no typing error.
const MAX_LEN: usize = 64;

/// The one of `known` with the fewest edits from `name`, if it is near enough to be what was meant.
pub(super) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > MAX_LEN {
        return None;
    }
    let (edits, best) =
        known.into_iter().map(|k| (edit_distance(name, k), k)).min_by_key(|(edits, _)| *edits)?;
    // Half the letters may be wrong: `max_wait_ms` still finds `max_ms`, `foo` finds nothing.
    (2 * edits <= name.len().max(best.len())).then_some(best)
}

/// Insertions, deletions and substitutions that turn `a` into `b` (Levenshtein), in characters.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_those_of_the_textbook() {
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("größe", "grosse"), 3);
        assert_eq!(edit_distance("listen", "listen"), 0);
    }

    #[test]
    fn only_a_likely_name_is_offered() {
        let keys = ["max_ms", "max_requests", "close"];
        assert_eq!(nearest("max_mss", keys), Some("max_ms"));
        assert_eq!(nearest("MAX_REQUEST", ["max_requests"]), None);
        assert_eq!(nearest("clsoe", keys), Some("close"));
        assert_eq!(nearest("zzz", keys), None);
        assert_eq!(nearest("x", []), None);
        assert_eq!(nearest(&"max_ms".repeat(1_000), keys), None);
    }
}
