//! The shared HTTP client: time-outs, no proxy, no redirects, bounded bodies, one retry of what is
//! safe to repeat, and errors by what the caller does next.
//!
//! Repeated is a read whose connection broke, and any call that never left this machine. A call
//! that ran into its deadline is not: the caller has waited long enough.

pub mod plans; // plans-api
pub mod shadow; // shadow-compare
mod streams; // files that come and go

use std::fmt;
use std::time::Duration;

pub use reqwest::Method;
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use serde::Serialize;
use serde::de::DeserializeOwned;
pub use streams::TRANSFER_MAX;

use crate::error::ErrorBody;

/// Longest answer that is read, in bytes: the whole policy fits.
pub const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Deadline of a call that says no other.
pub const DEADLINE: Duration = Duration::from_secs(10);
/// Deadline for a connection.
const CONNECT_DEADLINE: Duration = Duration::from_secs(3);

/// Why a call gave no answer to use.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No whole answer came: wrong address, nobody there, too slow, broken off.
    #[error("cannot reach {url}: {reason}")]
    Unreachable {
        /// Who was asked.
        url: String,
        /// Why, down to the last cause.
        reason: String,
    },
    /// The other side says no.
    #[error("{}", .0.detail)]
    Refused(Box<ErrorBody>),
    /// An answer came that is none of ours.
    #[error("{url} answers in a way that is not understood ({status}): {reason}")]
    Malformed {
        /// Who was asked.
        url: String,
        /// HTTP status; 0 before there was one.
        status: u16,
        /// What is wrong with it.
        reason: String,
    },
}

impl ClientError {
    /// The body of a refusal.
    pub fn refused(&self) -> Option<&ErrorBody> {
        match self {
            ClientError::Refused(body) => Some(body),
            ClientError::Unreachable { .. } | ClientError::Malformed { .. } => None,
        }
    }
}

/// Talks to one address with one token. Clones share the connections.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    token: Option<HeaderValue>,
    dry_run: bool,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("base", &self.base).finish_non_exhaustive()
    }
}

/// One call before it is sent.
#[derive(Debug)]
pub struct Call {
    method: Method,
    path: String,
    query: Vec<(&'static str, String)>,
    body: Option<Vec<u8>>,
    if_match: Option<String>,
    if_none_match: bool,
    idempotency_key: Option<String>,
    deadline: Duration,
    broken: Option<String>,
}

impl Call {
    /// `path` starts with a slash; its parts went through [`segment`].
    pub fn new(method: Method, path: impl Into<String>) -> Call {
        Call {
            method,
            path: path.into(),
            query: Vec::new(),
            body: None,
            if_match: None,
            if_none_match: false,
            idempotency_key: None,
            deadline: DEADLINE,
            broken: None,
        }
    }

    /// A read.
    pub fn get(path: impl Into<String>) -> Call {
        Call::new(Method::GET, path)
    }

    /// A write with a body.
    pub fn post(path: impl Into<String>, body: &impl Serialize) -> Call {
        Call::new(Method::POST, path).json(body)
    }

    /// Adds a parameter.
    #[must_use]
    pub fn query(mut self, name: &'static str, value: impl Into<String>) -> Call {
        self.query.push((name, value.into()));
        self
    }

    /// Adds a parameter, if there is one.
    #[must_use]
    pub fn maybe(self, name: &'static str, value: Option<impl Into<String>>) -> Call {
        match value {
            Some(value) => self.query(name, value),
            None => self,
        }
    }

    /// Sets the body.
    #[must_use]
    pub fn json(mut self, body: &impl Serialize) -> Call {
        match serde_json::to_vec(body) {
            Ok(bytes) => self.body = Some(bytes),
            Err(error) => self.broken = Some(error.to_string()),
        }
        self
    }

    /// Sets a body of bytes that are JSON already.
    #[must_use]
    pub fn bytes(mut self, body: Vec<u8>) -> Call {
        self.body = Some(body);
        self
    }

    /// Only if the object still has this revision.
    #[must_use]
    pub fn if_match(mut self, revision: Option<u64>) -> Call {
        self.if_match = revision.map(|revision| format!("\"{revision}\""));
        self
    }

    /// Only if the object still has this revision; without one, whatever it is like.
    #[must_use]
    pub fn if_match_or_insist(mut self, revision: Option<u64>) -> Call {
        self.if_match = Some(revision.map_or("*".to_owned(), |revision| format!("\"{revision}\"")));
        self
    }

    /// Only if there is no such object yet.
    #[must_use]
    pub fn if_absent(mut self) -> Call {
        self.if_none_match = true;
        self
    }

    /// May be sent again: the first one counts, and each answer is that of the first.
    #[must_use]
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Call {
        self.idempotency_key = Some(key.into());
        self
    }

    /// Waits at most this long.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Call {
        self.deadline = deadline;
        self
    }
}

