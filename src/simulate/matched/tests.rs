//! The comparison by hand, and its laws.

use proptest::prelude::*;

use super::*;

fn point(factor: f64, score: f64, latency_s: f64) -> SweepPoint {
    let (p95_s, p99_s) = (3.0 * latency_s, 5.0 * latency_s);
    SweepPoint { factor, score, latency_s, p95_s, p99_s, energy_j: 100.0 * score }
}

fn sweep(method: &str, seeds: &[&[SweepPoint]]) -> Sweep {
    Sweep { method: method.to_owned(), seeds: seeds.iter().map(|points| points.to_vec()).collect() }
}

#[track_caller]
fn assert_close(got: f64, want: f64) {
    assert!((got - want).abs() < 1e-9, "{got} is not {want}");
}

#[test]
fn points_that_do_not_rise_are_pooled() {
    // Scores 0.5, 0.4 become 0.45 at 1.5 s; then latency 3 s, 2 s become 2.5 s at 0.65.
    let points = [point(0.5, 0.5, 1.0), point(1.0, 0.4, 2.0), point(2.0, 0.6, 3.0), point(4.0, 0.7, 2.0)];
    let curve = Curve::of(&points).unwrap();
    let knots: Vec<_> = curve.0.iter().map(|p| (p.score, p.latency_s)).collect();
    for ((score, latency_s), want) in knots.iter().zip([(0.45, 1.5), (0.65, 2.5)]) {
        assert!((score - want.0).abs() + (latency_s - want.1).abs() < 1e-12, "{knots:?}");
    }
    assert_close(curve.at_least(0.5).latency_s, 1.75);
    assert_close(curve.within(2.0).score, 0.55);
    // Less is asked for than it has at its fastest; more time is given than it takes.
    assert_close(curve.at_least(0.4).latency_s, 1.5);
    assert_close(curve.within(9.0).score, 0.65);
    // A point in a block of three counts once, whatever the order of pooling.
    let falling = [point(1.0, 0.9, 1.0), point(2.0, 0.6, 2.0), point(3.0, 0.3, 6.0)];
    let curve = Curve::of(&falling).unwrap();
    assert_eq!(curve.0.len(), 1);
    assert!((curve.0[0].score - 0.6).abs() + (curve.0[0].latency_s - 3.0).abs() < 1e-12);
}

#[test]
fn a_method_that_is_faster_by_a_tenth_everywhere() {
    let reference = [point(0.5, 0.5, 1.0), point(1.0, 0.6, 2.0), point(2.0, 0.7, 4.0)];
    let faster: Vec<_> = reference
        .iter()
        .map(|p| SweepPoint { energy_j: 1.2 * p.energy_j, ..point(p.factor, p.score, 0.9 * p.latency_s) })
        .collect();
    let matched = compare(&sweep("r", &[&reference, &reference]), &sweep("m", &[&faster, &faster]));
    assert_close(matched.latency_pct, -10.0);
    assert_close(matched.p95_pct, -10.0);
    assert_close(matched.energy_pct, 20.0);
    assert_close(matched.at_score, 0.6);
    for (got, want) in matched.latency_ci.unwrap().into_iter().zip([-10.0, -10.0]) {
        assert_close(got, want);
    }
    // At 1, 1.375, … 4 s: after 3.6 s the faster one has its best score, 0.7.
    let score = |latency_s: f64| if latency_s < 2.0 { 0.4 + 0.1 * latency_s } else { 0.5 + 0.05 * latency_s };
    let places = (0..9).map(|i| 1.0 + 0.375 * f64::from(i));
    let differences: Vec<f64> = places.map(|s| score(s / 0.9).min(0.7) - score(s)).collect();
    assert_close(matched.score_points, 100.0 * mean(&differences));
    assert_eq!(matched.seeds.len(), 2);
}

