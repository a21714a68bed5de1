//! The binary as a service: what a service manager hears of it, and what it makes of a machine that is not as it should be.

use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::Arc;

use tokio::net::{TcpListener, UnixDatagram};
use tokio::process::Command;

use crate::support::answers::chat;
use crate::support::app::{CHAT, ask, config_text, llm, node, nowhere};
use crate::support::fake_endpoint::FakeEndpoint;
use crate::support::in_time;
use crate::support::metrics::Metrics;
use crate::support::process::Process;
use crate::support::raw_client::RawClient;
use cema_router::profiler::quality::embedder::EMBEDDING_DIMENSIONS;
use cema_router::profiler::quality::store::{DATABASE_FILE, QualityStore, StoredPrompt, StoredScore};

/// What the service manager hears next, but for signs of life.
async fn heard(socket: &UnixDatagram) -> String {
    loop {
        let mut buffer = [0; 512];
        let n = in_time("word to the service manager", socket.recv(&mut buffer)).await.unwrap();
        let message = String::from_utf8(buffer[..n].to_vec()).unwrap();
        if message != "WATCHDOG=1\n" {
            return message;
        }
    }
}

#[tokio::test]
async fn a_service_manager_hears_of_start_reload_and_end() {
    let folder = tempfile::tempdir().unwrap();
    let (config, path) = (folder.path().join("config.yaml"), folder.path().join("notify"));
    let socket = UnixDatagram::bind(&path).unwrap();
    let text = config_text(&[node("a", nowhere().await)], "");
    std::fs::write(&config, &text).unwrap();
    let variables = [("NOTIFY_SOCKET", path.to_str().unwrap()), ("WATCHDOG_USEC", "200000")];
    let mut router = Process::start_with(&["serve", "--config", config.to_str().unwrap()], &variables);
    let listening = router.logged("listening").await;
    assert_eq!(heard(&socket).await, "READY=1\nSTATUS=serving\n");
    let api = listening["listen"].as_str().unwrap().parse().unwrap();
    let mut client = RawClient::connect(api).await;
    client.get("/healthz").await;
    assert_eq!(client.answer().await.head.status(), 200);

    router.signal("HUP").await;
    assert!(heard(&socket).await.starts_with("RELOADING=1\nMONOTONIC_USEC="));
    assert_eq!(heard(&socket).await, "READY=1\nSTATUS=serving\n");
    std::fs::write(&config, "listen: nonsense\n").unwrap();
    router.signal("HUP").await;
    assert!(heard(&socket).await.starts_with("RELOADING=1\n"));
    assert_eq!(
        heard(&socket).await,
        "READY=1\nSTATUS=serving; the last configuration was refused, see the log\n"
    );

    let mut buffer = [0; 512];
    let n = in_time("a sign of life", socket.recv(&mut buffer)).await.unwrap();
    assert_eq!(&buffer[..n], b"WATCHDOG=1\n");
    router.signal("TERM").await;
    // The drain limit of 30 s, a second for clients, ten for the logs.
    assert_eq!(
        heard(&socket).await,
        "STOPPING=1\nEXTEND_TIMEOUT_USEC=41000000\nSTATUS=draining, 31 s at most\n"
    );
    assert!(router.ended().await.success());
}

/// Starts a router that is to refuse: all it said.
async fn refused(config: &Path, notify: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cema-router"));
    command.args(["serve", "--config"]).arg(config).env("NOTIFY_SOCKET", notify);
    command.stdin(Stdio::null()).kill_on_drop(true);
    in_time("a refusal", command.output()).await.unwrap()
}

#[tokio::test]
async fn a_start_that_cannot_be_is_refused_with_one_line_and_nobody_hears_that_it_is_ready() {
    let folder = tempfile::tempdir().unwrap();
    let (config, path) = (folder.path().join("config.yaml"), folder.path().join("notify"));
    let socket = UnixDatagram::bind(&path).unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let nodes = [node("a", nowhere().await)];
    let in_use =
        |key: &str| format!("error: cannot listen on {taken} (configuration key `{key}`): is it in use?: ");
    let log = folder.path().join("missing/log.jsonl");
    for (text, expected) in [
        (config_text(&nodes, "").replacen("127.0.0.1:0", &taken, 1), in_use("listen")),
        (
            config_text(&nodes, "").replace("admin_listen: 127.0.0.1:0", &format!("admin_listen: {taken}")),
            in_use("admin_listen"),
        ),
        (
            config_text(&nodes, &format!("access_log: {{path: \"{}\"}}\n", log.display())),
            format!(
                "error: cannot write the access log `{}`; mend `access_log.path` or the rights of its folder: No such file",
                log.display()
            ),
        ),
    ] {
        std::fs::write(&config, text).unwrap();
        let output = refused(&config, &path).await;
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        let errors: Vec<_> = said.lines().filter(|line| !line.contains(" INFO ")).collect();
        assert!(errors.len() == 1 && errors[0].starts_with(&expected), "{said}");
    }
    assert!(socket.try_recv(&mut [0; 8]).is_err(), "ready for nothing");
}

/// A router whose machine is not as it should be, over an endpoint that answers.
struct Ailing {
    process: Process,
    endpoint: FakeEndpoint,
    folder: tempfile::TempDir,
}

