//! A Redis of one's own: a child process on a free port, in a folder that goes with it.

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use limiter_core::store::redis::{RedisSettings, RedisStore};
use limiter_core::{Clock, SystemClock};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::runtime::Handle;

/// How long anything local may take before a test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A running server; killed when dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    _folder: TempDir,
}

impl Server {
    /// Starts one and waits until it answers.
    pub(crate) fn start() -> Server {
        Server::start_at(free_port())
    }

    /// Starts one on a certain port.
    pub(crate) fn start_at(port: u16) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let child = spawn(port, &folder);
        let server = Server { child, port, _folder: folder };
        server.wait_until_it_answers();
        server
    }

    /// Kills it and starts another one, empty, on the same port.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.child = spawn(self.port, &self._folder);
        self.wait_until_it_answers();
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops (SIGSTOP) or continues (SIGCONT) it.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap();
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub(crate) fn connection(&self) -> redis::Connection {
        redis::Client::open(self.url()).unwrap().get_connection().unwrap()
    }

    /// A store over this server that is linked.
    pub(crate) async fn store(&self, connections: usize) -> Arc<RedisStore> {
        let store = store_at(&self.url(), connections);
        until("the store is linked", || store.is_answering()).await;
        store
    }

    fn wait_until_it_answers(&self) {
        let started = SystemClock::new().now();
        let client = redis::Client::open(self.url()).unwrap();
        loop {
            let ping = client
                .get_connection()
                .and_then(|mut connection| redis::cmd("PING").query::<String>(&mut connection));
            if ping.is_ok() {
                return;
            }
            let waited = SystemClock::new().now().since(started);
            assert!(waited < PATIENCE, "redis-server did not answer: {ping:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _already_gone = self.child.kill();
        let _already_gone = self.child.wait();
    }
}

/// A store that may not be linked yet.
pub(crate) fn store_at(url: &str, connections: usize) -> Arc<RedisStore> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let settings = RedisSettings { connections, ..RedisSettings::new(url) };
    Arc::new(RedisStore::connect(&settings, &Handle::current(), &clock).unwrap())
}

/// Polls until `holds`, for as long as [`PATIENCE`].
pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    let clock = SystemClock::new();
    let started = clock.now();
    while !holds() {
        assert!(clock.now().since(started) < PATIENCE, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap().port()
}

fn spawn(port: u16, folder: &TempDir) -> Child {
    Command::new("redis-server")
        .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port"])
        .arg(port.to_string())
        .arg("--dir")
        .arg(folder.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| {
            panic!("redis-server did not start ({error}); install it: apt-get install redis-server")
        })
}
