//! Listening sockets that outlive a process: taken over from a predecessor or from the service
//! manager, and lent to a successor.
//!
//! Both ways it is systemd's protocol (sd_listen_fds(3)): descriptors from 3 on, counted by
//! `LISTEN_FDS`, named by `LISTEN_FDNAMES`. A socket that is handed over is the same socket, so what
//! waits in its queue is accepted by the other process. One that is closed resets what waits: hence
//! a process that has handed over only stops accepting.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use listenfd::ListenFd;

use crate::settings::environment;

/// Marks names that a predecessor gave to sockets it had bound itself: such a socket is known again
/// by its address. A service manager's is known by its name too.
const OWN: &str = "own/";
/// The name of the socket on which a predecessor waits for its successor.
pub(crate) const PREDECESSOR: &str = "own/predecessor";
/// What it waits for; the numbers of unused sockets follow on a second line.
pub(crate) const READY: &str = "READY=1";
pub(crate) const UNUSED: &str = "UNUSED=";

/// The sockets of a process. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Sockets {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    given: Mutex<Vec<Given>>,
    predecessor: Mutex<Option<UnixDatagram>>,
    lent: Mutex<Vec<Weak<Lent>>>,
    /// Listeners whose sockets are the service manager's, by its name.
    managed: Mutex<Vec<String>>,
    handed_over: AtomicBool,
}

/// A socket from outside that no listener has taken yet.
#[derive(Debug)]
struct Given {
    /// Its place among all.
    number: usize,
    name: String,
    socket: TcpListener,
}

impl Given {
    fn is_for(&self, name: &str, address: SocketAddr) -> bool {
        let Ok(at) = self.socket.local_addr() else { return false };
        let anywhere = address.port() == 0 && at.ip() == address.ip();
        at == address || self.name == name || anywhere && self.name.strip_prefix(OWN) == Some(name)
    }
}

/// A listening socket that a successor may get. Closed when dropped, unless it was handed over.
#[derive(Debug)]
pub struct Lent {
    name: String,
    socket: TcpListener,
    handed_over: AtomicBool,
}

impl Lent {
    /// Where it listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The same socket once more, to accept from.
    pub fn listener(&self) -> io::Result<TcpListener> {
        self.socket.try_clone()
    }

    /// Whether a successor accepts from it now, and this process does not.
    pub fn is_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::Acquire)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn hand_over(&self) {
        self.handed_over.store(true, Ordering::Release);
    }
}

impl Sockets {
    /// What the environment hands to this process. To be called before there are threads: it takes
    /// the variables out of the environment. Also what is strange about it, for the log.
    pub(crate) fn from_environment() -> (Sockets, Vec<String>) {
        let names = environment("LISTEN_FDNAMES").unwrap_or_default();
        let names = names.to_string_lossy().into_owned();
        let mut names = names.split(':');
        let mut fds = ListenFd::from_env();
        let (mut given, mut predecessor, mut strange) = (Vec::new(), None, Vec::new());
        for number in 0..fds.len() {
            let name = names.next().unwrap_or_default().to_owned();
            if name == PREDECESSOR {
                match fds.take_unix_datagram(number) {
                    Ok(socket) => predecessor = socket,
                    Err(error) => strange.push(format!("{name}: {error}")),
                }
                continue;
            }
            match fds.take_tcp_listener(number) {
                Ok(Some(socket)) => given.push(Given { number, name, socket }),
                Ok(None) => {}
                Err(error) => strange.push(format!("{name}: {error}")),
            }
        }
        let (given, predecessor) = (Mutex::new(given), Mutex::new(predecessor));
        (Sockets { shared: Arc::new(Shared { given, predecessor, ..Shared::default() }) }, strange)
    }

