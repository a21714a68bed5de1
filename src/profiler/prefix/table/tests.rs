//! What a table knows, forgets and expects to find.

use proptest::prelude::*;

use super::*;

const HOUR: Seconds = Seconds(3_600.0);

fn table(entries: usize, max_age: Seconds) -> PrefixTable {
    PrefixTable::new(NonZeroUsize::new(entries).unwrap(), max_age)
}

/// A prompt of the messages with these hashes, of 100 tokens each.
fn chain(hashes: &[u64]) -> PrefixChain {
    let prefix = |(n, hash): (u32, &u64)| Prefix { hash: *hash, tokens: Tokens(100.0 * f64::from(n)) };
    PrefixChain::new((1..).zip(hashes).map(prefix).collect())
}

#[test]
fn the_longest_beginning_that_was_read_is_known() {
    let mut table = table(100, HOUR);
    assert_eq!(table.known(Seconds(0.0), &chain(&[1, 2, 3])), Tokens(0.0));
    table.record(Seconds(0.0), &chain(&[1, 2, 3]));
    assert_eq!(table.known(Seconds(1.0), &chain(&[1, 2, 3, 4, 5])), Tokens(300.0));
    assert_eq!(table.known(Seconds(1.0), &chain(&[1, 2, 6])), Tokens(200.0));
    assert_eq!(table.known(Seconds(1.0), &chain(&[7, 8])), Tokens(0.0));
    assert_eq!(table.known(Seconds(1.0), &PrefixChain::default()), Tokens(0.0));
}

#[test]
fn what_is_older_than_its_time_is_not_known() {
    let mut table = table(100, Seconds(60.0));
    table.record(Seconds(10.0), &chain(&[1, 2]));
    assert_eq!(table.known(Seconds(70.0), &chain(&[1, 2, 3])), Tokens(200.0));
    assert_eq!(table.known(Seconds(70.5), &chain(&[1, 2, 3])), Tokens(0.0));
    table.record(Seconds(71.0), &chain(&[1]));
    assert_eq!(table.known(Seconds(72.0), &chain(&[1, 2, 3])), Tokens(100.0), "the rest is as old as before");
}

#[test]
fn an_engine_that_began_anew_knows_nothing() {
    let mut table = table(100, HOUR);
    table.record(Seconds(0.0), &chain(&[1, 2]).in_session(Some(9)));
    table.clear();
    assert_eq!(table.known(Seconds(0.0), &chain(&[1, 2]).in_session(Some(9))), Tokens(0.0));
    assert_eq!(table.len(), 0);
}

#[test]
fn a_session_counts_as_all_that_was_read_of_it_but_the_last_message_is_new() {
    let mut table = table(100, HOUR);
    table.record(Seconds(0.0), &chain(&[1, 2, 3]).in_session(Some(9)));
    let other = chain(&[4, 5, 6, 7, 8]);
    assert_eq!(table.known(Seconds(1.0), &other), Tokens(0.0));
    assert_eq!(table.known(Seconds(1.0), &other.clone().in_session(Some(10))), Tokens(0.0));
    assert_eq!(table.known(Seconds(1.0), &other.in_session(Some(9))), Tokens(300.0));
    assert_eq!(table.known(Seconds(1.0), &chain(&[4, 5]).in_session(Some(9))), Tokens(100.0));
    assert_eq!(table.known(Seconds(1.0), &chain(&[4]).in_session(Some(9))), Tokens(0.0));
    // Its messages say more than its name.
    assert_eq!(table.known(Seconds(1.0), &chain(&[1, 2]).in_session(Some(9))), Tokens(200.0));
}

#[test]
fn what_is_found_is_learnt_from_a_careful_guess() {
    let mut found = FoundRatio::new();
    assert!((found.ratio() - 0.5).abs() < 1e-12);
    found.observe(Seconds(0.0), Tokens(0.0), Tokens(50.0));
    assert_eq!((found.samples(), found.age(Seconds(1.0))), (0, None), "nothing was expected");
    // ½ + ¼ (1 − ½), and a quarter of the rest again.
    found.observe(Seconds(0.0), Tokens(100.0), Tokens(130.0));
    assert!((found.ratio() - 0.625).abs() < 1e-12);
    found.observe(Seconds(2.0), Tokens(100.0), Tokens(25.0));
    assert!((found.ratio() - 0.53125).abs() < 1e-12);
    assert_eq!((found.samples(), found.age(Seconds(5.0))), (2, Some(Seconds(3.0))));
    for _ in 0..8 {
        found.observe(Seconds(2.0), Tokens(100.0), Tokens(0.0));
    }
    assert!(found.ratio() < 0.06, "an engine without a cache: {}", found.ratio());
}

/// Conversations of a few hashes, so that they share beginnings.
fn conversations() -> impl Strategy<Value = Vec<(Vec<u64>, Option<u64>)>> {
    let one = (prop::collection::vec(0..3_u64, 1..8), prop::option::of(100..103_u64));
    prop::collection::vec(one, 1..60)
}

/// A message is told from the same one behind another beginning.
fn running(messages: &[u64]) -> Vec<u64> {
    messages
        .iter()
        .scan(7_u64, |hash, message| {
            *hash = hash.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(message + 1);
            Some(*hash)
        })
        .collect()
}

proptest! {
    #[test]
    fn a_table_keeps_its_bounds_and_never_claims_what_it_was_not_sent(
        conversations in conversations(),
        entries in 1..40_usize,
    ) {
        let mut table = table(entries, HOUR);
        let mut sent: Vec<Vec<u64>> = Vec::new();
        for (at, (messages, session)) in (0_u32..).zip(&conversations) {
            let now = Seconds(f64::from(at));
            let chain = chain(&running(messages)).in_session(*session);
            let known = table.known(now, &chain);
            prop_assert!(known.0 >= 0.0 && known <= chain.whole().unwrap().tokens);
            if session.is_none() {
                let shared = |before: &Vec<u64>| before.iter().zip(messages).take_while(|(a, b)| a == b).count();
                let longest = sent.iter().map(shared).max().unwrap_or(0);
                prop_assert!(known.0 <= 100.0 * longest as f64, "{known:?} of {longest}");
            }
            table.record(now, &chain);
            prop_assert!(table.len() <= entries);
            sent.push(messages.clone());
            // What has just been read is known as far as it fits in.
            let fits = entries >= messages.len() + usize::from(session.is_some());
            if fits {
                prop_assert_eq!(table.known(now, &chain), chain.whole().unwrap().tokens);
            }
        }
    }

    #[test]
    fn a_large_table_knows_all_that_it_was_sent(conversations in conversations()) {
        let mut table = table(60 * 9, HOUR);
        let mut sent: Vec<Vec<u64>> = Vec::new();
        for (messages, _) in conversations {
            let chain = chain(&running(&messages));
            let shared = |before: &Vec<u64>| before.iter().zip(&messages).take_while(|(a, b)| a == b).count();
            let longest = sent.iter().map(shared).max().unwrap_or(0);
            prop_assert!((table.known(Seconds(0.0), &chain).0 - 100.0 * longest as f64).abs() < 1e-9);
            table.record(Seconds(0.0), &chain);
            sent.push(messages);
        }
    }

    #[test]
    fn the_share_found_stays_a_share(
        seen in prop::collection::vec((0.0..1e6_f64, 0.0..1e7_f64), 0..50),
    ) {
        let mut found = FoundRatio::new();
        for (known, cached) in seen {
            found.observe(Seconds(0.0), Tokens(known), Tokens(cached));
            prop_assert!((0.0..=1.0).contains(&found.ratio()));
        }
    }
}
