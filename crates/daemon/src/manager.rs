//! What the service manager is told: that the process is ready, about to end, alive, or that another
//! one has taken its place. The protocol is systemd's (sd_notify(3)): lines in one datagram to the
//! socket that `NOTIFY_SOCKET` names. Without such a socket everything here does nothing.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::settings::environment;

/// The service manager, if there is one. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Manager {
    link: Option<Arc<Link>>,
    /// Silence after which it takes the process for dead.
    watchdog: Option<Duration>,
}

#[derive(Debug)]
struct Link {
    socket: UnixDatagram,
    at: SocketAddr,
}

impl Manager {
    /// The one that listens at `name`: a path, or `@` and an abstract name.
    pub fn at(name: &OsStr, watchdog: Option<Duration>) -> io::Result<Manager> {
        let at = match name.as_bytes() {
            [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
            [b'/', ..] => SocketAddr::from_pathname(name)?,
            _ => return Err(io::Error::other("neither a path nor an abstract name")),
        };
        let socket = UnixDatagram::unbound()?;
        // A manager that does not read must not hold up what it manages.
        socket.set_nonblocking(true)?;
        Ok(Manager { link: Some(Arc::new(Link { socket, at })), watchdog })
    }

    /// The one that the environment names.
    pub(crate) fn from_environment() -> Manager {
        let Some(name) = environment("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Manager::default();
        };
        match Manager::at(
            &name,
            watchdog(environment("WATCHDOG_USEC"), environment("WATCHDOG_PID")),
        ) {
            Ok(manager) => manager,
            Err(error) => {
                tracing::warn!(?name, %error, "cannot talk to the service manager");
                Manager::default()
            }
        }
    }

    /// The process serves, (again) with what its settings say.
    pub fn ready(&self) {
        self.tell("READY=1\nSTATUS=serving");
    }

    /// The process reads its settings anew; [`Manager::ready`] follows, whatever comes of it.
    pub fn reloading(&self, status: &str) {
        let now = clock_gettime(ClockId::Monotonic);
        let us = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1_000;
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={us}\nSTATUS={status}"));
    }

    /// The process ends what was begun and then itself.
    pub(crate) fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=draining");
    }

    /// `pid` serves in this process's place.
    pub(crate) fn succeeded_by(&self, pid: u32) {
        self.tell(&format!("MAINPID={pid}\nREADY=1\nSTATUS=serving"));
    }

    /// Says that the process is alive, twice as often as asked; never ends.
    pub(crate) async fn keep_alive(&self) {
        let Some(silence) = self.watchdog else { return std::future::pending().await };
        let mut beat = tokio::time::interval(silence / 2);
        loop {
            beat.tick().await;
            self.tell("WATCHDOG=1");
        }
    }

    fn tell(&self, lines: &str) {
        let Some(link) = &self.link else { return };
        if let Err(error) = link.socket.send_to_addr(lines.as_bytes(), &link.at) {
            tracing::warn!(lines, %error, "the service manager cannot be told");
        }
    }
}

/// The longest silence that is asked for, if it is asked of this process.
fn watchdog(silence_us: Option<OsString>, pid: Option<OsString>) -> Option<Duration> {
    let number = |text: OsString| text.to_str()?.parse::<u64>().ok();
    let ours = pid.is_none_or(|pid| number(pid) == Some(u64::from(std::process::id())));
    let silence = Duration::from_micros(silence_us.and_then(number)?);
    // Nothing can be said more often than that.
    (ours && silence >= Duration::from_millis(2)).then_some(silence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_of_another_process_is_none_of_ours() {
        let text = |text: &str| Some(OsString::from(text));
        let own = std::process::id().to_string();
        assert_eq!(watchdog(text("3000000"), None), Some(Duration::from_secs(3)));
        assert_eq!(watchdog(text("3000000"), text(&own)), Some(Duration::from_secs(3)));
        assert_eq!(watchdog(text("3000000"), text("1")), None);
        assert_eq!(watchdog(text("soon"), None), None);
        assert_eq!(watchdog(text("0"), None), None);
        assert_eq!(watchdog(None, text(&own)), None);
    }

    #[test]
    fn a_manager_is_told_at_a_path_and_at_an_abstract_name() {
        let folder = std::env::temp_dir().join(format!("manager-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("notify");
        let name = format!("@manager-{}", std::process::id());
        let abstract_at = SocketAddr::from_abstract_name(&name.as_bytes()[1..]).unwrap();
        for (socket, at) in [
            (UnixDatagram::bind(&path).unwrap(), path.as_os_str()),
            (UnixDatagram::bind_addr(&abstract_at).unwrap(), OsStr::new(&name)),
        ] {
            Manager::at(at, None).unwrap().succeeded_by(77);
            let mut piece = [0; 100];
            let length = socket.recv(&mut piece).unwrap();
            assert_eq!(&piece[..length], b"MAINPID=77\nREADY=1\nSTATUS=serving");
        }
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(Manager::at(OsStr::new("vsock:2:1"), None).is_err());
        Manager::default().ready();
    }
}
