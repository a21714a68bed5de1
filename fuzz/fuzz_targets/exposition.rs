//! A metrics page of any bytes: what is read of it, written out again, reads the same.
#![no_main]

use std::fmt::Write as _;

use cema_router::profiler::exposition::{Sample, samples};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let page = String::from_utf8_lossy(data);
    for sample in samples(&page) {
        assert!(!sample.name.is_empty());
        let line = written(&sample);
        let again = samples(&line).next().expect("what was read can be read again");
        assert_eq!((again.name, &again.labels), (sample.name, &sample.labels));
        assert!(again.value == sample.value || again.value.is_nan() && sample.value.is_nan());
    }
});

fn written(sample: &Sample<'_>) -> String {
    let mut line = format!("{}{{", sample.name);
    for (name, value) in &sample.labels {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        write!(line, "{name}=\"{value}\",").expect("a string takes anything");
    }
    write!(line, "}} {}", sample.value).expect("a string takes anything");
    line
}
