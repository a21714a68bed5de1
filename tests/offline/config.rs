//! The configuration file: what is accepted with which defaults, and how each kind of fault is reported.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cema_router::config::{
    Config, ConfigError, Fault, KeyDigest, MAX_FILE_BYTES, NetworkMeasure, PowerSource, ResponseModel,
    ScrapedMetric, SwitchbackConfig,
};
use cema_router::domain::{Capabilities, NodeClass, TransferEnergy, Weights};
use cema_router::endpoint::EndpointKind;
use cema_router::planning::{WindowClose, WindowOrder};
use cema_router::profiler::quality::EstimatorMode;
use cema_router::profiler::quality::feedback::FeedbackParams;
use cema_router::routing::{CompletionModel, EnergyModel, ObjectiveMode, PolicyKind, TimeTerm};
use cema_router::units::{BytesPerSec, Joules, Quality, Seconds, Tokens, TokensPerSec, Watts};
use proptest::prelude::*;

const REFERENCE: &str = include_str!("../fixtures/config/reference.yaml");

/// The least there can be.
const MINIMAL: &str = "\
listen: 127.0.0.1:8080
nodes:
  - endpoints:
      - url: http://127.0.0.1:8000
        kind: llamacpp
        models: [{name: m}]
";

fn env(name: &str) -> Option<String> {
    match name {
        "APP1_KEY" => Some("sk-app1".into()),
        "EMPTY_KEY" => Some(String::new()),
        "TWO_LINES" => Some("sk-\nleak".into()),
        _ => None,
    }
}

fn parse(text: &str) -> Result<Config, Vec<Fault>> {
    Config::parse(text, &env)
}

/// The only fault of `text`.
fn fault(text: &str) -> Fault {
    match parse(text) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(faults) if faults.len() == 1 => faults[0].clone(),
        Err(faults) => panic!("{} faults: {faults:#?}", faults.len()),
    }
}

/// Asserts that `text` has one fault, on `line` at `path`, whose message reads `message`.
#[track_caller]
fn assert_fault(text: &str, line: usize, path: &str, message: &str) {
    let fault = fault(text);
    let separator = if path.is_empty() { "" } else { ": " };
    assert_eq!((fault.line, fault.path.as_str()), (line, path), "{fault}");
    assert_eq!(fault.to_string(), format!("{path}{separator}{message}"));
}

/// The minimal configuration with `section` appended; it has 6 lines, so `section` starts on line 7.
fn with(section: &str) -> String {
    format!("{MINIMAL}{section}")
}

/// The minimal configuration with `from` replaced, which must be in it.
fn edited(from: &str, to: &str) -> String {
    assert!(MINIMAL.contains(from), "{from} is not in the minimal configuration");
    MINIMAL.replace(from, to)
}

mod accepted {
    use super::*;

    #[test]
    fn the_reference_has_the_values_it_says() {
        let config = parse(REFERENCE).unwrap();
        assert_eq!(config.listen, "127.0.0.1:8080".parse().unwrap());
        assert_eq!(config.admin_listen, "127.0.0.1:9090".parse().unwrap());
        assert!(config.auth.keys.is_empty() && !config.auth.allow_open);
        assert_eq!((config.limits.max_body_bytes, config.limits.max_queued_requests), (33_554_432, 4_096));
        assert_eq!(config.limits.request_deadline, Duration::from_secs(600));
        assert_eq!(config.timeouts.connect, Duration::from_secs(3));
        assert_eq!(config.timeouts.first_byte, Duration::from_secs(120));
        assert_eq!(config.timeouts.first_token, Duration::from_secs(300));
        assert_eq!(config.timeouts.load, Duration::from_secs(300));
        assert_eq!(config.timeouts.idle, Duration::from_secs(60));
        assert_eq!(config.timeouts.commit_after, Duration::from_secs(20));
        assert_eq!(config.timeouts.keep_alive, Duration::from_secs(75));
        assert_eq!(config.timeouts.head, Duration::from_secs(30));
        assert_eq!(config.timeouts.write_idle, Duration::from_secs(60));
        assert_eq!((config.limits.max_connections, config.limits.drain), (10_000, Duration::from_secs(30)));
        assert_eq!(config.tls, None);
        assert_eq!(config.response_model, ResponseModel::Resolved);
        assert_eq!((config.window.max_wait, config.window.max_requests), (Seconds(1.0), 128));
        assert_eq!(
            (config.window.close, config.window.order),
            (WindowClose::Adaptive, WindowOrder::Shortest)
        );
        assert_eq!(config.window.max_hold, None);
        assert_eq!(config.routing.policy, PolicyKind::Memetic);
        assert_eq!(config.routing.objective, ObjectiveMode::Stationary);
        assert_eq!(config.routing.weights, Weights::EQUAL);
        assert_eq!(config.routing.completion, CompletionModel::Slots);
        assert_eq!(
            (config.routing.time, config.routing.energy_model),
            (TimeTerm::Sum, EnergyModel::Marginal)
        );
        assert_eq!((config.routing.budget, config.routing.seed), (Duration::from_millis(4), 1));
        let cache = config.routing.prefix_cache;
        assert_eq!((cache.entries, cache.max_age), (8_192, Seconds(600.0)));
        assert!(!config.routing.refuse_infeasible_deadlines);
        assert_eq!((&config.embedder.library, &config.embedder.model), (&None, &None));
        assert_eq!(config.quality.store, PathBuf::from("./quality"));
        assert_eq!((config.quality.mode, config.quality.neighbours), (EstimatorMode::FormatAware, 160));
        assert!((config.quality.min_similarity - 0.3).abs() < 1e-12);
        assert!((config.quality.prior_strength - 0.1).abs() < 1e-12);
        assert_eq!(config.quality.embed_wait, Duration::from_millis(50));
        assert_eq!(config.quality.feedback, FeedbackParams::default());
    }

    #[test]
    fn feedback_counts_as_configured() {
        let given = "quality: {feedback: {retention_s: 60, requests: 5, memory_mb: 1, keep_prompts: true, weight: 0.5, half_life_days: 2, rows: 7}}\n";
        let expected = FeedbackParams {
            retention: Duration::from_secs(60),
            requests_max: 5,
            bytes_max: 1 << 20,
            keeps_prompts: true,
            weight: 0.5,
            half_life: Some(Seconds(172_800.0)),
            rows_max: 7,
        };
        assert_eq!(parse(&with(given)).unwrap().quality.feedback, expected);
        let ageless = parse(&with("quality: {feedback: {half_life_days: none}}\n")).unwrap();
        assert_eq!(ageless.quality.feedback.half_life, None);
        let never = fault(&with("quality: {feedback: {half_life_days: never}}\n"));
        assert!(never.to_string().contains("none or 0.01 to 3650"), "{never}");
    }

