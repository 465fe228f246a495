//! A line between a caller and a server that can be made slow or dead: bytes pass as they are.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};

/// Pieces under way in one direction of one connection.
const PIECES_MAX: usize = 1_024;
const PIECE_BYTES: usize = 16 << 10;
/// How often a dead line looks whether it lives again.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The line. Dropped means cut.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    state: Arc<State>,
    accepting: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct State {
    /// Milliseconds by which what the server says arrives later.
    delay_ms: AtomicU64,
    /// Nothing passes in either direction; connections stay open.
    dead: AtomicBool,
}

impl Relay {
    /// A line to `server`.
    pub async fn start(server: SocketAddr) -> anyhow::Result<Relay> {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        let address = listener.local_addr()?;
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        let accepting = daemon::tasks::spawn("relay", async move {
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                let state = Arc::clone(&shared);
                connections.spawn(async move {
                    // Whichever side ends first, the other one sees it as an end too.
                    drop(join(near, server, &state).await);
                });
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Relay { address, state, accepting })
    }

    /// Where callers go instead.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on answers arrive so much later.
    pub fn delay(&self, delay: Duration) {
        let ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        self.state.delay_ms.store(ms, Ordering::Relaxed);
    }

    /// From now on nothing passes, or everything does again, also what was held back.
    pub fn set_dead(&self, dead: bool) {
        self.state.dead.store(dead, Ordering::Relaxed);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn join(near: TcpStream, server: SocketAddr, state: &State) -> std::io::Result<()> {
    let far = TcpStream::connect(server).await?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let (near_reads, near_writes) = near.into_split();
    let (far_reads, far_writes) = far.into_split();
    let instant = AtomicU64::new(0);
    tokio::select! {
        ended = pass(near_reads, far_writes, &instant, state) => ended,
        ended = pass(far_reads, near_writes, &state.delay_ms, state) => ended,
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    delay_ms: &AtomicU64,
    state: &State,
) -> std::io::Result<()> {
    let (pieces, mut due) = mpsc::channel::<(Instant, Bytes)>(PIECES_MAX);
    let reading = async move {
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let read = from.read(&mut piece).await?;
            let delay = Duration::from_millis(delay_ms.load(Ordering::Relaxed));
            let bytes = Bytes::copy_from_slice(piece.get(..read).unwrap_or_default());
            if read == 0 || pieces.send((Instant::now() + delay, bytes)).await.is_err() {
                return Ok::<(), std::io::Error>(());
            }
        }
    };
    let writing = async move {
        while let Some((at, bytes)) = due.recv().await {
            sleep_until(at).await;
            while state.dead.load(Ordering::Relaxed) {
                sleep(LOOK_EVERY).await;
            }
            to.write_all(&bytes).await?;
        }
        Ok(())
    };
    tokio::try_join!(reading, writing).map(|_| ())
}
