//! A prompt is routed by what is known of prompts like it: from an imported trace to the destination.

use std::fmt::Write as _;
use std::process::Command;

use crate::support::answers::chat;
use crate::support::app::{Router, llm, node};
use crate::support::embedder::embedder_or_skip;

#[tokio::test]
async fn a_prompt_goes_where_prompts_like_it_were_answered_well() {
    if embedder_or_skip("a_prompt_goes_where_prompts_like_it_were_answered_well").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (trace, store) = (folder.path().join("trace.jsonl"), folder.path().join("store"));
    let mut rows = String::new();
    for n in 2..22 {
        for (topic, prompt, sums, songs) in [
            ("sum", format!("What is {n} plus {}? Answer with a number.", n * 3), 1.0, 0.0),
            ("song", format!("Write verse {n} of a love song about the sea at night."), 0.0, 1.0),
        ] {
            writeln!(
                rows,
                r#"{{"id":"{topic}-{n}","prompt":"{prompt}","models":{{"sums":{{"score":{sums},"completion_tokens":4}},"songs":{{"score":{songs},"completion_tokens":90}}}}}}"#
            )
            .unwrap();
        }
    }
    std::fs::write(&trace, rows).unwrap();
    let import = Command::new(env!("CARGO_BIN_EXE_cema-router"))
        .args(["quality", "import", "--store"])
        .arg(&store)
        .arg("--trace")
        .arg(&trace)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(import.status.success(), "{}", String::from_utf8_lossy(&import.stderr));

    let endpoint = llm(|_| chat("m", "done")).await;
    let nodes =
        [node("a", endpoint.url()).model("{name: sums}"), node("b", endpoint.url()).model("{name: songs}")];
    // Longer than any embedding takes, so that a busy machine does not decide this.
    let quality = format!("quality: {{store: \"{}\", embed_wait_ms: 10000}}\n", store.display());
    let router = Router::start(&nodes, &format!("{quality}routing: {{weights: {{quality: 1}}}}\n")).await;
    let mut predicted = Vec::new();
    for (prompt, destination) in [
        ("What is 5 plus 12? Answer with a number.", "a/sums"),
        ("Write a love song about the sea.", "b/songs"),
    ] {
        let body = format!(r#"{{"model":"auto","messages":[{{"role":"user","content":"{prompt}"}}]}}"#);
        let head = router.chat_with("x-cema-debug: true\r\n", &body).await.head;
        assert_eq!(head.header("x-cema-destination").unwrap(), destination, "{prompt}");
        predicted.push(head.header("x-cema-predicted").unwrap());
    }
    assert_ne!(predicted[0], predicted[1]);
    for prediction in &predicted {
        let (_, quality) = prediction.split(';').next().unwrap().split_once('=').unwrap();
        assert!(quality.parse::<f64>().unwrap() > 0.7, "{prediction}");
    }
    let metrics = router.idle().await;
    assert_eq!(metrics.count("cema_quality_source_total", &[("source", "store")]), 2);
    assert_eq!(metrics.count("cema_quality_source_total", &[]), 2);
    assert_eq!(metrics.count("cema_quality_store_rows", &[]), 40);
    assert!((metrics.sum("cema_quality_coverage_ratio", &[]) - 1.0).abs() < 1e-9);
    assert_eq!(metrics.count("cema_embed_duration_seconds_count", &[]), 2);
}