    #[test]
    fn policies_take_turns_where_they_are_to() {
        assert_eq!(parse(MINIMAL).unwrap().switchback, None);
        let config = parse(&with("switchback: {policies: [memetic, greedy]}\n")).unwrap();
        let policies = vec![PolicyKind::Memetic, PolicyKind::Greedy];
        let expected = SwitchbackConfig { slice: Seconds(600.0), policies, washout: 0.2 };
        assert_eq!(config.switchback, Some(expected));
        let given = "switchback: {minutes: 0.5, washout: 0, policies: [greedy, greedy_plain, cloud_only]}\n";
        let of = parse(&with(given)).unwrap().switchback.unwrap();
        assert_eq!((of.slice, of.policies.len()), (Seconds(30.0), 3));
    }

    #[test]
    fn failing_endpoints_are_treated_as_configured() {
        let config = parse(MINIMAL).unwrap();
        let (s, ms) = (Duration::from_secs, Duration::from_millis);
        assert_eq!((config.breaker.failures, config.breaker.open, config.breaker.open_max), (5, s(5), s(60)));
        assert_eq!((config.cooling.default, config.cooling.max), (s(1), s(120)));
        assert_eq!(config.limits.max_attempts, 3);
        assert!(!config.fleet.endpoints[0].inject_usage, "llama.cpp counts by itself");
        assert!(parse(REFERENCE).unwrap().fleet.endpoints[0].inject_usage);
        let given =
            "breaker: {failures: 1, open_ms: 90000}\ncooling: {max_ms: 100}\nlimits: {max_attempts: 6}\n";
        let config = parse(&with(given)).unwrap();
        assert_eq!(
            (config.breaker.failures, config.breaker.open, config.breaker.open_max),
            (1, s(90), s(90))
        );
        assert_eq!((config.cooling.default, config.cooling.max), (ms(100), ms(100)));
        assert_eq!(config.limits.max_attempts, 6);
        let on = edited("kind: llamacpp", "kind: llamacpp\n        inject_usage: true");
        assert!(parse(&on).unwrap().fleet.endpoints[0].inject_usage);
        assert_fault(
            &with("breaker: {open_ms: 5000, open_max_ms: 4000}\n"),
            7,
            "breaker.open_max_ms",
            "below `open_ms` (got 4000; allowed 5000 to 86400000)",
        );
        assert_fault(
            &with("cooling: {default_ms: 500, max_ms: 100}\n"),
            7,
            "cooling.max_ms",
            "below `default_ms` (got 100; allowed 500 to 86400000)",
        );
        let longer = parse(&with("cooling: {default_ms: 300000}\n")).unwrap().cooling;
        assert_eq!((longer.default, longer.max), (s(300), s(300)));
    }

    #[test]
    fn the_reference_fleet_becomes_destinations() {
        let fleet = parse(REFERENCE).unwrap().fleet;
        let ids: Vec<_> = fleet.destinations.iter().map(|d| d.id.as_str()).collect();
        assert_eq!(ids, ["cloud-a/large", "edge-1/medium", "edge-2/small"]);
        let ords: Vec<_> = fleet.destinations.iter().map(|d| d.endpoint.idx()).collect();
        assert_eq!(ords, [0, 1, 2]);
        let kinds: Vec<_> = fleet.endpoints.iter().map(|e| e.kind).collect();
        assert_eq!(kinds, [EndpointKind::Vllm, EndpointKind::LlamaCpp, EndpointKind::Ollama]);
        assert_eq!(fleet.endpoints[0].url.to_string(), "http://127.0.0.1:8101/v1");
        assert_eq!(&*fleet.endpoints[0].node, "cloud-a");
        assert_eq!((&*fleet.nodes[0].name, fleet.nodes[0].class), ("cloud-a", NodeClass::Cloud));
        assert_eq!(fleet.nodes[0].measure, NetworkMeasure::Auto);

        let large = &fleet.destinations[0];
        assert_eq!((&*large.model, &*large.upstream_model), ("large", "qwen2.5-14b-instruct"));
        assert_eq!((large.class, large.context), (NodeClass::Cloud, Some(Tokens(32_768.0))));
        let offered = Capabilities::CHAT.with(Capabilities::TOOLS).with(Capabilities::JSON);
        assert_eq!(large.capabilities, offered);
        assert!((large.price.prompt_usd_per_mtok - 0.9).abs() < 1e-12);
        assert!((large.price.completion_usd_per_mtok - 0.9).abs() < 1e-12);
        assert_eq!(
            (large.throughput.prefill, large.throughput.decode),
            (TokensPerSec(4_000.0), TokensPerSec(45.0))
        );
        assert!((large.throughput.batch_speedup - 24.0).abs() < 1e-12);
        assert_eq!((large.throughput.max_concurrency, large.max_inflight), (64, 128));
        assert_eq!((large.power.board, large.power.idle), (Watts(300.0), Watts(60.0)));
        assert!((large.power.utilisation - 0.8).abs() < 1e-12);
        assert_eq!(large.network.rtt, Seconds(0.045));
        assert_eq!(large.network.uplink, BytesPerSec(62_500_000.0));
        assert_eq!(large.network.transfer_energy, TransferEnergy::PerMegabyte(Joules(1.0)));
        assert_eq!(large.quality_prior, Quality(0.72));
        // The medium node says nothing of idle power: a fifth of 165 W.
        assert!((fleet.destinations[1].power.idle.get() - 33.0).abs() < 1e-9);
    }

    #[test]
    fn the_reference_virtual_models_carry_their_constraints() {
        let config = parse(REFERENCE).unwrap();
        let model = |name: &str| config.virtual_models.iter().find(|m| &*m.name == name).unwrap();
        assert_eq!(config.virtual_models.len(), 5);
        assert_eq!((model("auto").constraints, model("auto").weights), (Default::default(), None));
        assert_eq!(model("auto-edge").constraints.placement, Some(NodeClass::Edge));
        assert_eq!(model("auto-safe").constraints.min_quality, Some(Quality(0.6)));
        assert_eq!(model("auto-batch").time, Some(TimeTerm::Makespan));
        let weights = model("auto-best").weights.unwrap();
        assert!((weights.quality - 0.7).abs() < 1e-12 && (weights.time - 0.1).abs() < 1e-12);
    }

    #[test]
    fn six_lines_are_enough() {
        let config = parse(MINIMAL).unwrap();
        assert_eq!(config.admin_listen, "127.0.0.1:9090".parse().unwrap());
        assert_eq!(config.quality.store, PathBuf::from("quality"));
        assert_eq!(config.virtual_models.len(), 1);
        assert_eq!(&*config.virtual_models[0].name, "auto");
        let destination = &config.fleet.destinations[0];
        assert_eq!(destination.id.as_str(), "127.0.0.1:8000/m");
        assert_eq!((destination.class, &*destination.upstream_model), (NodeClass::Edge, "m"));
        assert_eq!((destination.context, destination.quality_prior), (None, Quality(0.5)));
        let served = Capabilities::CHAT.with(Capabilities::TOOLS).with(Capabilities::JSON);
        assert_eq!((destination.capabilities, destination.price), (served, Default::default()));
        assert_eq!(
            (destination.network.rtt, destination.network.uplink),
            (Seconds(0.005), BytesPerSec(1.25e8))
        );
        assert_eq!((destination.power.board, destination.power.idle), (Watts(65.0), Watts(13.0)));
        // An edge box with 8 billion parameters: 300/8 and 19000/8 tokens per second; four slots of which
        // each further one slows the others by 2.5 %: 4 / 1.075.
        assert_eq!((destination.throughput.max_concurrency, destination.max_inflight), (4, 8));
        assert!((destination.throughput.decode.get() - 37.5).abs() < 1e-9);
        assert!((destination.throughput.prefill.get() - 2_375.0).abs() < 1e-9);
        assert!((destination.throughput.batch_speedup - 3.720_930_232_558_14).abs() < 1e-9);
        let endpoint = &config.fleet.endpoints[0];
        assert_eq!((endpoint.max_inflight, &endpoint.api_key, &endpoint.name), (8, &None, &None));
    }

