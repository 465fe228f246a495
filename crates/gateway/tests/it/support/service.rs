//! A fake service: answers as told and counts what arrives.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// What a service answers with.
pub(crate) type Answer = Response<BoxBody<Bytes, Infallible>>;

/// A running service.
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    arrived: Arc<Arrived>,
    accepting: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct Arrived {
    requests: AtomicU64,
    bytes: AtomicU64,
    heads: Mutex<Vec<Parts>>,
    names: Mutex<Vec<String>>,
    connections: Mutex<Vec<tokio::task::AbortHandle>>,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.accepting.abort();
        self.arrived.connections.lock().unwrap().iter().for_each(|open| open.abort());
    }
}

impl Service {
    /// Answers 200 and `hello`, without reading more than it must.
    pub(crate) async fn hello() -> Service {
        Service::answering(|_head| text(200, "hello")).await
    }

    /// Reads the whole body, then answers from the head.
    pub(crate) async fn answering(
        answer: impl Fn(&Parts) -> Answer + Send + Sync + 'static,
    ) -> Service {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Service::on(listener, answer)
    }

    /// The same on a given socket.
    pub(crate) fn on(
        listener: TcpListener,
        answer: impl Fn(&Parts) -> Answer + Send + Sync + 'static,
    ) -> Service {
        let address = listener.local_addr().unwrap();
        let arrived = Arc::new(Arrived::default());
        let (counting, answer) = (Arc::clone(&arrived), Arc::new(answer));
        let accepting = daemon::tasks::spawn("service", async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (counting, answer) = (Arc::clone(&counting), Arc::clone(&answer));
                let counts = Arc::clone(&counting);
                let service = service_fn(move |request: Request<Incoming>| {
                    let (counting, answer) = (Arc::clone(&counting), Arc::clone(&answer));
                    async move {
                        counting.requests.fetch_add(1, Ordering::SeqCst);
                        let (head, mut body) = request.into_parts();
                        let mut whole = true;
                        while let (true, Some(frame)) = (whole, body.frame().await) {
                            let data = frame.as_ref().ok().and_then(|frame| frame.data_ref());
                            let bytes = data.map_or(0, Bytes::len) as u64;
                            counting.bytes.fetch_add(bytes, Ordering::SeqCst);
                            whole = frame.is_ok();
                        }
                        let response = answer(&head);
                        let names = head.headers.keys().map(ToString::to_string).collect();
                        *counting.names.lock().unwrap() = names;
                        if whole {
                            counting.heads.lock().unwrap().push(head);
                        }
                        Ok::<_, Infallible>(response)
                    }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                let open =
                    daemon::tasks::spawn(
                        "service connection",
                        async move { connection.await.ok() },
                    );
                counts.connections.lock().unwrap().push(open.abort_handle());
            }
        });
        Service { address, arrived, accepting }
    }

    /// Requests that arrived.
    pub(crate) fn requests(&self) -> u64 {
        self.arrived.requests.load(Ordering::SeqCst)
    }

    /// Connections that were made to it.
    pub(crate) fn connections(&self) -> usize {
        self.arrived.connections.lock().unwrap().len()
    }

    /// Body bytes that arrived.
    pub(crate) fn bytes(&self) -> u64 {
        self.arrived.bytes.load(Ordering::SeqCst)
    }

    /// Targets of the requests that arrived whole, with their bodies, since the last call.
    pub(crate) fn take_targets(&self) -> Vec<String> {
        let heads = std::mem::take(&mut *self.arrived.heads.lock().unwrap());
        heads.iter().map(|head| head.uri.to_string()).collect()
    }

    /// Names of the fields that arrived last.
    pub(crate) fn last_names(&self) -> Vec<String> {
        self.arrived.names.lock().unwrap().clone()
    }

    /// The head that arrived last.
    pub(crate) fn last(&self) -> Parts {
        self.arrived.heads.lock().unwrap().last().cloned().expect("a request arrived")
    }
}

/// A service that answers each connection's first request with given bytes, and keeps what came.
pub(crate) struct RawService {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<u8>>>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Drop for RawService {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl RawService {
    /// Reads to the end of `request_end`, then writes `response`.
    pub(crate) async fn answering(response: &'static str, request_end: &'static str) -> RawService {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let keeping = Arc::clone(&seen);
        let accepting = daemon::tasks::spawn("raw service", async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (mut request, mut piece) = (Vec::new(), [0; 4_096]);
                while !request.ends_with(request_end.as_bytes()) {
                    match stream.read(&mut piece).await {
                        Ok(count) if count > 0 => request.extend_from_slice(&piece[..count]),
                        Ok(_) | Err(_) => break,
                    }
                }
                keeping.lock().unwrap().extend_from_slice(&request);
                stream.write_all(response.as_bytes()).await.ok();
            }
        });
        RawService { address, seen, accepting }
    }

    /// Everything that arrived.
    pub(crate) fn seen(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned()
    }
}

/// A response with a text.
pub(crate) fn text(status: u16, body: &'static str) -> Answer {
    let body = Full::new(Bytes::from_static(body.as_bytes())).boxed();
    Response::builder().status(status).body(body).unwrap()
}

/// An address where nobody listens.
pub(crate) async fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}
