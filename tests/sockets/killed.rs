//! SIGKILL at any moment: what was acknowledged is there, and the store opens.
//!
//! A few times each in the suite; `CEMA_TEST_KILLS=100` kills a hundred times each.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Stdio;

use rusqlite::{Connection, OpenFlags};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::task::JoinSet;

use crate::profile::{config_of, on_disk, profile};
use crate::support::answers::{chat, chat_stream};
use crate::support::app::{CHAT, config_text, llm, node};
use crate::support::embedder::embedder_or_skip;
use crate::support::in_time;
use crate::support::process::Process;
use cema_router::profiler::quality::store::{DATABASE_FILE, QualityStore};

/// Kills of each kind in the suite.
const KILLS: u64 = 3;

fn kills() -> u64 {
    std::env::var("CEMA_TEST_KILLS").ok().map_or(KILLS, |n| n.parse().unwrap())
}

/// Acknowledgements to wait for in round `n` before the kill: few, and another number each time.
const fn acknowledgements(n: u64) -> usize {
    (n * 7 % 23) as usize
}

/// Opens the store as the program does, and checks it as thoroughly as SQLite can.
fn assert_sound(folder: &Path) {
    drop(QualityStore::open(folder).unwrap());
    let database = Connection::open(folder.join(DATABASE_FILE)).unwrap();
    let check: String = database.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
    let n_orphans: i64 =
        database.query_row("SELECT count(*) FROM pragma_foreign_key_check", [], |row| row.get(0)).unwrap();
    assert_eq!(n_orphans, 0);
}

/// What a reader of another process sees now; nothing while there is no store.
fn seen(folder: &Path, sql: &str) -> i64 {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
    let count = |database: Connection| database.query_row(sql, [], |row| row.get(0));
    Connection::open_with_flags(folder.join(DATABASE_FILE), flags).and_then(count).unwrap_or_default()
}

async fn kill(child: &mut Child) {
    child.start_kill().unwrap();
    let status = in_time("the killed to end", child.wait()).await.unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "it was not over before");
}

fn lines<R: AsyncRead + Unpin>(of: R) -> Lines<BufReader<R>> {
    BufReader::new(of).lines()
}

#[tokio::test]
async fn an_import_that_is_killed_loses_nothing_that_anybody_saw() {
    if embedder_or_skip("an_import_that_is_killed_loses_nothing_that_anybody_saw").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (store, trace) = (folder.path().join("store"), folder.path().join("trace.jsonl"));
    let prompts = "SELECT count(*) FROM prompts";
    let mut n_before = 0;
    let mut n_acknowledged = 0;
    for round in 0..kills() {
        let mut rows = String::new();
        for n in 0..1_000 {
            let row = json!({"id": format!("r{round}-{n}"), "prompt": format!("question {n} of round {round}"),
                "models": {"m": {"score": 0.5}}});
            writeln!(rows, "{row}").unwrap();
        }
        std::fs::write(&trace, rows).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_cema-router"))
            .args(["quality", "import", "--threads", "1", "--store", store.to_str().unwrap()])
            .args(["--trace", trace.to_str().unwrap()])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut told: Lines<BufReader<ChildStderr>> = lines(child.stderr.take().unwrap());
        // Whole chunks are acknowledged: the first is told of, further ones others can see.
        let chunks = acknowledgements(round) % 4;
        let mut n_seen = n_before;
        if chunks > 0 {
            let line = in_time("the first chunk", told.next_line()).await.unwrap().unwrap();
            assert!(line.contains("64 prompts stored"), "{line}");
            n_seen = n_before + 64;
        }
        while n_seen < n_before + 64 * i64::try_from(chunks).unwrap() {
            tokio::task::yield_now().await;
            n_seen = n_seen.max(seen(&store, prompts));
        }
        kill(&mut child).await;
        if !store.join(DATABASE_FILE).exists() {
            assert_eq!(n_seen, 0);
            continue;
        }
        assert_sound(&store);
        let n_after = seen(&store, prompts);
        assert!(n_after >= n_seen && (n_after - n_before) % 64 == 0, "{n_before}, {n_seen}, {n_after}");
        n_acknowledged += n_seen - n_before;
        n_before = n_after;
    }
    assert!(n_acknowledged > 0);
}

