//! What a client that asked for a path we do not have should ask for.

/// Paths (prefixes where they end in `/`) that other APIs and misread base URLs lead to. The first match counts.
const HINTS: &[(&str, &str)] = &[
    ("/v1/responses", "the Responses API is not served; use POST /v1/chat/completions"),
    ("/v1/messages", "this is not Anthropic's API; use POST /v1/chat/completions"),
    ("/v1/audio/", "audio is not served"),
    ("/v1/images/", "images are not made here; send them to POST /v1/chat/completions as image_url parts"),
    ("/v1/moderations", "moderations are not served"),
    ("/v1/assistants", "the Assistants API is not served; use POST /v1/chat/completions"),
    ("/v1/threads", "the Assistants API is not served; use POST /v1/chat/completions"),
    ("/v1/realtime", "the Realtime API is not served; stream POST /v1/chat/completions"),
    ("/v1/batches", "batches are not served; send the requests one by one, they are planned together"),
    ("/v1/files", "files are not kept here"),
    ("/v1/fine_tuning/", "models are not trained here"),
    ("/v1/rerank", "reranking is not served; use POST /v1/embeddings"),
    ("/v1/v1/", "the base URL must end in one /v1"),
    ("/v1/engines/", "put the model's name into the body of POST /v1/completions"),
    ("/openai/deployments/", "this is not Azure's API; use the base URL /v1 and put the model into the body"),
    ("/chat/completions", "the base URL must end in /v1"),
    ("/completions", "the base URL must end in /v1"),
    ("/embeddings", "the base URL must end in /v1"),
    ("/models", "the base URL must end in /v1"),
    ("/api/generate", "this is not an Ollama server; use POST /v1/completions"),
    ("/api/embed", "this is not an Ollama server; use POST /v1/embeddings"),
    ("/api/embeddings", "this is not an Ollama server; use POST /v1/embeddings"),
    ("/api/tags", "this is not an Ollama server; use GET /v1/models"),
    ("/api/", "this is not an Ollama server; use POST /v1/chat/completions"),
    ("/metrics", "metrics are on the admin listener (`admin_listen`)"),
    ("/admin/", "the admin API is on the admin listener (`admin_listen`)"),
];

const SERVED: &str = "this router serves POST /v1/chat/completions, /v1/completions, /v1/embeddings and /v1/feedback, and GET /v1/models";

/// What to use in place of `path`.
pub(super) fn hint(path: &str) -> &'static str {
    let matches = |known: &str| match path.strip_prefix(known) {
        Some(rest) => known.ends_with('/') || rest.is_empty() || rest.starts_with('/'),
        None => known.strip_suffix('/') == Some(path),
    };
    HINTS.iter().find(|(known, _)| matches(known)).map_or(SERVED, |(_, hint)| hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_follow_whole_path_segments() {
        for (path, words) in [
            ("/v1/responses", "Responses"),
            ("/v1/responses/resp_1/cancel", "Responses"),
            ("/v1/responsesx", "this router serves"),
            ("/v1/audio", "audio"),
            ("/v1/audio/speech", "audio"),
            ("/api/embed", "POST /v1/embeddings"),
            ("/api/embeddings", "POST /v1/embeddings"),
            ("/api/chat", "POST /v1/chat/completions"),
            ("/completions", "must end in /v1"),
            ("/v1/v1/chat/completions", "one /v1"),
            ("/", "this router serves"),
            ("", "this router serves"),
        ] {
            assert!(hint(path).contains(words), "{path}: {}", hint(path));
        }
    }
}
