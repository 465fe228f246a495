//! What the gateway may rely on, read from one TOML file.
//!
//! The file is read field by field, so every mistake is told at once, with its path; a value that
//! cannot be understood never becomes a default. Here are the checked types; the module `file` reads
//! them.
//! Process settings (logs, ports file) are flags, not part of the file.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use edge::limiter::store::redis::RedisSettings;
use edge::{FileClient, FileKey, RegionShare};
use ipnet::IpNet;
use wire::key::Pepper;
use wire::plan::PlanSpec;

use crate::pairing::Pairing;
use crate::route::RouteTable;
use crate::upstream::balance::Balance;
use crate::upstream::health::{EjectionRules, ProbeRules};
use crate::upstream::retry::RetryRules;
use crate::upstream::tls::UpstreamTls;

mod file; // TOML → Config, every mistake with its path
pub(crate) mod schema; // the same as data, for programs and people
mod origin; // which file, and what stood in it
pub(crate) mod fixed; // what needs a restart
mod read; // the small readers it is made of
mod upstream; // where services are, and how they are used
mod anonymous; // callers that are known by their address alone
mod cors; // which pages may read a route's answers
mod limits; // bounds that are more than a number
mod matching; // what else a route may say
mod store; // where buckets live
mod standalone; // plans, clients and keys in the same file
mod proxies; // who may speak for callers
mod tls; // certificates
mod access_log; // a line for each answer
mod overload; // more than a worker can handle
mod doubts; // valid, and most likely not meant

pub use access_log::{AccessLogRules, LineFormat, LogTarget, Share};
pub(crate) use doubts::doubts;
pub use file::{load, parse};
pub use origin::Origin;
pub(crate) use origin::{digest, judge};
pub use overload::OverloadRules;
pub use tls::{ListenerTls, PairFiles};

/// A whole, checked configuration.
#[derive(Debug)]
pub struct Config {
    /// Worker threads, each with its own runtime and listeners.
    pub workers: usize,
    /// Where traffic comes in; the first is announced as `traffic`.
    pub listeners: Vec<Listener>,
    /// The operations port.
    pub operations: Operations,
    /// Bounds of connections and requests.
    pub limits: Bounds,
    /// When a worker refuses what it cannot handle in time, if it does.
    pub overload: Option<OverloadRules>,
    /// Whether answers leave a line.
    pub access_log: Option<AccessLogRules>,
    /// How the gateway ends.
    pub drain: DrainRules,
    /// Where buckets live.
    pub store: StoreChoice,
    /// A waiting request is decided after this long at the latest.
    pub deadline: Duration,
    /// Where plans and keys come from.
    pub policy: PolicyChoice,
    /// The plan of callers that are known by their address alone.
    pub anonymous: Option<String>,
    /// Routes, most specific first.
    pub routes: RouteTable,
    /// Upstreams; routes name them by index.
    pub upstreams: Vec<UpstreamConfig>,
    /// The file that all this stands in, if it came from one.
    pub origin: Option<Origin>,
}

impl Config {
    /// Where the gateway keeps what must outlive it.
    pub(crate) fn state_dir(&self) -> Option<&Path> {
        match &self.policy {
            PolicyChoice::Control(control) => control.state_dir.as_deref(),
            PolicyChoice::File(file) => file.state_dir.as_deref(),
        }
    }
}

/// One traffic port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// Its table's name.
    pub name: String,
    /// Port 0 takes a free one.
    pub address: SocketAddr,
    /// HTTP/2 beside HTTP/1.1: by ALPN over TLS, with prior knowledge in clear.
    pub http2: bool,
    /// Over TLS.
    pub tls: Option<ListenerTls>,
    /// Connections begin with a header of the PROXY protocol, and come from trusted proxies only.
    pub proxy_protocol: bool,
    /// Proxies whose word about callers is believed.
    pub trusted_proxies: Vec<IpNet>,
}

/// The operations port.
#[derive(Debug)]
pub struct Operations {
    /// Loopback unless said otherwise.
    pub address: SocketAddr,
    /// Asked for wherever clients are shown; without one those routes are closed.
    pub token: Option<Secret>,
}

/// A text that is never shown.
pub struct Secret(String);

impl Secret {
    /// Keeps `text`.
    pub fn new(text: String) -> Secret {
        Secret(text)
    }

