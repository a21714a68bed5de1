//! Real servers and clients on loopback sockets, with every byte under the test's control.
//!
//! A test crate that does not use all of it says so: `#[expect(dead_code, reason = "...")] mod support;`.

pub(crate) mod answers;
pub(crate) mod fake_endpoint;
pub(crate) mod http1;
pub(crate) mod raw_client;