    #[test]
    fn absent_and_empty_sections_equal_the_reference_defaults() {
        let reference = parse(REFERENCE).unwrap();
        for text in
            [MINIMAL.to_owned(), with("auth:\nlimits: {}\ntimeouts: ~\nwindow: null\nrouting:\n  # none\n")]
        {
            let config = parse(&text).unwrap();
            assert_eq!(config.limits, reference.limits);
            assert_eq!(config.timeouts, reference.timeouts);
            assert_eq!(config.window, reference.window);
            assert_eq!(config.routing, reference.routing);
            assert_eq!(config.embedder, reference.embedder);
            assert_eq!(config.response_model, reference.response_model);
            assert_eq!(config.auth, reference.auth);
        }
    }

    #[test]
    fn urls_are_normalised_to_where_the_api_starts() {
        for (given, base) in [
            ("http://h", "http://h/v1"),
            ("http://h/", "http://h/v1"),
            ("http://h:81/v1", "http://h:81/v1"),
            ("https://h/v1/", "https://h/v1"),
            ("https://h/openai/deployments/x//", "https://h/openai/deployments/x"),
            ("http://[::1]:8000", "http://[::1]:8000/v1"),
        ] {
            let config = parse(&edited("http://127.0.0.1:8000", given)).unwrap();
            assert_eq!(config.fleet.endpoints[0].url.to_string(), base, "{given}");
        }
    }

    #[test]
    fn numbers_may_be_written_either_way_where_the_meaning_is_clear() {
        let text = with(
            "window: {max_requests: 64.0, max_ms: 250}\nlimits: {max_body_bytes: 1e6}\nquality: {min_similarity: 0}\n",
        );
        let config = parse(&text).unwrap();
        assert_eq!((config.window.max_requests, config.window.max_wait), (64, Seconds(0.25)));
        assert_eq!(config.limits.max_body_bytes, 1_000_000);
        assert_eq!(parse(&with("routing: {seed: 18446744073709551615}\n")).unwrap().routing.seed, u64::MAX);
    }

    #[test]
    fn names_are_text_whatever_they_look_like() {
        let config = parse(&edited("{name: m}", "{name: 1.10}, {name: off}, {name: org/m}")).unwrap();
        let names: Vec<_> = config.fleet.destinations.iter().map(|d| d.model.to_string()).collect();
        assert_eq!(names, ["1.10", "off", "org/m"]);
    }

    #[test]
    fn weights_are_scaled_and_the_absent_ones_are_zero() {
        let cache = parse(&with("routing: {prefix_cache: {entries: 0, max_age_s: 30}}\n"))
            .unwrap()
            .routing
            .prefix_cache;
        assert_eq!((cache.entries, cache.max_age), (0, Seconds(30.0)));
        let config = parse(&with("routing: {weights: {quality: 3, time: 1}}\n")).unwrap();
        assert_eq!(config.routing.weights, Weights { quality: 0.75, cost: 0.0, energy: 0.0, time: 0.25 });
    }

    #[test]
    fn holding_can_be_bounded_by_hand() {
        let bounded =
            parse(&with("window: {any_slot_after_ms: 250, finish_target_ms: 20000}\n")).unwrap().window;
        assert_eq!(
            (bounded.any_slot_after, bounded.finish_target),
            (Some(Seconds(0.25)), Some(Seconds(20.0)))
        );
        let free =
            parse(&with("window: {any_slot_after_ms: auto, finish_target_ms: none}\n")).unwrap().window;
        assert_eq!((free.any_slot_after, free.finish_target), (None, None));
        assert_eq!(
            parse(&with("window: {max_hold_ms: 1500}\n")).unwrap().window.max_hold,
            Some(Seconds(1.5))
        );
    }

    #[test]
    fn a_fixed_window_gives_embeddings_its_whole_length() {
        let config =
            parse(&with("window: {close: fixed, max_ms: 400}\nquality: {embed_wait_ms: 50}\n")).unwrap();
        assert_eq!(config.quality.embed_wait, Duration::from_millis(400));
        let config = parse(&with("window: {close: fixed, max_ms: 10}\n")).unwrap();
        assert_eq!(config.quality.embed_wait, Duration::from_millis(50));
    }

    #[test]
    fn power_sources_are_of_two_kinds_one_or_several_in_order() {
        let sources = |source: &str| {
            let text = edited("- endpoints", &format!("- power: {{source: {source}}}\n    endpoints"));
            parse(&text).unwrap().fleet.nodes[0].power_sources.clone()
        };
        let url = || "http://h:9400/metrics".parse().unwrap();
        let scraped = |metric| PowerSource::Scrape { url: url(), metric };
        let metric = |scale| Some(ScrapedMetric { name: "W".to_owned(), scale });
        assert_eq!(sources("null"), []);
        assert_eq!(sources("{nvml: 1}"), [PowerSource::Nvml { index: 1, library: None }]);
        assert_eq!(sources("{scrape: 'http://h:9400/metrics'}"), [scraped(None)]);
        assert_eq!(sources("{scrape: 'http://h:9400/metrics', metric: W}"), [scraped(metric(None))]);
        assert_eq!(
            sources(
                "[{nvml: 0, library: /lib/l.so}, {scrape: 'http://h:9400/metrics', metric: W, scale: 0.001}]"
            ),
            [PowerSource::Nvml { index: 0, library: Some("/lib/l.so".into()) }, scraped(metric(Some(0.001)))]
        );
    }

    #[test]
    fn transfer_energy_may_be_given_as_power_of_the_path() {
        let text = edited("- endpoints", "- network: {tx_watts: 3, rx_watts: 2}\n    endpoints");
        let network = parse(&text).unwrap().fleet.destinations[0].network;
        assert_eq!(network.transfer_energy, TransferEnergy::TxRx { tx: Watts(3.0), rx: Watts(2.0) });
    }

