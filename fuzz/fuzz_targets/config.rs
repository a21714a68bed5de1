//! A configuration of any text: reading never panics, every fault says where and what, none repeats a secret.
#![no_main]

use cema_router::config::Config;
use libfuzzer_sys::fuzz_target;

const SECRET: &str = "sk-2f1d0c9b8a7e6d5c4b3a";
/// Far more than a fault's parts may come to: path, value and choices are all shortened.
const FAULT_CHARS_MAX: usize = 2_000;

fuzz_target!(|text: &str| {
    let env = |name: &str| (!name.is_empty()).then(|| SECRET.to_owned());
    match Config::parse(text, &env) {
        Ok(config) => assert!(!format!("{config:?}").contains(SECRET), "a key can be printed"),
        Err(faults) => {
            // YAML ends lines with CR as well, and its reader sees one more at the end of an unfinished text.
            let lines_max = text.chars().filter(|c| matches!(c, '\n' | '\r')).count() + 2;
            assert!(!faults.is_empty());
            for fault in &faults {
                let said = fault.to_string();
                assert!(fault.line >= 1 && fault.line <= lines_max, "{fault:?}");
                assert!(!fault.problem.is_empty(), "{fault:?}");
                assert!(!fault.path.is_empty() || faults.len() == 1, "{fault:?}");
                assert!(!said.contains(SECRET), "{said}");
                assert!(said.chars().count() <= FAULT_CHARS_MAX + fault.path.chars().count(), "{said}");
            }
            assert!(faults.is_sorted_by_key(|fault| fault.line));
        }
    }
});
