//! The state folder of `weir dev`: who has it, its secrets, its context.
//!
//! The folder is 0700 and its files 0600. It holds an API key in clear text, which no other part
//! of Weir ever keeps: it opens a gateway on loopback that guards an echo service.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use daemon::Failure as Fault;
use wire::key::OperatorToken;

use super::ports::Ports;
use crate::contexts::{self, Contexts, Entry};
use crate::failure::{Exit, Failure};

/// The operator's token.
pub(crate) const OPERATOR: &str = "operator.token";
/// The gateway's token, and its hash for shadow-compare.
pub(crate) const GATEWAY: &str = "gateway.token";
pub(crate) const GATEWAY_HASHES: &str = "gateway-tokens";
/// Shared by plans-api and shadow-compare; by plans-api and the gateway.
pub(crate) const CONTROL: &str = "control.token";
pub(crate) const OPERATIONS: &str = "operations.token";
/// Written by plans-api at its first start.
pub(crate) const BOOTSTRAP: &str = "bootstrap.token";
/// The API key that is kept.
pub(crate) const KEY: &str = "demo.key";
const LOCK: &str = "dev.lock";
/// Made here, so that they are private from the first byte: SQLite gives its other files the same
/// permissions, and takes an empty file for a new database.
const DATABASES: [&str; 3] = ["plans.db", "shadow.db", "shadow.db.shadow-compare.lock"];

/// The folder, held by this process.
#[derive(Debug)]
pub(crate) struct State {
    folder: PathBuf,
    _lock: File,
}

impl State {
    /// Makes the folder if it is missing and takes its lock, or names who has it.
    pub(crate) fn take(folder: &Path) -> Result<State, Failure> {
        let failed = |error: std::io::Error| {
            Failure::new(Exit::Failed, "failed", format!("{}: {error}", folder.display()))
        };
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
        let path = folder.join(LOCK);
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                lock.read_to_string(&mut pid).map_err(failed)?;
                let (folder, pid) = (folder.display(), pid.trim());
                let line = format!("weir dev runs in {folder} already, with pid {pid}");
                return Err(Failure::new(Exit::Conflict, "in_use", line)
                    .and("end it first, or take another folder with --state-dir"));
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let told = lock
            .set_len(0)
            .and_then(|()| lock.rewind())
            .and_then(|()| writeln!(lock, "{}", std::process::id()));
        told.map_err(failed)?;
        let state = State { folder: folder.to_owned(), _lock: lock };
        for name in [CONTROL, OPERATIONS] {
            state.secret(name)?;
        }
        for name in DATABASES {
            let mut private = OpenOptions::new();
            private.append(true).create(true).mode(0o600);
            private.open(folder.join(name)).map_err(failed)?;
        }
        Ok(state)
    }

    /// The folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// A file's text, if it is there and not empty.
    pub(crate) fn read(&self, name: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.folder.join(name)).ok()?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// Writes a file for its owner alone.
    pub(crate) fn keep(&self, name: &str, bytes: &[u8]) -> Result<(), Fault> {
        let path = self.folder.join(name);
        daemon::settings::write_private(&path, bytes).map_err(Fault::other)
    }

    /// Makes a shared secret, unless there is one.
    fn secret(&self, name: &str) -> Result<(), Failure> {
        if self.read(name).is_some() {
            return Ok(());
        }
        let made =
            OperatorToken::generate().map_err(|error| error.to_string()).and_then(|secret| {
                let path = self.folder.join(name);
                contexts::write_private(&path, secret.text.as_bytes())
                    .map_err(|error| error.to_string())
            });
        made.map_err(|error| Failure::new(Exit::Failed, "failed", format!("{name}: {error}")))
    }

