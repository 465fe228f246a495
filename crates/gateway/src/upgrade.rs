//! Connections that leave HTTP/1.1 for another protocol (`Upgrade`), WebSocket above all.
//!
//! The request is decided about like any other and costs what its route costs; what follows costs
//! nothing. Nothing of the other protocol is passed on before the service has agreed with a 101.
//! From then on bytes pass both ways as they come, until a side ends it, the key stops opening,
//! or the gateway's own end comes. `h2c` is not an upgrade that is passed on: it would carry
//! requests past the limit. CONNECT never comes here.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use edge::limiter::store::BucketStore;
use edge::{Edge, Pass};
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderValue, UPGRADE};
use http::{HeaderMap, Request, Response, StatusCode, Version};
use http_body::Body as _;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional_with_sizes};
use tokio::sync::watch;
use tokio::time::Instant;
use wire::error::ErrorCode;

use crate::body::{Incoming, ReplyBody};
use crate::config::UpgradeRules;
use crate::headers::{only, tokens};
use crate::metrics::Metrics;
use crate::peer::{Peer, Place};
use crate::reply::Problem;
use crate::server::Activity;
use crate::upstream::InFlight;
use crate::upstream::connections::Lease;

/// Bytes under way in each direction of a connection.
const PIECE_BYTES: usize = 8_192;
/// How often a connection is looked at. Three looks fit well into the ten seconds within which a
/// revoked key's connections end.
const LOOK_EVERY: Duration = Duration::from_secs(3);
/// Longest time from the service's 101 to the caller's having it.
const SWITCH_MAX: Duration = Duration::from_secs(10);
/// Told to a client that has too many: one of them may end any time.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// A caller's wish to leave HTTP.
#[derive(Debug)]
pub(crate) struct Wish {
    protocols: HeaderValue,
    caller: OnUpgrade,
}

/// With a version or without (RFC 9110, section 7.8).
fn is_h2c(protocol: &[u8]) -> bool {
    protocol
        .split(|byte| *byte == b'/')
        .next()
        .is_some_and(|name| name.eq_ignore_ascii_case(b"h2c"))
}

/// The wish of a request, if it has one that can be passed on, and whether bytes of another
/// protocol may follow the request unasked: then its connection ends after the answer. What is
/// meant for `h2c` alone begins with a preface that no HTTP/1.1 request is alike.
pub(crate) fn asked(request: &mut Request<Incoming>) -> (Option<Wish>, bool) {
    if request.version() != Version::HTTP_11 || !request.headers().contains_key(UPGRADE) {
        return (None, false);
    }
    let mut values = request.headers().get_all(UPGRADE).iter();
    let harmless = values.all(|value| tokens(value).all(is_h2c));
    (Wish::of(request), !harmless)
}

impl Wish {
    /// All but those that can be passed on are no mistakes: a server may ignore an `Upgrade`, and
    /// then the request is answered as if it had none.
    fn of(request: &mut Request<Incoming>) -> Option<Wish> {
        let protocols = only(request.headers(), &UPGRADE)?;
        let fits = request.body().is_end_stream()
            && has_token(request.headers(), b"upgrade")
            && !tokens(protocols).any(is_h2c);
        let protocols = fits.then(|| protocols.clone())?;
        Some(Wish { protocols, caller: hyper::upgrade::on(request) })
    }

    /// Asks the service. Call it when the headers are otherwise fit for it.
    pub(crate) fn ask(&self, headers: &mut HeaderMap) {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, self.protocols.clone());
    }

    /// What the service has agreed to; `None` if nobody asked for it.
    pub(crate) fn agreed(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let protocol = only(headers, &UPGRADE)?;
        let asked = |named: &[u8]| {
            tokens(&self.protocols).any(|protocol| protocol.eq_ignore_ascii_case(named))
        };
        (tokens(protocol).next().is_some() && tokens(protocol).all(asked)).then(|| protocol.clone())
    }
}

fn has_token(headers: &HeaderMap, wanted: &[u8]) -> bool {
    let values = headers.get_all(CONNECTION).iter();
    values.flat_map(tokens).any(|token| token.eq_ignore_ascii_case(wanted))
}

/// The upgraded connections of a gateway. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Upgrades {
    rules: UpgradeRules,
    open: Arc<Open>,
}

#[derive(Debug)]
struct Open {
    metrics: Arc<Metrics>,
    /// By holder; bounded by the connections themselves.
    of_holders: Mutex<HashMap<String, usize>>,
    count: watch::Sender<usize>,
}

