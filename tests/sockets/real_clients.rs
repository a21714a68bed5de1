//! The clients that people use, unchanged, through the router: SDKs and frameworks in Python and JavaScript, and curl.
//!
//! Each runs its script of `tests/clients` twice: all of its checks against a scripted endpoint (see
//! `support/scripted.rs`), those that every server must pass against llama.cpp as well. `make test` fetches the
//! clients and sets `CEMA_TEST_CLIENTS` and `CEMA_TEST_LLAMA`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::support::app::{CLIENT_KEY, Router, node};
use crate::support::fake_endpoint::FakeEndpoint;
use crate::support::llama::{Llama, path_or_skip};
use crate::support::scripted;
use tokio::process::Command;

/// The window is open for no time, so that a check's requests wait for nothing.
const SECTIONS: &str = "window: {max_ms: 0}\nauth: {keys: [{name: tests, key_env: CLIENT_KEY}]}\n";

/// Importing a framework alone takes ten seconds on a crowded machine; this only turns a hang into a failure.
const SCRIPT_MAX: Duration = Duration::from_secs(300);

/// A program and its script, to be run with the router's address in the environment.
struct Client {
    program: PathBuf,
    script: &'static str,
}

/// `script` with the Python of the environment `venv`; `None` where `CEMA_TEST_CLIENTS` is not set.
fn python(venv: &str, script: &'static str) -> Option<Client> {
    let program = path_or_skip("CEMA_TEST_CLIENTS")?.join(venv).join("bin/python");
    Some(Client { program, script })
}

/// `script` with the Node.js beside the JavaScript clients.
fn node_js(script: &'static str) -> Option<Client> {
    let program = path_or_skip("CEMA_TEST_CLIENTS")?.join("node_clients/node");
    Some(Client { program, script })
}

impl Client {
    /// Runs the script and fails with all that it said unless it passes.
    async fn run(&self, router: &Router, model: &str, observer: Option<&FakeEndpoint>) {
        let mut command = Command::new(&self.program);
        if self.program.ends_with("python") {
            command.arg("-B");
        }
        command
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(self.script))
            .env("CEMA_BASE_URL", format!("http://{}/v1", router.api()))
            .env("CEMA_MODEL", model)
            .env("CEMA_KEY", CLIENT_KEY)
            .env("CEMA_OBSERVER", observer.map(FakeEndpoint::url).unwrap_or_default())
            .env("no_proxy", "127.0.0.1")
            .env_remove("OPENAI_API_KEY")
            .env_remove("OPENAI_BASE_URL");
        if let Some(modules) = std::env::var_os("CEMA_TEST_CLIENTS") {
            command.env("CEMA_NODE_MODULES", Path::new(&modules).join("node_clients/node_modules"));
        }
        let run = tokio::time::timeout(SCRIPT_MAX, command.kill_on_drop(true).output());
        let output =
            run.await.unwrap_or_else(|_| panic!("waited {SCRIPT_MAX:?} for {}", self.script)).unwrap();
        let (said, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{} {}\n{said}\n{errors}", self.script, output.status);
        let passed = said.lines().filter(|line| line.starts_with("ok ")).count();
        assert!(passed > 0, "{} checked nothing:\n{said}\n{errors}", self.script);
    }
}

/// All checks of `client`, against an endpoint that plays what they ask for.
async fn against_a_script(client: Option<Client>) {
    let Some(client) = client else { return };
    let endpoint = Arc::new(scripted::endpoint().await);
    let observer = scripted::observer(Arc::clone(&endpoint)).await;
    let chat = "{name: acme/small, upstream: small-awq, context_tokens: 8192}";
    let embedding = "{name: acme/embed, upstream: embed, capabilities: [embedding]}";
    // What fails for `acme/busy` and `acme/broken` must not cool the endpoint of the other checks.
    let (busy, broken) = (scripted::endpoint().await, scripted::endpoint().await);
    let nodes = [
        node("a", endpoint.url()).model(&format!("{chat}, {embedding}")),
        node("b", busy.url()).model("{name: acme/busy}"),
        node("c", broken.url()).model("{name: acme/broken}"),
    ];
    let router = Router::start(&nodes, SECTIONS).await;
    client.run(&router, "acme/small", Some(&observer)).await;
}

/// The checks of `client` that any server must pass, against llama.cpp.
async fn against_llamacpp(client: Option<Client>) {
    let (Some(client), Some(python)) = (client, path_or_skip("CEMA_TEST_LLAMA")) else { return };
    let llama = Llama::start(&python).await;
    let router = Router::start(&[llama.node("a")], SECTIONS).await;
    client.run(&router, "smol", None).await;
}

macro_rules! clients {
    ($($name:ident: $client:expr;)+) => {$(
        mod $name {
            use super::*;

            #[tokio::test]
            async fn finds_what_it_expects() {
                against_a_script($client).await;
            }

            #[tokio::test]
            async fn talks_to_llamacpp() {
                against_llamacpp($client).await;
            }
        }
    )+};
}

clients! {
    openai_python_3: python("clients", "openai_sdk.py");
    openai_python_2: python("llama_index", "openai_sdk.py");
    langchain: python("clients", "langchain_chat.py");
    llama_index: python("llama_index", "llama_index_chat.py");
    pydantic_ai: python("clients", "pydantic_ai_agent.py");
    llm: python("clients", "llm_tool.py");
    curl: python("clients", "curl.py");
    openai_node: node_js("openai_sdk.mjs");
    vercel_ai: node_js("ai_sdk.mjs");
}
