//! Measures the router over real sockets, in front of endpoints that answer at once, and prints Markdown tables.
//!
//! ```text
//! cargo build --release --locked --bin cema-router --example measure
//! target/release/examples/measure --router target/release/cema-router --trace PROMPTS.jsonl
//! ```
//!
//! The router runs as a process of its own with 11 destinations; PROMPTS.jsonl, in the format of `quality
//! import`, fills its quality store and supplies the prompts. Without `--trace` only what needs no embedding
//! is measured. Run it from the repository's root, where `make setup` has put the embedding model.
//!
//! - *Decision*: R requests arrive evenly over the first 60 % of a `fixed` window. From the window's close to
//!   the batch's departure (timer, problem, solver; the router's own `x-cema-window-ms`), and to the answers at
//!   the client (both HTTP hops of all R on top).
//! - *Added latency*: single requests one after the other in the default `adaptive` window, each followed by the
//!   same request straight to an endpoint; the figure is the difference of the percentiles. What an embedding
//!   costs is the difference of the CPU times.
//! - *CPU per request*: user and system time of the process, 32 connections without pause, `max_ms: 0` and policy
//!   `greedy`, beside a pass-through that only buffers bodies.
#![expect(clippy::print_stdout, reason = "the tables are what it is for")]

mod net;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use clap::{Parser, Subcommand};
use http::Method;
use tokio::net::TcpListener;

use net::{Connection, Process, chat_body, free_address, pass_through, serve_at_once, wait_for};

/// Destinations of the measured fleet.
const FLEET: usize = 11;
/// Length of the fixed window.
const WINDOW: Duration = Duration::from_secs(1);
/// Part of the window in which its requests arrive.
const ARRIVAL_SHARE: f64 = 0.6;
/// Single requests before the counted ones.
const WARM_UP: usize = 10;
/// Connections of the saturated run.
const CONNECTIONS: usize = 32;
/// Characters of a prompt that are sent: about 60 tokens.
const PROMPT_CHARS: usize = 240;

#[derive(Parser)]
struct Args {
    /// The router's binary.
    #[arg(long, default_value = "target/release/cema-router")]
    router: PathBuf,
    /// Scored prompts: at least 200 for a realistic store.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Fixed windows per row; each takes a second.
    #[arg(long, default_value_t = 40)]
    windows: usize,
    /// Single requests per row.
    #[arg(long, default_value_t = 400)]
    singles: usize,
    /// Requests of each saturated run.
    #[arg(long, default_value_t = 20_000)]
    saturating: usize,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Subcommand)]
enum Role {
    /// The bare proxy the router's CPU time is compared with.
    #[command(hide = true)]
    PassThrough { listen: SocketAddr, upstream: SocketAddr },
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match args.role {
        Some(Role::PassThrough { listen, upstream }) => runtime.block_on(pass_through(listen, upstream)),
        None => runtime.block_on(measure(&args)),
    }
}

