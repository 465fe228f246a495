//! Room ②: from host, path and method to the one route that serves them (pure).
//!
//! The path has one canonical form, which routes are compared with and which is sent on, so a
//! service can never understand another path than the one that was charged. What has two readings
//! (dot segments, encoded slashes) is refused instead of resolved; empty segments and parameters
//! pass, unless a service that ignores them would see another route's path. Among the routes that fit, the
//! most specific host wins, then the longest path, then the one that names methods.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Duration;

use edge::RouteTerms;
use http::header::HeaderName;
use http::{HeaderMap, Method};

use crate::cors::Cors;

mod by_field; // routes that go by a header field
mod asked; // which one, for people

pub use self::by_field::FieldRule;

/// Which hosts a route serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostRule {
    /// This one, in lower case, without port.
    Exact(String),
    /// Every name with this suffix, which begins with a dot.
    Under(String),
    /// All.
    Any,
}

impl HostRule {
    fn fits(&self, host: &str) -> bool {
        match self {
            HostRule::Exact(name) => name == host,
            HostRule::Under(suffix) => host.len() > suffix.len() && host.ends_with(suffix.as_str()),
            HostRule::Any => true,
        }
    }

    fn rank(&self) -> (u8, usize) {
        match self {
            HostRule::Exact(_) => (2, 0),
            HostRule::Under(suffix) => (1, suffix.len()),
            HostRule::Any => (0, 0),
        }
    }
}

/// Which paths a route serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathRule {
    /// Exactly this canonical path.
    Exact(String),
    /// This path and everything below it; no slash at the end, so `/` is empty.
    Prefix(String),
}

impl PathRule {
    fn fits(&self, path: &str) -> bool {
        match self {
            PathRule::Exact(whole) => whole == path,
            PathRule::Prefix(prefix) => path
                .strip_prefix(prefix.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
        }
    }

    fn rank(&self) -> (bool, usize) {
        match self {
            PathRule::Exact(whole) => (true, whole.len()),
            PathRule::Prefix(prefix) => (false, prefix.len()),
        }
    }
}

/// A route as the pipeline uses it.
#[derive(Debug)]
pub struct Route {
    /// Hosts.
    pub host: HostRule,
    /// Paths.
    pub path: PathRule,
    /// Methods; empty means any.
    pub methods: Vec<Method>,
    /// Index of the upstream.
    pub upstream: usize,
    /// Fields that a request must have, all of them.
    pub fields: Vec<FieldRule>,
    /// What services see in place of the route's path; without a slash at the end, so empty strips
    /// a prefix.
    pub rewrite: Option<String>,
    /// Bounds that replace those of the gateway and of the upstream.
    pub bounds: RouteBounds,
    /// How browsers are answered, if other origins may read at all.
    pub cors: Option<Box<Cors>>,
    /// Its number among the routes of the file, for metrics.
    pub number: usize,
    /// What the edge needs to know.
    pub terms: Arc<RouteTerms>,
}

/// Bounds of a route's own. In each, none given: as elsewhere in the file; none inside: no bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RouteBounds {
    /// Longest body.
    pub body_bytes: Option<Option<u64>>,
    /// Longest wait for the response head after the last byte of the request.
    pub head_timeout: Option<Duration>,
    /// Longest exchange.
    pub total_timeout: Option<Option<Duration>>,
}

impl Route {
    /// The path to send on.
    pub(crate) fn forwarded<'a>(&self, path: &'a str) -> Cow<'a, str> {
        let Some(rewrite) = &self.rewrite else { return Cow::Borrowed(path) };
        let rest = match &self.path {
            PathRule::Prefix(prefix) => path.strip_prefix(prefix.as_str()).unwrap_or(path),
            PathRule::Exact(_) => "",
        };
        match (rewrite.as_str(), rest) {
            ("", "") => Cow::Borrowed("/"),
            ("", rest) => Cow::Borrowed(rest),
            (rewrite, rest) => Cow::Owned(format!("{rewrite}{rest}")),
        }
    }

    fn fits(&self, host: &str, path: &str, headers: &HeaderMap) -> bool {
        self.host.fits(host)
            && self.path.fits(path)
            && self.fields.iter().all(|rule| rule.fits(headers))
    }
}

