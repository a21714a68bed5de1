//! Questions with known answers: those that come with the program, and files of an operator's own.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read};

use flate2::read::MultiGzDecoder;
use regex::RegexBuilder;
use serde::Deserialize;
use serde_json::Value;

use super::grade::Grader;
use super::judge::Judge;
use super::schema::Schema;
use crate::calibrate::course::Volume;
use crate::domain::named::named_enum;

/// Longest line of a file.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// Most rows of a file.
const ROWS_MAX: usize = 100_000;
/// Largest compiled regular expression.
const REGEX_BYTES_MAX: usize = 1 << 20;
/// Longest completion that may be asked for.
const COMPLETION_TOKENS_MAX: u32 = 131_072;
/// Most choices of a question.
const CHOICES_MAX: usize = 10;

/// Tokens that a chat template adds.
const TEMPLATE_TOKENS: u32 = 64;

/// Completion tokens where a row does not say: room to reason, and for an answer of a few words.
const TOKENS_TO_REASON: u32 = 400;
const TOKENS_TO_ANSWER: u32 = 32;
const TOKENS_TO_WRITE: u32 = 512;

named_enum! {
    /// Questions that come with the program.
    pub enum ShippedWorkload {
        /// 120 of GSM8K's test: grade-school mathematics, the answer a number.
        Gsm8k = "gsm8k",
        /// 114 of MMLU's test, two of each subject: the answer one of four letters.
        Mmlu = "mmlu",
    }
}

/// One question.
#[derive(Debug, Clone)]
pub struct Question {
    /// Unique in its workload.
    pub id: String,
    /// The user message, as sent.
    pub prompt: String,
    /// How an answer is scored.
    pub grader: Grader,
    /// Completion tokens asked for at most.
    pub completion_tokens_max: u32,
    /// Benchmark it belongs to.
    pub benchmark: Option<String>,
    /// Task within the benchmark.
    pub task: Option<String>,
    /// Where it comes from.
    pub source: Option<String>,
    /// Licence of the text.
    pub license: Option<String>,
}

/// Questions, checked.
#[derive(Debug, Clone, Default)]
pub struct Workload {
    /// In the order of the file.
    pub questions: Vec<Question>,
    /// Rows that are none.
    pub faults: Vec<RowFault>,
}

/// A row that is no question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowFault {
    /// Line of the file, from 1.
    pub row: usize,
    /// What is wrong with it.
    pub reason: String,
}

/// Why there is no workload.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The file cannot be read to its end.
    #[error("line {row} cannot be read: {source}")]
    Read {
        /// Line of the file, from 1.
        row: usize,
        /// Why.
        source: std::io::Error,
    },
    /// There is too much of it.
    #[error("it has more than {ROWS_MAX} rows; split it")]
    TooLong,
}

/// A row as it stands in a file.
#[derive(Deserialize)]
struct RawRow {
    id: String,
    prompt: Option<String>,
    question: Option<String>,
    #[serde(default)]
    choices: Vec<String>,
    answer: Option<Value>,
    scorer: Option<String>,
    schema: Option<Value>,
    rubric: Option<String>,
    max_tokens: Option<u32>,
    benchmark: Option<String>,
    task: Option<String>,
    subject: Option<String>,
    source: Option<String>,
    license: Option<String>,
}

/// Tokens of a prompt of so many bytes at most, chat template included. Half a token a byte is more than any usual text
/// has.
pub(super) fn prompt_tokens_max(n_bytes: usize) -> u32 {
    u32::try_from(n_bytes / 2).unwrap_or(u32::MAX).saturating_add(TEMPLATE_TOKENS)
}

impl Question {
    /// What asking it takes at most.
    #[must_use]
    pub fn volume(&self) -> Volume {
        Volume::of(1, prompt_tokens_max(self.prompt.len()), self.completion_tokens_max)
    }

    /// What judging its answer takes at most, where that takes a judge.
    #[must_use]
    pub fn judge_volume(&self) -> Option<Volume> {
        let Grader::Judge { rubric, reference } = &self.grader else { return None };
        let n_bytes = self.prompt.len() + rubric.len() + reference.as_ref().map_or(0, String::len);
        Some(Judge::volume(n_bytes, self.completion_tokens_max))
    }
}

