//! Waiting until a moment to within some ten microseconds: the runtime's own timer counts whole
//! milliseconds, which is longer than the round trip that is to be imitated.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

/// A kernel timer, made when it is first needed.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    timer: Option<AsyncFd<OwnedFd>>,
}

impl Alarm {
    /// Returns at `due` or a little later, never earlier.
    pub(crate) async fn until(&mut self, due: Instant) -> io::Result<()> {
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let timer = match self.timer.take() {
                Some(timer) => timer,
                None => timer()?,
            };
            let timer = self.timer.insert(timer);
            timerfd_settime(&*timer, TimerfdTimerFlags::empty(), &once(left))?;
            timer.readable().await?.clear_ready();
        }
    }
}

#[expect(deprecated, reason = "it owns its descriptor; the successor needs unsafe code")]
fn timer() -> io::Result<AsyncFd<OwnedFd>> {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    AsyncFd::new(timerfd_create(TimerfdClockId::Monotonic, flags)?)
}

fn once(after: Duration) -> Itimerspec {
    Itimerspec {
        it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
        it_value: Timespec {
            tv_sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(after.subsec_nanos()),
        },
    }
}
