//! From an answer to a score.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use super::schema::Schema;

/// Numbers this near each other, relatively, are the same.
const NUMBER_TOLERANCE: f64 = 1e-6;

/// How an answer is scored.
#[derive(Debug, Clone)]
pub enum Grader {
    /// The number it ends with is one of these.
    Number(Vec<f64>),
    /// The letter it chooses is one of these.
    Choice(Vec<char>),
    /// It is one of these, but for white space around and between words.
    Exact(Vec<String>),
    /// It contains one of these, upper or lower case.
    Contains(Vec<String>),
    /// The pattern occurs in it.
    Regex(Regex),
    /// It is JSON as the schema has it, in a code block or not.
    Schema(Schema),
    /// A model judges it.
    Judge {
        /// What makes an answer good.
        rubric: String,
        /// A right answer, where there is one.
        reference: Option<String>,
    },
}

/// A number, thousands separated by commas or not.
static NUMBER: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|-?\.\d+").ok());
/// `answer is (C)`, `Answer: C`, `answer is **C**`.
static NAMED_CHOICE: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"(?i:answer(?:\s+is)?\s*:?)\s*[*_(\[]*([A-J])(?:\W|$)").ok());
/// `C`, `(C)`, `C. because`, `**C**`: at the beginning, and not the article of a sentence.
static FIRST_CHOICE: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"^[\s*_(\[]*([A-J])(?:[\s*_]*[).:,\]\n]|[\s*_]*$)").ok());
/// `(C)` anywhere.
static ENCLOSED_CHOICE: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"\(([A-J])\)").ok());

impl Grader {
    /// [`Grader::Number`] of texts that are numbers.
    ///
    /// # Errors
    /// The text that is none.
    pub fn number(answers: &[String]) -> Result<Self, String> {
        let read = |text: &String| last_number(text).ok_or_else(|| format!("`answer` {text:?} is no number"));
        Ok(Self::Number(answers.iter().map(read).collect::<Result<_, _>>()?))
    }

    /// [`Grader::Choice`] of texts that are a letter from A to J.
    ///
    /// # Errors
    /// The text that is none.
    pub fn choice(answers: &[String]) -> Result<Self, String> {
        let read = |text: &String| {
            let mut chars = text.trim().chars();
            let letter = chars.next().filter(|c| ('A'..='J').contains(c) && chars.next().is_none());
            letter.ok_or_else(|| format!("`answer` {text:?} is no letter from A to J"))
        };
        Ok(Self::Choice(answers.iter().map(read).collect::<Result<_, _>>()?))
    }

    /// Name of the way of scoring.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Number(_) => "number",
            Self::Choice(_) => "choice",
            Self::Exact(_) => "exact",
            Self::Contains(_) => "contains",
            Self::Regex(_) => "regex",
            Self::Schema(_) => "json_schema",
            Self::Judge { .. } => "judge",
        }
    }

    /// The score of `answer`, 0 or 1; `None` where it takes a judge. What a model thinks before it answers
    /// (`<think>…</think>`) does not count.
    #[must_use]
    pub fn grade(&self, answer: &str) -> Option<f64> {
        let answer = without_thoughts(answer);
        let is_right =
            match self {
                Self::Number(wanted) => final_number(answer)
                    .is_some_and(|found| wanted.iter().any(|wanted| is_same(found, *wanted))),
                Self::Choice(wanted) => chosen(answer).is_some_and(|found| wanted.contains(&found)),
                Self::Exact(wanted) => {
                    let answer = words(answer);
                    wanted.iter().any(|wanted| words(wanted) == answer)
                }
                Self::Contains(wanted) => {
                    let answer = answer.to_lowercase();
                    wanted.iter().any(|wanted| answer.contains(&wanted.to_lowercase()))
                }
                Self::Regex(pattern) => pattern.is_match(answer),
                Self::Schema(schema) => serde_json::from_str::<Value>(without_fence(answer))
                    .is_ok_and(|value| schema.accepts(&value)),
                Self::Judge { .. } => return None,
            };
        Some(if is_right { 1.0 } else { 0.0 })
    }
}

/// What follows the thoughts of a model that shows them; nothing if it never came to an end with them.
pub(super) fn without_thoughts(answer: &str) -> &str {
    match answer.rsplit_once("</think>") {
        Some((_, rest)) => rest,
        None if answer.trim_start().starts_with("<think>") => "",
        None => answer,
    }
}

/// The number after the last `####` or in the last `\boxed{}`, else the last one.
fn final_number(answer: &str) -> Option<f64> {
    let marked = answer.rsplit_once("####").map(|(_, rest)| rest);
    let boxed = || answer.rsplit_once("\\boxed{").and_then(|(_, rest)| Some(rest.split_once('}')?.0));
    // After the mark comes one number; what follows it is talk.
    marked
        .and_then(|rest| numbers(rest).next())
        .or_else(|| last_number(boxed()?))
        .or_else(|| last_number(answer))
}

pub(super) fn last_number(text: &str) -> Option<f64> {
    numbers(text).last()
}