impl Upgrades {
    /// None yet.
    pub(crate) fn new(rules: UpgradeRules, metrics: Arc<Metrics>) -> Upgrades {
        let (of_holders, count) = (Mutex::default(), watch::Sender::new(0));
        Upgrades { rules, open: Arc::new(Open { metrics, of_holders, count }) }
    }

    /// The same connections; those that come are bound by other rules.
    pub(crate) fn under(&self, rules: UpgradeRules) -> Upgrades {
        Upgrades { rules, open: Arc::clone(&self.open) }
    }

    /// Counts one in, unless its holder has as many as it may.
    fn enter(&self, holder: &str) -> Option<Entered> {
        let mut of_holders = self.open.lock();
        let count = of_holders.get(holder).copied().unwrap_or_default();
        if self.rules.per_client <= count {
            return None;
        }
        of_holders.insert(holder.to_owned(), count + 1);
        drop(of_holders);
        self.open.count.send_modify(|count| *count += 1);
        let (open, idle_max) = (Arc::clone(&self.open), self.rules.idle);
        Some(Entered { open, idle_max, holder: holder.to_owned() })
    }

    /// Takes in a wish that was admitted, for `holder`.
    pub(crate) fn take_in(
        &self,
        wish: Wish,
        holder: &str,
        peer: &Peer,
        pass: Pass,
        half_open_max: Duration,
    ) -> Result<Upgrade, Problem> {
        let Some(entered) = self.enter(holder) else {
            let detail = "the client has as many upgraded connections as it may";
            return Err(Problem::new(ErrorCode::TooManyConnections, detail).retry(TRY_AGAIN));
        };
        let (place, activity) = (Arc::clone(&peer.place), Arc::clone(&peer.activity));
        Ok(Upgrade { wish, entered, place, activity, pass, half_open_max })
    }

    /// Waits until there is none.
    pub(crate) async fn ended(&self) {
        let mut count = self.open.count.subscribe();
        if count.wait_for(|count| *count == 0).await.is_err() {
            tracing::trace!("nobody counts upgrades any more");
        }
    }
}

impl Open {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, usize>> {
        self.of_holders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts its connection out when dropped.
#[derive(Debug)]
pub(crate) struct Entered {
    open: Arc<Open>,
    idle_max: Option<Duration>,
    holder: String,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut of_holders = self.open.lock();
        if let Some(count) = of_holders.get_mut(&self.holder) {
            *count -= 1;
            if *count == 0 {
                of_holders.remove(&self.holder);
            }
        }
        drop(of_holders);
        self.open.count.send_modify(|count| *count -= 1);
    }
}

/// A wish that was admitted: what the other protocol's connection will hold.
#[derive(Debug)]
pub(crate) struct Upgrade {
    /// What the caller wants.
    pub wish: Wish,
    entered: Entered,
    /// Its place among all connections.
    place: Place,
    /// What else happens on its connection: nothing more.
    activity: Arc<Activity>,
    pass: Pass,
    /// Longest silence once one side has ended.
    half_open_max: Duration,
}

impl Upgrade {
    /// Joins both ends in the background, as soon as the caller has `response`, the service's 101.
    pub(crate) fn begin<S: BucketStore>(
        self,
        mut response: Response<ReplyBody>,
        protocol: HeaderValue,
        out: Option<(InFlight, Lease)>,
        edge: Arc<Edge<S>>,
    ) -> Response<ReplyBody> {
        self.activity.leaves_http();
        let service = hyper::upgrade::on(&mut response);
        let headers = response.headers_mut();
        headers.remove(CONTENT_LENGTH); // what follows has no length
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
        daemon::tasks::spawn("upgraded connection", async move {
            let metrics = Arc::clone(&self.entered.open.metrics);
            metrics.upgrades.inc();
            metrics.upgraded.inc();
            let why = self.joined(service, &edge).await;
            metrics.upgraded.dec();
            tracing::debug!(why, "upgraded connection ended");
            drop(out);
        });
        response
    }

    /// Passes bytes both ways until it ends; why it did.
    async fn joined<S: BucketStore>(self, service: OnUpgrade, edge: &Edge<S>) -> &'static str {
        let Upgrade { wish, entered, place, pass, half_open_max, .. } = self;
        let ends = async { tokio::try_join!(wish.caller, service) };
        let Ok(Ok((caller, service))) = tokio::time::timeout(SWITCH_MAX, ends).await else {
            return "a side was gone before it began";
        };
        let flow = Flow::default();
        let mut caller = Counted { io: TokioIo::new(caller), flow: &flow };
        let mut service = TokioIo::new(service);
        let idle_max = entered.idle_max;
        let why = tokio::select! {
            copied = copy_bidirectional_with_sizes(
                &mut caller, &mut service, PIECE_BYTES, PIECE_BYTES
            ) => if copied.is_ok() { "both sides ended it" } else { "a side broke off" },
            why = flow.silent(idle_max, half_open_max) => why,
            () = revoked(edge, pass) => "its key does not open any more",
        };
        drop(place);
        why
    }
}