#[tokio::test]
async fn feedback_that_was_acknowledged_outlives_a_kill() {
    if embedder_or_skip("feedback_that_was_acknowledged_outlives_a_kill").is_none() {
        return;
    }
    let endpoint = llm(|_| chat("m", "done")).await;
    let folder = tempfile::tempdir().unwrap();
    let (store, config) = (folder.path().join("store"), folder.path().join("config.yaml"));
    let quality = format!("quality: {{store: \"{}\"}}\nwindow: {{max_ms: 0}}\n", store.display());
    let text = config_text(&[node("n", endpoint.url()).model("{name: m}")], &quality);
    std::fs::write(&config, text).unwrap();
    let mut acknowledged = BTreeMap::new();
    for round in 0..kills() {
        let mut router = Process::start(&["serve", "--config", config.to_str().unwrap()]);
        let api = router.logged_address("listening", "listen").await;
        let (scores, mut inbox) = tokio::sync::mpsc::unbounded_channel();
        let mut clients = JoinSet::new();
        for client in 0..4 {
            let scores = scores.clone();
            clients.spawn(async move {
                // Until it is killed under them.
                for n in 0.. {
                    let id = format!("r{round}-c{client}-{n}");
                    let body = json!({"model": "m", "messages": [{"role": "user", "content": format!("question {n}")}]});
                    if post(api, CHAT, &format!("x-request-id: {id}\r\n"), &body).await != Some(200) {
                        return;
                    }
                    for score in [0.25, f64::from(n % 4) / 4.0] {
                        let body = json!({"request_id": id, "score": score});
                        if post(api, "/v1/feedback", "", &body).await != Some(200) {
                            return;
                        }
                        scores.send((id.clone(), score)).unwrap();
                    }
                }
            });
        }
        for _ in 0..=acknowledgements(round) {
            let (id, score) = in_time("an acknowledgement", inbox.recv()).await.unwrap();
            acknowledged.insert(id, score);
        }
        router.signal("KILL").await;
        router.ended().await;
        in_time("the clients to notice", async { while clients.join_next().await.is_some() {} }).await;
        drop(scores);
        while let Some((id, score)) = inbox.recv().await {
            acknowledged.insert(id, score);
        }
        assert_sound(&store);
        let database = Connection::open(store.join(DATABASE_FILE)).unwrap();
        let mut rows = database.prepare("SELECT request_id, score FROM feedback").unwrap();
        let stored: BTreeMap<String, f64> =
            rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(Result::unwrap).collect();
        for (id, score) in &acknowledged {
            let found = stored.get(id).unwrap_or_else(|| panic!("round {round}: {id} is lost"));
            // A second score may have been stored without being acknowledged.
            let is_later = id.starts_with(&format!("r{round}-")) && (score - 0.25).abs() < 1e-12;
            assert!(
                (found - score).abs() < 1e-12 || is_later,
                "round {round}: {id} has {found}, not {score}"
            );
        }
        // What it is taken for from now on.
        acknowledged = stored;
    }
    assert!(acknowledged.len() as u64 >= kills());
}

/// The status of the answer; `None` without one.
async fn post(api: std::net::SocketAddr, path: &str, headers: &str, body: &Value) -> Option<u16> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let body = body.to_string();
    let mut socket = tokio::net::TcpStream::connect(api).await.ok()?;
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: t\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{headers}\r\n",
        body.len()
    );
    socket.write_all((head + &body).as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.ok()?;
    std::str::from_utf8(answer.get(9..12)?).ok()?.parse().ok()
}

#[tokio::test]
async fn a_profiling_that_is_killed_loses_no_answer_it_has_told_of() {
    if embedder_or_skip("a_profiling_that_is_killed_loses_no_answer_it_has_told_of").is_none() {
        return;
    }
    let endpoint = llm(|_| chat_stream("m", &["yes"])).await;
    let (folder, config) = on_disk(&config_of("openai", &[("n", endpoint.url())], "name: m"));
    let (store, workload) = (folder.path().join("quality"), folder.path().join("workload.jsonl"));
    let mut told = 0;
    for round in 0..kills() {
        let row = |n| {
            json!({"id": format!("r{round}-{n}"), "prompt": format!("question {n} of round {round}"),
                "scorer": "contains", "answer": "yes"})
        };
        let rows: String = (0..2_000).map(|n| row(n).to_string() + "\n").collect();
        std::fs::write(&workload, rows).unwrap();
        let args = ["--workload", workload.to_str().unwrap(), "--yes", "--format", "jsonl"];
        let mut child = profile("quality", &config, &args).stderr(Stdio::null()).spawn().unwrap();
        let mut out: Lines<BufReader<ChildStdout>> = lines(child.stdout.take().unwrap());
        let mut acknowledged = Vec::new();
        for _ in 0..=acknowledgements(round) {
            let line = in_time("an answer", out.next_line()).await.unwrap().unwrap();
            acknowledged.push(line);
        }
        kill(&mut child).await;
        while let Some(line) = in_time("the rest", out.next_line()).await.unwrap() {
            acknowledged.push(line);
        }
        assert_sound(&store);
        let database = Connection::open(store.join(DATABASE_FILE)).unwrap();
        let mut find = database
            .prepare(
                "SELECT count(*) FROM prompts JOIN scores ON scores.prompt = prompts.ord
                 JOIN answers USING (prompt, model) WHERE id = ?1 AND score = 1",
            )
            .unwrap();
        for line in &acknowledged {
            // The last line may be cut.
            let Ok(row) = serde_json::from_str::<Value>(line) else { continue };
            let found: i64 = find.query_row([row["id"].as_str().unwrap()], |row| row.get(0)).unwrap();
            assert_eq!(found, 1, "round {round}: {line} is lost");
            told += 1;
        }
    }
    assert!(told as u64 >= kills());
}
