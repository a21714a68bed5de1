//! Where ONNX Runtime and the model files are.

use std::path::{Path, PathBuf};

use crate::profiler::quality::embedder::EmbedderError;
use crate::profiler::quality::params::EmbedderParams;

/// Where a package installs the library and the model.
const SYSTEM_DIR: &str = "/usr/lib/cema-router";

/// What `make setup` fills, in the checkout.
const SET_UP_CACHE: &str = ".cache/cema";

/// The folder that `make setup` filled: that of the `working` directory or, where there is none, that of the checkout
/// in which `program` lies.
pub(in crate::profiler::quality) fn set_up_cache(working: &Path, program: Option<&Path>) -> PathBuf {
    let here = working.join(SET_UP_CACHE);
    if here.is_dir() {
        return here;
    }
    let folders = program.into_iter().flat_map(Path::ancestors).skip(1);
    folders.map(|folder| folder.join(SET_UP_CACHE)).find(|cache| cache.is_dir()).unwrap_or(here)
}

/// Absolute paths of the files an embedder needs; all existed when they were looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbedderFiles {
    /// `libonnxruntime.so`.
    pub library: PathBuf,
    /// `model.onnx`.
    pub model: PathBuf,
    /// `tokenizer.json`.
    pub tokenizer: PathBuf,
}

/// Looks the files up in the order documented at [`EmbedderParams`]. A configured path is the only one
/// tried for its file.
///
/// # Errors
/// [`EmbedderError::NotFound`] with every path tried.
pub fn locate(params: &EmbedderParams) -> Result<EmbedderFiles, EmbedderError> {
    let system = Path::new(SYSTEM_DIR);
    let libraries = match &params.library {
        Some(library) => vec![library.clone()],
        None => params
            .ort_dylib_path
            .iter()
            .cloned()
            .chain(
                [params.cache_dir.join("lib"), system.to_path_buf()].map(|dir| dir.join("libonnxruntime.so")),
            )
            .collect(),
    };
    let model_dirs = match &params.model {
        Some(model) => vec![model.clone()],
        None => vec![params.cache_dir.join("model"), system.join("model")],
    };
    let files_named = |name: &str| model_dirs.iter().map(|dir| dir.join(name)).collect::<Vec<_>>();
    Ok(EmbedderFiles {
        library: first_existing("libonnxruntime.so", "library", libraries)?,
        model: first_existing("model.onnx", "model", files_named("model.onnx"))?,
        tokenizer: first_existing("tokenizer.json", "model", files_named("tokenizer.json"))?,
    })
}

/// The first file there is, made absolute: a relative library path would be searched beside the binary.
fn first_existing(
    file: &'static str,
    key: &'static str,
    searched: Vec<PathBuf>,
) -> Result<PathBuf, EmbedderError> {
    match searched.iter().find(|path| path.is_file()).map(std::path::absolute) {
        Some(Ok(path)) => Ok(path),
        _ => Err(EmbedderError::NotFound { file, key, searched }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: &Path) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, b"x").unwrap();
    }

    #[test]
    fn the_environment_comes_before_the_cache_and_a_configured_path_before_both() {
        let dir = tempfile::tempdir().unwrap();
        let cache = dir.path().join("cache");
        for file in ["lib/libonnxruntime.so", "model/model.onnx", "model/tokenizer.json"] {
            touch(&cache.join(file));
        }
        let mut params = EmbedderParams { cache_dir: cache.clone(), ..EmbedderParams::default() };
        assert_eq!(locate(&params).unwrap().library, cache.join("lib/libonnxruntime.so"));

        params.ort_dylib_path = Some(dir.path().join("env.so"));
        assert_eq!(
            locate(&params).unwrap().library,
            cache.join("lib/libonnxruntime.so"),
            "not there: skipped"
        );
        touch(&dir.path().join("env.so"));
        assert_eq!(locate(&params).unwrap().library, dir.path().join("env.so"));

        params.library = Some(dir.path().join("mine.so"));
        let error = locate(&params).unwrap_err().to_string();
        assert!(error.contains("mine.so") && !error.contains("env.so"), "{error}");
        assert!(error.contains("make setup") && error.contains("embedder.library"), "{error}");
    }

    #[test]
    fn the_set_up_cache_is_also_found_from_the_program() {
        let dir = tempfile::tempdir().unwrap();
        let cache = dir.path().join(SET_UP_CACHE);
        std::fs::create_dir_all(&cache).unwrap();
        let (working, program) = (dir.path().join("home"), dir.path().join("target/release/cema-router"));
        assert_eq!(set_up_cache(&working, Some(&program)), cache);
        let here = working.join(SET_UP_CACHE);
        assert_eq!(set_up_cache(&working, None), here);
        std::fs::create_dir_all(&here).unwrap();
        assert_eq!(set_up_cache(&working, Some(&program)), here);
    }

    #[test]
    fn a_folder_without_the_tokenizer_is_named() {
        let dir = tempfile::tempdir().unwrap();
        touch(&dir.path().join("lib/libonnxruntime.so"));
        touch(&dir.path().join("m/model.onnx"));
        let params = EmbedderParams {
            cache_dir: dir.path().to_path_buf(),
            model: Some(dir.path().join("m")),
            ..EmbedderParams::default()
        };
        let error = locate(&params).unwrap_err().to_string();
        assert!(error.starts_with("tokenizer.json not found") && error.contains("embedder.model"), "{error}");
    }
}
