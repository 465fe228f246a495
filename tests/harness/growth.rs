//! How much a process grows while a long body passes through it, past a reader that is slower than
//! its writer: what is not passed on at once must be waited for, not kept.

use std::convert::Infallible;
use std::net::SocketAddr;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Empty, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use crate::origin::{PAUSE, PAUSE_EVERY};

/// Which way a body goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the caller to the service.
    Up,
    /// From the service to the caller.
    Down,
}

/// What the caller speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2, with prior knowledge.
    Http2,
}

/// A process that passes requests on to an [origin](crate::origin).
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// Its process id.
    pub process: u32,
    /// Where it listens.
    pub at: SocketAddr,
    /// An API key that it lets pass.
    pub key: &'a str,
}

const PIECE: &[u8] = &[b'y'; 64 * 1024];

type Body = BoxBody<Bytes, Infallible>;

/// By how many bytes the process is larger at its largest than it was before, while `bytes` pass.
pub async fn of(
    subject: &Subject<'_>,
    protocol: Protocol,
    way: Way,
    bytes: u64,
) -> anyhow::Result<u64> {
    // As large as it is with a connection that has been used.
    exchange(subject, protocol, way, PIECE.len() as u64).await?;
    let status = format!("/proc/{}/status", subject.process);
    let before = memory(&std::fs::read_to_string(&status)?, "VmRSS:")?;
    // 5: the largest size so far is forgotten; proc_pid_clear_refs(5).
    std::fs::write(format!("/proc/{}/clear_refs", subject.process), "5")?;
    exchange(subject, protocol, way, bytes).await?;
    let most = memory(&std::fs::read_to_string(&status)?, "VmHWM:")?;
    Ok(most.saturating_sub(before))
}

/// A size in a process's status, in bytes.
fn memory(status: &str, field: &str) -> anyhow::Result<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|text| text.trim().strip_suffix("kB"));
    let kib: u64 = kib.with_context(|| format!("no {field}"))?.trim().parse()?;
    Ok(kib * 1024)
}

async fn exchange(
    subject: &Subject<'_>,
    protocol: Protocol,
    way: Way,
    bytes: u64,
) -> anyhow::Result<()> {
    let request = match way {
        Way::Up => Request::post(format!("http://{}/upload", subject.at))
            .header("content-length", bytes)
            .body(long(bytes)),
        Way::Down => {
            Request::get(format!("http://{}/bytes/{bytes}", subject.at)).body(Empty::new().boxed())
        }
    };
    let mut request = request?;
    let headers = request.headers_mut();
    headers.insert("x-api-key", subject.key.parse()?);
    if protocol == Protocol::Http1 {
        headers.insert("host", subject.at.to_string().parse()?);
        let path = request.uri().path().to_owned();
        *request.uri_mut() = path.parse()?;
    }
    let response = answer(subject.at, protocol, request).await?;
    ensure!(response.status() == 200, "{way:?}: {}", response.status());
    let mut body = response.into_body();
    let (mut taken, mut pause_at, mut last) = (0, 0, Bytes::new());
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        taken += data.len() as u64;
        // The first pause is the one in which a fast service could have sent everything.
        if way == Way::Down && pause_at <= taken {
            let times = if pause_at == 0 { 20 } else { 1 };
            pause_at += PAUSE_EVERY;
            tokio::time::sleep(PAUSE * times).await;
        }
        last = data;
    }
    match way {
        Way::Down => ensure!(taken == bytes, "{taken} of {bytes} bytes came"),
        Way::Up => {
            let told = std::str::from_utf8(&last)?.parse::<u64>();
            ensure!(told == Ok(bytes), "{told:?} of {bytes} bytes arrived");
        }
    }
    Ok(())
}

fn long(bytes: u64) -> Body {
    let pieces = stream::unfold(bytes, |left| async move {
        let now = usize::try_from(left).unwrap_or(PIECE.len()).min(PIECE.len());
        let piece = Bytes::from_static(PIECE.get(..now)?);
        (now > 0).then(|| (Ok::<_, Infallible>(Frame::data(piece)), left - now as u64))
    });
    StreamBody::new(pieces).boxed()
}

async fn answer(
    at: SocketAddr,
    protocol: Protocol,
    request: Request<Body>,
) -> anyhow::Result<Response<Incoming>> {
    let stream = TcpStream::connect(at).await?;
    stream.set_nodelay(true)?;
    let io = TokioIo::new(stream);
    let response = match protocol {
        Protocol::Http1 => {
            let (mut sender, connection) = http1::handshake(io).await?;
            daemon::tasks::spawn("caller", connection);
            sender.send_request(request).await?
        }
        Protocol::Http2 => {
            let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
            daemon::tasks::spawn("caller", connection);
            sender.send_request(request).await?
        }
    };
    Ok(response)
}