/// Why no route serves a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoRoute {
    /// None has this host and path.
    Unknown,
    /// Some have, for these methods.
    Method(Vec<Method>),
    /// Whoever ignores empty segments and parameters reads another route's path.
    TwoReadings,
    /// A field that routes go by may be read in another way.
    UnclearField,
}

/// All routes, most specific first.
#[derive(Debug, Clone)]
pub struct RouteTable {
    routes: Arc<[Arc<Route>]>,
    /// Names of the fields that any of them goes by.
    fields: Arc<[HeaderName]>,
    has_cors: bool,
}

impl RouteTable {
    /// Sorts the routes once.
    pub fn new(mut routes: Vec<Route>) -> RouteTable {
        routes.sort_by_key(|route| {
            let methods = !route.methods.is_empty();
            Reverse((route.host.rank(), route.path.rank(), methods, route.fields.len()))
        });
        let has_cors = routes.iter().any(|route| route.cors.is_some());
        let mut fields = Vec::new();
        for rule in routes.iter().flat_map(|route| &route.fields) {
            if !fields.contains(&rule.name) {
                fields.push(rule.name.clone());
            }
        }
        RouteTable {
            routes: routes.into_iter().map(Arc::new).collect(),
            fields: fields.into(),
            has_cors,
        }
    }

    /// Every route.
    pub fn iter(&self) -> impl Iterator<Item = &Route> {
        self.routes.iter().map(Arc::as_ref)
    }

    /// Whether any route answers browsers of other origins.
    pub(crate) fn has_cors(&self) -> bool {
        self.has_cors
    }

    /// The route for a canonical host and path.
    pub(crate) fn find(
        &self,
        host: &str,
        path: &str,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<&Route, NoRoute> {
        if self.fields.iter().any(|name| by_field::is_unclear(name, headers)) {
            return Err(NoRoute::UnclearField);
        }
        let found = self.first_fit(host, path, method, headers);
        let Some(reduced) = reduced(path) else { return found };
        let same = match (&found, &self.first_fit(host, &reduced, method, headers)) {
            (Ok(one), Ok(other)) => std::ptr::eq(*one, *other),
            (Err(one), Err(other)) => one == other,
            (Ok(_), Err(_)) | (Err(_), Ok(_)) => false,
        };
        if same { found } else { Err(NoRoute::TwoReadings) }
    }

    fn first_fit(
        &self,
        host: &str,
        path: &str,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<&Route, NoRoute> {
        let mut allowed = Vec::new();
        for route in self.iter().filter(|route| route.fits(host, path, headers)) {
            if route.methods.is_empty() || route.methods.contains(method) {
                return Ok(route);
            }
            allowed.extend_from_slice(&route.methods);
        }
        if allowed.is_empty() { Err(NoRoute::Unknown) } else { Err(NoRoute::Method(allowed)) }
    }
}

/// Why a host or path cannot be understood in one way only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// Not `/…`.
    #[error("a path starts with a slash")]
    NotAbsolute,
    /// `.` or `..`, also behind an encoding or a parameter.
    #[error("a path has no dot segments")]
    DotSegment,
    /// `%` without two hex digits.
    #[error("a percent sign is followed by two hexadecimal digits")]
    BadEncoding,
    /// `%2F`, `%5C`, `%00` or a backslash.
    #[error("a slash, backslash or NUL inside a segment has two readings")]
    HiddenSlash,
    /// Not a name or address with an optional port.
    #[error("the host is not a name or address with an optional port")]
    Host,
}

/// A canonical path as services read it that merge slashes and cut parameters off, if that is
/// another path.
fn reduced(path: &str) -> Option<String> {
    if !path.contains("//") && !path.contains(';') && !path.contains("%3B") {
        return None;
    }
    let mut out = String::with_capacity(path.len());
    for segment in path.split('/').map(name).filter(|name| !name.is_empty()) {
        out.push('/');
        out.push_str(segment);
    }
    Some(if out.is_empty() { "/".to_owned() } else { out })
}

/// A segment without its parameters. `..;x` is `..` to servers that cut them off, before decoding
/// or after it.
fn name(segment: &str) -> &str {
    let segment = segment.split_once(';').map_or(segment, |(name, _parameters)| name);
    segment.split_once("%3B").map_or(segment, |(name, _parameters)| name)
}

/// The one form of a path: unreserved characters decoded, other encodings in upper case. Borrowed
/// if it has that form already; making it canonical twice changes nothing.
pub(crate) fn canonical_path(path: &str) -> Result<Cow<'_, str>, TargetError> {
    if !path.starts_with('/') {
        return Err(TargetError::NotAbsolute);
    }
    if path.contains('\\') {
        return Err(TargetError::HiddenSlash);
    }
    let canonical =
        if path.contains('%') { Cow::Owned(decoded(path)?) } else { Cow::Borrowed(path) };
    if canonical.split('/').map(name).any(|name| name == "." || name == "..") {
        Err(TargetError::DotSegment)
    } else {
        Ok(canonical)
    }
}