impl Workload {
    /// The questions called `which`.
    ///
    /// # Errors
    /// Never, unless the program was built with damaged data.
    pub fn shipped(which: ShippedWorkload) -> Result<Self, WorkloadError> {
        let bytes: &'static [u8] = match which {
            ShippedWorkload::Gsm8k => include_bytes!("../../../data/gsm8k-120.jsonl.gz"),
            ShippedWorkload::Mmlu => include_bytes!("../../../data/mmlu-114.jsonl.gz"),
        };
        Self::read(bytes)
    }

    /// Reads JSON lines, plain or gzip. Rows that are no questions are kept apart; blank lines are nothing.
    ///
    /// # Errors
    /// See [`WorkloadError`].
    pub fn read(file: impl Read) -> Result<Self, WorkloadError> {
        let mut file = BufReader::new(file);
        let is_gzip = file
            .fill_buf()
            .map_err(|source| WorkloadError::Read { row: 1, source })?
            .starts_with(&[0x1f, 0x8b]);
        if is_gzip { Self::of_lines(BufReader::new(MultiGzDecoder::new(file))) } else { Self::of_lines(file) }
    }

    fn of_lines(mut lines: impl std::io::BufRead) -> Result<Self, WorkloadError> {
        let mut workload = Self::default();
        let mut ids = BTreeSet::new();
        for row in 1.. {
            let mut line = Vec::new();
            let read = |source| WorkloadError::Read { row, source };
            lines.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line).map_err(read)?;
            if line.is_empty() {
                break;
            }
            if row > ROWS_MAX {
                return Err(WorkloadError::TooLong);
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            let is_cut = line.len() as u64 == LINE_BYTES_MAX && line.last() != Some(&b'\n');
            if is_cut {
                // What is left of the line is passed over.
                lines.skip_until(b'\n').map_err(read)?;
            }
            let parsed =
                if is_cut { Err(format!("longer than {LINE_BYTES_MAX} bytes")) } else { parse(&line) };
            match parsed.and_then(|question| new_id(&mut ids, question)) {
                Ok(question) => workload.questions.push(question),
                Err(reason) => workload.faults.push(RowFault { row, reason }),
            }
        }
        Ok(workload)
    }

    /// `n` questions spread evenly over all of them, or all where there are not so many; always the same ones.
    #[must_use]
    pub fn limited(mut self, n: usize) -> Self {
        let all = self.questions.len();
        if n < all {
            self.questions = (0..n).map(|i| self.questions[i * all / n].clone()).collect();
        }
        self
    }
}

fn new_id(ids: &mut BTreeSet<String>, question: Question) -> Result<Question, String> {
    if ids.insert(question.id.clone()) {
        Ok(question)
    } else {
        Err(format!("id `{}` stands in an earlier row", question.id))
    }
}

fn parse(line: &[u8]) -> Result<Question, String> {
    let row: RawRow = serde_json::from_slice(line).map_err(|error| format!("not a question: {error}"))?;
    if row.id.is_empty() || row.id.len() > 512 || row.id.chars().any(char::is_control) {
        return Err("`id` must have 1 to 512 bytes and no control characters".to_owned());
    }
    let scorer = match (&row.scorer, &row.schema, &row.rubric) {
        (Some(scorer), ..) => scorer.as_str(),
        (None, Some(_), _) => "json_schema",
        (None, None, Some(_)) => "judge",
        (None, None, None) if !row.choices.is_empty() => "choice",
        (None, None, None) if row.question.is_some() => "number",
        (None, None, None) => {
            return Err(
                "`scorer` is missing: number, choice, exact, contains, regex, json_schema or judge".into()
            );
        }
    };
    let grader = grader(scorer, &row)?;
    let (prompt, tokens) = match (&row.prompt, &row.question) {
        (Some(prompt), _) => (prompt.clone(), default_tokens(&grader)),
        (None, Some(question)) => formatted(question, &row.choices, &grader)?,
        (None, None) => return Err("neither `prompt` nor `question`".to_owned()),
    };
    if prompt.trim().is_empty() {
        return Err("the prompt is empty".to_owned());
    }
    let completion_tokens_max = row.max_tokens.unwrap_or(tokens);
    if !(1..=COMPLETION_TOKENS_MAX).contains(&completion_tokens_max) {
        return Err(format!("`max_tokens` must be 1 to {COMPLETION_TOKENS_MAX}"));
    }
    Ok(Question {
        id: row.id,
        prompt,
        grader,
        completion_tokens_max,
        benchmark: row.benchmark,
        task: row.task.or(row.subject),
        source: row.source,
        license: row.license,
    })
}

