//! Closes connections on which nothing is answered: callers that send nothing, or a head without
//! end, or that do not read. The server below has no deadlines of its own, and each such
//! connection would hold a file descriptor for ever.
//!
//! Every answer begins the wait anew, so it bounds head, body and answer of each request together,
//! and the pause before it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

/// Longest time without a written byte. Far above the longest poll (30 s) and the pause after
/// which our own clients close what they do not use (30 s).
const UNANSWERED_MAX: std::time::Duration = std::time::Duration::from_secs(120);

/// A listener whose connections end when nothing is answered on them.
pub(super) struct Answering(pub(super) TcpListener);

impl Listener for Answering {
    type Io = Answered;
    type Addr = std::net::SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let (stream, peer) = Listener::accept(&mut self.0).await;
        (Answered { stream, over: Box::pin(tokio::time::sleep(UNANSWERED_MAX)) }, peer)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.0.local_addr()
    }
}

/// Such a connection.
pub(super) struct Answered {
    stream: TcpStream,
    over: Pin<Box<tokio::time::Sleep>>,
}

impl Answered {
    /// An error when the time is over.
    fn in_time(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let over = self.over.as_mut().poll(cx).is_ready();
        if over { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
    }
}

impl AsyncRead for Answered {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.in_time(cx)?;
        Pin::new(&mut this.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Answered {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write(cx, bytes);
        if polled.is_ready() {
            this.over.as_mut().reset(tokio::time::Instant::now() + UNANSWERED_MAX);
        }
        this.in_time(cx)?;
        polled
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