    #[test]
    fn keys_are_kept_as_digests() {
        let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let text = with(&format!(
            "auth:\n  keys:\n    - {{name: app1, key_env: APP1_KEY, models: [auto, m], requests_per_minute: 60}}\n    \
             - {{name: app2, sha256: {digest}, allow_weights: true, max_concurrency: 2, usd_per_day: 1.5}}\n"
        ));
        let keys = parse(&text).unwrap().auth.keys;
        assert_eq!((&*keys[0].name, keys[0].digest), ("app1", KeyDigest::of("sk-app1")));
        assert_eq!(keys[0].models.as_ref().unwrap().iter().map(|m| &**m).collect::<Vec<_>>(), ["auto", "m"]);
        assert_eq!((keys[0].requests_per_minute, keys[0].allow_weights), (Some(60), false));
        assert_eq!((keys[1].digest, keys[1].allow_weights), (KeyDigest::of("abc"), true));
        assert_eq!((keys[1].max_concurrency, &keys[1].models), (Some(2), &None));
        assert_eq!(keys[1].per_day.map(|usd| usd.get()), Some(1.5));
    }

    #[test]
    fn endpoint_keys_come_from_the_environment_and_are_not_printed() {
        let config = parse(&edited("kind: llamacpp", "kind: openai\n        api_key_env: APP1_KEY")).unwrap();
        assert_eq!(config.fleet.endpoints[0].api_key.as_ref().unwrap().expose(), "sk-app1");
        assert!(!format!("{config:?}").contains("sk-app1"));
    }

    #[test]
    fn beyond_loopback_takes_keys_or_consent() {
        let open = edited("127.0.0.1:8080", "0.0.0.0:8080");
        assert!(parse(&format!("{open}auth: {{allow_open: true}}\n")).is_ok());
        assert!(parse(&format!("{open}auth: {{keys: [{{name: a, key_env: APP1_KEY}}]}}\n")).is_ok());
        assert!(parse(&edited("127.0.0.1:8080", "localhost:8080")).is_ok());
        assert!(parse(&edited("127.0.0.1:8080", "'[::1]:8080'")).is_ok());
    }

    #[test]
    fn virtual_models_can_be_none_and_give_way_to_a_public_auto() {
        assert!(parse(&with("virtual_models: []\n")).unwrap().virtual_models.is_empty());
        assert!(parse(&edited("name: m", "name: auto")).unwrap().virtual_models.is_empty());
    }

    #[test]
    fn endpoints_of_a_node_may_share_a_model_if_named() {
        let second = "      - {url: 'http://127.0.0.1:8001', kind: ollama, name: b, max_inflight: 4, models: [{name: m}]}\n";
        let fleet = parse(&with(second)).unwrap().fleet;
        let ids: Vec<_> = fleet.destinations.iter().map(|d| d.id.as_str()).collect();
        assert_eq!(ids, ["127.0.0.1:8000/m", "127.0.0.1:8000/b/m"]);
        assert_eq!((fleet.endpoints[1].max_inflight, fleet.destinations[1].max_inflight), (4, 4));
    }
}

mod faults {
    use super::*;

    #[test]
    fn unknown_keys_at_any_depth_name_the_nearest() {
        assert_fault(
            &with("window: {max_mss: 5}\n"),
            7,
            "window.max_mss",
            "unknown key, did you mean `max_ms`? (allowed max_ms, max_requests, close, max_hold_ms, order, max_overtakes, any_slot_after_ms, finish_target_ms)",
        );
        assert_fault(
            &with("routing: {prefix_cache: {max_age_ms: 5}}\n"),
            7,
            "routing.prefix_cache.max_age_ms",
            "unknown key, did you mean `max_age_s`? (allowed entries, max_age_s)",
        );
        let fault = fault(&with("windwo: {}\n"));
        assert_eq!((fault.line, fault.path.as_str()), (7, "windwo"));
        assert_eq!(fault.problem, "unknown key, did you mean `window`?");
        assert_fault(
            &edited("{name: m}", "{name: m, throughput: {decode_tsp: 4}}"),
            6,
            "nodes[0].endpoints[0].models[0].throughput.decode_tsp",
            "unknown key, did you mean `decode_tps`? (allowed max_concurrency, prefill_tps, decode_tps, batch_speedup)",
        );
        assert_eq!(super::fault(&with("routing: {zzzzzz: 1}\n")).problem, "unknown key");
    }

    #[test]
    fn odd_keys_have_a_path_on_one_line() {
        // Found by fuzzing: an empty key had an empty path.
        assert_eq!(fault(&with("\"\": 1\n")).path, "\"\"");
        assert_eq!(fault(&with("\"a\\nb\": 1\n")).path, "a\\nb");
        assert_eq!(fault(&with(&format!("window: {{? {} : 1}}\n", "k".repeat(900)))).path.len(), 7 + 60 + 3);
        assert_eq!(fault(&with("window: {max-ms: 1}\n")).path, "window.max-ms");
    }

    #[test]
    fn wrong_types() {
        let window = |value: &str| with(&format!("window:\n  max_ms: {value}\n"));
        for value in ["soon", "\"5\"", "[5]", ".inf", "inf", "nan", "true", "1_000"] {
            let fault = fault(&window(value));
            assert_eq!((fault.line, fault.problem.as_str()), (8, "must be a number"), "{value}");
        }
        assert_fault(
            &window("soon"),
            8,
            "window.max_ms",
            "must be a number (got \"soon\"; allowed 0 to 1000)",
        );
        assert_fault(
            &with("window: {max_requests: 2.5}\n"),
            7,
            "window.max_requests",
            "must be a whole number (got 2.5; allowed whole numbers from 1 to 1024)",
        );
        assert_fault(
            &with("auth: {allow_open: yes}\n"),
            7,
            "auth.allow_open",
            "must be true or false (got \"yes\"; allowed true, false)",
        );
        assert_fault(&with("window: 5\n"), 7, "window", "must be a mapping of keys to values (got 5)");
        assert_fault(
            &with("virtual_models: auto\n"),
            7,
            "virtual_models",
            "must be a list (got \"auto\"; allowed a list of virtual models with `name`)",
        );
        assert_fault(
            &with("quality: {store: [a]}\n"),
            7,
            "quality.store",
            "must be text (got a list; allowed a path)",
        );
    }

    #[test]
    fn policies_that_cannot_take_turns() {
        let switchback = |keys: &str| with(&format!("switchback: {{{keys}}}\n"));
        let allowed = "allowed a list of at least two policies, each once";
        assert_fault(
            &switchback("minutes: 1"),
            7,
            "switchback.policies",
            &format!("required and missing ({allowed})"),
        );
        assert_fault(
            &switchback("policies: [greedy]"),
            7,
            "switchback.policies",
            &format!("one policy has nobody to take turns with (got a list; {allowed})"),
        );
        assert_fault(
            &switchback("policies: [greedy, memetic, greedy]"),
            7,
            "switchback.policies",
            &format!("`greedy` stands there twice (got a list; {allowed})"),
        );
        let unknown = fault(&switchback("policies: [greedy, memtic]"));
        assert_eq!(
            (unknown.path.as_str(), unknown.problem.as_str()),
            ("switchback.policies[1]", "unknown choice, did you mean `memetic`?")
        );
        assert_eq!(fault(&switchback("policies: [greedy, memetic], minutes: 0")).path, "switchback.minutes");
        assert_eq!(fault(&switchback("policies: [greedy, memetic], washout: 1")).path, "switchback.washout");
    }

