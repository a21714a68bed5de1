//! The calls of the OpenAI API that are routed.

use super::destination::Capabilities;
use super::named::named_enum;

named_enum! {
    /// A call of the OpenAI API that a model answers, by its OpenTelemetry name (`gen_ai.operation.name`).
    pub enum ApiCall {
        /// `POST /v1/chat/completions`.
        Chat = "chat",
        /// `POST /v1/completions`.
        Completions = "text_completion",
        /// `POST /v1/embeddings`.
        Embeddings = "embeddings",
    }
}

impl ApiCall {
    /// Its path below `/v1`, or below an endpoint's base path.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Chat => "/chat/completions",
            Self::Completions => "/completions",
            Self::Embeddings => "/embeddings",
        }
    }

    /// The field of its requests that holds the prompt.
    #[must_use]
    pub const fn prompt_field(self) -> &'static str {
        match self {
            Self::Chat => "messages",
            Self::Completions => "prompt",
            Self::Embeddings => "input",
        }
    }

    /// What every request of its kind needs of a model. A chat model completes text as well: engines serve both
    /// with the same weights.
    #[must_use]
    pub const fn needs(self) -> Capabilities {
        match self {
            Self::Chat | Self::Completions => Capabilities::CHAT,
            Self::Embeddings => Capabilities::EMBEDDING,
        }
    }
}
