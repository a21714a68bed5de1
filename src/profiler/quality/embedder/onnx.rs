//! The embedder proper: tokenizer and ONNX Runtime session.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use ort::environment::Environment;
use ort::session::Session;
use ort::value::TensorRef;
use sha2::{Digest, Sha256};
use tokenizers::Tokenizer;

use crate::profiler::quality::embedder::locate::EmbedderFiles;
use crate::profiler::quality::embedder::tail::{CONTENT_TOKENS, growing_tails};
use crate::profiler::quality::embedder::{
    EMBEDDING_DIMENSIONS, Embedder, EmbedderError, Embedding, LoadedEmbedder,
};

const INPUTS: [&str; 3] = ["input_ids", "attention_mask", "token_type_ids"];
const OUTPUT: &str = "sentence_embedding";

/// ONNX Runtime allows one environment per process, ever; it stays here once made.
static ENVIRONMENT: Mutex<Option<Environment>> = Mutex::new(None);

/// Loads library, tokenizer and model, with `n_workers` sessions.
pub(super) fn load(files: &EmbedderFiles, n_workers: usize) -> Result<LoadedEmbedder, EmbedderError> {
    let tokenizer = Arc::new(MiniLmTokenizer::load(&files.tokenizer)?);
    let environment = environment(&files.library)?;
    let unusable = |reason: String| EmbedderError::Model { path: files.model.clone(), reason };
    let workers = (0..n_workers.max(1))
        .map(|_| {
            let session = open_session(&environment, &files.model).map_err(|e| unusable(e.to_string()))?;
            check_signature(&session).map_err(unusable)?;
            Ok(Box::new(OnnxEmbedder { tokenizer: Arc::clone(&tokenizer), session }) as Box<dyn Embedder>)
        })
        .collect::<Result<Vec<_>, EmbedderError>>()?;
    let model_sha256 = file_sha256(&files.model).map_err(|e| unusable(e.to_string()))?;
    Ok(LoadedEmbedder { model_sha256, workers })
}

/// The process's environment. `init_from` must come before anything else of `ort`: its lazy loading
/// panics where this returns an error.
fn environment(library: &Path) -> Result<Environment, EmbedderError> {
    let mut current = ENVIRONMENT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(environment) = current.as_ref() {
        return Ok(environment.clone());
    }
    let unusable = |reason: String| EmbedderError::Library { path: library.to_path_buf(), reason };
    let builder = ort::init_from(library).map_err(|e| unusable(e.to_string()))?;
    let environment = builder
        .with_name("cema-router")
        .with_telemetry(false)
        .build()
        .map_err(|e| unusable(e.to_string()))?;
    *current = Some(environment.clone());
    Ok(environment)
}

/// One thread per run: the caller's. Spinning would burn a core while the router is idle.
fn open_session(environment: &Environment, model: &Path) -> ort::Result<Session> {
    Session::builder(environment)?
        .with_intra_threads(1)?
        .with_inter_threads(1)?
        .with_intra_op_spinning(false)?
        .with_inter_op_spinning(false)?
        .commit_from_file(model)
}

fn check_signature(session: &Session) -> Result<(), String> {
    let missing_input =
        INPUTS.iter().find(|name| !session.inputs().iter().any(|input| input.name() == **name));
    let has_output = session.outputs().iter().any(|output| output.name() == OUTPUT);
    match missing_input {
        Some(name) => Err(format!("it has no input `{name}`")),
        None if !has_output => Err(format!("it has no output `{OUTPUT}`")),
        None => Ok(()),
    }
}

fn file_sha256(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        hasher.update(&buffer[..n]);
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The model's tokenizer without the padding and truncation its file asks for.
struct MiniLmTokenizer {
    tokenizer: Tokenizer,
    cls: u32,
    sep: u32,
}

impl MiniLmTokenizer {
    fn load(path: &Path) -> Result<Self, EmbedderError> {
        let unusable = |reason: String| EmbedderError::Model { path: path.to_path_buf(), reason };
        let mut tokenizer = Tokenizer::from_file(path).map_err(|e| unusable(e.to_string()))?;
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|e| unusable(e.to_string()))?;
        let special = |token: &str| {
            tokenizer.token_to_id(token).ok_or_else(|| unusable(format!("it has no token `{token}`")))
        };
        let (cls, sep) = (special("[CLS]")?, special("[SEP]")?);
        Ok(Self { tokenizer, cls, sep })
    }

    /// `[CLS]`, the last [`CONTENT_TOKENS`] tokens of `text`, `[SEP]`.
    fn tail_ids(&self, text: &str) -> Result<Vec<i64>, EmbedderError> {
        let mut content = Vec::new();
        for tail in growing_tails(text) {
            let encoding = self
                .tokenizer
                .encode_fast(tail, false)
                .map_err(|e| EmbedderError::Run(format!("tokenizer: {e}")))?;
            let ids = encoding.get_ids();
            content = ids[ids.len().saturating_sub(CONTENT_TOKENS)..].to_vec();
            // One token more than needed: without white space the first one may be a torn word's.
            if ids.len() > CONTENT_TOKENS {
                break;
            }
        }
        Ok([self.cls].into_iter().chain(content).chain([self.sep]).map(i64::from).collect())
    }
}

/// One session and the shared tokenizer.
struct OnnxEmbedder {
    tokenizer: Arc<MiniLmTokenizer>,
    session: Session,
}

impl Embedder for OnnxEmbedder {
    fn embed(&mut self, text: &str) -> Result<Embedding, EmbedderError> {
        let ids = self.tokenizer.tail_ids(text)?;
        self.run(&ids).map_err(|e| EmbedderError::Run(e.to_string()))?.ok_or_else(|| {
            EmbedderError::Run(format!("`{OUTPUT}` does not hold {EMBEDDING_DIMENSIONS} finite numbers"))
        })
    }
}

impl OnnxEmbedder {
    /// Runs the model on one sequence; `None` if the output is not an embedding.
    fn run(&mut self, ids: &[i64]) -> ort::Result<Option<Embedding>> {
        let shape = [1, ids.len()];
        let mask = vec![1_i64; ids.len()];
        let types = vec![0_i64; ids.len()];
        let outputs = self.session.run(ort::inputs![
            INPUTS[0] => TensorRef::from_array_view((shape, ids))?,
            INPUTS[1] => TensorRef::from_array_view((shape, mask.as_slice()))?,
            INPUTS[2] => TensorRef::from_array_view((shape, types.as_slice()))?,
        ])?;
        let Some(output) = outputs.get(OUTPUT) else { return Ok(None) };
        let (_, numbers) = output.try_extract_tensor::<f32>()?;
        let embedding: Option<[f32; EMBEDDING_DIMENSIONS]> = numbers.try_into().ok();
        Ok(embedding.filter(|e| e.iter().all(|x| x.is_finite())).map(Arc::new))
    }
}
