//! Real prompts in random order, each used once.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use flate2::read::MultiGzDecoder;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) prompt: String,
    pub(crate) max_tokens: u32,
}

/// The prompts that are left.
#[derive(Debug)]
pub(crate) struct Prompts {
    left: Vec<String>,
    max_tokens: Vec<u32>,
    rng: ChaCha8Rng,
}

impl Prompts {
    /// The different prompts of all files that are not too long, of these benchmarks or, where none is named, of all.
    pub(crate) fn read(
        paths: &[PathBuf],
        (bytes_max, benchmarks): (usize, &[String]),
        max_tokens: Vec<u32>,
        seed: u64,
    ) -> anyhow::Result<Self> {
        ensure!(!max_tokens.is_empty(), "--max-tokens is empty");
        let mut different = BTreeSet::new();
        for path in paths {
            for line in lines(path)? {
                let row: Value =
                    serde_json::from_str(&line?).with_context(|| format!("{}", path.display()))?;
                let prompt = row["prompt"]
                    .as_str()
                    .with_context(|| format!("{}: a row without a prompt", path.display()))?;
                let benchmark = row["task"].as_str().unwrap_or_default();
                let is_wanted = benchmarks.is_empty() || benchmarks.iter().any(|name| name == benchmark);
                if is_wanted && prompt.len() <= bytes_max {
                    different.insert(prompt.to_owned());
                }
            }
        }
        Ok(Self { left: different.into_iter().collect(), max_tokens, rng: ChaCha8Rng::seed_from_u64(seed) })
    }

    /// The next `n`.
    pub(crate) fn take(&mut self, n: usize) -> anyhow::Result<Vec<Asked>> {
        ensure!(
            n <= self.left.len(),
            "{n} prompts are wanted, {} are left; raise --prompt-bytes-max",
            self.left.len()
        );
        let draw = |_| {
            let prompt = self.left.swap_remove(self.rng.random_range(0..self.left.len()));
            Asked { prompt, max_tokens: self.max_tokens[self.rng.random_range(0..self.max_tokens.len())] }
        };
        Ok((0..n).map(draw).collect())
    }
}

fn lines(path: &Path) -> anyhow::Result<impl Iterator<Item = std::io::Result<String>>> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let is_gzip = path.extension().is_some_and(|extension| extension == "gz");
    let text: Box<dyn Read> = if is_gzip { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
    Ok(BufReader::new(text).lines().filter(|line| !line.as_ref().is_ok_and(|line| line.trim().is_empty())))
}