/// Ends when a connection may not stay.
async fn revoked<S: BucketStore>(edge: &Edge<S>, pass: Pass) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        if !edge.may_stay(pass).await {
            return;
        }
    }
}

/// What has moved on a connection.
#[derive(Debug, Default)]
struct Flow {
    bytes: AtomicU64,
    /// Whether one side will send no more.
    half_open: AtomicBool,
}

impl Flow {
    /// Waits for a silence that is too long: `idle_max`, if there is one, and `half_open_max` once
    /// one side has ended.
    async fn silent(&self, idle_max: Option<Duration>, half_open_max: Duration) -> &'static str {
        let shortest = idle_max.unwrap_or(half_open_max).min(half_open_max).min(LOOK_EVERY);
        let (mut seen, mut since) = (0, Instant::now());
        loop {
            tokio::time::sleep(shortest).await;
            let bytes = self.bytes.load(Ordering::Relaxed);
            if bytes != seen {
                (seen, since) = (bytes, Instant::now());
            } else if idle_max.is_some_and(|most| most <= since.elapsed()) {
                return "it was silent for too long";
            } else if self.half_open.load(Ordering::Relaxed) && half_open_max <= since.elapsed() {
                return "one side had ended and the other was silent";
            }
        }
    }

    fn moved(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// The caller's end: what is read comes from it, what is written comes from the service.
struct Counted<'a> {
    io: TokioIo<Upgraded>,
    flow: &'a Flow,
}

impl AsyncRead for Counted<'_> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let polled = Pin::new(&mut this.io).poll_read(cx, buf);
        if let Poll::Ready(Ok(())) = polled {
            let bytes = buf.filled().len() - before;
            this.flow.moved(bytes);
            if bytes == 0 {
                this.flow.half_open.store(true, Ordering::Relaxed);
            }
        }
        polled
    }
}

impl AsyncWrite for Counted<'_> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.io).poll_write(cx, bytes);
        if let Poll::Ready(Ok(written)) = polled {
            this.flow.moved(written);
        }
        polled
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        this.flow.half_open.store(true, Ordering::Relaxed);
        Pin::new(&mut this.io).poll_shutdown(cx)
    }
}

/// Whether a response is the agreement to leave HTTP.
pub(crate) fn is_switch(response: &Response<ReplyBody>) -> bool {
    response.status() == StatusCode::SWITCHING_PROTOCOLS
}

/// A service leaves HTTP although nobody asked it to, or for another protocol than asked.
#[derive(Debug)]
pub(crate) struct Unasked;

/// What becomes of an upgrade by the service's answer: with the protocol if it has agreed.
pub(crate) fn settled(
    response: &Response<ReplyBody>,
    upgrade: Option<Upgrade>,
) -> Result<Option<(Upgrade, HeaderValue)>, Unasked> {
    if !is_switch(response) {
        return Ok(None);
    }
    let upgrade = upgrade.ok_or(Unasked)?;
    let protocol = upgrade.wish.agreed(response.headers()).ok_or(Unasked)?;
    Ok(Some((upgrade, protocol)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &http::HeaderName, values: &[&'static str]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for value in values {
            map.append(name, HeaderValue::from_static(value));
        }
        map
    }

    #[test]
    fn h2c_is_known_with_and_without_a_version() {
        assert!(is_h2c(b"h2c") && is_h2c(b"H2C/1"));
        assert!(!is_h2c(b"websocket") && !is_h2c(b"h2c2"));
    }

    #[test]
    fn connection_is_a_list_of_tokens_in_any_case() {
        for (values, expected) in [
            (&["upgrade"][..], true),
            (&["keep-alive, Upgrade"], true),
            (&["", "keep-alive", " UPGRADE ,x"], true),
            (&["keep-alive"], false),
            (&["upgrades"], false),
            (&["x upgrade"], false),
            (&[], false),
        ] {
            assert_eq!(
                has_token(&headers(&CONNECTION, values), b"upgrade"),
                expected,
                "{values:?}"
            );
        }
    }

    #[test]
    fn two_upgrade_fields_have_two_readings() {
        assert!(only(&headers(&UPGRADE, &["websocket"]), &UPGRADE).is_some());
        assert!(only(&headers(&UPGRADE, &["websocket", "x"]), &UPGRADE).is_none());
        assert!(only(&headers(&UPGRADE, &[]), &UPGRADE).is_none());
    }
}
