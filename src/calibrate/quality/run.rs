//! Putting questions to destinations, several at a time.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::sleep;

use super::grade::Grader;
use super::judge::Judge;
use super::workload::Question;
use crate::calibrate::request::listen;
use crate::domain::Destination;
use crate::endpoint::EndpointPool;
use crate::units::Seconds;

/// A question is tried so often.
const TRIES_MAX: u32 = 3;
/// Waits before it is tried again, doubling: where the server has no room, and otherwise.
const WAIT_FIRST: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_secs(30);
/// A destination that fails so often in a row is left alone.
const FAILURES_MAX: u32 = 5;

/// One answer and what it took.
#[derive(Debug, Clone, PartialEq)]
pub struct Answered {
    /// What the model said.
    pub text: String,
    /// Prompt tokens, where the server counts them.
    pub prompt_tokens: Option<u64>,
    /// Completion tokens, where the server counts them.
    pub completion_tokens: Option<u64>,
    /// Time to the first content.
    pub ttft: Seconds,
    /// Time to the last content.
    pub latency: Seconds,
    /// Whether it ended at its token limit.
    pub is_cut: bool,
}

/// An answer with its score.
#[derive(Debug, Clone, PartialEq)]
pub struct Graded {
    /// The answer.
    pub answered: Answered,
    /// Its score, in `[0, 1]`.
    pub score: f64,
}

/// What came of a question at a destination.
#[derive(Debug)]
pub enum Outcome<'a> {
    /// It was answered.
    Graded {
        /// Where.
        destination: &'a Destination,
        /// What was asked.
        question: &'a Question,
        /// The answer.
        graded: Graded,
    },
    /// It was not, and is not tried again.
    Failed {
        /// Where.
        destination: &'a Destination,
        /// What was asked.
        question: &'a Question,
        /// Why.
        reason: String,
    },
    /// The destination failed too often in a row and is asked nothing more.
    GivenUp {
        /// Which.
        destination: &'a Destination,
        /// Its last failure.
        reason: String,
    },
}

/// A destination that takes questions.
#[derive(Debug, Clone, Copy)]
pub struct Seat<'a> {
    /// Which.
    pub destination: &'a Destination,
    /// Questions at once.
    pub concurrency: u32,
}

/// Questions for the destinations of one model, each of which takes the next one.
pub struct Run<'a> {
    /// The way to the endpoints.
    pub pool: &'a EndpointPool,
    /// The destinations.
    pub seats: &'a [Seat<'a>],
    /// Who scores what takes a judge; questions that do are failures without.
    pub judge: Option<Judge<'a>>,
    /// What is asked.
    pub questions: Vec<&'a Question>,
}

/// A question with the tries it has had.
#[derive(Clone, Copy)]
struct Waiting<'a> {
    question: &'a Question,
    tries: u32,
}

/// What the clients of a run share.
struct Shared<'r, 'a, F> {
    run: &'r Run<'a>,
    waiting: Mutex<VecDeque<Waiting<'a>>>,
    on_outcome: F,
}

impl<'a> Run<'a> {
    /// Asks everything; `on_outcome` is told of each question as soon as it is over, and must not block. Dropping the
    /// future ends it. Questions that no destination is left for are told of by nobody.
    pub async fn all<F: AsyncFn(Outcome<'a>)>(&self, on_outcome: F) {
        let waiting = self.questions.iter().map(|question| Waiting { question, tries: 0 }).collect();
        let shared = Shared { run: self, waiting: Mutex::new(waiting), on_outcome };
        join_all(self.seats.iter().map(|seat| shared.serve(*seat))).await;
    }

    async fn ask(&self, destination: &Destination, question: &Question) -> Result<Graded, Trouble> {
        let said = listen((self.pool, destination), &question.prompt, question.completion_tokens_max).await;
        let said = said.map_err(|error| Trouble {
            is_final: error.is_about_the_request(),
            is_momentary: error.is_about_the_moment(),
            is_of_judge: false,
            reason: error.to_string(),
        })?;
        let score = match (question.grader.grade(&said.text), &question.grader, self.judge) {
            (Some(score), ..) => score,
            (None, Grader::Judge { rubric, reference }, Some(judge)) => {
                let verdict = judge.score(&question.prompt, &said.text, (rubric, reference.as_deref())).await;
                verdict.map_err(|error| Trouble::of_judge(error.to_string()))?
            }
            (None, ..) => return Err(Trouble::of_judge("there is no judge".to_owned())),
        };
        let answered = Answered {
            text: said.text,
            prompt_tokens: said.prompt_tokens,
            completion_tokens: said.completion_tokens,
            ttft: said.ttft,
            latency: said.latency,
            is_cut: said.is_cut,
        };
        Ok(Graded { answered, score })
    }
}

/// Why a try came to nothing.
struct Trouble {
    /// Another try would come to the same.
    is_final: bool,
    /// The server had no room.
    is_momentary: bool,
    /// The destination itself answered.
    is_of_judge: bool,
    reason: String,
}

impl Trouble {
    fn of_judge(reason: String) -> Self {
        Self { is_final: false, is_momentary: false, is_of_judge: true, reason }
    }
}

impl<'a, F: AsyncFn(Outcome<'a>)> Shared<'_, 'a, F> {
    /// Keeps a destination at work until nothing waits or it fails too often.
    async fn serve(&self, seat: Seat<'a>) {
        let in_a_row = Mutex::new(0_u32);
        join_all((0..seat.concurrency).map(|_| self.client(seat.destination, &in_a_row))).await;
    }

    async fn client(&self, destination: &'a Destination, in_a_row: &Mutex<u32>) {
        loop {
            if *lock(in_a_row) >= FAILURES_MAX {
                return;
            }
            let Some(Waiting { question, tries }) = lock(&self.waiting).pop_front() else { return };
            match self.run.ask(destination, question).await {
                Ok(graded) => {
                    *lock(in_a_row) = 0;
                    (self.on_outcome)(Outcome::Graded { destination, question, graded }).await;
                }
                Err(trouble) => {
                    self.failed(destination, (question, tries + 1), trouble, in_a_row).await;
                }
            }
        }
    }

    async fn failed(
        &self,
        destination: &'a Destination,
        (question, tries): (&'a Question, u32),
        trouble: Trouble,
        in_a_row: &Mutex<u32>,
    ) {
        let Trouble { is_final, is_momentary, is_of_judge, reason } = trouble;
        // A server that says what is wrong with a question, or that it has no room, is there.
        let n_failures = {
            let mut in_a_row = lock(in_a_row);
            if !(is_final || is_momentary || is_of_judge) {
                *in_a_row += 1;
            }
            *in_a_row
        };
        if n_failures == FAILURES_MAX {
            (self.on_outcome)(Outcome::GivenUp { destination, reason: reason.clone() }).await;
        }
        if is_final || tries >= TRIES_MAX {
            (self.on_outcome)(Outcome::Failed { destination, question, reason }).await;
            return;
        }
        // Another destination of the model may take it meanwhile.
        lock(&self.waiting).push_back(Waiting { question, tries });
        if n_failures < FAILURES_MAX {
            sleep(wait(tries)).await;
        }
    }
}

fn wait(tries: u32) -> Duration {
    WAIT_FIRST.saturating_mul(1 << (tries - 1).min(10)).min(WAIT_MAX)
}

/// Nothing panics while one of the locks is held.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
