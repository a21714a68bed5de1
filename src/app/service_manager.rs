//! What the service manager that started the program is told, in systemd's words (sd_notify(3)): that the router is ready,
//! reloads, stops, and lives. Where no manager wants to know, nobody is told anything.
//!
//! The protocol is a datagram of a few lines, so it needs no crate: the one there is reads the environment anew each time
//! and knows no abstract addresses, which managers of containers use.

use std::ffi::{OsStr, OsString};
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// More time than the drain may take is asked for by so much: logs are written to their end.
const STOP_MARGIN: Duration = Duration::from_secs(10);

/// The way to the service manager. The default one, where there is none, tells nobody; clones share one.
#[derive(Debug, Clone, Default)]
pub(super) struct ServiceManager(Option<Arc<Link>>);

#[derive(Debug)]
struct Link {
    address: SocketAddr,
    /// The manager ends the program where it hears nothing for so long.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// The one that the environment tells of.
    pub(super) fn of_environment() -> Self {
        Self::of(|name| std::env::var_os(name), std::process::id())
    }

    /// The one that `variable` tells process `pid` of.
    fn of(variable: impl Fn(&str) -> Option<OsString>, pid: u32) -> Self {
        let Some(socket) = variable("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()) else {
            return Self::default();
        };
        let address = match address(&socket) {
            Ok(address) => address,
            Err(error) => {
                warn!(?socket, %error, "NOTIFY_SOCKET is no address: the service manager is told nothing");
                return Self::default();
            }
        };
        let number = |name| variable(name).and_then(|value| value.to_str()?.parse::<u64>().ok());
        // Whoever started this process may have been meant.
        let is_meant = number("WATCHDOG_PID").is_none_or(|meant| meant == u64::from(pid));
        let watchdog = number("WATCHDOG_USEC").filter(|us| is_meant && *us > 0).map(Duration::from_micros);
        info!(watchdog_s = watchdog.map(|of| of.as_secs_f64()), "a service manager is told how it goes");
        Self(Some(Arc::new(Link { address, watchdog })))
    }

    /// The router answers; `status` is a line for people.
    pub(super) fn ready(&self, status: &str) {
        self.tell(|| format!("READY=1\nSTATUS={status}\n"));
    }

    /// A configuration is being read. [`ServiceManager::ready`] says that this is over.
    pub(super) fn reloading(&self) {
        self.tell(|| {
            let now = clock_gettime(ClockId::Monotonic);
            // With it systemd 253 and later tell this reload from an earlier one.
            let us = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
            format!("RELOADING=1\nMONOTONIC_USEC={us}\nSTATUS=reading the configuration\n")
        });
    }

    /// The router takes nothing new and ends within `limit`.
    pub(super) fn stopping(&self, limit: Duration) {
        self.tell(|| {
            let us = (limit + STOP_MARGIN).as_micros();
            let limit_s = limit.as_secs_f64();
            format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={us}\nSTATUS=draining, {limit_s} s at most\n")
        });
    }

    /// Says that the router lives, twice in the time that the manager waits for it, until `end`. To be run as a task of the
    /// runtime: where that is stuck, nothing is said.
    pub(super) async fn keep_telling(self, end: CancellationToken) {
        let Some(within) = self.0.as_ref().and_then(|link| link.watchdog) else { return };
        let mut ticks = interval(within / 2);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let telling = async {
            loop {
                ticks.tick().await;
                self.tell(|| "WATCHDOG=1\n".to_owned());
            }
        };
        end.run_until_cancelled(telling).await;
    }

    fn tell(&self, message: impl FnOnce() -> String) {
        let Some(link) = &self.0 else { return };
        if let Err(error) = send(&link.address, message().as_bytes()) {
            warn!(%error, "the service manager cannot be told how it goes");
        }
    }
}

/// Never waits for the manager: where it does not read, the message is lost.
fn send(address: &SocketAddr, message: &[u8]) -> std::io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to_addr(message, address)?;
    Ok(())
}

