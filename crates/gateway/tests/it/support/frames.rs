//! A caller that writes any frames of HTTP/2, byte by byte.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::PATIENCE;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
/// Flags; the first is also that of an acknowledgement.
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// What a connection begins with: the preface and empty settings.
pub(crate) fn opening() -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[]));
    bytes
}

/// A frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// A header block of literals, without Huffman and without the dynamic table.
pub(crate) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in fields {
        bytes.push(0x10);
        for text in [name, value] {
            let length = text.len();
            if length < 127 {
                bytes.push(u8::try_from(length).unwrap());
            } else {
                bytes.push(127);
                let mut rest = length - 127;
                while rest >= 128 {
                    bytes.push(u8::try_from(rest % 128).unwrap() | 0x80);
                    rest /= 128;
                }
                bytes.push(u8::try_from(rest).unwrap());
            }
            bytes.extend_from_slice(text.as_bytes());
        }
    }
    bytes
}

/// The head of a request.
pub(crate) fn request(method: &str, path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let fields =
        [(":method", method), (":scheme", "http"), (":authority", "api.test"), (":path", path)];
    block(&[&fields, more].concat())
}

/// A frame that was read.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    /// The error code of a reset or of the end of the connection.
    pub(crate) fn code(&self) -> u32 {
        let from = if self.kind == GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[from..from + 4].try_into().unwrap())
    }
}

/// A connection.
pub(crate) struct Frames(TcpStream);

impl Frames {
    /// Connects and opens.
    pub(crate) async fn open(to: SocketAddr) -> Frames {
        let mut stream = TcpStream::connect(to).await.unwrap();
        stream.write_all(&opening()).await.unwrap();
        Frames(stream)
    }

    /// Writes; false once the other side has ended the connection.
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> bool {
        let written = tokio::time::timeout(PATIENCE, self.0.write_all(bytes)).await;
        written.is_ok_and(|written| written.is_ok())
    }

    /// The next frame, or none at the end of the connection.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        let read = async {
            let mut head = [0; 9];
            self.0.read_exact(&mut head).await.ok()?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; usize::try_from(length).unwrap()];
            self.0.read_exact(&mut payload).await.ok()?;
            let stream = u32::from_be_bytes(head[5..].try_into().unwrap()) & 0x7fff_ffff;
            Some(Frame { kind: head[3], stream, payload })
        };
        tokio::time::timeout(PATIENCE, read).await.expect("a frame or the end in time")
    }

    /// The next frame of a kind, or none at the end of the connection.
    pub(crate) async fn find(&mut self, kind: u8) -> Option<Frame> {
        loop {
            let frame = self.next().await?;
            if frame.kind == kind {
                return Some(frame);
            }
        }
    }
}
