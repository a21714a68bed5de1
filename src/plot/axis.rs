//! Scales with round ticks.

/// Maps values to pixels.
#[derive(Debug, Clone)]
pub(super) struct Axis {
    is_log: bool,
    /// Values at the ends, ascending.
    range: [f64; 2],
    /// Pixels at the ends.
    pixels: [f64; 2],
    /// Values to mark.
    pub(super) ticks: Vec<f64>,
}

/// Values this far apart are shown on a logarithmic scale.
const LOG_RATIO: f64 = 25.0;

impl Axis {
    /// From zero to at least `max`, with round ticks.
    pub(super) fn from_zero(max: f64, pixels: [f64; 2]) -> Self {
        let max = if max > 0.0 { max } else { 1.0 };
        let step = round_step(max / 4.0);
        let n = (max / step - 1e-9).ceil().max(1.0);
        let ticks = (0..).map(|i| f64::from(i) * step).take_while(|tick| *tick <= n * step * (1.0 + 1e-9));
        Self { is_log: false, range: [0.0, n * step], pixels, ticks: ticks.collect() }
    }

    /// Around `values`: logarithmic where all are positive and far apart, else from zero.
    pub(super) fn around(values: &[f64], pixels: [f64; 2]) -> Self {
        let max = values.iter().copied().fold(0.0, f64::max);
        let min = values.iter().copied().fold(f64::INFINITY, f64::min);
        if !(min > 0.0 && max / min > LOG_RATIO) {
            return Self::from_zero(max, pixels);
        }
        let (low, high) = (min.log10().floor(), max.log10().ceil());
        let ticks =
            (0..).map(|i| low + f64::from(i)).take_while(|power| *power <= high).map(|p| 10_f64.powf(p));
        Self { is_log: true, range: [10_f64.powf(low), 10_f64.powf(high)], pixels, ticks: ticks.collect() }
    }

    /// Exactly over `values`, each with a tick; logarithmic on demand.
    pub(super) fn over(values: &[f64], is_log: bool, pixels: [f64; 2]) -> Self {
        let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let min = values.iter().copied().fold(f64::INFINITY, f64::min);
        Self { is_log, range: [min, max], pixels, ticks: values.to_vec() }
    }

    /// Exactly over `values`, with round ticks between its ends.
    pub(super) fn rounded(values: &[f64], pixels: [f64; 2]) -> Self {
        let axis = Self::over(values, false, pixels);
        let [low, high] = axis.range;
        let step = if high > low { round_step((high - low) / 5.0) } else { 1.0 };
        let first = (low / step - 1e-9).ceil() * step;
        let ticks = (0..).map(|i| first + f64::from(i) * step).take_while(|tick| *tick <= high + 1e-9 * step);
        Self { ticks: if high > low { ticks.collect() } else { vec![low] }, ..axis }
    }

    pub(super) fn at(&self, value: f64) -> f64 {
        let scaled = |x: f64| if self.is_log { x.max(self.range[0].min(1e-12)).ln() } else { x };
        let [low, high] = self.range.map(scaled);
        let share = if high > low { (scaled(value) - low) / (high - low) } else { 0.5 };
        self.pixels[0] + share.clamp(0.0, 1.0) * (self.pixels[1] - self.pixels[0])
    }
}

/// The largest of 1, 2, 2.5, 5 times a power of ten that is not above `step` by much.
fn round_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    let candidates = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * power);
    candidates.into_iter().find(|candidate| *candidate >= step * 0.999).unwrap_or(10.0 * power)
}

/// A number in as few digits as tell it apart on an axis.
pub(super) fn short(value: f64) -> String {
    let magnitude = value.abs();
    let text = match magnitude {
        m if m < 1e-12 => return "0".to_owned(),
        m if m >= 10_000.0 => return format!("{:.0}k", value / 1e3),
        m if m >= 100.0 => format!("{value:.0}"),
        m if m >= 10.0 => format!("{value:.1}"),
        m if m >= 0.1 => format!("{value:.2}"),
        m if m >= 0.01 => format!("{value:.3}"),
        m if m >= 0.001 => format!("{value:.4}"),
        _ => format!("{value:.0e}"),
    };
    if text.contains('.') && !text.contains('e') {
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    text
}

/// A number in three significant digits, as bars are labelled.
pub(super) fn labelled(value: f64) -> String {
    let magnitude = value.abs();
    if !(1e-4..1e4).contains(&magnitude) {
        return short(value);
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 6 decimals")]
    let decimals = (2.0 - magnitude.log10().floor()).clamp(0.0, 6.0) as usize;
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover_the_values() {
        let axis = Axis::from_zero(0.37, [0.0, 100.0]);
        assert_eq!(
            axis.ticks.iter().map(|t| short(*t)).collect::<Vec<_>>(),
            ["0", "0.1", "0.2", "0.3", "0.4"]
        );
        assert!((axis.at(0.2) - 50.0).abs() < 1e-9);
        let axis = Axis::around(&[0.02, 3.0], [100.0, 0.0]);
        assert_eq!(axis.ticks.iter().map(|t| short(*t)).collect::<Vec<_>>(), ["0.01", "0.1", "1", "10"]);
        assert!((axis.at(0.1) - 200.0 / 3.0).abs() < 1e-9);
        let axis = Axis::rounded(&[0.543, 0.61], [0.0, 100.0]);
        assert_eq!(axis.ticks.iter().map(|t| short(*t)).collect::<Vec<_>>(), ["0.56", "0.58", "0.6"]);
        assert!((axis.at(0.543)).abs() < 1e-9 && (axis.at(0.61) - 100.0).abs() < 1e-9);
        assert!(
            (Axis::over(&[7.0], false, [0.0, 10.0]).at(7.0) - 5.0).abs() < 1e-9,
            "one value is in the middle"
        );
    }

    #[test]
    fn numbers_are_short() {
        let texts = [0.0, 1234.0, 12_345.0, 0.5, 2.25, 0.00731, 1e-5].map(short);
        assert_eq!(texts, ["0", "1234", "12k", "0.5", "2.25", "0.0073", "1e-5"]);
        let texts = [0.0, 0.1146, 0.118, 1.0, 16.03, 5024.4, 0.008_58, 23_456.0].map(labelled);
        assert_eq!(texts, ["0", "0.115", "0.118", "1.00", "16.0", "5024", "0.00858", "23k"]);
    }
}
