//! A whole router in this process, on free ports of 127.0.0.1.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use cema_router::app::{App, Stopper};
use cema_router::config::Config;
use tokio::task::JoinHandle;

use super::answers::{healthy, json};
use super::fake_endpoint::{FakeEndpoint, Recorded, Step};
use super::in_time;
use super::metrics::Metrics;
use super::raw_client::{Answer, RawClient};

/// What `api_key_env: ENDPOINT_KEY` and `key_env: CLIENT_KEY` find in the environment.
pub(crate) const ENDPOINT_KEY: &str = "the-endpoints-own-key";
pub(crate) const CLIENT_KEY: &str = "the-clients-key";

/// Each request goes to the cheapest legal destination at once: see [`priced`].
pub(crate) const CHEAPEST_FIRST: &str = "routing: {policy: greedy, weights: {cost: 1}}\n";

/// Path of chat completions.
pub(crate) const CHAT: &str = "/v1/chat/completions";

/// Path of text completions.
pub(crate) const COMPLETIONS: &str = "/v1/completions";

/// Path of embeddings.
pub(crate) const EMBEDDINGS: &str = "/v1/embeddings";

/// A small request for `model`.
pub(crate) fn ask(model: &str) -> String {
    format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"hi"}}],"max_tokens":8}}"#)
}

/// A small streamed request for `model`.
pub(crate) fn ask_stream(model: &str) -> String {
    format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"hi"}}],"stream":true}}"#)
}

/// A scripted endpoint that is healthy and has no page about its engine; `script` answers its calls.
pub(crate) async fn llm(script: impl Fn(&Recorded) -> Vec<Step> + Send + Sync + 'static) -> FakeEndpoint {
    FakeEndpoint::start(move |request| match (&*request.head.method(), &*request.head.path()) {
        (_, "/health") => healthy(),
        ("GET", "/metrics" | "/props" | "/slots" | "/api/ps" | "/api/tags") => json(404, "{}"),
        _ => script(request),
    })
    .await
}

/// A URL at which nothing listens.
pub(crate) async fn nowhere() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

/// One node of a configuration, with one endpoint and one model.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    name: String,
    class: &'static str,
    url: String,
    kind: &'static str,
    endpoint: String,
    model: String,
    power: String,
    network: &'static str,
}

/// A node called `name` whose endpoint serves the model `m` at `url`.
pub(crate) fn node(name: &str, url: impl Into<String>) -> Node {
    let model = "{name: m, throughput: {max_concurrency: 64}}".to_owned();
    Node {
        name: name.to_owned(),
        class: "edge",
        url: url.into(),
        kind: "vllm",
        endpoint: String::new(),
        model,
        power: "{}".to_owned(),
        // Connections that come and go would be in the way of tests that count them.
        network: "{measure: off}",
    }
}

/// [`node`] with a price, so that [`CHEAPEST_FIRST`] knows an order.
pub(crate) fn priced(name: &str, url: impl Into<String>, usd: u32) -> Node {
    node(name, url).model(&format!("{{name: m, price: {{request_usd: {usd}}}}}"))
}

impl Node {
    /// On a cloud node.
    pub(crate) fn cloud(mut self) -> Self {
        self.class = "cloud";
        self
    }

    /// Its endpoint is a llama.cpp server.
    pub(crate) fn llamacpp(mut self) -> Self {
        self.kind = "llamacpp";
        self
    }

    /// Its endpoint is an Ollama server.
    pub(crate) fn ollama(mut self) -> Self {
        self.kind = "ollama";
        self
    }

    /// Its endpoint is some other OpenAI-compatible server.
    pub(crate) fn openai(mut self) -> Self {
        self.kind = "openai";
        self
    }

    /// The path to it is measured.
    pub(crate) fn measured(mut self) -> Self {
        self.network = "{measure: auto}";
        self
    }

    /// Further keys of its endpoint, in flow style, such as `api_key_env: ENDPOINT_KEY`.
    pub(crate) fn endpoint(mut self, keys: &str) -> Self {
        self.endpoint = format!(", {keys}");
        self
    }

    /// Its power, in flow style, such as `{source: {nvml: 0}}`.
    pub(crate) fn power(mut self, power: &str) -> Self {
        self.power = power.to_owned();
        self
    }

    /// Its model, in flow style, in place of `m`.
    pub(crate) fn model(mut self, model: &str) -> Self {
        self.model = model.to_owned();
        self
    }
}

