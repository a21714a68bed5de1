//! Saying what will be sent, and asking.

use std::io::{BufRead as _, IsTerminal as _};

use anyhow::bail;

use crate::calibrate::Volume;
use crate::cli::progress::Progress;
use crate::units::{Seconds, Usd};

/// What will be sent to one destination at most.
#[derive(Debug)]
pub(super) struct Announcement<'a> {
    pub(super) destination: &'a str,
    pub(super) volume: Volume,
    pub(super) cost: Usd,
    pub(super) duration: Seconds,
    /// Whether that rests on configured speeds, and not on what is assumed of a model of its size.
    pub(super) are_speeds_given: bool,
}

/// Says what will be sent and has it agreed to, unless it is agreed already.
///
/// # Errors
/// Where there is nobody to ask, or the answer is no.
pub(super) fn obtain(
    announcements: &[Announcement<'_>],
    (is_together, is_agreed): (bool, bool),
    progress: &Progress,
) -> anyhow::Result<()> {
    progress.say(&announced(announcements, is_together));
    if is_agreed {
        return Ok(());
    }
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        bail!("nothing was sent: this is no terminal to ask on; give --yes to agree to the above");
    }
    progress.say("Go on? [y/N]");
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    if !matches!(answer.trim().to_lowercase().as_str(), "y" | "yes") {
        bail!("nothing was sent");
    }
    Ok(())
}

fn announced(announcements: &[Announcement<'_>], is_together: bool) -> String {
    let total: Volume = announcements.iter().map(|a| a.volume).sum();
    let cost = announcements.iter().map(|a| a.cost).sum();
    let durations = announcements.iter().map(|a| a.duration);
    let (duration, order) = if is_together {
        (durations.fold(Seconds::ZERO, Seconds::max), "all destinations at once")
    } else {
        (durations.sum(), "one destination after the other")
    };
    let mut lines = vec!["To be sent, at most:".to_owned()];
    for a in announcements {
        lines.push(format!("  {}: {}", a.destination, amount(&a.volume, a.cost, a.duration)));
    }
    if announcements.len() > 1 {
        lines.push(format!("  together: {}, {order}", amount(&total, cost, duration)));
    }
    let guessed: Vec<_> =
        announcements.iter().filter(|a| !a.are_speeds_given).map(|a| a.destination).collect();
    lines.push("Times follow from the configured speeds. Each endpoint is busy meanwhile.".to_owned());
    if !guessed.is_empty() {
        lines.push(format!(
            "No speeds are configured for {}: its time is a guess from the size of the model and can be far off.",
            guessed.join(", ")
        ));
    }
    lines.join("\n")
}

fn amount(volume: &Volume, cost: Usd, duration: Seconds) -> String {
    let usd = if cost > Usd::ZERO { format!(", {:.4} USD", cost.get()) } else { String::new() };
    format!(
        "{} requests, {} prompt and {} completion tokens, about {}{usd}",
        volume.requests,
        volume.prompt_tokens,
        volume.completion_tokens,
        rounded(duration)
    )
}

/// A duration for people.
pub(super) fn rounded(duration: Seconds) -> String {
    let s = duration.get();
    if s < 90.0 { format!("{s:.0} s") } else { format!("{:.0} min", s / 60.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_told_one_by_one_and_in_all() {
        let one = |destination, usd| Announcement {
            destination,
            volume: Volume { requests: 10, prompt_tokens: 900, completion_tokens: 320 },
            cost: Usd(usd),
            duration: Seconds(80.0),
            are_speeds_given: destination == "a/m",
        };
        let text = announced(&[one("a/m", 0.0), one("b/m", 0.012)], false);
        assert!(
            text.contains("a/m: 10 requests, 900 prompt and 320 completion tokens, about 80 s\n"),
            "{text}"
        );
        assert!(
            text.contains("b/m: 10 requests, 900 prompt and 320 completion tokens, about 80 s, 0.0120 USD\n")
        );
        assert!(text.contains(
            "together: 20 requests, 1800 prompt and 640 completion tokens, about 3 min, 0.0120 USD, one"
        ));
        assert!(text.contains("No speeds are configured for b/m: its time is a guess"), "{text}");
        assert!(!announced(&[one("a/m", 0.0)], true).contains("No speeds"), "{text}");
        assert!(
            announced(&[one("a/m", 0.0), one("b/m", 0.0)], true)
                .contains("about 80 s, all destinations at once")
        );
    }
}