impl Ailing {
    /// With these sections of the configuration, given the folder.
    async fn start(folder: tempfile::TempDir, sections: &str) -> Self {
        let endpoint = llm(|_| chat("m", "served all the same")).await;
        let config = folder.path().join("config.yaml");
        // Two places to choose from: a quality is asked for.
        let nodes = [node("a", endpoint.url()), node("b", endpoint.url())];
        std::fs::write(&config, config_text(&nodes, sections)).unwrap();
        let process = Process::start(&["serve", "--config", config.to_str().unwrap()]);
        Self { process, endpoint, folder }
    }

    /// Serves `n` requests and tells what it says that it degraded to: the log line that starts with `what`.
    async fn serves(&mut self, n: usize, what: &str) -> (serde_json::Value, Metrics) {
        let mut warning = None;
        let listening = loop {
            let line = self.process.next_logged("listening").await;
            let message = line["message"].as_str().unwrap();
            if message.starts_with(what) {
                warning = Some(line);
            } else if message == "listening" {
                break line;
            }
        };
        let address = |name: &str| listening[name].as_str().unwrap().parse().unwrap();
        let mut client = RawClient::connect(address("listen")).await;
        for _ in 0..n {
            client.post(CHAT, "", &ask("m")).await;
            assert_eq!(client.answer().await.head.status(), 200);
        }
        assert_eq!(self.endpoint.posts().len(), n);
        let warning = match warning {
            Some(line) => line,
            None => self.process.logged(what).await,
        };
        let mut admin = RawClient::connect(address("admin")).await;
        admin.get("/metrics").await;
        (warning, Metrics::parse(&admin.answer().await.text()))
    }
}

#[tokio::test]
async fn with_a_full_disk_requests_are_served_and_the_log_says_so_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut router =
        Ailing::start(folder, "decision_log: {path: /dev/full}\naccess_log: {path: /dev/full}\n").await;
    let (warning, metrics) = router.serves(5, "the access log cannot be written").await;
    assert!(warning["error"].as_str().unwrap().contains("No space left"), "{warning}");
    assert!(metrics.count("cema_access_log_records_total", &[("outcome", "failed")]) >= 1);
    assert_eq!(metrics.count("cema_access_log_records_total", &[("outcome", "written")]), 0);
    router.process.signal("TERM").await;
    assert!(router.process.ended().await.success());
    for line in router.process.rest().await {
        let message = line["message"].as_str().unwrap();
        assert!(!message.contains("access log"), "said once, and never that it is well again: {message}");
    }
}

#[tokio::test]
async fn with_a_damaged_store_requests_are_routed_on_priors() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    std::fs::create_dir(&store).unwrap();
    std::fs::write(store.join(DATABASE_FILE), "not a database ".repeat(100)).unwrap();
    let sections = format!("quality: {{store: \"{}\"}}\n", store.display());
    let mut router = Ailing::start(folder, &sections).await;
    let (warning, metrics) = router.serves(1, "quality prediction is off").await;
    let reason = warning["reason"].as_str().unwrap();
    assert!(reason.contains("damaged") && reason.contains(DATABASE_FILE), "{reason}");
    assert_eq!(metrics.count("cema_quality_source_total", &[("source", "no_profile")]), 1);
    let left = std::fs::read(router.folder.path().join("store").join(DATABASE_FILE)).unwrap();
    assert!(left.starts_with(b"not a database"), "it is left as it was");
}

#[tokio::test]
async fn with_an_unreadable_model_requests_are_routed_on_priors() {
    let folder = tempfile::tempdir().unwrap();
    let (store, library) = (folder.path().join("store"), folder.path().join("libonnxruntime.so"));
    let score = StoredScore { model: "m".to_owned(), score: 0.9, completion_tokens: None, cost_usd: None };
    let prompt = StoredPrompt {
        id: "p".to_owned(),
        text: "hi".to_owned(),
        benchmark: None,
        task: None,
        source: None,
        license: None,
        embedding: Some(Arc::new([1.0 / (EMBEDDING_DIMENSIONS as f32).sqrt(); EMBEDDING_DIMENSIONS])),
        scores: vec![score],
    };
    QualityStore::open_or_create(&store).unwrap().write_chunk("of some model", &[prompt]).unwrap();
    std::fs::write(&library, "not a library").unwrap();
    for file in ["model.onnx", "tokenizer.json"] {
        std::fs::write(folder.path().join(file), "not a model").unwrap();
    }
    let at = folder.path().display();
    let sections = format!(
        "quality: {{store: \"{}\"}}\nembedder: {{library: \"{}\", model: \"{at}\"}}\n",
        store.display(),
        library.display()
    );
    let mut router = Ailing::start(folder, &sections).await;
    let (warning, metrics) = router.serves(1, "quality prediction is off").await;
    let reason = warning["reason"].as_str().unwrap();
    let expected = if cfg!(feature = "onnx") { "tokenizer.json is not usable" } else { "no embedder" };
    assert!(reason.contains(expected), "{reason}");
    assert_eq!(metrics.count("cema_quality_source_total", &[("source", "no_embedder")]), 1);
}
