//! Pages of real engines, and of others as their documentation has them.

use super::*;

const VLLM: &str = include_str!("../../../../tests/fixtures/engines/vllm-metrics.txt");
const LLAMACPP: &str = include_str!("../../../../tests/fixtures/engines/llamacpp-metrics.txt");
const SLOTS: &str = include_str!("../../../../tests/fixtures/engines/llamacpp-slots.json");
const PROPS: &str = include_str!("../../../../tests/fixtures/engines/llamacpp-props.json");

fn told(pages: &[(Page, &str)]) -> Told {
    let mut told = Told::default();
    for (page, text) in pages {
        assert!(page.read(text, &mut told), "{page:?}");
    }
    told
}

fn reading(pages: &[(Page, &str)], configured: &[&str]) -> Option<EngineReading> {
    let configured: Vec<Arc<str>> = configured.iter().map(|name| (*name).into()).collect();
    told(pages).reading(&configured, 0, Instant::now())
}

#[test]
fn vllm_as_recorded() {
    let idle = reading(&[(Page::VllmMetrics, VLLM)], &["m"]).unwrap();
    assert_eq!((idle.running, idle.waiting, idle.kv_usage), (Some(0), Some(0), Some(0.0)));
    assert_eq!((idle.slots, idle.models.len()), (None, 0));
    // Eight requests on a server for four at once, as recorded.
    let queue = "vllm:num_requests_running{engine=\"0\",model_name=\"smollm2-135m-instruct\"} 4.0\n\
         vllm:num_requests_waiting{engine=\"0\",model_name=\"smollm2-135m-instruct\"} 4.0\n\
         vllm:num_requests_waiting_by_reason{engine=\"0\",model_name=\"smollm2-135m-instruct\",reason=\"capacity\"} 4.0\n\
         vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"smollm2-135m-instruct\"} 0.011019283746556474\n";
    let busy = reading(&[(Page::VllmMetrics, queue)], &["m"]).unwrap();
    assert_eq!(
        (busy.running, busy.waiting, busy.kv_usage),
        (Some(4), Some(4), Some(0.011_019_283_746_556_474))
    );
}

#[test]
fn vllm_under_its_older_names_and_with_several_engines() {
    let old = "vllm:num_requests_running{model_name=\"m\"} 3.0\nvllm:num_requests_swapped{model_name=\"m\"} 2.0\n\
         vllm:num_requests_waiting{model_name=\"m\"} 1.0\nvllm:gpu_cache_usage_perc{model_name=\"m\"} 0.5\n\
         vllm:cpu_cache_usage_perc{model_name=\"m\"} 0.9\n";
    let read = reading(&[(Page::VllmMetrics, old)], &[]).unwrap();
    assert_eq!((read.running, read.waiting, read.kv_usage), (Some(3), Some(3), Some(0.5)));
    let two = "vllm:num_requests_running{engine=\"0\"} 3\nvllm:num_requests_running{engine=\"1\"} 1\n\
         vllm:kv_cache_usage_perc{engine=\"0\"} 1.0\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.5\n\
         vllm:num_requests_waiting{engine=\"0\"} NaN\n";
    let read = reading(&[(Page::VllmMetrics, two)], &[]).unwrap();
    assert_eq!((read.running, read.waiting, read.kv_usage), (Some(4), None, Some(0.75)));
}

#[test]
fn llamacpp_as_recorded() {
    let pages = [(Page::LlamaCppProps, PROPS), (Page::LlamaCppMetrics, LLAMACPP)];
    let read = reading(&pages, &["smollm2"]).unwrap();
    assert_eq!((read.running, read.waiting, read.kv_usage, read.slots), (Some(0), Some(0), None, Some(4)));
    assert_eq!(read.models.len(), 1);
    assert!(read.models[0].is_loaded && &*read.models[0].name == "smollm2", "it does not sleep");
    // Six requests on two slots, as recorded.
    let queue = "llamacpp:requests_processing 2\nllamacpp:requests_deferred 4\n";
    let read = reading(&[(Page::LlamaCppMetrics, queue)], &[]).unwrap();
    assert_eq!((read.running, read.waiting), (Some(2), Some(4)));
    let old = format!("{queue}llamacpp:kv_cache_usage_ratio 0.25\n");
    assert_eq!(reading(&[(Page::LlamaCppMetrics, &old)], &[]).unwrap().kv_usage, Some(0.25));
}

