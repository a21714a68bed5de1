//! The power rails of a Jetson: INA3221 chips in Linux hwmon.
//!
//! `hwmonM/name` is `ina3221`; channel N of its three has a voltage `inN_input` (mV), a current `currN_input` (mA) and a
//! label `inN_label`. Channels 4 and up are shunt voltages and sums of these. The rail VDD_IN (older boards:
//! POM_5V_IN) feeds all others and so is the whole board; without one the rails are added up over all chips.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::units::Watts;

/// Where the kernel has it.
pub(super) const DEFAULT_ROOT: &str = "/sys/class/hwmon";
/// Rails that feed the whole board.
const BOARD_RAILS: [&str; 2] = ["VDD_IN", "POM_5V_IN"];
/// A channel that is not connected.
const UNCONNECTED: &str = "NC";

/// What the rails say.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct BoardPower {
    /// The rail of the whole board, or `sum`.
    pub(super) rail: String,
    /// Its power.
    pub(super) watts: Watts,
}

/// Power of the board; `None` where there is no such chip, or none of its rails can be read.
pub(super) fn board_power(root: &Path) -> Option<BoardPower> {
    let rails: Vec<_> = chips(root).into_iter().flat_map(rails).collect();
    let is_board = |rail: &&BoardPower| BOARD_RAILS.contains(&rail.rail.as_str());
    if let Some(board) = rails.iter().find(is_board) {
        return Some(board.clone());
    }
    let watts = rails.iter().map(|rail| rail.watts).sum();
    (!rails.is_empty()).then(|| BoardPower { rail: "sum".to_owned(), watts })
}

/// The folders of the chips, in order.
fn chips(root: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(root) else { return Vec::new() };
    let is_ina3221 = |chip: &PathBuf| text(&chip.join("name")).is_ok_and(|name| name.starts_with("ina3221"));
    let mut chips: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_ina3221).collect();
    chips.sort();
    chips
}

fn rails(chip: PathBuf) -> impl Iterator<Item = BoardPower> {
    (1..=3).filter_map(move |channel| {
        let rail = text(&chip.join(format!("in{channel}_label"))).unwrap_or_default();
        let millivolts = number(&chip.join(format!("in{channel}_input"))).ok()?;
        let milliamperes = number(&chip.join(format!("curr{channel}_input"))).ok()?;
        let watts = Watts(millivolts * milliamperes / 1e6);
        // A current may read a little below nothing on a rail that idles.
        (rail != UNCONNECTED).then_some(BoardPower { rail, watts: watts.max(Watts::ZERO) })
    })
}

/// The text of a file of sysfs.
pub(super) fn text(path: &Path) -> io::Result<String> {
    Ok(fs::read_to_string(path)?.trim().to_owned())
}

/// The number in a file of sysfs.
pub(super) fn number(path: &Path) -> io::Result<f64> {
    text(path)?.parse().map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Label, mV, mA.
    type Rail = (&'static str, i32, i32);

    fn chip(root: &Path, folder: &str, name: &str, rails: &[Rail]) {
        let chip = root.join(folder);
        fs::create_dir(&chip).unwrap();
        fs::write(chip.join("name"), format!("{name}\n")).unwrap();
        for (channel, (label, millivolts, milliamperes)) in (1..).zip(rails) {
            fs::write(chip.join(format!("in{channel}_label")), format!("{label}\n")).unwrap();
            fs::write(chip.join(format!("in{channel}_input")), format!("{millivolts}\n")).unwrap();
            fs::write(chip.join(format!("curr{channel}_input")), format!("{milliamperes}\n")).unwrap();
        }
    }

    fn read(chips: &[(&str, &[Rail])]) -> Option<(String, f64)> {
        let root = tempfile::tempdir().unwrap();
        for (idx, (name, rails)) in chips.iter().enumerate() {
            chip(root.path(), &format!("hwmon{idx}"), name, rails);
        }
        board_power(root.path()).map(|board| (board.rail, (board.watts.0 * 1e6).round() / 1e6))
    }

    #[test]
    fn the_boards_own_rail_is_the_board() {
        let orin: &[Rail] =
            &[("VDD_IN", 5_000, 2_400), ("VDD_CPU_GPU_CV", 5_000, 800), ("VDD_SOC", 5_000, 600)];
        assert_eq!(read(&[("ina3221", orin)]), Some(("VDD_IN".to_owned(), 12.0)));
        let nano: &[Rail] =
            &[("POM_5V_IN", 5_000, 900), ("POM_5V_GPU", 5_000, 100), ("POM_5V_CPU", 5_000, 200)];
        assert_eq!(read(&[("ina3221x", nano)]), Some(("POM_5V_IN".to_owned(), 4.5)));
        let other: &[_] = &[("VDD_SYS_GPU", 10_000, 100)];
        assert_eq!(read(&[("ina3221", other), ("ina3221", orin)]), Some(("VDD_IN".to_owned(), 12.0)));
    }

    #[test]
    fn without_it_the_rails_of_all_chips_are_added_up() {
        let xavier: &[_] = &[("GPU", 19_000, 100), ("CPU", 19_000, 50), ("SOC", 19_000, 50)];
        let second: &[_] =
            &[("SYS5V", 5_000, 400), ("NC", 5_000, 900), ("CV", 19_000, -8), ("", 12_000, 9_000)];
        // 3.8 W and 2 W; a fourth channel holds no rail.
        assert_eq!(read(&[("ina3221", xavier), ("ina3221", second)]), Some(("sum".to_owned(), 5.8)));
    }

    #[test]
    fn other_chips_and_broken_files_are_passed_over() {
        assert_eq!(read(&[("coretemp", &[("VDD_IN", 1, 1)])]), None);
        assert_eq!(board_power(Path::new("/nonexistent")), None);
        let root = tempfile::tempdir().unwrap();
        chip(root.path(), "hwmon0", "ina3221", &[("A", 1_000, 1_000), ("B", 1_000, 2_000)]);
        fs::write(root.path().join("hwmon0/in1_input"), "no number\n").unwrap();
        assert_eq!(board_power(root.path()).unwrap().watts, Watts(2.0));
    }
}