fn decoded(path: &str) -> Result<String, TargetError> {
    let mut out = String::with_capacity(path.len());
    let mut pieces = path.split('%');
    out.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        let (hex, rest) = piece.split_at_checked(2).ok_or(TargetError::BadEncoding)?;
        if !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(TargetError::BadEncoding);
        }
        match u8::from_str_radix(hex, 16).map_err(|_not_hex| TargetError::BadEncoding)? {
            0 | b'/' | b'\\' => return Err(TargetError::HiddenSlash),
            byte if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => {
                out.push(char::from(byte));
            }
            _ => {
                out.push('%');
                out.push_str(&hex.to_ascii_uppercase());
            }
        }
        out.push_str(rest);
    }
    Ok(out)
}

/// The one form of a host: without port and final dot, in lower case.
pub(crate) fn canonical_host(authority: &str) -> Result<Cow<'_, str>, TargetError> {
    split_authority(authority).map(|(host, _port)| host)
}

/// The same with its port, if it has one.
pub(crate) fn canonical_authority(authority: &str) -> Result<Cow<'_, str>, TargetError> {
    let (host, port) = split_authority(authority)?;
    let is_canonical = match (&host, port) {
        (Cow::Borrowed(name), None) => name.len() == authority.len(),
        (Cow::Borrowed(name), Some((text, port))) => {
            name.len() + 1 + text.len() == authority.len() && is_plain(text, port)
        }
        (Cow::Owned(_), _) => false,
    };
    Ok(match port {
        _ if is_canonical => Cow::Borrowed(authority),
        None => host,
        Some((_, port)) => Cow::Owned(format!("{host}:{port}")),
    })
}

/// Whether a port is written without leading zeros.
fn is_plain(text: &str, port: u16) -> bool {
    !text.starts_with('0') || port == 0 && text.len() == 1
}

type HostAndPort<'a> = (Cow<'a, str>, Option<(&'a str, u16)>);

fn split_authority(authority: &str) -> Result<HostAndPort<'_>, TargetError> {
    let (name, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (inside, after) = rest.split_once(']').ok_or(TargetError::Host)?;
            let address: Ipv6Addr = inside.parse().map_err(|_not_an_address| TargetError::Host)?;
            let plain = format!("[{address}]");
            let name = authority.get(..inside.len() + 2).ok_or(TargetError::Host)?;
            let name = if plain == name { Cow::Borrowed(name) } else { Cow::Owned(plain) };
            (name, if after.is_empty() { None } else { Some(after.strip_prefix(':')) })
        }
        None => match authority.split_once(':') {
            Some((name, port)) => (Cow::Borrowed(name), Some(Some(port))),
            None => (Cow::Borrowed(authority), None),
        },
    };
    let port = match port {
        None => None,
        Some(port) => {
            let port = port.ok_or(TargetError::Host)?;
            if !port.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(TargetError::Host);
            }
            Some((port, port.parse().map_err(|_no_port| TargetError::Host)?))
        }
    };
    let Cow::Borrowed(name) = name else { return Ok((name, port)) };
    if name.starts_with('[') {
        return Ok((Cow::Borrowed(name), port));
    }
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if name.is_empty() || name.len() > 253 || !name.bytes().all(fine) {
        return Err(TargetError::Host);
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.is_empty() {
        Err(TargetError::Host)
    } else if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Ok((Cow::Owned(name.to_ascii_lowercase()), port))
    } else {
        Ok((Cow::Borrowed(name), port))
    }
}

#[cfg(test)]
mod tests;
