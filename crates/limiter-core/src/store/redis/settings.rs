//! What a store is told at its start.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::address::{self, Address, Topology};
use super::dial::{self, Password};

/// Most connections of one gateway to one Redis node, whatever the number of its workers.
pub const CONNECTIONS_MAX: usize = 4;

/// Where Redis is and how long to wait for it.
#[derive(Clone)]
pub struct RedisSettings {
    /// One server: `redis://[user:password@]host:port/database`. Watched by Sentinel:
    /// `redis+sentinel://[user:password@]host:port,host:port/service/database`. A Cluster:
    /// `redis+cluster://[user:password@]host:port,host:port`. With `rediss` instead of `redis`
    /// all of it goes over TLS.
    pub url: String,
    /// The account, if the URL does not name it.
    pub username: Option<String>,
    /// Its password in a file, read at each dial, so that a new password needs no restart.
    pub password_file: Option<PathBuf>,
    /// The account at the sentinels, if they want one.
    pub sentinel_username: Option<String>,
    /// Its password in a file, read at each dial.
    pub sentinel_password_file: Option<PathBuf>,
    /// PEM certificates to trust for TLS, if not the public ones.
    pub trusted_roots: Option<Vec<u8>>,
    /// After this long a call counts as lost. Answers are taken until then, however late.
    pub response_timeout: Duration,
    /// To each node; 1 to [`CONNECTIONS_MAX`]. With two or more, a call that hangs does not hold
    /// up a second one for the same key.
    pub connections: usize,
}

impl RedisSettings {
    /// The defaults for a URL: two connections, 250 ms.
    pub fn new(url: impl Into<String>) -> RedisSettings {
        RedisSettings {
            url: url.into(),
            username: None,
            password_file: None,
            sentinel_username: None,
            sentinel_password_file: None,
            trusted_roots: None,
            response_timeout: Duration::from_millis(250),
            connections: 2,
        }
    }

    /// Everything that is wrong, as far as one can tell without dialling.
    pub fn check(&self) -> Result<(), RedisSettingsError> {
        self.plan().map(drop)
    }

    pub(super) fn plan(&self) -> Result<Plan, RedisSettingsError> {
        let mut mistakes = Vec::new();
        if !(1..=CONNECTIONS_MAX).contains(&self.connections) {
            mistakes.push(format!(
                "connections must be 1 to {CONNECTIONS_MAX}, not {}",
                self.connections
            ));
        }
        let address = address::parse(&self.url).map_err(|told| mistakes.extend(told)).ok();
        let address = address.inspect(|address| self.check_accounts(address, &mut mistakes));
        match address {
            Some(address) if mistakes.is_empty() => Ok(self.planned(address)),
            Some(_) | None => Err(RedisSettingsError { mistakes }),
        }
    }

    fn check_accounts(&self, address: &Address, mistakes: &mut Vec<String>) {
        let mut wrong = |what: &str| mistakes.push(what.to_owned());
        if address.username.is_some() && self.username.is_some() {
            wrong("the username stands in the URL and beside it");
        }
        if address.password.is_some() && self.password_file.is_some() {
            wrong("the password stands in the URL and in a file");
        }
        let named = address.username.is_some() || self.username.is_some();
        if named && address.password.is_none() && self.password_file.is_none() {
            wrong("a username needs a password");
        }
        if self.sentinel_username.is_some() && self.sentinel_password_file.is_none() {
            wrong("a username at the sentinels needs a password");
        }
        let of_sentinels =
            self.sentinel_username.is_some() || self.sentinel_password_file.is_some();
        if of_sentinels && !matches!(address.topology, Topology::Sentinel { .. }) {
            wrong(
                "an account at the sentinels is for redis+sentinel:// and rediss+sentinel:// only",
            );
        }
        if self.trusted_roots.is_some() && !address.tls {
            wrong("certificates are for rediss:// URLs only");
        }
        if let Some(roots) = &self.trusted_roots
            && let Err(error) = dial::check_roots(roots)
        {
            mistakes.push(format!("the certificates to trust cannot be read: {error}"));
        }
    }

    fn planned(&self, address: Address) -> Plan {
        let password = |text: Option<String>, file: &Option<PathBuf>| match (text, file) {
            (Some(text), _) => Password::Text(text),
            (None, Some(file)) => Password::File(file.clone()),
            (None, None) => Password::None,
        };
        let roots = self.trusted_roots.clone();
        let dialler = |username: Option<String>, password, database| dial::Dialler {
            tls: address.tls.then(|| roots.clone()),
            username,
            password,
            database,
        };
        let username = address.username.clone().or_else(|| self.username.clone());
        let own = password(address.password.clone(), &self.password_file);
        let at_sentinels = password(None, &self.sentinel_password_file);
        Plan {
            servers: dialler(username, own, address.database),
            sentinels: dialler(self.sentinel_username.clone(), at_sentinels, 0),
            topology: address.topology,
        }
    }
}

/// Settings, read.
pub(super) struct Plan {
    pub(super) topology: Topology,
    pub(super) servers: dial::Dialler,
    pub(super) sentinels: dial::Dialler,
}

impl fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSettings")
            .field("url", &"(may hold a password)")
            .field("response_timeout", &self.response_timeout)
            .field("connections", &self.connections)
            .finish_non_exhaustive()
    }
}

/// Settings that cannot work, found before anything is dialled: every mistake, none with a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .mistakes.join("; "))]
pub struct RedisSettingsError {
    /// One sentence each.
    pub mistakes: Vec<String>,
}
