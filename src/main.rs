//! The `cema-router` binary: hands over to the command line and turns its outcome into an exit code.

fn main() {}