    /// The text, for the one place that sends or compares it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Bounds of what one connection or request may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounds {
    /// Longest request head; beyond it 431.
    pub head_bytes: usize,
    /// Most header fields; beyond it 431.
    pub head_fields: usize,
    /// Longest body, if bounded; beyond it 413.
    pub body_bytes: Option<u64>,
    /// Longest wait for a connection's first bytes, which tell its protocol.
    pub first_byte: Duration,
    /// Longest wait for a whole request head, from its first byte.
    pub head_time: Duration,
    /// Longest wait for the next request of a connection.
    pub idle: Duration,
    /// Longest wait for a TLS handshake.
    pub handshake_time: Duration,
    /// Connections that a worker holds; further ones wait in the kernel's queue.
    pub connections_per_worker: usize,
    /// Connections of one address; further ones are closed at once.
    pub connections_per_address: usize,
    /// Open HTTP/2 streams of a connection.
    pub h2_streams: u32,
    /// Bounds of connections that left HTTP.
    pub upgrades: UpgradeRules,
    /// Whether admitted requests are told the `X-RateLimit` fields too.
    pub x_ratelimit: bool,
    /// The part of each plan's capacity and rate that belongs to this region.
    pub region_share: RegionShare,
}

/// Bounds of connections that left HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpgradeRules {
    /// Of one client at a time; beyond it 429.
    pub per_client: usize,
    /// Longest silence, if there is a bound.
    pub idle: Option<Duration>,
}

/// How the gateway ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainRules {
    /// Not ready, but still accepting, so that balancers notice first.
    pub grace: Duration,
    /// Longest wait for requests that were begun.
    pub finish: Duration,
}

/// Where buckets live.
#[derive(Debug)]
pub enum StoreChoice {
    /// In this process: the limit holds for one gateway.
    Memory,
    /// In Redis: the limit holds for all gateways with the same one.
    Redis {
        /// Where and as whom; the URL may hold a password.
        settings: Box<RedisSettings>,
    },
}

/// Where plans and keys come from.
#[derive(Debug)]
pub enum PolicyChoice {
    /// From plans-api.
    Control(Box<ControlConfig>),
    /// From the gateway's own file.
    File(FileChoice),
}

/// How to reach the control plane.
#[derive(Debug)]
pub struct ControlConfig {
    /// Base URL of plans-api.
    pub plans_api: String,
    /// Base URL of shadow-compare, if records leave.
    pub shadow_compare: Option<String>,
    /// The gateway's own token.
    pub token: Secret,
    /// The same as at plans-api.
    pub pepper: Pepper,
    /// Where the gateway keeps what must outlive it.
    pub state_dir: Option<PathBuf>,
    /// An exported policy, for when there is no other.
    pub bootstrap_file: Option<PathBuf>,
    /// Full decision records a second; beyond it they are dropped and counted.
    pub records_per_s: u32,
    /// This gateway's id; if absent, the one in the state folder, else a random one.
    pub gateway: Option<String>,
}

/// Plans, clients and keys of the file.
#[derive(Debug)]
pub struct FileChoice {
    /// Keys are hashed with it.
    pub pepper: Pepper,
    /// Gateways that share the plans.
    pub gateways: u32,
    /// Where the gateway keeps what must outlive it.
    pub state_dir: Option<PathBuf>,
    /// All plans.
    pub plans: Vec<PlanSpec>,
    /// All clients.
    pub clients: Vec<FileClient>,
    /// All keys.
    pub keys: Vec<FileKey>,
}

/// An endpoint, or several under one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointConfig {
    /// `host:port`.
    pub name: String,
    /// Its part of the requests, beside those of others.
    pub weight: u64,
}

/// An upstream: endpoints that do the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamConfig {
    /// Its name.
    pub name: String,
    /// Where it is; names are resolved again and again.
    pub endpoints: Vec<EndpointConfig>,
    /// How often names are resolved.
    pub resolve_every: Duration,
    /// HTTP/2 instead of HTTP/1.1: by ALPN over TLS, with prior knowledge in clear.
    pub http2: bool,
    /// Over TLS.
    pub tls: Option<UpstreamTls>,
    /// Longest wait for a connection.
    pub connect_timeout: Duration,
    /// Longest wait for the response head after the last byte of the request.
    pub head_timeout: Duration,
    /// Longest pause between two pieces of a body, in either direction.
    pub idle_timeout: Duration,
    /// Idle connections are used again for this long; less than the upstream keeps them.
    pub keep_idle: Duration,
    /// Longest exchange, from the first attempt to the end of the response.
    pub total_timeout: Option<Duration>,
    /// Requests out at one endpoint; beyond it they wait.
    pub max_connections: usize,
    /// Requests that wait for room, for `connect_timeout` at most; beyond it 503.
    pub max_pending: usize,
    /// Which endpoint a request goes to.
    pub balance: Balance,
    /// When a request is sent again.
    pub retry: RetryRules,
    /// Below this many usable endpoints, in hundredths of all, all are used.
    pub panic_percent: usize,
    /// How long an endpoint's share grows after it came back.
    pub slow_start: Option<Duration>,
    /// Active probes.
    pub health: Option<ProbeRules>,
    /// Passive ejection.
    pub ejection: EjectionRules,
    /// How the service's own decision is known.
    pub pairing: Option<Pairing>,
}
