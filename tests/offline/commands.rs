//! The command line itself: what it says of its commands, completions, manual pages.

use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cema-router")).args(args).output().unwrap()
}

fn said(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The commands that a help text lists, with their summaries.
fn commands_in(help: &str) -> Vec<(&str, &str)> {
    let list = help.split("Commands:\n").nth(1).unwrap_or_default().split("\n\n").next().unwrap_or_default();
    let lines = list.lines().filter_map(|line| line.trim().split_once("  "));
    lines.map(|(name, about)| (name, about.trim())).filter(|(name, _)| *name != "help").collect()
}

#[test]
fn help_teaches_each_command() {
    let root = said(&["--help"]);
    assert!(root.contains("First steps:") && root.contains("listen: 127.0.0.1:8080"), "{root}");
    let commands = commands_in(&root);
    assert!(commands.len() >= 11, "{commands:?}");
    for (name, about) in commands {
        assert!(about.len() > 10, "{name}: {about}");
        let help = said(&[name, "--help"]);
        assert!(help.starts_with(about.split(':').next().unwrap()), "{name}: {help}");
        // An example that can be copied.
        let example = format!("cema-router {name}");
        let n_shown = help.lines().filter(|line| line.trim_start().starts_with(&example)).count();
        assert!(n_shown > 0 || help.contains(&format!("&& man {example}")), "{name} has no example:\n{help}");
        for (inner, about) in commands_in(&help) {
            assert!(about.len() > 10, "{name} {inner}: {about}");
            said(&[name, inner, "--help"]);
        }
    }
}

#[test]
fn completions_know_commands_and_options() {
    for (shell, marks) in [
        ("bash", ["complete -F", "check-config", "--without-secrets"]),
        ("zsh", ["#compdef cema-router", "check-config", "--without-secrets"]),
        ("fish", ["complete -c cema-router", "check-config", "without-secrets"]),
    ] {
        let script = said(&["completions", shell]);
        for mark in marks {
            assert!(script.contains(mark), "{shell}: {mark}");
        }
    }
    assert_eq!(run(&["completions", "tcsh"]).status.code(), Some(2));
}

/// The script is run by bash, where there is one, and asked what could follow.
#[test]
fn bash_completes_a_command() {
    let script = said(&["completions", "bash"]);
    let ask = "COMP_WORDS=(cema-router check-c); COMP_CWORD=1; $(complete -p cema-router | grep -o '_cema[a-z_]*') cema-router check-c cema-router; \
               echo \"${COMPREPLY[@]}\"";
    let output = Command::new("bash").arg("-c").arg(format!("{script}\n{ask}")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "check-config", "{output:?}");
}

#[test]
fn manual_pages_are_written_for_every_command() {
    let folder = tempfile::tempdir().unwrap();
    let into = folder.path().join("man1");
    said(&["man", into.to_str().unwrap()]);
    let page = |name: &str| std::fs::read_to_string(into.join(name)).unwrap();
    assert!(page("cema-router.1").contains("cema\\-router\\-check\\-config(1)"));
    assert!(page("cema-router-serve.1").contains("\\-\\-config"));
    assert!(page("cema-router-profile-throughput.1").contains("prefill_tps"));
    // A file stands where the folder should be.
    let output = run(&["man", into.join("cema-router.1").to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("error: cannot write manual pages into"));
}
