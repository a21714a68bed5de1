//! Energy counters of processors: RAPL in Linux powercap.
//!
//! `intel-rapl:N` is a package (AMD's too), `intel-rapl:N:M` a part of it or its memory. `energy_uj` counts microjoules
//! and begins anew at `max_energy_range_uj`. Only what adds up is read: packages, and memory, which is in no
//! package; cores and graphics are within a package, and `psys` around it. `intel-rapl-mmio:N` is the same package
//! once more. Kernels since 5.10 let only root read the counters.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::hwmon::{number, text};
use super::series::Figure;
use crate::units::Joules;

/// Where the kernel has it.
pub(super) const DEFAULT_ROOT: &str = "/sys/class/powercap";
const PREFIX: &str = "intel-rapl:";

/// A part of the host with a counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Zone {
    /// `package-0`, or `package-0/dram`.
    pub(super) name: String,
    folder: PathBuf,
}

/// The zones that add up, in order of their folders.
pub(super) fn zones(root: &Path) -> Vec<Zone> {
    let Ok(entries) = fs::read_dir(root) else { return Vec::new() };
    let mut folders: Vec<_> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    folders.sort();
    let name_of = |folder: &str| text(&root.join(folder).join("name")).ok();
    let zone = |folder: &String| {
        let name = name_of(folder)?;
        let name = match folder.strip_prefix(PREFIX)?.split_once(':') {
            None if name.starts_with("package") => name,
            Some((package, _)) if name == "dram" => {
                format!("{}/dram", name_of(&format!("{PREFIX}{package}"))?)
            }
            _ => return None,
        };
        Some(Zone { name, folder: root.join(folder) })
    };
    folders.iter().filter_map(zone).collect()
}

impl Zone {
    /// Reads the counter.
    ///
    /// # Errors
    /// Where only root may, for instance.
    pub(super) fn read(&self) -> io::Result<Figure> {
        let joules = |file| Ok::<_, io::Error>(Joules(number(&self.folder.join(file))? / 1e6));
        // A range that cannot be read only costs the reading after a wrap.
        Ok(Figure::Counter { total: joules("energy_uj")?, wraps_at: joules("max_energy_range_uj").ok() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(zones: &[(&str, &str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (folder, name, energy_uj) in zones {
            let folder = root.path().join(folder);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("name"), format!("{name}\n")).unwrap();
            fs::write(folder.join("energy_uj"), format!("{energy_uj}\n")).unwrap();
            fs::write(folder.join("max_energy_range_uj"), "262143328850\n").unwrap();
        }
        root
    }

    #[test]
    fn packages_and_memory_add_up_and_nothing_counts_twice() {
        let root = tree(&[
            ("intel-rapl", "control", "0"),
            ("intel-rapl:0", "package-0", "2500000"),
            ("intel-rapl:0:0", "core", "1"),
            ("intel-rapl:0:1", "uncore", "1"),
            ("intel-rapl:0:2", "dram", "500000"),
            ("intel-rapl:1", "package-1", "1000000"),
            ("intel-rapl:2", "psys", "9"),
            ("intel-rapl-mmio:0", "package-0", "9"),
        ]);
        let zones = zones(root.path());
        let names: Vec<_> = zones.iter().map(|zone| zone.name.as_str()).collect();
        assert_eq!(names, ["package-0", "package-0/dram", "package-1"]);
        let wraps_at = Some(Joules(262_143.328_85));
        assert_eq!(zones[0].read().unwrap(), Figure::Counter { total: Joules(2.5), wraps_at });
        assert_eq!(zones[1].read().unwrap(), Figure::Counter { total: Joules(0.5), wraps_at });
    }

    #[test]
    fn a_counter_that_cannot_be_read_is_an_error() {
        let root = tree(&[("intel-rapl:0", "package-0", "12 W")]);
        let zones = zones(root.path());
        assert!(zones[0].read().is_err());
        fs::remove_file(root.path().join("intel-rapl:0/energy_uj")).unwrap();
        assert_eq!(zones[0].read().unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(super::zones(Path::new("/nonexistent")).is_empty());
    }
}
