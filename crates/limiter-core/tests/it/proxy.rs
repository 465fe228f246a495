//! A TCP proxy that loses an answer on command, and counts what clients write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// What happens to answers after the next call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Its answer goes missing; those after it come.
    One,
    /// Nothing comes any more on that connection.
    All,
}

/// A running proxy; ends when dropped.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Shared {
    armed: AtomicBool,
    lose_all: AtomicBool,
    bytes_to_server: AtomicU64,
    connections: AtomicU64,
}

impl Proxy {
    pub(crate) async fn before(server_port: u16) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared::default());
        let mut tasks = JoinSet::new();
        let accepting = Arc::clone(&shared);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server_port)).await else {
                    continue;
                };
                accepting.connections.fetch_add(1, Ordering::SeqCst);
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                let losing = Arc::new(AtomicBool::new(false));
                let (shared, lost) = (Arc::clone(&accepting), Arc::clone(&losing));
                connections.spawn(async move {
                    tokio::select! {
                        () = requests(from_client, to_server, &shared, &lost) => {}
                        () = answers(from_server, to_client, &shared, &losing) => {}
                    }
                });
            }
        });
        Proxy { port, shared, _tasks: tasks }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// The next script call is delivered; its answer is not.
    pub(crate) fn lose_next_answer(&self, loss: Loss) {
        self.shared.lose_all.store(loss == Loss::All, Ordering::SeqCst);
        self.shared.armed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn bytes_to_server(&self) -> u64 {
        self.shared.bytes_to_server.load(Ordering::SeqCst)
    }

    pub(crate) fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
    losing: &AtomicBool,
) {
    let mut buffer = [0; 16_384];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let bytes = &buffer[..count];
        let is_call = bytes.windows(7).any(|word| word == b"EVALSHA");
        if is_call && shared.armed.swap(false, Ordering::SeqCst) {
            losing.store(true, Ordering::SeqCst);
        }
        shared.bytes_to_server.fetch_add(count as u64, Ordering::SeqCst);
        if to.write_all(bytes).await.is_err() {
            return;
        }
    }
}

async fn answers(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
    losing: &AtomicBool,
) {
    let mut buffer = [0; 16_384];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if losing.load(Ordering::SeqCst) {
            losing.store(shared.lose_all.load(Ordering::SeqCst), Ordering::SeqCst);
            continue;
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
