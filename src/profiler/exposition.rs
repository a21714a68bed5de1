//! Reads the Prometheus text format (0.0.4, and what OpenMetrics adds at the end of a line).
//!
//! An exporter's page is foreign text: a line that cannot be read is passed over, so that one odd metric does not
//! hide the others. Comments (`# HELP`, `# TYPE`) are passed over too; callers know what their metrics mean.

use std::borrow::Cow;

/// One sample: `name{label="value"} 1.5`.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample<'a> {
    /// Name of the metric, of a histogram with its suffix (`…_bucket`, `…_sum`, `…_count`).
    pub name: &'a str,
    /// In the order of the line, unescaped.
    pub labels: Vec<(&'a str, Cow<'a, str>)>,
    /// As written: may be NaN or infinite.
    pub value: f64,
}

impl Sample<'_> {
    /// Value of the label `name`.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| *label == name).map(|(_, value)| &**value)
    }
}

/// The samples of a page, in its order.
pub fn samples(text: &str) -> impl Iterator<Item = Sample<'_>> {
    text.lines().filter_map(sample)
}

fn sample(line: &str) -> Option<Sample<'_>> {
    let line = trimmed(line);
    let (name, rest) = split_name(line, |c| c == ':')?;
    let (labels, rest) = match trimmed(rest).strip_prefix('{') {
        Some(inside) => split_labels(inside)?,
        None if rest.starts_with(BLANK) => (Vec::new(), rest),
        None => return None,
    };
    Some(Sample { name, labels, value: value(rest)? })
}

const BLANK: [char; 2] = [' ', '\t'];

fn trimmed(text: &str) -> &str {
    text.trim_matches(BLANK)
}

/// The name that `text` begins with, and what follows; `extra` are characters allowed beside letters, digits
/// and `_`.
fn split_name(text: &str, extra: fn(char) -> bool) -> Option<(&str, &str)> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || extra(c);
    let end = text.find(|c| !is_of_name(c)).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let is_name = name.starts_with(|c: char| !c.is_ascii_digit());
    is_name.then_some((name, rest))
}

type Labels<'a> = Vec<(&'a str, Cow<'a, str>)>;

/// The labels up to the closing brace, and what follows it.
fn split_labels(mut text: &str) -> Option<(Labels<'_>, &str)> {
    let mut labels = Vec::new();
    loop {
        text = trimmed(text);
        if let Some(rest) = text.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, rest) = split_name(text, |_| false)?;
        let quoted = trimmed(trimmed(rest).strip_prefix('=')?).strip_prefix('"')?;
        let (value, rest) = split_quoted(quoted)?;
        labels.push((name, value));
        let rest = trimmed(rest);
        text = match rest.strip_prefix(',') {
            Some(next) => next,
            None if rest.starts_with('}') => rest,
            None => return None,
        };
    }
}

/// A label's value up to the closing quote, unescaped, and what follows it.
fn split_quoted(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let mut is_escaped = false;
    let end = text.find(|c| {
        let is_end = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        is_end
    })?;
    let (raw, rest) = (&text[..end], &text[end + 1..]);
    let value = if raw.contains('\\') { Cow::Owned(unescaped(raw)) } else { Cow::Borrowed(raw) };
    Some((value, rest))
}

/// `\\`, `\"` and `\n` are escapes; a backslash before anything else stands for itself.
fn unescaped(raw: &str) -> String {
    let mut value = String::with_capacity(raw.len());
    let mut chars = raw.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            value.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => value.push('\n'),
            Some(escaped @ ('\\' | '"')) => value.push(escaped),
            Some(other) => value.extend(['\\', other]),
            None => value.push('\\'),
        }
    }
    value
}