const fn default_tokens(grader: &Grader) -> u32 {
    match grader {
        Grader::Number(_) => TOKENS_TO_REASON,
        Grader::Choice(_) => TOKENS_TO_ANSWER,
        _ => TOKENS_TO_WRITE,
    }
}

/// The prompt of a question that comes without one, and the tokens it takes to answer.
fn formatted(question: &str, choices: &[String], grader: &Grader) -> Result<(String, u32), String> {
    match grader {
        Grader::Choice(_) => {
            if !(2..=CHOICES_MAX).contains(&choices.len()) {
                return Err(format!("`choices` must be a list of 2 to {CHOICES_MAX} texts"));
            }
            let mut prompt = format!("{question}\n");
            for (letter, choice) in ('A'..).zip(choices) {
                prompt.push_str(&format!("{letter}. {choice}\n"));
            }
            prompt.push_str("Answer with the letter of the right choice only.");
            Ok((prompt, TOKENS_TO_ANSWER))
        }
        Grader::Number(_) => Ok((
            format!(
                "{question}\nSolve it step by step, then write the answer as a number on a last line of its own: #### number"
            ),
            TOKENS_TO_REASON,
        )),
        grader => Ok((question.to_owned(), default_tokens(grader))),
    }
}

fn grader(scorer: &str, row: &RawRow) -> Result<Grader, String> {
    let wanted = || answers(row.answer.as_ref());
    Ok(match scorer {
        "number" => Grader::number(&wanted()?)?,
        "choice" => Grader::choice(&wanted()?)?,
        "exact" => Grader::Exact(wanted()?),
        "contains" => Grader::Contains(wanted()?),
        "regex" => {
            let [pattern] = <[String; 1]>::try_from(wanted()?)
                .map_err(|_| "`answer` of a regex must be one pattern".to_owned())?;
            let built = RegexBuilder::new(&pattern).size_limit(REGEX_BYTES_MAX).build();
            Grader::Regex(built.map_err(|error| format!("`answer` is no regular expression: {error}"))?)
        }
        "json_schema" => {
            let schema = row.schema.as_ref().ok_or("`schema` is missing")?;
            Grader::Schema(Schema::new(schema).map_err(|error| error.to_string())?)
        }
        "judge" => Grader::Judge {
            rubric: row.rubric.clone().ok_or("`rubric` is missing: say what a good answer is")?,
            reference: row.answer.as_ref().map(|_| wanted()).transpose()?.and_then(|mut all| all.pop()),
        },
        other => {
            return Err(format!(
                "scorer `{other}` is not known: number, choice, exact, contains, regex, json_schema or judge"
            ));
        }
    })
}