    #[test]
    fn out_of_range() {
        assert_fault(
            &with("window: {max_ms: 1001}\n"),
            7,
            "window.max_ms",
            "out of range (got 1001; allowed 0 to 1000)",
        );
        assert_fault(
            &with("limits: {max_body_bytes: 2e6, max_body_bytes_total: 1e6}\n"),
            7,
            "limits.max_body_bytes_total",
            "out of range (got 1e6; allowed whole numbers from 2000000 to 1099511627776)",
        );
        assert_fault(
            &with("limits: {max_queued_requests: -1}\n"),
            7,
            "limits.max_queued_requests",
            "out of range (got -1; allowed whole numbers from 1 to 1000000)",
        );
        assert_fault(
            &with("window: {max_hold_ms: never}\n"),
            7,
            "window.max_hold_ms",
            "must be a number (got \"never\"; allowed auto or 0 to 600000)",
        );
        for (section, path, allowed) in [
            ("limits: {max_connections: 0}\n", "limits.max_connections", "whole numbers from 1 to 1000000"),
            ("limits: {drain_ms: -1}\n", "limits.drain_ms", "0 to 86400000"),
            ("timeouts: {head_ms: 0}\n", "timeouts.head_ms", "1 to 86400000"),
            ("timeouts: {load_ms: 0}\n", "timeouts.load_ms", "1 to 86400000"),
            ("timeouts: {keep_alive_ms: 0}\n", "timeouts.keep_alive_ms", "1 to 86400000"),
            ("timeouts: {write_idle_ms: 1e9}\n", "timeouts.write_idle_ms", "1 to 86400000"),
        ] {
            let fault = fault(&with(section));
            assert_eq!((fault.path.as_str(), fault.allowed.as_deref()), (path, Some(allowed)));
        }
        for (section, path) in [
            ("virtual_models: [{name: v, min_quality: 1.5}]\n", "virtual_models[0].min_quality"),
            ("virtual_models: [{name: v, min_quality: -0.1}]\n", "virtual_models[0].min_quality"),
        ] {
            let fault = fault(&with(section));
            assert_eq!((fault.line, fault.path.as_str()), (7, path));
            assert_eq!(fault.allowed.as_deref(), Some("0 to 1"));
        }
        let prior = fault(&edited("{name: m}", "{name: m, quality_prior: 2}"));
        assert_eq!((prior.line, prior.allowed.as_deref()), (6, Some("0 to 1")));
    }

    #[test]
    fn unknown_choices() {
        assert_fault(
            &with("routing:\n  policy: memetik\n"),
            8,
            "routing.policy",
            "unknown choice, did you mean `memetic`? (got \"memetik\"; allowed memetic, memetic_paper, greedy, \
             greedy_plain, uniroute, round_robin, least_loaded, cloud_only, edge_only)",
        );
        assert_fault(
            &edited("kind: llamacpp", "kind: tgi"),
            5,
            "nodes[0].endpoints[0].kind",
            "unknown choice (got \"tgi\"; allowed vllm, ollama, llamacpp, openai)",
        );
        assert_fault(
            &edited("{name: m}", "{name: m, capabilities: [chat, tool]}"),
            6,
            "nodes[0].endpoints[0].models[0].capabilities[1]",
            "unknown capability, did you mean `tools`? (got \"tool\"; allowed chat, embedding, tools, vision, json)",
        );
    }

    #[test]
    fn required_keys_that_are_missing() {
        let missing = |text: &str, line, path: &str| {
            let fault = fault(text);
            assert_eq!((fault.line, fault.path.as_str()), (line, path), "{fault}");
            assert_eq!(fault.problem, "required and missing");
            assert!(fault.allowed.is_some());
        };
        missing(&edited("listen: 127.0.0.1:8080\n", ""), 1, "listen");
        missing(&edited("listen: 127.0.0.1:8080\n", "listen:\n"), 1, "listen");
        missing("listen: 127.0.0.1:8080\n", 1, "nodes");
        missing(&edited("url: http://127.0.0.1:8000\n        ", ""), 4, "nodes[0].endpoints[0].url");
        missing(&edited("        kind: llamacpp\n", ""), 4, "nodes[0].endpoints[0].kind");
        missing(&edited("        models: [{name: m}]\n", ""), 4, "nodes[0].endpoints[0].models");
        missing(&edited("name: m", "upstream: m"), 6, "nodes[0].endpoints[0].models[0].name");
        missing("listen: 127.0.0.1:8080\nnodes: [{name: a}]\n", 2, "nodes[0].endpoints");
        missing(&with("virtual_models: [{placement: edge}]\n"), 7, "virtual_models[0].name");
    }

    #[test]
    fn lists_that_must_hold_something() {
        assert_fault(
            "listen: 127.0.0.1:8080\nnodes: []\n",
            2,
            "nodes",
            "must not be empty (got a list; allowed a list of at least one node with `endpoints`)",
        );
        assert_eq!(fault(&edited("[{name: m}]", "[]")).path, "nodes[0].endpoints[0].models");
        assert_eq!(
            fault("listen: 127.0.0.1:8080\nnodes: [{name: n, endpoints: []}]\n").path,
            "nodes[0].endpoints"
        );
        let capabilities = fault(&edited("{name: m}", "{name: m, capabilities: []}"));
        assert_eq!(capabilities.path, "nodes[0].endpoints[0].models[0].capabilities");
    }

    #[test]
    fn bad_urls() {
        let path = "nodes[0].endpoints[0].url";
        for url in [
            "h:8000",
            "/v1",
            "ftp://h",
            "http://",
            "http://h:port",
            "http://h:99999",
            "http://h:0",
            "http://a b",
        ] {
            let text = edited("http://127.0.0.1:8000", &format!("'{url}'"));
            let message = format!(
                "not a URL (got \"{url}\"; allowed http://HOST[:PORT][/PATH] or https://HOST[:PORT][/PATH])"
            );
            assert_fault(&text, 4, path, &message);
        }
    }

    #[test]
    fn a_url_of_one_path_of_the_api() {
        for url in ["http://h/v1/chat/completions", "https://h/models/"] {
            let text = edited("http://127.0.0.1:8000", &format!("'{url}'"));
            assert!(fault(&text).problem.contains("end it where the API starts"), "{url}");
        }
    }

    #[test]
    fn bad_addresses() {
        for address in ["8080", "':8080'", "example.org:80", "127.0.0.1", "127.0.0.1:70000"] {
            let fault = fault(&edited("127.0.0.1:8080", address));
            assert_eq!((fault.line, fault.path.as_str()), (1, "listen"), "{address}");
            assert!(fault.allowed.unwrap().contains("127.0.0.1:8080"));
        }
        let message =
            "`listen` has 127.0.0.1:8080 already (got \"127.0.0.1:8080\"; allowed an address of its own)";
        assert_fault(&with("admin_listen: 127.0.0.1:8080\n"), 7, "admin_listen", message);
    }

