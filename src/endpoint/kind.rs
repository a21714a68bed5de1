//! Which server software an endpoint runs (`kind` of the configuration).

use crate::domain::named::named_enum;

named_enum! {
    /// The server software behind an endpoint.
    pub enum EndpointKind {
        /// vLLM's OpenAI-compatible server.
        Vllm = "vllm",
        /// Ollama.
        Ollama = "ollama",
        /// llama.cpp's server.
        LlamaCpp = "llamacpp",
        /// Any other OpenAI-compatible server.
        OpenAi = "openai",
    }
}