/// The text of a configuration of `nodes`, on free ports; `sections` are its further top-level sections.
pub(crate) fn config_text(nodes: &[Node], sections: &str) -> String {
    let mut text = format!("listen: 127.0.0.1:0\nadmin_listen: 127.0.0.1:0\n{sections}");
    if !sections.contains("quality: {store") {
        text.push_str("quality: {store: /nonexistent/quality}\n");
    }
    text.push_str("nodes:\n");
    for Node { name, class, url, kind, endpoint, model, power, network } in nodes {
        writeln!(text, "  - name: {name}\n    class: {class}\n    power: {power}\n    network: {network}")
            .unwrap();
        writeln!(text, "    endpoints:").unwrap();
        writeln!(text, "      - {{url: \"{url}\", kind: {kind}, models: [{model}]{endpoint}}}").unwrap();
    }
    text
}

/// A running router.
#[derive(Debug)]
pub(crate) struct Router {
    api: SocketAddr,
    admin: SocketAddr,
    stopper: Stopper,
    served: JoinHandle<anyhow::Result<()>>,
}

impl Router {
    /// Starts one over `nodes`; `sections` are further top-level sections of its configuration. Its
    /// endpoints have been probed when this returns.
    pub(crate) async fn start(nodes: &[Node], sections: &str) -> Self {
        let text = config_text(nodes, sections);
        let env = |name: &str| match name {
            "ENDPOINT_KEY" => Some(ENDPOINT_KEY.to_owned()),
            "CLIENT_KEY" => Some(CLIENT_KEY.to_owned()),
            _ => None,
        };
        let config = Config::parse(&text, &env).unwrap_or_else(|faults| panic!("{text}\n{faults:#?}"));
        Self::run(App::start(config).await.unwrap())
    }

    /// Starts one from a configuration file, which is read again at every reload.
    pub(crate) async fn start_from(path: &Path) -> Self {
        Self::run(App::start_from(path).await.unwrap())
    }

    fn run(app: App) -> Self {
        let (api, admin) = app.addresses().unwrap();
        let stopper = app.stopper();
        Self { api, admin, stopper, served: tokio::spawn(app.serve()) }
    }

    /// Address of the API.
    pub(crate) fn api(&self) -> SocketAddr {
        self.api
    }

    /// Address of the admin listener.
    pub(crate) fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// A new connection to the API.
    pub(crate) async fn client(&self) -> RawClient {
        RawClient::connect(self.api).await
    }

    /// Sends `body` over a connection of its own and reads the answer.
    pub(crate) async fn chat(&self, body: &str) -> Answer {
        self.chat_with("", body).await
    }

    /// [`Router::chat`] with further header lines, each ended by CR LF.
    pub(crate) async fn chat_with(&self, headers: &str, body: &str) -> Answer {
        self.post(CHAT, headers, body).await
    }

    /// Posts `body` to `path` with further header lines over a connection of its own.
    pub(crate) async fn post(&self, path: &str, headers: &str, body: impl AsRef<[u8]>) -> Answer {
        let mut client = self.client().await;
        client.post(path, headers, body).await;
        client.answer().await
    }

    /// Gets `path` from the API.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        get(self.api, path).await
    }

    /// Gets `path` from the admin listener.
    pub(crate) async fn admin_get(&self, path: &str) -> Answer {
        get(self.admin, path).await
    }

    /// Posts to `path` of the admin listener.
    pub(crate) async fn admin_post(&self, path: &str, headers: &str, body: &str) -> Answer {
        let mut client = RawClient::connect(self.admin).await;
        client.post(path, headers, body).await;
        client.answer().await
    }

    /// The metrics now.
    pub(crate) async fn metrics(&self) -> Metrics {
        let answer = self.admin_get("/metrics").await;
        assert_eq!(answer.head.status(), 200);
        Metrics::parse(&answer.text())
    }

    /// The metrics as soon as they are as `wanted`.
    pub(crate) async fn metrics_reach(&self, what: &str, wanted: impl Fn(&Metrics) -> bool) -> Metrics {
        in_time(what, async {
            loop {
                let metrics = self.metrics().await;
                if wanted(&metrics) {
                    return metrics;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
    }

    /// Waits until nothing is in flight or held.
    pub(crate) async fn idle(&self) -> Metrics {
        self.metrics_reach("the router to be idle", |metrics| {
            metrics.count("cema_inflight", &[]) == 0 && metrics.count("cema_held_requests", &[]) == 0
        })
        .await
    }

    /// Asks it to stop.
    pub(crate) fn stop(&self) {
        self.stopper.stop();
    }

    /// Waits until it has ended.
    pub(crate) async fn ended(self) {
        in_time("the router to end", self.served).await.unwrap().unwrap();
    }
}

/// Gets `path` from whoever listens at `addr`.
pub(crate) async fn get(addr: SocketAddr, path: &str) -> Answer {
    let mut client = RawClient::connect(addr).await;
    client.get(path).await;
    client.answer().await
}
