//! WebSockets by the byte: a service that echoes frames, and a caller that sends some.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{KEY, PATIENCE};

/// The example of RFC 6455.
const ASKED: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPTED: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// The handshake of a caller, with `key` and further lines.
pub(crate) fn handshake(key: &str, more: &str) -> String {
    format!(
        "GET /chat HTTP/1.1\r\nHost: api.test\r\nX-Api-Key: {key}\r\nUpgrade: WebSocket\r\n\
         Connection: keep-alive, Upgrade\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: {ASKED}\r\n{more}\r\n"
    )
}

/// Reads to the end of a head.
pub(crate) async fn head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => bytes.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(bytes).unwrap()
}

/// The value of a field in a head; empty if absent.
pub(crate) fn field(head: &str, wanted: &str) -> String {
    let mut lines = head.lines().filter_map(|line| line.split_once(':'));
    let found = lines.find(|(name, _)| name.eq_ignore_ascii_case(wanted));
    found.map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
}

/// A service that greets, and echoes the text frames of its WebSockets.
pub(crate) struct Echo {
    pub(crate) address: SocketAddr,
    counts: Arc<Counts>,
    accepting: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct Counts {
    opened: AtomicU64,
    ended: AtomicU64,
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Echo {
    pub(crate) async fn start() -> Echo {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let counts = Arc::new(Counts::default());
        let counting = Arc::clone(&counts);
        let accepting = daemon::tasks::spawn("echo", async move {
            while let Ok((stream, _)) = listener.accept().await {
                let counting = Arc::clone(&counting);
                daemon::tasks::spawn("echo socket", async move {
                    echo(stream, &counting).await;
                    counting.ended.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        Echo { address, counts, accepting }
    }

    /// WebSockets that were opened.
    pub(crate) fn opened(&self) -> u64 {
        self.counts.opened.load(Ordering::SeqCst)
    }

    /// Connections that have ended.
    pub(crate) fn ended(&self) -> u64 {
        self.counts.ended.load(Ordering::SeqCst)
    }
}

async fn echo(mut stream: TcpStream, counts: &Counts) {
    let asked = head(&mut stream).await;
    if !field(&asked, "upgrade").eq_ignore_ascii_case("websocket") {
        let plain = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nplain";
        stream.write_all(plain.as_bytes()).await.ok();
        return;
    }
    assert_eq!(field(&asked, "connection").to_ascii_lowercase(), "upgrade");
    assert_eq!(field(&asked, "sec-websocket-key"), ASKED);
    counts.opened.fetch_add(1, Ordering::SeqCst);
    let agreed = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {ACCEPTED}\r\n\r\n"
    );
    // The first words come in the same piece as the agreement.
    let mut first = agreed.into_bytes();
    first.extend(frame("welcome"));
    stream.write_all(&first).await.ok();
    while let Some(text) = read_frame(&mut stream).await {
        if stream.write_all(&frame(&text)).await.is_err() {
            return;
        }
    }
}

/// A service's text frame: short, not masked.
fn frame(text: &str) -> Vec<u8> {
    let mut bytes = vec![0x81, u8::try_from(text.len()).unwrap()];
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

/// The next text frame of either side; `None` at the end.
async fn read_frame(stream: &mut TcpStream) -> Option<String> {
    assert_eq!(stream.read_u8().await.ok()?, 0x81, "a whole text frame");
    let length = stream.read_u8().await.ok()?;
    let mut mask = [0; 4];
    if length & 0x80 != 0 {
        stream.read_exact(&mut mask).await.ok()?;
    }
    let mut text = vec![0; usize::from(length & 0x7f)];
    stream.read_exact(&mut text).await.ok()?;
    text.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
    Some(String::from_utf8(text).unwrap())
}

/// A caller's open WebSocket.
pub(crate) struct Socket(TcpStream);

impl Socket {
    /// Shakes hands and hears the welcome; the head of the answer if it is another.
    pub(crate) async fn open(to: SocketAddr, key: &str) -> Result<Socket, String> {
        let opening = async {
            let mut stream = TcpStream::connect(to).await.unwrap();
            stream.write_all(handshake(key, "").as_bytes()).await.unwrap();
            let answer = head(&mut stream).await;
            if !answer.starts_with("HTTP/1.1 101 ") {
                return Err(answer);
            }
            assert_eq!(field(&answer, "upgrade"), "websocket");
            assert_eq!(field(&answer, "connection"), "upgrade");
            assert_eq!(field(&answer, "sec-websocket-accept"), ACCEPTED);
            let mut socket = Socket(stream);
            assert_eq!(socket.next().await.as_deref(), Some("welcome"));
            Ok(socket)
        };
        tokio::time::timeout(PATIENCE, opening).await.expect("an answer in time")
    }

    /// The usual caller's.
    pub(crate) async fn of_acme(to: SocketAddr) -> Socket {
        Socket::open(to, KEY).await.expect("a WebSocket")
    }

    /// Sends a text and hears what comes back; `None` if the connection has ended.
    pub(crate) async fn say(&mut self, text: &str) -> Option<String> {
        let length = 0x80 | u8::try_from(text.len()).unwrap();
        let mut bytes = vec![0x81, length];
        bytes.extend_from_slice(&MASK);
        bytes.extend(text.bytes().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        self.0.write_all(&bytes).await.ok()?;
        self.next().await
    }

    async fn next(&mut self) -> Option<String> {
        let next = read_frame(&mut self.0);
        tokio::time::timeout(PATIENCE, next).await.expect("a frame or the end")
    }

    /// Waits for the end of the connection.
    pub(crate) async fn ended(&mut self) {
        assert_eq!(self.next().await, None);
    }
}