async fn measure(args: &Args) -> anyhow::Result<()> {
    let folder = std::env::temp_dir().join(format!("cema-measure-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let result = measure_in(args, &folder).await;
    std::fs::remove_dir_all(&folder)?;
    result
}

async fn measure_in(args: &Args, folder: &Path) -> anyhow::Result<()> {
    let mut endpoints = Vec::new();
    for _ in 0..FLEET {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        endpoints.push(listener.local_addr()?);
        tokio::spawn(serve_at_once(listener));
    }
    let profile = args.trace.as_deref().map(|trace| Profile::import(args, trace, folder)).transpose()?;
    let setting = Setting { args, folder, endpoints: &endpoints, profile: profile.as_ref() };
    if let Some(profile) = &profile {
        decisions(&setting, profile).await?;
    }
    added_latency(&setting).await?;
    saturated(&setting).await
}

struct Setting<'a> {
    args: &'a Args,
    folder: &'a Path,
    endpoints: &'a [SocketAddr],
    profile: Option<&'a Profile>,
}

/// Prompts and the models they were scored on.
struct Profile {
    prompts: Vec<String>,
    models: Vec<String>,
    store: PathBuf,
}

impl Profile {
    fn import(args: &Args, trace: &Path, folder: &Path) -> anyhow::Result<Self> {
        let store = folder.join("store");
        let mut import = Command::new(&args.router);
        import.args(["quality", "import"]).arg("--store").arg(&store).arg("--trace").arg(trace);
        ensure!(import.output().context("cannot run the router")?.status.success(), "quality import failed");
        let (mut prompts, mut models) = (Vec::new(), Vec::new());
        let text =
            std::fs::read_to_string(trace).with_context(|| format!("cannot read {}", trace.display()))?;
        for line in text.lines() {
            let row: serde_json::Value = serde_json::from_str(line)?;
            let prompt = row["prompt"].as_str().context("a row without a prompt")?;
            prompts.push(prompt.chars().take(PROMPT_CHARS).collect());
            if let Some(scored) = row["models"].as_object().filter(|_| models.is_empty()) {
                models = scored.keys().take(FLEET).cloned().collect();
            }
        }
        ensure!(models.len() == FLEET, "the first row scores {} models, not {FLEET}", models.len());
        ensure!(prompts.len() >= 24, "{} prompts are too few", prompts.len());
        Ok(Self { prompts, models, store })
    }

    fn prompt(&self, n: usize) -> &str {
        &self.prompts[n % self.prompts.len()]
    }

    /// A text that no cache has seen.
    fn fresh_prompt(&self, n: usize) -> String {
        format!("{} ({n})", self.prompt(n))
    }
}

async fn decisions(setting: &Setting<'_>, profile: &Profile) -> anyhow::Result<()> {
    println!("Decision after a fixed window's close, {FLEET} destinations, policy memetic:\n");
    println!(
        "| R | embedding | leaves p50 ms | p99 ms | answered p50 ms | p99 ms | on looked-up quality | solving, mean ms |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let window = format!("window: {{close: fixed, max_ms: {}}}", WINDOW.as_millis());
    let router = Router::start(setting, &window, true).await?;
    let mut n_fresh = 0;
    for n_requests in [1, 8, 24] {
        for is_cached in [true, false] {
            let mut late = Late::default();
            let mut before = BTreeMap::new();
            for n_window in 0..=setting.args.windows {
                if n_window == 1 {
                    // The first one fills the cache and is not counted.
                    before = router.metrics().await?;
                    late = Late::default();
                }
                let text = |n: usize| {
                    if is_cached { profile.prompt(n).to_owned() } else { profile.fresh_prompt(n_fresh + n) }
                };
                one_window(&router, (0..n_requests).map(text).collect(), &mut late).await?;
                n_fresh += n_requests;
            }
            let after = router.metrics().await?;
            let grown = |name: &str| after.get(name).unwrap_or(&0.0) - before.get(name).unwrap_or(&0.0);
            let looked_up =
                grown(r#"cema_quality_source_total{source="store"}"#) / late.answered_s.len() as f64;
            let solve_s = grown(r#"cema_solve_duration_seconds_sum{policy="memetic"}"#)
                / grown(r#"cema_solve_duration_seconds_count{policy="memetic"}"#);
            println!(
                "| {n_requests} | {} | {:.1} | {:.1} | {:.1} | {:.1} | {:.0} % | {:.2} |",
                if is_cached { "cached" } else { "uncached" },
                1e3 * percentile(&mut late.departed_s, 0.5),
                1e3 * percentile(&mut late.departed_s, 0.99),
                1e3 * percentile(&mut late.answered_s, 0.5),
                1e3 * percentile(&mut late.answered_s, 0.99),
                100.0 * looked_up,
                1e3 * solve_s,
            );
        }
    }
    Ok(())
}

/// Times after a window's close.
#[derive(Default)]
struct Late {
    /// Of the departure of the batch, one per window.
    departed_s: Vec<f64>,
    /// Of the answers at the client.
    answered_s: Vec<f64>,
}

/// Sends one request per text over the first part of a window and adds how late it left and was answered.
async fn one_window(router: &Router, texts: Vec<String>, late: &mut Late) -> anyhow::Result<()> {
    let gap = WINDOW.mul_f64(ARRIVAL_SHARE / texts.len() as f64);
    let mut connections = Vec::new();
    for _ in &texts {
        connections.push(Connection::open(router.address).await?);
    }
    let began = Instant::now();
    let requests = (0u32..).zip(connections).zip(texts).map(|((n, mut connection), text)| {
        tokio::spawn(async move {
            tokio::time::sleep_until((began + gap * n).into()).await;
            let answered = connection.chat("auto", &text).await?;
            anyhow::Ok((began.elapsed().as_secs_f64() - WINDOW.as_secs_f64(), answered.window_s))
        })
    });
    let requests: Vec<_> = requests.collect();
    let mut first_window_s = None;
    for request in requests {
        let (answered_s, window_s) = request.await??;
        late.answered_s.push(answered_s);
        // The first one's wait is the window's length and what came on top.
        first_window_s = first_window_s.or(window_s);
    }
    let window_s = first_window_s.context("the router does not tell x-cema-window-ms")?;
    late.departed_s.push(window_s - WINDOW.as_secs_f64());
    Ok(())
}

async fn added_latency(setting: &Setting<'_>) -> anyhow::Result<()> {
    println!("\nAdded latency of an idle fleet, default adaptive window, single requests:\n");
    println!("| embedding | direct p50 ms | added p50 ms | added p99 ms | router CPU per request ms |");
    println!("|---|---|---|---|---|");
    let router = Router::start(setting, "window: {max_ms: 1000}", setting.profile.is_some()).await?;
    let mut through = Connection::open(router.address).await?;
    let mut direct = Connection::open(setting.endpoints[0]).await?;
    let kinds: &[&str] =
        if setting.profile.is_some() { &["cached", "skipped", "uncached"] } else { &["skipped"] };
    for kind in kinds {
        let (mut routed_s, mut direct_s) = (Vec::new(), Vec::new());
        let mut before_s = 0.0;
        for n in 0..WARM_UP + setting.args.singles {
            // The first few open connections and fill caches.
            let is_counted = n >= WARM_UP;
            if n == WARM_UP {
                before_s = router.process.cpu_s()?;
            }
            let text = match setting.profile {
                Some(profile) if *kind == "uncached" => profile.fresh_prompt(1_000_000 + n),
                Some(profile) => profile.prompt(0).to_owned(),
                None => "What is six times seven?".to_owned(),
            };
            let model = if *kind == "skipped" { model_name(setting.profile, 0) } else { "auto".to_owned() };
            let routed = through.chat(&model, &text).await?;
            let unrouted = direct.chat(&model, &text).await?;
            if is_counted {
                routed_s.push(routed.took.as_secs_f64());
                direct_s.push(unrouted.took.as_secs_f64());
            }
        }
        let cpu_ms = 1e3 * (router.process.cpu_s()? - before_s) / setting.args.singles as f64;
        let mut added_ms = |q| 1e3 * (percentile(&mut routed_s, q) - percentile(&mut direct_s, q));
        let (p50, p99) = (added_ms(0.5), added_ms(0.99));
        let direct_ms = 1e3 * percentile(&mut direct_s, 0.5);
        println!("| {kind} | {direct_ms:.2} | {p50:.2} | {p99:.2} | {cpu_ms:.2} |");
    }
    Ok(())
}

async fn saturated(setting: &Setting<'_>) -> anyhow::Result<()> {
    println!("\nCPU per request of 2 KB, {CONNECTIONS} connections, max_ms 0, policy greedy, no store:\n");
    println!("| proxy | CPU µs | of the pass-through |");
    println!("|---|---|---|");
    let router = Router::start(setting, "window: {max_ms: 0}\nrouting: {policy: greedy}", false).await?;
    let listen = free_address()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("pass-through").arg(listen.to_string()).arg(setting.endpoints[0].to_string());
    let pass_through = Process(command.spawn()?);
    wait_for(listen, "/health").await?;
    let (mut bare_us, mut routed_us) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        bare_us.push(cpu_us_per_request(setting, listen, &pass_through).await?);
        routed_us.push(cpu_us_per_request(setting, router.address, &router.process).await?);
    }
    let (bare, routed) = (percentile(&mut bare_us, 0.5), percentile(&mut routed_us, 0.5));
    println!("| bare pass-through | {bare:.1} | 1.00 |");
    println!("| cema-router | {routed:.1} | {:.2} |", routed / bare);
    Ok(())
}

async fn cpu_us_per_request(
    setting: &Setting<'_>,
    address: SocketAddr,
    process: &Process,
) -> anyhow::Result<f64> {
    let each = setting.args.saturating / CONNECTIONS;
    let text = "x".repeat(2048 - chat_body("auto", "").len());
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut connection = Connection::open(address).await?;
        connection.chat("auto", &text).await?;
        connections.push(connection);
    }
    let before_s = process.cpu_s()?;
    let loops = connections.into_iter().map(|mut connection| {
        let text = text.clone();
        tokio::spawn(async move {
            for _ in 0..each {
                connection.chat("auto", &text).await?;
            }
            anyhow::Ok(())
        })
    });
    let loops: Vec<_> = loops.collect();
    for one in loops {
        one.await??;
    }
    Ok(1e6 * (process.cpu_s()? - before_s) / (each * CONNECTIONS) as f64)
}

/// A running router.
struct Router {
    process: Process,
    address: SocketAddr,
    admin: SocketAddr,
}

impl Router {
    async fn start(setting: &Setting<'_>, extra: &str, with_store: bool) -> anyhow::Result<Self> {
        let (address, admin) = (free_address()?, free_address()?);
        let none = setting.folder.join("none");
        let store = setting.profile.filter(|_| with_store).map_or(none.as_path(), |profile| &profile.store);
        let mut text = format!(
            "listen: {address}\nadmin_listen: {admin}\nquality: {{store: \"{}\"}}\n{extra}\nnodes:\n",
            store.display()
        );
        for (n, endpoint) in setting.endpoints.iter().enumerate() {
            let model = model_name(setting.profile, n);
            let speed = 20 + 10 * n;
            text += &format!(
                "  - name: node-{n}\n    endpoints:\n      - url: http://{endpoint}\n        kind: vllm\n        models:\n          \
                 - {{name: \"{model}\", throughput: {{prefill_tps: 4000, decode_tps: {speed}, batch_speedup: 8, max_concurrency: 64}}}}\n"
            );
        }
        let config = setting.folder.join("config.yaml");
        std::fs::write(&config, text)?;
        let mut command = Command::new(&setting.args.router);
        command.args(["serve", "--log", "error", "--config"]).arg(&config);
        let process = Process(command.spawn().context("cannot run the router")?);
        wait_for(address, "/readyz").await?;
        Ok(Self { process, address, admin })
    }

    /// Every sample of the metrics page by its name with labels.
    async fn metrics(&self) -> anyhow::Result<BTreeMap<String, f64>> {
        let mut connection = Connection::open(self.admin).await?;
        let page = connection.send(Method::GET, "/metrics", Bytes::new()).await?;
        let text = String::from_utf8(page.into_body().to_vec())?;
        let samples =
            text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
        Ok(samples.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect())
    }
}

fn model_name(profile: Option<&Profile>, n: usize) -> String {
    profile.map_or_else(|| format!("model-{n}"), |profile| profile.models[n].clone())
}

/// The value below which a share `q` of `values` lies; sorts them.
fn percentile(values: &mut [f64], q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let nth = (q * values.len() as f64).ceil() as usize;
    values.get(nth.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}