/// The value; a time stamp or an exemplar may follow.
fn value(text: &str) -> Option<f64> {
    let mut words = text.split(BLANK).filter(|word| !word.is_empty());
    let value = words.next()?.parse().ok()?;
    match words.next() {
        None => Some(value),
        Some(word) if word.starts_with('#') || word.parse::<f64>().is_ok() => Some(value),
        Some(_) => None,
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "a value that is read back is the very same")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one(line: &str) -> Sample<'_> {
        samples(line).next().unwrap()
    }

    #[test]
    fn a_page_of_dcgm_exporter() {
        let page = "# HELP DCGM_FI_DEV_POWER_USAGE Power draw (in W).\n\
            # TYPE DCGM_FI_DEV_POWER_USAGE gauge\n\
            DCGM_FI_DEV_POWER_USAGE{gpu=\"0\",UUID=\"GPU-1\",modelName=\"NVIDIA A100\"} 61.5\n\
            DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu=\"0\",UUID=\"GPU-1\"} 9223372036854775794\n";
        let read: Vec<_> = samples(page).collect();
        assert_eq!(read.len(), 2);
        assert_eq!((read[0].name, read[0].value), ("DCGM_FI_DEV_POWER_USAGE", 61.5));
        assert_eq!(read[0].label("modelName"), Some("NVIDIA A100"));
        assert_eq!(read[0].label("model"), None);
        assert!(read[1].value > 9.2e18);
    }

    #[test]
    fn names_with_colons_and_lines_without_labels() {
        let sample = one("llamacpp:requests_processing 3");
        assert_eq!((sample.name, sample.value), ("llamacpp:requests_processing", 3.0));
        assert_eq!(one("up{} 1").labels, []);
    }

    #[test]
    fn blanks_and_a_last_comma_do_no_harm() {
        let sample = one("  m { a = \"1\" , le=\"+Inf\", }\t2e-3  \r\n");
        assert_eq!((sample.label("a"), sample.label("le")), (Some("1"), Some("+Inf")));
        assert_eq!(sample.value, 2e-3);
    }

    #[test]
    fn labels_are_unescaped() {
        let sample = one(r#"m{path="C:\\x",quote="say \"hi\"",lines="a\nb",odd="\d",tail="\\"} 1"#);
        let labels: Vec<_> = sample.labels.iter().map(|(_, value)| &**value).collect();
        assert_eq!(labels, ["C:\\x", "say \"hi\"", "a\nb", "\\d", "\\"]);
        assert_eq!(one("m{a=\"}, b=\"} 1").label("a"), Some("}, b="), "quotes hide braces and commas");
    }

    #[test]
    fn not_a_number_and_infinities_are_values() {
        assert!(one("m NaN").value.is_nan());
        assert_eq!(one("m +Inf").value, f64::INFINITY);
        assert_eq!(one("m{a=\"b\"} -Inf").value, f64::NEG_INFINITY);
    }

    #[test]
    fn time_stamps_and_exemplars_are_passed_over() {
        assert_eq!(one("m 7 1395066363000").value, 7.0);
        assert_eq!(one("m_bucket{le=\"1\"} 7 # {trace_id=\"x\"} 0.5 1.5").value, 7.0);
    }

    #[test]
    fn lines_that_cannot_be_read_hide_no_others() {
        let garbage = [
            "",
            "   ",
            "m",
            "m ",
            "m x",
            "m 1 x",
            "{} 1",
            "1m 1",
            "m{a} 1",
            "m{a=} 1",
            "m{a=\"b} 1",
            "m{a=\"b\"",
            "m{a=\"b\"c=\"d\"} 1",
            "m-n 1",
            "<html>",
            "# EOF",
            "é 1",
        ];
        for line in garbage {
            let page = format!("before 1\n{line}\nafter 2");
            let names: Vec<_> = samples(&page).map(|sample| sample.name).collect();
            assert_eq!(names, ["before", "after"], "{line:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_harm(text in "[m{}=\",\\\\#\n 0-9.é-]{0,80}") {
            for sample in samples(&text) {
                prop_assert!(!sample.name.is_empty());
            }
        }

        #[test]
        fn what_is_escaped_is_read_back(label in "[a\\\\\"\n} ,=]{0,20}", value in any::<f64>()) {
            let escaped = label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let line = format!("m{{l=\"{escaped}\"}} {value}");
            let sample = samples(&line).next().unwrap();
            prop_assert_eq!(sample.label("l"), Some(&*label));
            prop_assert!(sample.value == value || sample.value.is_nan() && value.is_nan());
        }
    }
}