    #[test]
    fn duplicate_keys_name_the_first() {
        assert_fault(
            &with("window:\n  max_ms: 1\n  close: fixed\n  max_ms: 2\n"),
            10,
            "window.max_ms",
            "given twice, already on line 8",
        );
        assert_fault(&with("listen: 127.0.0.1:1\n"), 7, "listen", "given twice, already on line 1");
    }

    #[test]
    fn duplicate_names() {
        assert_fault(
            &edited("{name: m}", "{name: m}, {name: m}"),
            6,
            "nodes[0].endpoints[0].models[1].name",
            "a second destination `127.0.0.1:8000/m` (got \"m\"; allowed each model once per endpoint, and a `name` \
             for endpoints of one node that share a model)",
        );
        let node =
            "  - {name: '127.0.0.1:8000', endpoints: [{url: 'http://h', kind: vllm, models: [{name: n}]}]}\n";
        assert_fault(
            &with(node),
            7,
            "nodes[1].name",
            "another node is called `127.0.0.1:8000` (got \"127.0.0.1:8000\"; allowed a name of its own for each node)",
        );
        let twice = fault(&with("virtual_models: [{name: v}, {name: v}]\n"));
        assert_eq!(
            (twice.path.as_str(), twice.problem.as_str()),
            ("virtual_models[1].name", "another virtual model has this name")
        );
        let shadowing = fault(&with("virtual_models: [{name: m}]\n"));
        assert_eq!((shadowing.path.as_str(), shadowing.line), ("virtual_models[0].name", 7));
        assert_eq!(shadowing.allowed.as_deref(), Some("a name that no model has"));
    }

    #[test]
    fn names_that_cannot_travel() {
        for name in ["'a b'", "ü", "''", "'a\tb'", "/m", &"x".repeat(129)] {
            let fault = fault(&edited("name: m", &format!("name: {name}")));
            assert_eq!(fault.path, "nodes[0].endpoints[0].models[0].name", "{name}");
        }
        let node = fault(&edited("- endpoints", "- name: a/b\n    endpoints"));
        assert_eq!((node.line, node.path.as_str()), (3, "nodes[0].name"));
        assert!(node.allowed.unwrap().contains("without `/`"));
    }

    #[test]
    fn weights_of_nothing() {
        assert_fault(
            &with("routing: {weights: {quality: 0, time: 0.0}}\n"),
            7,
            "routing.weights",
            "weights sum to 0 (got a mapping; allowed at least one of quality, cost, energy, time above 0)",
        );
        assert_eq!(
            fault(&with("virtual_models: [{name: v, weights: {}}]\n")).path,
            "virtual_models[0].weights"
        );
        let negative = fault(&with("routing: {weights: {quality: -1, time: 1}}\n"));
        assert_eq!(
            (negative.path.as_str(), negative.problem.as_str()),
            ("routing.weights.quality", "out of range")
        );
    }

    #[test]
    fn a_placement_nothing_has() {
        assert_fault(
            &with("virtual_models: [{name: v, placement: cloud}]\n"),
            7,
            "virtual_models[0].placement",
            "no node is of this class (got \"cloud\"; allowed edge)",
        );
    }

    #[test]
    fn inflight_below_what_runs_at_once() {
        let text = edited("kind: llamacpp", "kind: llamacpp\n        max_inflight: 3");
        assert_fault(
            &text,
            6,
            "nodes[0].endpoints[0].max_inflight",
            "below the 4 requests of `max_concurrency` that run at once (got 3; allowed 4 to 1000000)",
        );
    }

    #[test]
    fn power_and_network_that_contradict_themselves() {
        let node = |key: &str| edited("- endpoints", &format!("- {key}\n    endpoints"));
        assert_fault(
            &node("power: {board_watts: 100, utilisation: 0.5, idle_watts: 60}"),
            3,
            "nodes[0].power.idle_watts",
            "more than the node draws while serving (got 60; allowed 0 to board_watts × utilisation = 50)",
        );
        for source in ["{}", "{nvml: 0, scrape: 'http://h/metrics', metric: w}"] {
            let fault = fault(&node(&format!("power: {{source: {source}}}")));
            assert_eq!((fault.line, fault.path.as_str()), (3, "nodes[0].power.source"), "{source}");
            assert!(fault.allowed.unwrap().contains("{nvml: 0}"), "{source}");
        }
        assert_eq!(
            fault(&node("power: {source: {scrape: 'http://h/m', scale: 2}}")).path,
            "nodes[0].power.source.metric"
        );
        assert_eq!(
            fault(&node("power: {source: {scrape: 'http://h/m', library: /l.so}}")).path,
            "nodes[0].power.source.library"
        );
        assert_eq!(fault(&node("power: {source: []}")).path, "nodes[0].power.source");
        assert_eq!(fault(&node("power: {source: [{nvml: 0}, {}]}")).path, "nodes[0].power.source[1]");
        let nine = format!("power: {{source: [{}]}}", ["{nvml: 0}"; 9].join(", "));
        assert_eq!(fault(&node(&nine)).problem, "9 sources");
        assert_eq!(fault(&node("power: {source: {nvml: 0, scale: 2}}")).path, "nodes[0].power.source.scale");
        let metric = fault(&node("power: {source: {scrape: 'http://h/m', metric: 9w}}"));
        assert_eq!(metric.problem, "not a metric name");
        assert_eq!(fault(&node("network: {tx_watts: 3}")).path, "nodes[0].network.rx_watts");
        assert_eq!(fault(&node("network: {rx_watts: 3}")).path, "nodes[0].network.tx_watts");
        let both = fault(&node("network: {tx_watts: 3, rx_watts: 2, joules_per_mb: 1}"));
        assert_eq!(both.path, "nodes[0].network.joules_per_mb");
    }

    #[test]
    fn open_beyond_loopback_without_consent() {
        let open = edited("127.0.0.1:8080", "0.0.0.0:8080");
        assert_fault(
            &open,
            1,
            "listen",
            "reachable beyond this machine without API keys (got \"0.0.0.0:8080\"; allowed a loopback address, or \
             `auth.keys`, or `auth.allow_open: true` if anyone may use it)",
        );
    }

    #[test]
    fn variables_that_are_not_set() {
        let endpoint =
            |name: &str| edited("kind: llamacpp", &format!("kind: openai\n        api_key_env: {name}"));
        let path = "nodes[0].endpoints[0].api_key_env";
        let allowed = "allowed the name of a set environment variable, such as APP1_KEY";
        for (name, problem) in [
            ("NO_SUCH_KEY", "is not set"),
            ("EMPTY_KEY", "is empty"),
            ("TWO_LINES", "holds more than visible ASCII"),
        ] {
            let message = format!("environment variable {name} {problem} (got \"{name}\"; {allowed})");
            assert_fault(&endpoint(name), 6, path, &message);
        }
        let key = fault(&with("auth: {keys: [{name: a, key_env: NO_SUCH_KEY}]}\n"));
        assert_eq!((key.line, key.path.as_str()), (7, "auth.keys[0].key_env"));
        assert_eq!(key.problem, "environment variable NO_SUCH_KEY is not set");
    }

