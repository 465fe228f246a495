//! Callers: one over the HTTP engine, one that writes raw bytes.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::PATIENCE;

/// A whole answer.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    /// A header's text; empty if absent. More than one value is a failure.
    pub(crate) fn header(&self, name: &str) -> &str {
        let mut values = self.headers.get_all(name).iter();
        let first = values.next().map_or("", |value| value.to_str().unwrap());
        assert!(values.next().is_none(), "{name} stands twice in {:?}", self.headers);
        first
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
    }

    /// The problem's code.
    pub(crate) fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }
}

/// One request over a connection of its own.
pub(crate) async fn send(to: SocketAddr, request: Request<Full<Bytes>>) -> Reply {
    send_from("127.0.0.1", to, request).await
}

/// The same from another of this machine's addresses.
pub(crate) async fn send_from(from: &str, to: SocketAddr, request: Request<Full<Bytes>>) -> Reply {
    let exchange = async {
        let socket = TcpSocket::new_v4().unwrap();
        if from != "127.0.0.1" {
            socket.bind(SocketAddr::new(from.parse().unwrap(), 0)).unwrap();
        }
        let stream = socket.connect(to).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        daemon::tasks::spawn("caller", connection);
        let (head, body) = sender.send_request(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Reply { status: head.status.as_u16(), headers: head.headers, body }
    };
    tokio::time::timeout(PATIENCE, exchange).await.expect("an answer in time")
}

/// A request with a host and these headers.
pub(crate) fn request(
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
) -> Request<Full<Bytes>> {
    let mut request = Request::builder().method(method).uri(target).header("host", "api.test");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::default()).unwrap()
}

/// GET.
pub(crate) async fn get(to: SocketAddr, target: &str, headers: &[(&str, &str)]) -> Reply {
    send(to, request("GET", target, headers)).await
}

/// Writes bytes, then reads until the other side closes.
pub(crate) async fn raw(to: SocketAddr, bytes: &[u8]) -> String {
    let exchange = async {
        let mut stream = TcpStream::connect(to).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    };
    tokio::time::timeout(PATIENCE, exchange).await.expect("an answer in time")
}
