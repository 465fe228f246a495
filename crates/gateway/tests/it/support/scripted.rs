//! A service over raw sockets that does with each request what it is told: answers with any bytes,
//! closes, resets, says nothing.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// Longest wait for the first request of a connection.
const FIRST_MAX: Duration = Duration::from_secs(3_600);

/// A plain answer.
pub(crate) const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// A request as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct Arrived {
    /// Which one it is on its connection, from 0.
    pub(crate) nth: usize,
    /// Its request line and headers.
    pub(crate) head: String,
}

impl Arrived {
    /// The value of a header; empty if absent.
    pub(crate) fn header(&self, name: &str) -> &str {
        let fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields
            .filter(|(field, _)| field.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
            .next_back()
            .unwrap_or_default()
    }
}

/// What becomes of a request.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    /// It is answered.
    Say(&'static str),
    /// It is answered, and then the connection closes.
    SayAndClose(&'static str),
    /// It is answered a byte at a time, with pauses.
    Trickle(&'static str, Duration),
    /// The connection closes.
    Close,
    /// The connection is reset.
    Reset,
    /// It is answered when the gate opens.
    SayAfter(Arc<Notify>, &'static str),
    /// Nothing.
    Keep,
}

/// A running one.
pub(crate) struct Scripted {
    pub(crate) address: SocketAddr,
    arrived: Arc<Mutex<Vec<Arrived>>>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Scripted {
    /// Does as told, and leaves idle connections open.
    pub(crate) async fn new(act: impl Fn(&Arrived) -> Act + Send + Sync + 'static) -> Scripted {
        Scripted::closing_after(None, act).await
    }

    /// The same, and closes connections that are idle for so long.
    pub(crate) async fn closing_after(
        idle: Option<Duration>,
        act: impl Fn(&Arrived) -> Act + Send + Sync + 'static,
    ) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let arrived = Arc::new(Mutex::new(Vec::new()));
        let (keeping, act) = (Arc::clone(&arrived), Arc::new(act));
        let accepting = daemon::tasks::spawn("scripted service", async move {
            let mut open = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (keeping, act) = (Arc::clone(&keeping), Arc::clone(&act));
                open.spawn(async move {
                    let idle = idle.unwrap_or(FIRST_MAX);
                    serve(stream, idle, &keeping, act.as_ref()).await;
                });
            }
        });
        Scripted { address, arrived, accepting }
    }

    /// What has arrived.
    pub(crate) fn arrived(&self) -> Vec<Arrived> {
        self.arrived.lock().unwrap().clone()
    }
}

async fn serve(
    mut stream: TcpStream,
    idle: Duration,
    arrived: &Mutex<Vec<Arrived>>,
    act: &(dyn Fn(&Arrived) -> Act + Send + Sync),
) {
    stream.set_nodelay(true).unwrap();
    for nth in 0.. {
        // A first request may be late on a busy machine; what is idle has had one.
        let patience = if nth == 0 { FIRST_MAX } else { idle };
        let read = tokio::time::timeout(patience, head(&mut stream)).await;
        let Ok(Some(head)) = read else { return };
        let request = Arrived { nth, head };
        let length = request.header("content-length").parse().unwrap_or(0);
        let mut body = vec![0; length];
        if stream.read_exact(&mut body).await.is_err() {
            return;
        }
        let act = act(&request);
        arrived.lock().unwrap().push(request);
        match act {
            Act::Say(answer) => stream.write_all(answer.as_bytes()).await.unwrap_or_default(),
            Act::SayAndClose(answer) => {
                stream.write_all(answer.as_bytes()).await.unwrap_or_default();
                return;
            }
            Act::Trickle(answer, pause) => {
                for byte in answer.as_bytes() {
                    if stream.write_all(&[*byte]).await.is_err() {
                        return;
                    }
                    tokio::time::sleep(pause).await;
                }
            }
            Act::Close => return,
            Act::Reset => {
                let socket = socket2::SockRef::from(&stream);
                socket.set_linger(Some(Duration::ZERO)).unwrap();
                return;
            }
            Act::SayAfter(gate, answer) => {
                gate.notified().await;
                stream.write_all(answer.as_bytes()).await.unwrap_or_default();
            }
            Act::Keep => std::future::pending().await,
        }
    }
}

/// A request head, byte by byte, so that nothing of its body is taken.
async fn head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8_lossy(&head).into_owned())
}
