//! Opens one connection and makes sure of the server: that it lets us in, takes writes, knows the
//! script and allows all that the script does.
//!
//! Names are resolved at each dial, by the dialling task; no caller ever waits for one.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError,
    TlsCertificates, Value,
};

use super::address::HostPort;
use super::command::argument;
use super::counters::RedisCounters;
use super::node::command;
use super::{health, script};
use crate::call::{PlanNumbers, PlanVersion, Request};
use crate::limit::{Limit, Limits};
use crate::units::{Capacity, RefillRate};

/// Commands that may wait for the socket; as many as a link carries calls, so nobody waits.
const PIPELINE_MAX: usize = 4_096;
/// A TCP connection without acknowledgements for so long is dead.
const USER_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for a connection and its greeting.
const CONNECT_MAX: Duration = Duration::from_millis(400);
/// A key that no bucket has, in the form that accounts are allowed.
const NO_BUCKET: &str = "weir:{00000000000000000000000000000000}";

/// As whom servers are dialled.
#[derive(Clone)]
pub(super) struct Dialler {
    /// `Some(None)`: the public authorities.
    pub(super) tls: Option<Option<Vec<u8>>>,
    pub(super) username: Option<String>,
    pub(super) password: Password,
    pub(super) database: i64,
}

#[derive(Clone)]
pub(super) enum Password {
    None,
    Text(String),
    File(PathBuf),
}

/// Which servers will do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// One that says itself that it is a primary.
    Primary,
    /// Also one that is not allowed to say.
    PrimaryIfItTells,
    /// Any node of a Cluster: a wrong one says so, call by call.
    Any,
}

/// Why a dial led to nothing; for the operator.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error("{}", in_words(.0))]
    Redis(#[from] RedisError),
    #[error("cannot read the password from {}: {source}", .path.display())]
    Password { path: PathBuf, source: io::Error },
    #[error("this server is a replica and takes no writes")]
    Replica,
    #[error("this server does not say whether it is a primary: {}", in_words(.0))]
    RoleUnknown(RedisError),
    #[error("{}", no_permission(.0))]
    Permission(RedisError),
    #[error("no answer in time")]
    TimedOut,
}

/// A connection that is good for calls.
pub(super) struct Greeted {
    pub(super) connection: MultiplexedConnection,
    /// Which run of which server, if it tells.
    pub(super) run_id: Option<String>,
}

impl Dialler {
    /// A connection that has introduced itself, to any Redis or sentinel.
    pub(super) async fn open(&self, to: &HostPort) -> Result<MultiplexedConnection, DialError> {
        let client = self.client(to).await?;
        Ok(client.get_multiplexed_async_connection_with_config(&connection_config()).await?)
    }

    /// The same, made sure of.
    pub(super) async fn greet(
        &self,
        to: &HostPort,
        wanted: Wanted,
        counters: &RedisCounters,
    ) -> Result<Greeted, DialError> {
        let mut connection = self.open(to).await?;
        // Before the long text: to a stranger this says why, the text only breaks the protocol.
        let mut words = redis::pipe();
        words.cmd("PING").cmd("ROLE").cmd("INFO").arg("server");
        let answers = connection.send_packed_commands(&words, 0, 3).await?;
        let [ping, role, server] =
            <[Value; 3]>::try_from(answers).unwrap_or([Value::Nil, Value::Nil, Value::Nil]);
        let _pong = ping.extract_error()?;
        check_role(role.extract_error(), wanted)?;
        let run_id = health::run_id(&server);
        script::load(&mut connection).await.map_err(permission)?;
        check_permissions(&mut connection).await?;
        health::look(&mut connection, counters).await;
        Ok(Greeted { connection, run_id })
    }