    #[test]
    fn client_keys() {
        let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let keys = |keys: &str| with(&format!("auth: {{keys: [{keys}]}}\n"));
        let hex = fault(&keys(&format!("{{name: a, sha256: {}}}", &digest[1..])));
        assert_eq!((hex.path.as_str(), hex.problem.as_str()), ("auth.keys[0].sha256", "not a SHA-256"));
        assert_eq!(hex.allowed.as_deref(), Some("the SHA-256 of the key as 64 hex digits"));
        assert_eq!(fault(&keys("{name: a}")).path, "auth.keys[0].key_env");
        let admin = |key: &str| with(&format!("admin_auth: {key}\n"));
        assert!(parse(&admin("{key_env: APP1_KEY}")).unwrap().admin_key.is_some());
        assert_eq!(parse(&with("")).unwrap().admin_key, None);
        assert_eq!(fault(&admin("{}")).path, "admin_auth.key_env");
        assert_eq!(
            fault(&admin(&format!("{{key_env: APP1_KEY, sha256: {digest}}}"))).path,
            "admin_auth.sha256"
        );
        assert_eq!(fault(&admin("{sha256: my-key-in-clear}")).got.as_deref(), Some("a value not shown"));
        let both = fault(&keys(&format!("{{name: a, key_env: APP1_KEY, sha256: {digest}}}")));
        assert_eq!(both.problem, "given beside `key_env`");
        assert_eq!(fault(&keys("{key_env: APP1_KEY}")).path, "auth.keys[0].name");
        let name = fault(&keys(&format!("{{name: a, key_env: APP1_KEY}}, {{name: a, sha256: {digest}}}")));
        assert_eq!(name.problem, "another key is called `a`");
        let same = fault(&keys("{name: a, key_env: APP1_KEY}, {name: b, key_env: APP1_KEY}"));
        assert_eq!(same.problem, "the same key as `a`");
        let model = fault(&keys("{name: a, key_env: APP1_KEY, models: [auot]}"));
        assert_eq!(
            (model.path.as_str(), model.problem.as_str()),
            ("auth.keys[0].models[0]", "unknown model, did you mean `auto`?")
        );
        assert_eq!(model.allowed.as_deref(), Some("auto, m"));
    }

    #[test]
    fn nothing_shown_where_a_secret_may_be() {
        let secret = "sk-live-0123456789";
        for text in [
            with(&format!("auth: {{keys: [{secret}]}}\n")),
            with(&format!("auth: {{keys: [{{name: a, key_env: {secret}}}]}}\n")),
            with(&format!("auth: {{keys: [{{name: a, sha256: {secret}}}]}}\n")),
            with(&format!("auth: {{keys: [{{name: a, key_env: APP1_KEY, {secret}: 1}}]}}\n")),
            edited("kind: llamacpp", &format!("kind: openai\n        api_key_env: {secret}")),
            edited("kind: llamacpp", &format!("kind: openai\n        api_key: {secret}")),
            edited("http://127.0.0.1:8000", &format!("https://user:{secret}@h/v1")),
            edited("http://127.0.0.1:8000", &format!("https://h/v1?key={secret}")),
        ] {
            let fault = fault(&text);
            assert!(!format!("{fault} {fault:?}").contains("0123456789"), "{fault:?}");
        }
    }

    #[test]
    fn text_that_is_no_configuration() {
        for text in [
            "",
            "\n# nothing\n",
            "---\n",
            "~\n",
            "[]\n",
            "listen\n",
            "{\n",
            "a: b: c\n",
            "\u{feff}",
            "%YAML 9\n",
        ] {
            let faults = parse(text).unwrap_err();
            assert_eq!(faults[0].path, "", "{text:?}");
        }
        assert_eq!(fault(&with("---\nlisten: 127.0.0.1:1\n")).line, 7);
        let tab = fault(&edited("  - endpoints", "\t- endpoints"));
        assert_eq!((tab.line, tab.allowed.as_deref()), (3, Some("spaces, not tabs, as indentation")));
    }

    #[test]
    fn four_planted_faults_are_all_listed() {
        let text = REFERENCE
            .replace("max_ms: 1000 ", "max_ms: 5000 ")
            .replace("policy: memetic ", "polcy: memetic ")
            .replace("url: http://127.0.0.1:8102", "url: 127.0.0.1:8102")
            .replace("min_quality: 0.6", "min_quality: 60%");
        let paths: Vec<_> = parse(&text).unwrap_err().into_iter().map(|f| f.path).collect();
        let expected =
            ["window.max_ms", "routing.polcy", "nodes[1].endpoints[0].url", "virtual_models[3].min_quality"];
        assert_eq!(paths, expected);
    }

    #[test]
    fn one_fault_does_not_entail_others() {
        // The key's model and the placement cannot be judged while a node is unreadable.
        let text = edited("name: m", "nme: m")
            + "virtual_models: [{name: v, placement: cloud}]\n\
               auth: {keys: [{name: a, key_env: APP1_KEY, models: [m]}]}\n";
        let paths: Vec<_> = parse(&text).unwrap_err().into_iter().map(|f| f.path).collect();
        assert_eq!(paths, ["nodes[0].endpoints[0].models[0].name", "nodes[0].endpoints[0].models[0].nme"]);
        let text = edited("- endpoints", "- class: clod\n    endpoints")
            + "virtual_models: [{name: v, placement: cloud}]\n";
        assert_eq!(fault(&text).path, "nodes[0].class");
        // Defaults that stand in for a faulty value are not held against the others.
        let power = edited("- endpoints", "- power: {board_watts: lots, idle_watts: 90}\n    endpoints");
        assert_eq!(fault(&power).path, "nodes[0].power.board_watts");
        let inflight = edited("kind: llamacpp", "kind: lama\n        max_inflight: 8");
        assert_eq!(fault(&inflight).path, "nodes[0].endpoints[0].kind");
    }
}

mod files {
    use super::*;