    /// Takes what was given for the listener `name` at `address`: what the service manager calls by
    /// that name, and what listens at that address.
    pub fn take(&self, name: &str, address: SocketAddr) -> Vec<TcpListener> {
        let mut given = lock(&self.shared.given);
        let taken: Vec<Given> = given.extract_if(.., |given| given.is_for(name, address)).collect();
        if taken.iter().any(|given| given.name == name) {
            lock(&self.shared.managed).push(name.to_owned());
        }
        taken.into_iter().map(|given| given.socket).collect()
    }

    /// Makes `socket`, which serves the listener `name`, one that a successor may get.
    pub fn lend(&self, name: &str, socket: TcpListener) -> Arc<Lent> {
        let managed = lock(&self.shared.managed).iter().any(|managed| managed == name);
        let name = if managed { name.to_owned() } else { format!("{OWN}{name}") };
        let lent = Arc::new(Lent { name, socket, handed_over: AtomicBool::new(false) });
        let mut all = lock(&self.shared.lent);
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&lent));
        lent
    }

    /// Whether another process serves until this one says that it is ready.
    pub fn has_predecessor(&self) -> bool {
        lock(&self.shared.predecessor).is_some()
    }

    /// Says that this process serves, with all that it has taken; whether anybody waited for that.
    /// What nobody has taken is left to whoever gave it.
    pub(crate) fn tell_predecessor(&self) -> bool {
        let unused = std::mem::take(&mut *lock(&self.shared.given));
        for given in &unused {
            tracing::warn!(name = given.name, at = ?given.socket.local_addr().ok(),
                "no listener has use for a socket that was given");
        }
        let Some(predecessor) = lock(&self.shared.predecessor).take() else { return false };
        let numbers: Vec<String> = unused.iter().map(|given| given.number.to_string()).collect();
        let told = format!("{READY}\n{UNUSED}{}", numbers.join(","));
        if let Err(error) = predecessor.send(told.as_bytes()) {
            tracing::error!(%error, "the process before this one cannot be told");
        }
        true
    }

    /// All that a successor may get.
    pub(crate) fn lent(&self) -> Vec<Arc<Lent>> {
        lock(&self.shared.lent).iter().filter_map(Weak::upgrade).collect()
    }

    /// Notes that a successor serves.
    pub(crate) fn hand_over(&self) {
        self.shared.handed_over.store(true, Ordering::Release);
    }

    /// Whether a successor serves in this process's place.
    pub fn is_handed_over(&self) -> bool {
        self.shared.handed_over.load(Ordering::Acquire)
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(name: &str) -> Given {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        Given { number: 0, name: name.to_owned(), socket }
    }

    #[test]
    fn own_sockets_are_known_by_address_and_given_ones_by_name_too() {
        let (own, managed) = (given("own/main"), given("main"));
        let elsewhere: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let anywhere: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let at = own.socket.local_addr().unwrap();
        assert!(own.is_for("main", at) && own.is_for("other", at));
        assert!(!own.is_for("main", elsewhere), "the listener has moved");
        assert!(own.is_for("main", anywhere), "and here it may stay where it is");
        assert!(!own.is_for("other", anywhere));
        assert!(managed.is_for("main", elsewhere), "the service manager says where");
        assert!(!managed.is_for("other", elsewhere));
    }

    #[test]
    fn a_name_from_the_service_manager_stays_one() {
        let sockets = Sockets::default();
        lock(&sockets.shared.given).extend([given("main"), given("own/second"), given("left")]);
        let anywhere: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let mut kept = Vec::new();
        for name in ["main", "second"] {
            let taken = sockets.take(name, anywhere);
            assert_eq!(taken.len(), 1, "{name}");
            kept.extend(taken.into_iter().map(|socket| sockets.lend(name, socket)));
        }
        let names: Vec<_> = sockets.lent().iter().map(|lent| lent.name().to_owned()).collect();
        assert_eq!(names, ["main", "own/second"]);
        assert!(!sockets.tell_predecessor(), "there is none");
        kept.clear();
        assert!(sockets.lent().is_empty(), "what is closed cannot be handed over");
    }
}