fn numbers(text: &str) -> impl Iterator<Item = f64> {
    let found = NUMBER.as_ref().into_iter().flat_map(move |pattern| pattern.find_iter(text));
    found.filter_map(|found| found.as_str().replace(',', "").parse().ok())
}

fn is_same(a: f64, b: f64) -> bool {
    (a - b).abs() <= NUMBER_TOLERANCE * b.abs().max(1.0)
}

/// The letter that an answer chooses.
fn chosen(answer: &str) -> Option<char> {
    let letter = |found: &str| found.chars().next();
    let whole = answer.trim().trim_end_matches('.');
    if whole.len() == 1 {
        return letter(whole).map(|c| c.to_ascii_uppercase()).filter(|c| ('A'..='J').contains(c));
    }
    let last = |pattern: &LazyLock<Option<Regex>>| {
        let found = pattern.as_ref().and_then(|pattern| pattern.captures_iter(answer).last())?;
        letter(&found[1])
    };
    last(&NAMED_CHOICE).or_else(|| last(&FIRST_CHOICE)).or_else(|| last(&ENCLOSED_CHOICE))
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What stands in a Markdown code block, if there is one.
fn without_fence(answer: &str) -> &str {
    let Some((_, rest)) = answer.split_once("```") else { return answer };
    let rest = rest.split_once('\n').map_or(rest, |(_, rest)| rest);
    rest.split_once("```").map_or(rest, |(inside, _)| inside)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_right(grader: &Grader, answer: &str) -> bool {
        grader.grade(answer).unwrap() > 0.5
    }

    fn number(answer: &str) -> Grader {
        Grader::number(&[answer.to_owned()]).unwrap()
    }

    #[test]
    fn a_number_is_the_one_an_answer_ends_with() {
        for right in [
            "#### 1,250",
            "It is 7 + 8... #### 1250 dollars, not 3",
            "So the answer is $1,250.00.",
            "1250",
            "\\boxed{1250} is it, of 2 choices",
            "<think>#### 9</think> #### 1250",
            "first 1, then 1,250",
        ] {
            assert!(is_right(&number("1250"), right), "{right}");
        }
        for wrong in ["1250 or 1251", "#### 12", "no idea", "", "<think>it is 1250", "12.50", "#### -1250"] {
            assert!(!is_right(&number("1250"), wrong), "{wrong}");
        }
        assert!(is_right(&number("-3.5"), "x = -3.50") && is_right(&number("0.5"), "about .5"));
    }

    #[test]
    fn a_choice_is_the_letter_named_first_or_as_the_answer() {
        let c = Grader::choice(&["C".to_owned()]).unwrap();
        for right in [
            "C",
            " c ",
            "C.",
            "(C)",
            "C) because A is wrong",
            "**C**",
            "C. red\n",
            "C\nas B is not",
            "The answer is C.",
            "Answer: (C)",
            "A is tempting, but the correct answer is **C**",
            "I would say (C), I think",
        ] {
            assert!(is_right(&c, right), "{right}");
        }
        for wrong in ["A", "B. C", "Clearly", "A man, a plan", "", "K", "The answer is D, not C", "AC"] {
            assert!(!is_right(&c, wrong), "{wrong}");
        }
    }

    #[test]
    fn texts_are_compared_as_they_say() {
        let exact = Grader::Exact(vec!["New  York".into(), "NYC".into()]);
        assert!(is_right(&exact, " New\nYork ") && is_right(&exact, "NYC") && !is_right(&exact, "new york"));
        let contains = Grader::Contains(vec!["paris".into()]);
        assert!(is_right(&contains, "It is PARIS, of course") && !is_right(&contains, "Rome"));
        let regex = Grader::Regex(Regex::new(r"^\d{4}-\d{2}$").unwrap());
        assert!(is_right(&regex, "2024-05") && !is_right(&regex, "on 2024-05"));
        let schema = serde_json::json!({"type": "object", "required": ["a"]});
        let schema = Grader::Schema(Schema::new(&schema).unwrap());
        assert!(
            is_right(&schema, r#" {"a":1} "#) && is_right(&schema, "Here:\n```json\n{\"a\":1}\n```\nDone.")
        );
        assert!(!is_right(&schema, "{}") && !is_right(&schema, "{\"a\":") && !is_right(&schema, ""));
        assert_eq!(Grader::Judge { rubric: String::new(), reference: None }.grade("x"), None);
    }

    proptest! {
        #[test]
        fn any_answer_has_a_score(answer in any::<String>()) {
            for grader in [number("1"), Grader::Choice(vec!['A']), Grader::Contains(vec!["x".into()])] {
                let score = grader.grade(&answer).unwrap();
                prop_assert!(score.abs() < 1e-12 || (score - 1.0).abs() < 1e-12);
            }
        }

        #[test]
        fn a_number_written_with_commas_is_the_same(n in 0u32..2_000_000_000) {
            let digits = n.to_string();
            let grouped: Vec<&str> = digits.as_bytes().rchunks(3).rev()
                .map(|group| std::str::from_utf8(group).unwrap()).collect();
            let answer = format!("so it is {} in all", grouped.join(","));
            let is_right = is_right(&number(&digits), &answer);
            prop_assert!(is_right, "{answer}");
        }
    }
}