    /// The faults of a `tls` section with these two files of tests/fixtures/tls.
    fn tls_faults(cert: &str, key: &str) -> Vec<Fault> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tls");
        let section = format!("tls:\n  cert: {folder}/{cert}\n  key: {folder}/{key}\n");
        parse(&with(&section)).err().unwrap_or_default()
    }

    #[test]
    fn certificate_and_key_are_read_and_must_fit() {
        assert_eq!(tls_faults("cert.pem", "key.pem"), []);
        let one = |cert, key| {
            let mut faults = tls_faults(cert, key);
            assert_eq!(faults.len(), 1, "{faults:#?}");
            let fault = faults.remove(0);
            (fault.line, fault.path.clone(), fault.to_string())
        };
        let (line, path, text) = one("absent.pem", "key.pem");
        assert_eq!((line, path.as_str()), (8, "tls.cert"));
        assert!(text.contains("cannot read") && text.contains("tls/absent.pem: No such file"), "{text}");
        let (line, path, text) = one("cert.pem", "other-key.pem");
        assert_eq!((line, path.as_str()), (9, "tls.key"));
        assert!(text.contains("not the key of the certificate in") && text.contains("cert.pem"), "{text}");
        let (line, path, text) = one("cert.pem", "cert.pem");
        assert_eq!((line, path.as_str()), (9, "tls.key"));
        assert!(text.contains("cert.pem holds no such thing"), "{text}");
        assert_eq!(one("README.md", "key.pem").1, "tls.cert");
        let faults = parse(&with("tls: {cert: absent.pem}\n")).unwrap_err();
        assert_eq!(faults.iter().map(|f| f.path.as_str()).collect::<Vec<_>>(), ["tls.cert", "tls.key"]);
    }

    fn saved(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yaml");
        std::fs::write(&path, bytes).unwrap();
        (folder, path)
    }

    fn check_config(path: &Path) -> (Option<i32>, String, String) {
        let command = Command::new(env!("CARGO_BIN_EXE_cema-router")).arg("check-config").arg(path).output();
        let output = command.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    }

    #[test]
    fn relative_paths_start_at_the_folder_of_the_file() {
        let text = with("quality: {store: ./q}\nembedder: {library: lib/o.so, model: /m}\n");
        let (folder, path) = saved(text.as_bytes());
        let config = Config::load(&path).unwrap();
        assert_eq!(config.quality.store, folder.path().join("q"));
        assert_eq!(config.embedder.library, Some(folder.path().join("lib/o.so")));
        assert_eq!(config.embedder.model, Some("/m".into()));
    }

    #[test]
    fn what_is_not_utf8_or_far_too_large_is_said_so() {
        let (_folder, path) = saved(b"listen: 127.0.0.1:8080\nnodes: \xff\n");
        let Err(ConfigError::Invalid { faults, .. }) = Config::load(&path) else { panic!("accepted") };
        assert_eq!((faults[0].line, faults[0].got.as_deref()), (2, Some("byte 0xff")));
        let (_folder, path) = saved("#".repeat(MAX_FILE_BYTES + 1).as_bytes());
        assert!(matches!(Config::load(&path), Err(ConfigError::TooLarge { .. })));
        let (_folder, path) =
            saved((MINIMAL.to_owned() + &"#".repeat(MAX_FILE_BYTES - MINIMAL.len())).as_bytes());
        assert!(Config::load(&path).is_ok());
    }

    #[test]
    fn check_config_sums_up_a_valid_file() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/config/reference.yaml");
        let (code, out, err) = check_config(&path);
        assert_eq!((code, err.as_str()), (Some(0), ""));
        let expected = "ok, 3 nodes, 3 endpoints, 3 destinations, 5 virtual models, 0 API keys, listen \
                        127.0.0.1:8080, policy memetic\n";
        assert_eq!(out, format!("{}: {expected}", path.display()));
    }

    #[test]
    fn check_config_lists_every_fault_on_a_line_of_its_own() {
        let (_folder, path) = saved(with("window: {max_ms: 5000}\nnods: []\n").as_bytes());
        let (code, out, _) = check_config(&path);
        let lines: Vec<_> = out.lines().collect();
        let file = path.display();
        assert_eq!(code, Some(1));
        assert_eq!(lines[0], format!("{file}:7: window.max_ms: out of range (got 5000; allowed 0 to 1000)"));
        assert!(
            lines[1].starts_with(&format!("{file}:8: nods: unknown key, did you mean `nodes`?")),
            "{out}"
        );
        assert_eq!(lines[2..], [format!("{file}: 2 faults")]);
    }

    #[test]
    fn check_config_says_in_one_line_what_it_cannot_read() {
        let (folder, path) = saved(b"");
        for path in [folder.path().join("nowhere.yaml"), folder.path().to_owned()] {
            let (code, out, err) = check_config(&path);
            assert_eq!((code, out.as_str(), err.lines().count()), (Some(1), "", 1), "{err}");
            assert!(err.starts_with(&format!("error: cannot read {}: ", path.display())), "{err}");
        }
        let (code, out, _) = check_config(&path);
        assert_eq!(code, Some(1));
        assert!(out.contains(":1: the configuration is empty"), "{out}");
    }
}

/// One change to the lines of a file.
#[derive(Debug, Clone)]
enum Mutation {
    Delete(prop::sample::Index),
    Duplicate(prop::sample::Index),
    Swap(prop::sample::Index, prop::sample::Index),
    Replace(prop::sample::Index, String),
    Insert(prop::sample::Index, String),
}

fn mutations() -> impl Strategy<Value = Mutation> {
    let line = any::<prop::sample::Index>();
    let text = prop_oneof!["\\PC{0,40}", "[ \\t]{0,8}[-\\[\\]{}:,&*!?|>'\"%@`#a-z0-9. ]{0,30}"];
    let piece =
        prop_oneof![text.clone(), Just("\t".to_owned()), Just("---".to_owned()), Just("\u{0}".to_owned())];
    prop_oneof![
        line.clone().prop_map(Mutation::Delete),
        line.clone().prop_map(Mutation::Duplicate),
        (line.clone(), line.clone()).prop_map(|(a, b)| Mutation::Swap(a, b)),
        (line.clone(), text).prop_map(|(at, text)| Mutation::Replace(at, text)),
        (line, piece).prop_map(|(at, text)| Mutation::Insert(at, text)),
    ]
}

fn mutated(text: &str, mutations: &[Mutation]) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for mutation in mutations {
        let len = lines.len();
        if len < 2 {
            break;
        }
        match mutation {
            Mutation::Delete(at) => drop(lines.remove(at.index(len))),
            Mutation::Duplicate(at) => lines.insert(at.index(len), lines[at.index(len)].clone()),
            Mutation::Swap(a, b) => lines.swap(a.index(len), b.index(len)),
            Mutation::Replace(at, text) => lines[at.index(len)].clone_from(text),
            Mutation::Insert(at, text) => {
                let line = &mut lines[at.index(len)];
                let middle = at.index(line.chars().count() + 1);
                let byte = line.char_indices().nth(middle).map_or(line.len(), |(byte, _)| byte);
                line.insert_str(byte, text);
            }
        }
    }
    lines.join("\n")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn no_mutation_of_the_reference_panics(changes in prop::collection::vec(mutations(), 1..12)) {
        let text = mutated(REFERENCE, &changes);
        let last_line = text.lines().count() + 1;
        match parse(&text) {
            Ok(config) => prop_assert!(!config.fleet.destinations.is_empty()),
            Err(faults) => {
                prop_assert!(!faults.is_empty());
                for fault in faults {
                    prop_assert!((1..=last_line).contains(&fault.line), "{fault:?}");
                    prop_assert!(!fault.to_string().contains('\n'), "{fault:?}");
                }
            }
        }
    }

    #[test]
    fn no_text_panics(text in "\\PC{0,200}|[-\\[\\]{}:,&*!?|>'\"%@`# \\t\\r\\na-c0-9.]{0,200}") {
        prop_assert!(parse(&text).is_err());
    }
}
