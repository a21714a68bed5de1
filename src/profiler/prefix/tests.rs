//! The profiler on a paused clock.

use std::time::Duration;

use super::*;
use crate::domain::Prefix;
use crate::domain::fixture::destination;

const D0: DestinationOrd = DestinationOrd(0);
const D1: DestinationOrd = DestinationOrd(1);

fn profiler(entries: u32) -> (PrefixProfiler, Registry) {
    let registry = Registry::new();
    let params = PrefixParams { entries, max_age: Seconds(60.0) };
    let destinations = [destination(0, 4, 8), destination(1, 4, 8)];
    (PrefixProfiler::new(params, &destinations, &registry).unwrap(), registry)
}

/// A prompt of so many messages of 100 tokens.
fn turn(messages: u32) -> PrefixChain {
    let prefix = |n: u32| Prefix { hash: n.into(), tokens: Tokens(100.0 * f64::from(n)) };
    PrefixChain::new((1..=messages).map(prefix).collect())
}

fn counter(registry: &Registry, kind: &str) -> f64 {
    let families = registry.gather();
    let family = families.iter().find(|family| family.name() == "cema_prefix_tokens_total").unwrap();
    let is_it = |m: &&prometheus::proto::Metric| {
        ["node-1/model-1", kind].iter().all(|label| m.get_label().iter().any(|pair| pair.value() == *label))
    };
    family.get_metric().iter().find(is_it).unwrap().get_counter().get_value()
}

#[tokio::test(start_paused = true)]
async fn half_of_what_was_read_is_expected_until_the_engine_says_what_it_finds() {
    let (profiler, registry) = profiler(100);
    assert_eq!(profiler.expected(&turn(2)), CachedPrefix::NOWHERE);
    let mut visit = profiler.begin(D1, &turn(2));
    assert!(visit.known().0 < 1e-9);
    assert_eq!(profiler.expected(&turn(2)), CachedPrefix::NOWHERE, "it has not been read yet");
    visit.read(&turn(2));
    assert_eq!(profiler.expected(&turn(4)), CachedPrefix::new(vec![Tokens::ZERO, Tokens(100.0)]));

    // 400 tokens were estimated and 800 counted: of 200 sent before, which are 400, it has all and an answer more.
    let visit = profiler.begin(D1, &turn(4));
    assert!(visit.known().0 > 0.0);
    let (counted, estimated) = (Tokens(800.0), Tokens(400.0));
    visit.found(&PrefixFound { counted, cached: Tokens(416.0), estimated });
    assert_eq!((counter(&registry, "expected"), counter(&registry, "found")), (400.0, 416.0));
    // ½ + ¼ (1 − ½).
    assert_eq!(profiler.expected(&turn(4)), CachedPrefix::new(vec![Tokens::ZERO, Tokens(125.0)]));
    let [here, there] = profiler.readings()[..] else { panic!() };
    assert!((there.found_ratio - 0.625).abs() < 1e-12 && (there.samples, there.entries) == (1, 2));
    assert_eq!((here.samples, here.age, here.entries), (0, None, 0));

    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(profiler.expected(&turn(4)), CachedPrefix::NOWHERE, "too long ago");
}

#[tokio::test(start_paused = true)]
async fn a_prompt_is_read_once_and_only_where_it_went() {
    let (profiler, _) = profiler(100);
    let mut failed = profiler.begin(D0, &turn(2));
    let mut visit = profiler.begin(D1, &turn(2));
    visit.read(&turn(2));
    visit.read(&turn(3));
    drop(visit);
    assert!(profiler.begin(D0, &turn(2)).known().0 < 1e-9);
    assert_eq!(profiler.expected(&turn(3)).at(D1), Tokens(100.0), "the second word counts for nothing");
    failed.read(&PrefixChain::default());
    assert!(profiler.begin(D0, &turn(2)).known().0 < 1e-9);
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_was_down_has_lost_its_cache() {
    let (profiler, _) = profiler(100);
    let (health, states) = watch::channel(Arc::from([Availability::Ready; 2]));
    let following = tokio::spawn(profiler.clone().follow(states));
    let turns = async |state: Availability| {
        for d in [D0, D1] {
            profiler.begin(d, &turn(2)).read(&turn(2));
        }
        health.send_replace(Arc::from([Availability::Ready, state]));
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(profiler.begin(D0, &turn(2)).known().0 > 0.0);
        profiler.begin(D1, &turn(2)).known().0 > 0.0
    };
    for (state, keeps) in [
        (Availability::Busy, true),
        (Availability::Down, false),
        (Availability::Ready, true),
        (Availability::Cooling, true),
        (Availability::Loading, false),
        (Availability::Draining, true),
        (Availability::CircuitOpen, false),
    ] {
        assert_eq!(turns(state).await, keeps, "{state:?}");
    }
    drop(health);
    following.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn left_out_of_account_nothing_is_remembered() {
    let (profiler, _) = profiler(0);
    let mut visit = profiler.begin(D1, &turn(2));
    visit.read(&turn(2));
    visit.found(&PrefixFound { counted: Tokens(200.0), cached: Tokens(200.0), estimated: Tokens(200.0) });
    assert_eq!(profiler.expected(&turn(2)), CachedPrefix::NOWHERE);
    assert!(profiler.readings().is_empty() && profiler.begin(D1, &turn(2)).known().0 < 1e-9);
}