#[test]
fn a_method_is_compared_where_it_reaches() {
    let reference = [point(0.5, 0.5, 1.0), point(1.0, 0.6, 2.0), point(2.0, 0.7, 4.0)];
    let against = |method: &[SweepPoint]| compare(&sweep("r", &[&reference]), &sweep("m", &[method]));
    // It has 0.45 and no more: the reference has at least that after 1 s.
    let worse = against(&[point(1.0, 0.45, 3.0)]);
    assert_close(worse.latency_pct, 200.0);
    assert_close(worse.at_score, 0.45);
    assert_eq!(worse.latency_ci, None, "one seed says nothing about the spread");
    // Slower than the reference ever is, for 0.65; that one has 0.7 by then.
    let slower = against(&[point(1.0, 0.65, 6.0)]);
    assert_close(slower.score_points, -5.0);
    // Always better than asked for: after 0.5 s where the reference takes 1 to 4 s.
    let better = against(&[point(1.0, 0.75, 0.5)]);
    assert!(better.latency_pct < -50.0 && better.score_points > 5.0, "{better:?}");
    assert_close(better.at_score, 0.75);
}

#[test]
fn seeds_are_means_of_logarithms_with_students_t() {
    let reference = [point(1.0, 0.6, 1.0)];
    let [double, half] = [[point(1.0, 0.6, 2.0)], [point(1.0, 0.6, 0.5)]];
    let matched = compare(&sweep("r", &[&reference, &reference]), &sweep("m", &[&double, &half]));
    assert_close(matched.latency_pct, 0.0);
    // Logarithms ±ln 2: standard error ln 2, t of one degree of freedom 12.706.
    let widest = 100.0 * ((12.706 * 2.0_f64.ln()).exp() - 1.0);
    assert!((matched.latency_ci.unwrap()[1] / widest - 1.0).abs() < 1e-9, "{matched:?}");
}

#[test]
fn the_mean_sweep_is_the_mean_of_each_point() {
    let sweep = sweep("m", &[&[point(1.0, 0.5, 1.0)], &[point(1.0, 0.7, 2.0)], &[point(1.0, 0.6, 6.0)]]);
    let mean = sweep.mean();
    assert_close(mean.points[0].score, 0.6);
    assert_close(mean.points[0].latency_s, 3.0);
}

fn points() -> impl Strategy<Value = Vec<SweepPoint>> {
    proptest::collection::vec((0.3..0.9_f64, 0.5..9.0_f64), QUALITY_FACTORS.len()).prop_map(|drawn| {
        let factors = QUALITY_FACTORS.iter();
        factors.zip(drawn).map(|(factor, (score, latency_s))| point(*factor, score, latency_s)).collect()
    })
}

proptest! {
    #[test]
    fn a_method_against_itself_is_level(points in points()) {
        let matched = compare(&sweep("r", &[&points]), &sweep("m", &[&points]));
        for value in [matched.latency_pct, matched.p99_pct, matched.energy_pct, matched.score_points] {
            prop_assert!(value.abs() < 1e-6, "{matched:?}");
        }
    }

    #[test]
    fn scaled_latency_is_found_again(points in points(), scale in 0.3..3.0_f64) {
        let scaled: Vec<_> =
            points.iter().map(|p| SweepPoint { latency_s: scale * p.latency_s, ..*p }).collect();
        let matched = compare(&sweep("r", &[&points]), &sweep("m", &[&scaled]));
        let found = matched.latency_pct;
        prop_assert!((found - 100.0 * (scale - 1.0)).abs() < 1e-6, "{found}");
    }

    #[test]
    fn curves_rise_and_keep_the_mean(points in points()) {
        let single = points.iter().map(|p| (1.0, *p)).collect();
        let pooled = pool(pool(single, |p| p.score), |p| p.latency_s);
        prop_assert!(pooled.windows(2).all(|w| w[0].1.score < w[1].1.score && w[0].1.latency_s < w[1].1.latency_s));
        let n = points.len() as f64;
        let before = points.iter().map(|p| p.latency_s).sum::<f64>() / n;
        let after = pooled.iter().map(|(n, p)| n * p.latency_s).sum::<f64>() / n;
        prop_assert!((before - after).abs() < 1e-9);
    }
}
