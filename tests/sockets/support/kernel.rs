//! What the kernel holds of the bytes that are under way.

use std::time::Duration;

use tokio::sync::Semaphore;

use super::in_time;

/// Most that the router holds of a stream whose client does not read: what it has read of the endpoint (1 MiB at
/// most), what waits to be written, and the event that is being written to it.
pub(crate) const HELD_MAX: usize = 4 << 20;

/// Bytes that the kernel holds for the sockets of `ports`, both directions, from `/proc/net/tcp`.
fn held_by_kernel(ports: &[u16]) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    // Thousands of rows on a machine where others are busy: only ours are taken apart.
    let ends: Vec<String> = ports.iter().map(|port| format!(":{port:04X} ")).collect();
    let ours = table.lines().skip(1).filter(|row| ends.iter().any(|end| row.contains(end)));
    let queued = ours.map(|row| {
        let (sending, receiving) = row.split_whitespace().nth(4).unwrap().split_once(':').unwrap();
        let bytes = |hex| usize::from_str_radix(hex, 16).unwrap();
        bytes(sending) + bytes(receiving)
    });
    queued.sum()
}

/// The number of permits left and what the kernel holds for `ports`, once both have stopped changing.
pub(crate) async fn at_rest(gate: &Semaphore, ports: &[u16]) -> (usize, usize) {
    in_time("everything to be at rest", async {
        let (mut before, mut n_same) = ((usize::MAX, 0), 0);
        loop {
            let now = (gate.available_permits(), held_by_kernel(ports));
            n_same = if now == before { n_same + 1 } else { 0 };
            if n_same == 3 {
                return now;
            }
            before = now;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await
}