    async fn client(&self, to: &HostPort) -> Result<Client, DialError> {
        let mut account = redis::RedisConnectionInfo::default()
            .set_db(self.database)
            // A courtesy that would need one more permission.
            .set_skip_set_lib_name();
        if let Some(username) = &self.username {
            account = account.set_username(username);
        }
        match &self.password {
            Password::None => {}
            Password::Text(password) => account = account.set_password(password),
            Password::File(path) => account = account.set_password(read(path.clone()).await?),
        }
        let (host, port) = (to.host.clone(), to.port);
        let address = match self.tls {
            None => ConnectionAddr::Tcp(host, port),
            Some(_) => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
        };
        let tcp = TcpSettings::default().set_nodelay(true).set_user_timeout(USER_TIMEOUT);
        let info: ConnectionInfo = address.into_connection_info()?;
        let info = info.set_tcp_settings(tcp).set_redis_settings(account);
        Ok(match &self.tls {
            Some(Some(roots)) => Client::build_with_tls(info, trusting(roots))?,
            Some(None) | None => Client::open(info)?,
        })
    }
}

/// Fails if the certificates cannot be read.
pub(super) fn check_roots(roots: &[u8]) -> Result<(), RedisError> {
    choose_cryptography();
    let (host, port) = ("localhost".to_owned(), 1);
    let address = ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None };
    Client::build_with_tls(address.into_connection_info()?, trusting(roots)).map(drop)
}

/// Fails if the process has chosen already, which is as good.
pub(super) fn choose_cryptography() {
    let _chosen = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

fn trusting(roots: &[u8]) -> TlsCertificates {
    TlsCertificates { client_tls: None, root_cert: Some(roots.to_vec()) }
}

async fn read(path: PathBuf) -> Result<String, DialError> {
    let file = path.clone();
    let text = tokio::task::spawn_blocking(move || std::fs::read_to_string(file)).await;
    match text.unwrap_or_else(|gone| Err(io::Error::other(gone))) {
        Ok(text) => Ok(text.trim_end_matches(['\r', '\n']).to_owned()),
        Err(source) => Err(DialError::Password { path, source }),
    }
}

/// Time-outs of answers are ours, so that they can tell a failure from a loss.
fn connection_config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_MAX))
        .set_response_timeout(None)
        .set_pipeline_buffer_size(PIPELINE_MAX)
}

fn check_role(role: Result<Value, RedisError>, wanted: Wanted) -> Result<(), DialError> {
    match role {
        _ if wanted == Wanted::Any => Ok(()),
        Ok(role) if health::is_primary(&role) => Ok(()),
        Ok(_) => Err(DialError::Replica),
        Err(_) if wanted == Wanted::PrimaryIfItTells => Ok(()),
        Err(error) => Err(DialError::RoleUnknown(error)),
    }
}

/// A look at no bucket: what an account may not do is better told now than call by call. Whatever
/// else the server has to say about it, calls will hear.
async fn check_permissions(connection: &mut MultiplexedConnection) -> Result<(), DialError> {
    let Some(plan) = any_plan() else { return Ok(()) };
    let look = command("EVALSHA", script::digest(), NO_BUCKET, argument(&Request::peek(plan), 0));
    match look.query_async::<Value>(connection).await {
        Err(error) if lacks_permission(&error) => Err(DialError::Permission(error)),
        Ok(_) | Err(_) => Ok(()),
    }
}

fn any_plan() -> Option<PlanNumbers> {
    let burst = Limit::new(Capacity::new(1).ok()?, RefillRate::per_second(1).ok()?).ok()?;
    Some(PlanNumbers { version: PlanVersion(0), limits: Limits::burst_only(burst) })
}

fn permission(error: RedisError) -> DialError {
    if lacks_permission(&error) { DialError::Permission(error) } else { error.into() }
}

pub(super) fn no_permission(error: &RedisError) -> String {
    format!("the account lacks a permission: {}", in_words(error))
}

/// As the server said it, if it did.
fn in_words(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(_) | None, _) => error.to_string(),
    }
}

/// Whether a server refuses because of who asks.
pub(super) fn lacks_permission(error: &RedisError) -> bool {
    let inside = "script can't run this command";
    matches!(error.code(), Some("NOPERM" | "NOAUTH" | "WRONGPASS"))
        || error.detail().is_some_and(|detail| detail.contains(inside))
}