    /// The context that `weir` finds here.
    pub(crate) fn keep_context(&self, addr: &str) -> Result<(), Fault> {
        let name = "dev".to_owned();
        let token = self.read(OPERATOR);
        let entry = Entry { addr: addr.to_owned(), token, token_file: None, production: false };
        let contexts = Contexts { current: Some(name.clone()), context: [(name, entry)].into() };
        contexts
            .write(&self.folder.join(contexts::FILE))
            .map_err(|failure| Fault::other(failure.to_string()))
    }
}

/// A service as the gateway's file wants it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Service {
    endpoint: String,
    protocol: &'static str,
}

impl Service {
    /// One that speaks HTTP/1.1.
    pub(crate) fn http1(endpoint: String) -> Service {
        Service { endpoint, protocol: "http1" }
    }

    /// `http://host:port`; or `grpc://host:port`, which speaks HTTP/2 in clear.
    pub(crate) fn at(url: &str) -> Result<Service, Fault> {
        let wrong = |what: &str| Fault::Settings(vec![format!("--upstream {url}: {what}")]);
        let (rest, protocol) = match (url.strip_prefix("http://"), url.strip_prefix("grpc://")) {
            (Some(rest), _) => (rest, "http1"),
            (None, Some(rest)) => (rest, "http2"),
            (None, None) => return Err(wrong("must begin with http:// or grpc://")),
        };
        let host = rest.trim_end_matches('/');
        if host.is_empty() || host.contains('/') {
            return Err(wrong("must be http://host:port or grpc://host:port, without a path"));
        }
        let endpoint = match host.rsplit_once(':') {
            Some((_, port)) if port.parse::<u16>().is_ok() => host.to_owned(),
            Some(_) | None => format!("{host}:80"),
        };
        Ok(Service { endpoint, protocol })
    }
}

/// The gateway's file, written anew at each start: a person may copy it to begin with.
pub(crate) fn gateway_toml(ports: &Ports, service: &Service, store: Option<&str>) -> String {
    let Ports { traffic, plans, shadow, operations } = ports;
    let Service { endpoint, protocol } = service;
    let store = store.map(|url| format!("\n[store]\nurl = {url:?}\n")).unwrap_or_default();
    format!(
        "\
# Written by `weir dev` at each start; changes here are lost.
[listen.main]
address = \"127.0.0.1:{traffic}\"

[operations]
address = \"127.0.0.1:{operations}\"
token_file = \"{OPERATIONS}\"

[drain]
grace = \"1ms\"
finish = \"5s\"
{store}
[control]
plans_api = \"http://127.0.0.1:{plans}\"
shadow_compare = \"http://127.0.0.1:{shadow}\"
token_file = \"{GATEWAY}\"
pepper_file = \"pepper\"
state_dir = \"gateway\"
gateway = \"dev\"

[[route]]
name = \"all\"
path = \"/\"
upstream = \"service\"

[upstream.service]
endpoints = [{endpoint:?}]
protocol = \"{protocol}\"

[upstream.service.pairing]
deny_status = 429
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_start_is_refused_with_the_first_ones_pid() {
        let folder = tempfile::tempdir().unwrap();
        let first = State::take(folder.path()).unwrap();
        let failure = State::take(folder.path()).unwrap_err();
        assert_eq!(failure.exit, Exit::Conflict);
        assert!(failure.to_string().contains(&format!("pid {}", std::process::id())), "{failure}");
        drop(first);
        State::take(folder.path()).unwrap();
    }

    #[test]
    fn an_upstream_is_a_host_with_a_port() {
        for (url, endpoint, protocol) in [
            ("http://localhost:3000/", "localhost:3000", "http1"),
            ("http://localhost", "localhost:80", "http1"),
            ("grpc://localhost:50051", "localhost:50051", "http2"),
        ] {
            let expected = Service { endpoint: endpoint.to_owned(), protocol };
            assert_eq!(Service::at(url).unwrap(), expected);
        }
        for wrong in ["https://localhost", "localhost:3000", "http://", "http://a/b", "grpc://"] {
            assert!(Service::at(wrong).is_err(), "{wrong}");
        }
    }
}
