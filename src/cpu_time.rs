//! CPU time of the calling thread: what solver budgets are measured in, since a wall clock also counts
//! the time other threads had the core.

use rustix::time::{ClockId, clock_gettime};

use crate::units::Seconds;

/// CPU time this thread has used so far.
#[must_use]
pub(crate) fn thread_cpu_time() -> Seconds {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Seconds(time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9)
}