/// A text as one part of a path.
pub fn segment(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

impl Client {
    /// `base` is `http://host:port` or `https://…`, with or without a path.
    pub fn new(base: &str, token: Option<&str>) -> Result<Client, ClientError> {
        let base = base.trim_end_matches('/').to_owned();
        let wrong =
            |reason: String| ClientError::Malformed { url: base.clone(), status: 0, reason };
        reqwest::Url::parse(&base).map_err(|error| wrong(error.to_string()))?;
        let token = match token {
            None => None,
            Some(token) => {
                let mut value = HeaderValue::try_from(format!("Bearer {token}"))
                    .map_err(|error| wrong(format!("the token: {error}")))?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        let mut builder = reqwest::Client::builder();
        if base.starts_with("http://") {
            builder = builder.tls_certs_only([]); // nothing to verify: the system's roots stay unread
        }
        let http = builder
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_DEADLINE)
            .pool_idle_timeout(Duration::from_secs(30))
            .build()
            .map_err(|error| wrong(error.to_string()))?;
        Ok(Client { http, base, token, dry_run: false })
    }

    /// The same, but everything that would change something is only tried (`?dry_run=true`).
    #[must_use]
    pub fn trying(mut self) -> Client {
        self.dry_run = true;
        self
    }

    /// The address.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Sends and reads a JSON answer.
    pub async fn send<T: DeserializeOwned>(&self, call: Call) -> Result<T, ClientError> {
        let (status, bytes) = self.exchange(call).await?;
        serde_json::from_slice(&bytes).map_err(|error| ClientError::Malformed {
            url: self.base.clone(),
            status,
            reason: error.to_string(),
        })
    }

    /// Sends and reads an answer of any kind, as bytes.
    pub async fn send_raw(&self, call: Call) -> Result<Vec<u8>, ClientError> {
        Ok(self.exchange(call).await?.1)
    }

    async fn exchange(&self, call: Call) -> Result<(u16, Vec<u8>), ClientError> {
        if let Some(reason) = call.broken {
            return Err(ClientError::Malformed { url: self.base.clone(), status: 0, reason });
        }
        let request = self.request(&call)?;
        let again = request.try_clone();
        match self.once(request, call.deadline).await {
            Ok(answer) => Ok(answer),
            Err(broken) => match again.filter(|_| broken.repeat) {
                Some(again) => self.once(again, call.deadline).await.map_err(|broken| broken.error),
                None => Err(broken.error),
            },
        }
    }

    fn request(&self, call: &Call) -> Result<reqwest::Request, ClientError> {
        let url = format!("{}{}", self.base, call.path);
        let mut request =
            self.http.request(call.method.clone(), &url).header(ACCEPT, "application/json");
        if !call.query.is_empty() {
            request = request.query(&call.query);
        }
        // Here, where every call passes: what is only tried must never be sent as the change itself.
        let asked = call.query.iter().any(|(name, _)| *name == "dry_run");
        if self.dry_run && call.method != Method::GET && !asked {
            request = request.query(&[("dry_run", "true")]);
        }
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token.clone());
        }
        if let Some(revision) = &call.if_match {
            request = request.header(IF_MATCH, revision);
        }
        if call.if_none_match {
            request = request.header(IF_NONE_MATCH, "*");
        }
        if let Some(key) = &call.idempotency_key {
            request = request.header("idempotency-key", key);
        }
        if let Some(body) = &call.body {
            request = request.header("content-type", "application/json").body(body.clone());
        }
        request.build().map_err(|error| ClientError::Malformed {
            url,
            status: 0,
            reason: error.to_string(),
        })
    }

    async fn once(
        &self,
        mut request: reqwest::Request,
        deadline: Duration,
    ) -> Result<(u16, Vec<u8>), Broken> {
        *request.timeout_mut() = Some(deadline);
        let read = *request.method() == Method::GET;
        let unreachable = |error: &reqwest::Error| Broken {
            repeat: !error.is_timeout() && (read || error.is_connect()),
            error: ClientError::Unreachable { url: self.base.clone(), reason: innermost(error) },
        };
        let mut answer = self.http.execute(request).await.map_err(|error| unreachable(&error))?;
        let status = answer.status();
        let mut bytes = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(|error| unreachable(&error))? {
            if bytes.len() + chunk.len() > ANSWER_BYTES_MAX {
                let reason = format!("longer than {ANSWER_BYTES_MAX} bytes");
                return Err(Broken::never(self.malformed(status.as_u16(), reason)));
            }
            bytes.extend_from_slice(&chunk);
        }
        if status.is_success() {
            return Ok((status.as_u16(), bytes));
        }
        Err(Broken::never(match serde_json::from_slice::<ErrorBody>(&bytes) {
            Ok(body) => ClientError::Refused(Box::new(body)),
            Err(error) => {
                let reason = unready(&bytes).unwrap_or_else(|| error.to_string());
                self.malformed(status.as_u16(), reason)
            }
        }))
    }

    fn malformed(&self, status: u16, reason: String) -> ClientError {
        ClientError::Malformed { url: self.base.clone(), status, reason }
    }
}

/// A failed attempt, and whether another one does no harm.
struct Broken {
    repeat: bool,
    error: ClientError,
}

impl Broken {
    const fn never(error: ClientError) -> Broken {
        Broken { repeat: false, error }
    }
}

/// What `/readyz` tells of a process that is not ready.
fn unready(bytes: &[u8]) -> Option<String> {
    let told = serde_json::from_slice::<serde_json::Value>(bytes).ok()?;
    let detail = told.get("detail").filter(|_| told.get("ready") == Some(&false.into()))?;
    Some(format!("not ready: {}", detail.as_str().map_or(detail.to_string(), ToOwned::to_owned)))
}

/// The innermost cause says most: refused, reset, not found.
fn innermost(error: &reqwest::Error) -> String {
    let mut next = std::error::Error::source(error);
    let mut text = error.to_string();
    while let Some(source) = next {
        text = source.to_string();
        next = source.source();
    }
    text
}