/// `/path`, or `@name` of the abstract namespace.
fn address(socket: &OsStr) -> std::io::Result<SocketAddr> {
    #[cfg(target_os = "linux")]
    if let [b'@', name @ ..] = std::os::unix::ffi::OsStrExt::as_bytes(socket) {
        return <SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(name);
    }
    SocketAddr::from_pathname(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A manager's end, and the router's, with these further variables.
    fn pair(variables: &'static [(&str, &str)]) -> (UnixDatagram, ServiceManager, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        let manager = ServiceManager::of(
            |name| match name {
                "NOTIFY_SOCKET" => Some(path.clone().into_os_string()),
                _ => variables.iter().find(|(of, _)| *of == name).map(|(_, value)| value.into()),
            },
            77,
        );
        (socket, manager, folder)
    }

    fn heard(socket: &UnixDatagram) -> Vec<String> {
        let mut buffer = [0; 512];
        let next = || socket.recv(&mut buffer).ok().map(|n| String::from_utf8(buffer[..n].to_vec()).unwrap());
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn it_is_told_in_lines_of_one_datagram() {
        let (socket, manager, _folder) = pair(&[]);
        manager.ready("listening");
        manager.stopping(Duration::from_millis(30_500));
        manager.reloading();
        let heard = heard(&socket);
        assert_eq!(heard[0], "READY=1\nSTATUS=listening\n");
        assert_eq!(heard[1], "STOPPING=1\nEXTEND_TIMEOUT_USEC=40500000\nSTATUS=draining, 30.5 s at most\n");
        let us = heard[2].lines().nth(1).and_then(|line| line.strip_prefix("MONOTONIC_USEC=")).unwrap();
        let us: u64 = us.parse().unwrap();
        let now = clock_gettime(ClockId::Monotonic).tv_sec as u64 * 1_000_000;
        assert!(heard[2].starts_with("RELOADING=1\n") && now.abs_diff(us) < 60_000_000, "{}", heard[2]);
        assert_eq!(heard.len(), 3);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn abstract_addresses_are_known() {
        let name = format!("@cema-router-{}", rand::random::<u64>());
        let socket = UnixDatagram::bind_addr(&address(OsStr::new(&name)).unwrap()).unwrap();
        assert!(socket.local_addr().unwrap().as_pathname().is_none());
        socket.set_nonblocking(true).unwrap();
        let variable = |of: &str| (of == "NOTIFY_SOCKET").then(|| name.clone().into());
        ServiceManager::of(variable, 77).ready("here");
        assert_eq!(heard(&socket), ["READY=1\nSTATUS=here\n"]);
    }

    #[test]
    fn without_a_manager_or_with_nonsense_nothing_is_told() {
        assert!(ServiceManager::of(|_| None, 77).0.is_none());
        assert!(ServiceManager::of(|_| Some("".into()), 77).0.is_none());
        let too_long = |_: &str| Some("x".repeat(200).into());
        assert!(ServiceManager::of(too_long, 77).0.is_none());
    }

    #[test]
    fn a_manager_that_is_gone_or_does_not_read_costs_nothing() {
        let (socket, manager, _folder) = pair(&[]);
        // Many more than a socket's queue holds; a call that waited would hang the test.
        (0..5_000).for_each(|_| manager.ready("x"));
        assert!(heard(&socket).len() < 5_000);
        drop(socket);
        manager.ready("x");
    }

    #[tokio::test(start_paused = true)]
    async fn it_hears_twice_a_watchdogs_time_until_the_end() {
        let (socket, manager, _folder) = pair(&[("WATCHDOG_USEC", "30000000"), ("WATCHDOG_PID", "77")]);
        let end = CancellationToken::new();
        let telling = tokio::spawn(manager.keep_telling(end.clone()));
        tokio::time::sleep(Duration::from_secs(61)).await;
        assert_eq!(heard(&socket), ["WATCHDOG=1\n"; 5], "at 0, 15, 30, 45 and 60 s");
        end.cancel();
        telling.await.unwrap();
        assert!(heard(&socket).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_runtime_that_is_stuck_says_nothing() {
        let (socket, manager, _folder) = pair(&[("WATCHDOG_USEC", "30000000")]);
        let telling = tokio::spawn(manager.keep_telling(CancellationToken::new()));
        tokio::task::yield_now().await;
        assert_eq!(heard(&socket).len(), 1);
        // Its only thread comes back to no task while the clock goes on: what fell due is said once, when it is over.
        let stuck = std::pin::pin!(tokio::time::advance(Duration::from_secs(300)));
        assert!(heard(&socket).is_empty());
        stuck.await;
        tokio::task::yield_now().await;
        assert_eq!(heard(&socket).len(), 1);
        telling.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn another_process_may_be_meant_and_no_watchdog_is_none() {
        for variables in
            [&[("WATCHDOG_USEC", "30000000"), ("WATCHDOG_PID", "78")][..], &[("WATCHDOG_USEC", "0")], &[]]
        {
            let (socket, manager, _folder) = pair(variables);
            manager.keep_telling(CancellationToken::new()).await;
            assert!(heard(&socket).is_empty());
        }
    }
}
