//! What a service is given: when to end, where its tasks live, where its metrics go, which sockets
//! are there already, and whom to tell which addresses it has bound.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use crate::drain::{Drain, Hangups};
use crate::manager::Manager;
use crate::metrics::Metrics;
use crate::settings::write_whole;
use crate::sockets::Sockets;
use crate::tasks::Tasks;

/// Bound addresses by what they are for.
pub type Addresses = BTreeMap<&'static str, SocketAddr>;

/// Given to a service. Clones share everything.
#[derive(Debug, Clone)]
pub struct Context {
    /// When to end.
    pub drain: Drain,
    /// Background work.
    pub tasks: Tasks,
    /// The service's registry.
    pub metrics: Metrics,
    /// Listening sockets that outlive the process.
    pub sockets: Sockets,
    /// The service manager, if there is one.
    pub manager: Manager,
    announced: Arc<Announced>,
    owns_process: bool,
}

#[derive(Debug)]
struct Announced {
    addresses: Mutex<Addresses>,
    ports_file: Option<PathBuf>,
    waiting: Mutex<Option<oneshot::Sender<Addresses>>>,
}

impl Context {
    /// For a service inside another process: `weir dev` and tests.
    pub fn in_process(drain: Drain) -> (Context, AddressesReceiver) {
        let (context, receiver) = Context::new(drain, None, Sockets::default(), Manager::default());
        (Context { owns_process: false, ..context }, receiver)
    }

    /// SIGHUPs to the process from now on; none inside another process.
    pub fn hangups(&self) -> std::io::Result<Hangups> {
        if self.owns_process { Hangups::hear() } else { Ok(Hangups::none()) }
    }

    pub(crate) fn new(
        drain: Drain,
        ports_file: Option<PathBuf>,
        sockets: Sockets,
        manager: Manager,
    ) -> (Context, AddressesReceiver) {
        let (sender, receiver) = oneshot::channel();
        let announced = Announced {
            addresses: Mutex::default(),
            ports_file,
            waiting: Mutex::new(Some(sender)),
        };
        let context = Context {
            drain,
            tasks: Tasks::new(),
            metrics: Metrics::new(),
            sockets,
            manager,
            announced: Arc::new(announced),
            owns_process: true,
        };
        (context, AddressesReceiver(receiver))
    }

    /// Says that `what` is bound at `at`.
    pub fn announce(&self, what: &'static str, at: SocketAddr) {
        tracing::info!(what, %at, "listening");
        self.announced.addresses.lock().unwrap_or_else(PoisonError::into_inner).insert(what, at);
    }

    /// Says that the service does its work, with all its addresses announced: to the process
    /// before this one, or else to the service manager.
    pub fn ready(&self) {
        self.all_announced();
        // A predecessor tells the service manager itself, which listens to nobody else until then.
        if !self.sockets.tell_predecessor() {
            self.manager.ready();
        }
    }

    /// Says that everything is announced, though perhaps the service cannot work yet: writes the
    /// ports file, tells the receiver.
    pub fn all_announced(&self) {
        let addresses =
            self.announced.addresses.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(path) = &self.announced.ports_file {
            let text = serde_json::json!(addresses).to_string() + "\n";
            if let Err(error) = write_whole(path, text.as_bytes(), 0o644) {
                self.tasks.fail(format!("cannot write {}: {error}", path.display()));
            }
        }
        let mut waiting = self.announced.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = waiting.take()
            && sender.send(addresses).is_err()
        {
            tracing::debug!("nobody waits for the addresses");
        }
    }
}

/// Waits for [`Context::all_announced`].
#[derive(Debug)]
pub struct AddressesReceiver(oneshot::Receiver<Addresses>);

impl AddressesReceiver {
    /// The addresses; `None` if the service ended before it was ready.
    pub async fn wait(self) -> Option<Addresses> {
        self.0.await.ok()
    }
}