#[test]
fn llamacpp_slots_tell_where_its_metrics_are_off() {
    let read = reading(&[(Page::LlamaCppSlots, SLOTS)], &[]).unwrap();
    assert_eq!((read.running, read.waiting, read.slots), (Some(0), None, Some(4)));
    let one_works = SLOTS.replacen("\"is_processing\":false", "\"is_processing\":true", 1);
    assert_eq!(reading(&[(Page::LlamaCppSlots, &one_works)], &[]).unwrap().running, Some(1));
    let older = r#"[{"id":0,"state":1},{"id":1,"state":0}]"#;
    let read = reading(&[(Page::LlamaCppSlots, older)], &[]).unwrap();
    assert_eq!((read.running, read.slots), (Some(1), Some(2)));
}

#[test]
fn llamacpp_is_neither_woken_nor_kept_awake() {
    let pages = |props: Option<&str>, is_working| {
        let told = props.map_or_else(Told::default, |text| told(&[(Page::LlamaCppProps, text)]));
        pages_of(EndpointKind::LlamaCpp)
            .iter()
            .filter(|page| page.is_wanted(&told, is_working))
            .map(|page| page.path())
            .collect::<Vec<_>>()
    };
    let all = vec!["/props", "/metrics", "/slots"];
    let awake = r#"{"total_slots":4,"is_sleeping":false}"#;
    let asleep = r#"{"total_slots":4,"is_sleeping":true}"#;
    for (props, is_working, asked) in [
        (Some(awake), true, all.clone()),
        (Some(awake), false, vec!["/props"]),
        (Some(asleep), false, vec!["/props"]),
        // What is there has woken it already, or is about to.
        (Some(asleep), true, vec!["/props"]),
        // A version that does not know sleep.
        (Some(r#"{"total_slots":4}"#), false, all),
        (None, true, vec!["/props"]),
    ] {
        assert_eq!(pages(props, is_working), asked, "{props:?} {is_working}");
    }
    let read = reading(&[(Page::LlamaCppProps, asleep)], &["m"]).unwrap();
    assert!(!read.models[0].is_loaded);
    let with_metrics = told(&[(Page::LlamaCppProps, awake), (Page::LlamaCppMetrics, LLAMACPP)]);
    assert!(!Page::LlamaCppSlots.is_wanted(&with_metrics, true), "that would say the same");
}

#[test]
fn ollama_tells_what_is_loaded_and_how_large_the_rest_is() {
    let ps = r#"{"models":[{"name":"llama3.2:latest","model":"llama3.2:latest","size":6654289920,"digest":"a80c",
        "details":{"format":"gguf"},"expires_at":"2026-11-29T20:38:31Z","size_vram":3327144960,"context_length":4096}]}"#;
    let tags =
        r#"{"models":[{"name":"llama3.2:latest","size":2019393189},{"name":"qwen3:8b","size":5225388164}]}"#;
    let pages = [(Page::OllamaLoaded, ps), (Page::OllamaInstalled, tags)];
    let read = reading(&pages, &["llama3.2", "qwen3:8b", "absent"]).unwrap();
    let shown: Vec<_> = read
        .models
        .iter()
        .map(|m| (&*m.name, m.is_loaded, m.vram_share, m.size.map(|size| size.0)))
        .collect();
    assert_eq!(
        shown,
        [
            ("llama3.2:latest", true, Some(0.5), Some(2_019_393_189.0)),
            ("qwen3:8b", false, None, Some(5_225_388_164.0)),
            ("absent", false, None, None),
        ]
    );
    for nothing in [r#"{"models":[]}"#, r#"{"models":null}"#, "{}"] {
        let read = reading(&[(Page::OllamaLoaded, nothing)], &["m"]).unwrap();
        assert!(!read.models[0].is_loaded, "{nothing}");
    }
    assert_eq!(reading(&[(Page::OllamaInstalled, tags)], &["m"]), None, "what is loaded is not known");
}

#[test]
fn what_is_no_such_page_is_not_read() {
    let pages = [
        Page::VllmMetrics,
        Page::LlamaCppMetrics,
        Page::LlamaCppProps,
        Page::LlamaCppSlots,
        Page::OllamaLoaded,
        Page::OllamaInstalled,
    ];
    for page in pages {
        for text in ["", "<html>hello</html>", "up 1\n", "[1", r#"{"models":1,"total_slots":"x"}"#] {
            let mut told = Told::default();
            assert!(!page.read(text, &mut told), "{page:?} {text}");
            assert_eq!(told, Told::default());
        }
    }
}
