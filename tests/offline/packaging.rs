//! What is installed beside the binary: configurations that are valid, and a unit, package and container that agree on where
//! things are.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use cema_router::config::Config;

const UNIT: &str = include_str!("../../packaging/cema-router.service");
const INSTALLED: &str = include_str!("../../packaging/config.yaml");
const CONTAINER: &str = include_str!("../../docker/config.yaml");
const CARGO: &str = include_str!("../../Cargo.toml");

fn env(name: &str) -> Option<String> {
    ["APP1_KEY", "CEMA_API_KEY"].contains(&name).then(|| "a-key".to_owned())
}

fn valid(text: &str) -> Config {
    Config::parse(text, &env).unwrap_or_else(|faults| panic!("{text}\n{faults:#?}"))
}

/// The settings of the unit; the last of those that are there several times.
fn settings() -> BTreeMap<&'static str, &'static str> {
    let lines = UNIT.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once('=')).collect()
}

#[test]
fn the_configuration_of_the_package_is_valid_as_installed_and_with_what_it_suggests() {
    let config = valid(INSTALLED);
    assert!(config.listen.ip().is_loopback() && config.admin_listen.ip().is_loopback());
    assert_eq!(config.fleet.destinations.len(), 1);
    assert!(config.decision_log.is_none() && config.access_log.is_none() && config.auth.keys.is_empty());

    // Every comment that is a piece of configuration.
    let mut text = String::new();
    let mut is_in_auth = false;
    for line in INSTALLED.lines() {
        let suggested = line.strip_prefix("# ").filter(|rest| {
            is_in_auth = rest.starts_with("auth:") || (is_in_auth && rest.starts_with("  "));
            is_in_auth || rest.starts_with("decision_log:") || rest.starts_with("access_log:")
        });
        text.push_str(suggested.unwrap_or(line));
        text.push('\n');
    }
    let config = valid(&text);
    assert_eq!(config.auth.keys.len(), 1);
    let logs = Path::new("/var/log").join(settings()["LogsDirectory"]);
    assert!(config.decision_log.unwrap().log.path.starts_with(&logs));
    assert!(config.access_log.unwrap().path.starts_with(&logs));
    let state = Path::new("/var/lib").join(settings()["StateDirectory"]);
    assert!(config.quality.params().store.starts_with(&state));
    assert_eq!(Path::new(settings()["WorkingDirectory"]), state);
}

#[test]
fn the_configuration_of_the_container_is_valid() {
    let config = valid(CONTAINER);
    assert_eq!((config.auth.keys.len(), config.fleet.destinations.len()), (1, 1));
}

#[test]
fn what_the_unit_needs_is_in_the_package() {
    let settings = settings();
    let program = settings["ExecStart"].split(' ').next().unwrap();
    for (installed, from) in [
        (program, "target/package/cema-router"),
        ("/etc/cema-router/config.yaml", "packaging/config.yaml"),
        (settings["EnvironmentFile"].trim_start_matches('-'), "packaging/environment"),
        ("/usr/lib/systemd/system/cema-router.service", "packaging/cema-router.service"),
        // Where the embedder is looked for.
        ("/usr/lib/cema-router/libonnxruntime.so", "target/package/libonnxruntime.so"),
        ("/usr/lib/cema-router/model/model.onnx", "target/package/model/*"),
    ] {
        let folder = Path::new(installed).parent().unwrap().strip_prefix("/").unwrap();
        let asset = format!("[\"{from}\", \"{}/\", ", folder.display());
        assert!(CARGO.contains(&asset), "no {asset}");
    }
    assert!(settings["ExecStart"].contains("/etc/cema-router/config.yaml"));
    // More than the longest drain by default, and more pings than one may be lost.
    let config = valid(INSTALLED);
    assert!(settings["TimeoutStopSec"].parse::<u64>().unwrap() > config.limits.drain.as_secs() + 11);
    assert_eq!(settings["Type"], "notify");
}

#[test]
fn systemd_finds_little_to_complain_about() {
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/cema-router.service");
    let mut analyse = Command::new("systemd-analyze");
    analyse.args(["security", "--offline=true", "--no-pager", "--threshold=20", unit]);
    let skipped = match analyse.output() {
        Ok(output) if String::from_utf8_lossy(&output.stderr).contains("unrecognized option") => {
            "this systemd-analyze cannot look at files".to_owned()
        }
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success() && said.contains("Overall exposure level"), "{said}");
            return;
        }
        Err(error) => format!("systemd-analyze cannot be run: {error}"),
    };
    let mut stderr = std::io::stderr();
    writeln!(stderr, "!! SKIPPED systemd_finds_little_to_complain_about: {skipped}").unwrap();
}
