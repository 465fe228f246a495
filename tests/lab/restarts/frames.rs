//! WebSockets by the byte: the service that echoes, as a part of its own, and its callers' ends.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// The key and its answer in the example of RFC 6455: nobody here asks for more.
const ASKED: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const AGREED: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
    Connection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
/// A binary frame of four bytes, from a service and (masked with nothing) from a caller.
const FROM_SERVICE: [u8; 2] = [0x82, 4];
const FROM_CALLER: [u8; 6] = [0x82, 0x84, 0, 0, 0, 0];
const WORD: usize = 4;
/// Longest wait for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(15);
/// Longest head that is read.
const HEAD_MAX: usize = 16_384;

/// The part: `--ports-file PATH`.
pub fn main(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let file = args.nth(1).map(PathBuf::from);
    let ran = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| runtime.block_on(serve(file)));
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lab part echo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(ports_file: Option<PathBuf>) -> anyhow::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let file = ports_file.context("--ports-file: where?")?;
    let beside = file.with_extension("new");
    std::fs::write(&beside, format!("{{\"traffic\":\"{}\"}}\n", listener.local_addr()?))?;
    std::fs::rename(beside, file)?;
    loop {
        let (stream, _) = listener.accept().await?;
        daemon::tasks::spawn("echo", async move {
            // A caller that goes is no failure.
            drop(echo(stream).await);
        });
    }
}

async fn echo(mut stream: TcpStream) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    read_head(&mut stream).await?;
    stream.write_all(AGREED.as_bytes()).await?;
    let mut frame = [0; FROM_CALLER.len() + WORD];
    loop {
        stream.read_exact(&mut frame).await?;
        anyhow::ensure!(frame.starts_with(&FROM_CALLER), "no frame of ours: {frame:?}");
        let word = frame.get(FROM_CALLER.len()..).unwrap_or_default();
        stream.write_all(&[FROM_SERVICE.as_slice(), word].concat()).await?;
    }
}

async fn read_head(stream: &mut TcpStream) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        anyhow::ensure!(bytes.len() < HEAD_MAX, "a head without end");
        bytes.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8(bytes)?)
}

/// A caller's open WebSocket.
#[derive(Debug)]
pub struct Socket(TcpStream);

impl Socket {
    /// Opens one through a gateway.
    pub async fn open(gateway: SocketAddr, path: &str, key: &str) -> anyhow::Result<Socket> {
        let mut stream = TcpStream::connect(gateway).await?;
        stream.set_nodelay(true)?;
        let asked = format!(
            "GET /{path} HTTP/1.1\r\nHost: lab.test\r\nX-Api-Key: {key}\r\nUpgrade: websocket\r\n\
             Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {ASKED}\r\n\r\n"
        );
        stream.write_all(asked.as_bytes()).await?;
        let head = timeout(ANSWER_MAX, read_head(&mut stream)).await??;
        anyhow::ensure!(head.starts_with("HTTP/1.1 101"), "no WebSocket, but {head}");
        Ok(Socket(stream))
    }

    /// Sends a word and waits for it; whether it came back.
    pub async fn echoes(&mut self, word: u32) -> bool {
        let exchange = async {
            self.0.write_all(&[&FROM_CALLER[..], &word.to_be_bytes()].concat()).await?;
            let mut frame = [0; FROM_SERVICE.len() + WORD];
            self.0.read_exact(&mut frame).await?;
            Ok::<_, std::io::Error>(frame)
        };
        match timeout(ANSWER_MAX, exchange).await {
            Ok(Ok(frame)) => frame.as_slice() == [&FROM_SERVICE[..], &word.to_be_bytes()].concat(),
            Ok(Err(_)) | Err(_) => false,
        }
    }

    /// Waits until the other side has closed it; whether it has.
    pub async fn closes_within(&mut self, longest: Duration) -> bool {
        let mut piece = [0; 64];
        let closed = async { while self.0.read(&mut piece).await.is_ok_and(|read| read > 0) {} };
        timeout(longest, closed).await.is_ok()
    }
}