/// One answer or a list of which each is right.
fn answers(answer: Option<&Value>) -> Result<Vec<String>, String> {
    let one = |value: &Value| match value {
        Value::String(text) if !text.trim().is_empty() => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        _ => Err("`answer` must be a text or a number, or a list of these".to_owned()),
    };
    match answer {
        Some(Value::Array(all)) if !all.is_empty() => all.iter().map(one).collect(),
        Some(value) => Ok(vec![one(value)?]),
        None => Err("`answer` is missing".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(line: &str) -> Result<Question, String> {
        let workload = Workload::read(line.as_bytes()).unwrap();
        let fault = workload.faults.into_iter().map(|fault| fault.reason).next();
        workload.questions.into_iter().next().ok_or_else(|| fault.unwrap())
    }

    #[test]
    fn the_shipped_questions_are_whole() {
        for (which, n, tokens) in [(ShippedWorkload::Gsm8k, 120, 400), (ShippedWorkload::Mmlu, 114, 32)] {
            let workload = Workload::shipped(which).unwrap();
            assert_eq!((workload.questions.len(), workload.faults), (n, vec![]));
            for question in &workload.questions {
                assert_eq!(question.benchmark.as_deref(), Some(which.as_str()));
                assert_eq!(
                    (question.license.as_deref(), question.completion_tokens_max),
                    (Some("MIT"), tokens)
                );
            }
        }
        let few = Workload::shipped(ShippedWorkload::Mmlu).unwrap().limited(57);
        let tasks: BTreeSet<_> = few.questions.iter().map(|question| question.task.clone()).collect();
        assert_eq!((few.questions.len(), tasks.len()), (57, 57), "one of each subject");
        assert_eq!(few.clone().limited(1000).questions.len(), 57);
    }

    #[test]
    fn a_question_with_choices_is_laid_out() {
        let question =
            only(r#"{"id":"q","question":"Which?","choices":["red","blue"],"answer":"B"}"#).unwrap();
        assert_eq!(
            question.prompt,
            "Which?\nA. red\nB. blue\nAnswer with the letter of the right choice only."
        );
        let grade = |answer| question.grader.grade(answer).unwrap();
        assert!(grade("B") > 0.5 && grade("A") < 0.5);
        let own =
            only(r#"{"id":"q","prompt":"Say yes.","scorer":"exact","answer":["yes","Yes"],"max_tokens":3}"#)
                .unwrap();
        assert_eq!((own.prompt.as_str(), own.completion_tokens_max), ("Say yes.", 3));
    }

    #[test]
    fn each_fault_is_told_by_its_row_and_the_rest_is_kept() {
        let good = r#"{"id":"a","prompt":"p","scorer":"contains","answer":"x"}"#;
        let file = format!("{good}\n\n{good}\n{{\n{}\n", good.replace("\"a\"", "\"b\""));
        let workload = Workload::read(file.as_bytes()).unwrap();
        assert_eq!(workload.questions.len(), 2);
        assert_eq!(workload.faults.iter().map(|fault| fault.row).collect::<Vec<_>>(), [3, 4]);
        assert!(workload.faults[0].reason.contains("earlier row"), "{:?}", workload.faults);
        for (row, reason) in [
            (r#"{"prompt":"p"}"#, "missing field `id`"),
            (r#"{"id":"a","prompt":"p","answer":"x"}"#, "`scorer` is missing"),
            (r#"{"id":"a","prompt":"p","scorer":"fuzzy","answer":"x"}"#, "`fuzzy` is not known"),
            (r#"{"id":"a","prompt":"p","scorer":"number","answer":"many"}"#, "no number"),
            (r#"{"id":"a","prompt":"p","scorer":"choice","answer":"AB"}"#, "letter"),
            (r#"{"id":"a","prompt":"p","scorer":"exact"}"#, "`answer` is missing"),
            (r#"{"id":"a","prompt":"p","scorer":"regex","answer":"("}"#, "no regular expression"),
            (r#"{"id":"a","prompt":"p","scorer":"json_schema"}"#, "`schema` is missing"),
            (r#"{"id":"a","prompt":"p","schema":{"$ref":"x"}}"#, "$ref"),
            (r#"{"id":"a","prompt":"p","scorer":"judge"}"#, "`rubric` is missing"),
            (r#"{"id":"a","prompt":" ","scorer":"exact","answer":"x"}"#, "empty"),
            (r#"{"id":"a","scorer":"exact","answer":"x"}"#, "neither"),
            (r#"{"id":"a","question":"q","scorer":"choice","answer":"A"}"#, "`choices`"),
            (r#"{"id":"a","prompt":"p","scorer":"exact","answer":"x","max_tokens":0}"#, "`max_tokens`"),
        ] {
            let told = only(row).unwrap_err();
            assert!(told.contains(reason), "{row}: {told}");
        }
    }

    #[test]
    fn a_line_that_is_too_long_is_one_fault() {
        let good = r#"{"id":"a","prompt":"p","scorer":"contains","answer":"x"}"#;
        let long = "x".repeat(3 * usize::try_from(LINE_BYTES_MAX).unwrap());
        let workload = Workload::read(format!("{long}\n{good}\n").as_bytes()).unwrap();
        assert_eq!((workload.questions.len(), workload.faults.len(), workload.faults[0].row), (1, 1, 1));
    }
}
