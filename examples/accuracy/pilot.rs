//! The pilot: real prompts straight to the servers, for the mean sizes of requests and for the router's profile.

use std::cell::RefCell;
use std::path::Path;

use anyhow::{Context, ensure};
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::measured::Server;
use crate::prompts::Asked;

/// Mean sizes of the requests to come.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Pilot {
    pub(crate) prompt_tokens: f64,
    pub(crate) completion_tokens: f64,
    /// Requests they are the means of.
    pub(crate) n: usize,
}

impl Pilot {
    /// Reads what an earlier pilot printed.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} is no pilot", path.display()))
    }
}

/// What the pilot found.
pub(crate) struct Profile {
    pub(crate) means: Pilot,
    /// Prompts with the lengths of their answers.
    answered: Vec<(String, u64)>,
}

impl Profile {
    /// Rows for `quality import`. The servers share one model, so an answer of one stands for all; nobody scores them.
    pub(crate) fn rows(&self, servers: &[Server]) -> String {
        let row = |(n, (prompt, tokens)): (usize, &(String, u64))| {
            let of_model = |server: &Server| {
                let model = server.id.rsplit('/').next().unwrap_or_default();
                (model.to_owned(), json!({"score": 0.5, "completion_tokens": tokens}))
            };
            let models: serde_json::Map<_, _> = servers.iter().map(of_model).collect();
            json!({"id": format!("pilot-{n}"), "prompt": prompt, "models": models}).to_string() + "\n"
        };
        self.answered.iter().enumerate().map(row).collect()
    }
}

/// Sends `asked` straight to the servers, a client per slot, each with the largest of `max_tokens`. The mean completion
/// is that of answers cut at the limits drawn later.
pub(crate) async fn run(
    servers: &[Server],
    asked: Vec<Asked>,
    max_tokens: &[u32],
) -> anyhow::Result<Profile> {
    eprintln!("pilot: {} requests straight to the servers", asked.len());
    let longest = max_tokens.iter().copied().max().context("--max-tokens is empty")?;
    let queue = RefCell::new(asked);
    let client = async |server: &Server| {
        let mut answers = Vec::new();
        loop {
            let next = queue.borrow_mut().pop();
            let Some(one) = next else { return anyhow::Ok(answers) };
            let answer = server.url.chat("any", &one.prompt, longest).await?;
            answers.push((one.prompt, answer.prompt_tokens, answer.completion_tokens));
        }
    };
    let clients = servers.iter().flat_map(|server| (0..server.slots).map(move |_| server));
    let answers = join_all(clients.map(client)).await.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let answers = answers.concat();
    let n = answers.len();
    ensure!(n > 0, "the pilot has no answers");
    let prompt: u64 = answers.iter().map(|(_, prompt, _)| prompt).sum();
    let cut =
        answers.iter().flat_map(|(.., wrote)| max_tokens.iter().map(|limit| (*wrote).min(u64::from(*limit))));
    let completion: u64 = cut.sum();
    let means = Pilot {
        prompt_tokens: prompt as f64 / n as f64,
        completion_tokens: completion as f64 / (n * max_tokens.len()) as f64,
        n,
    };
    let answered = answers.into_iter().map(|(prompt, _, wrote)| (prompt, wrote)).collect();
    Ok(Profile { means, answered })
}
