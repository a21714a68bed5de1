//! What the kernel holds of the bytes that are under way.

use std::time::Duration;

use tokio::sync::Semaphore;

use super::in_time;

/// Bytes that the kernel holds for the sockets of `ports`, both directions, from `/proc/net/tcp`.
fn held_by_kernel(ports: &[u16]) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let port = |address: &str| u16::from_str_radix(address.rsplit(':').next().unwrap(), 16).unwrap();
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let ours = rows.filter(|row| [row[1], row[2]].iter().any(|address| ports.contains(&port(address))));
    let queued = ours.map(|row| {
        let (sending, receiving) = row[4].split_once(':').unwrap();
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
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
    .await
}
