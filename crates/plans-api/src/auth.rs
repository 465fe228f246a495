//! Operator token → who is calling and in which role.
//!
//! A token is found by its public id and compared by its hash in constant time. Ten failed tokens a
//! minute from one address and it is only listened to with tokens that have opened before, for the
//! rest of the minute: behind a proxy or on one machine, gateways share an address with whoever
//! fails. There is
//! no default credential: a start without a usable admin token prints one bootstrap token, good for
//! an hour and for one thing, making an admin's token.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use daemon::Failure;
use daemon::settings::write_private;
use limiter_core::Clock;
use wire::client::plans::Role;
use wire::error::{ErrorBody, ErrorCode};
use wire::key::{OperatorToken, token_hash};

use crate::store::{PlanStore, Stamp, StoreError, TokenSpec};

/// Failed tokens of one address in one minute; then it has to wait.
const FAILURES_MAX: u32 = 10;
/// Addresses that are remembered in one minute; failures of further ones are not counted, for
/// whoever has so many addresses must not close the door for everybody else.
const ADDRESSES_MAX: usize = 65_536;
/// Tokens that are remembered as having opened, far more than there are in use.
const OPENED_MAX: usize = 16_384;
const MINUTE_MS: u64 = 60_000;
/// How long a bootstrap token opens.
const BOOTSTRAP_MS: u64 = 3_600_000;

/// Who is calling.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// As the audit shows it.
    pub(crate) actor: String,
    pub(crate) role: Role,
    pub(crate) token_id: String,
    /// The token's.
    pub(crate) name: String,
    /// The token is a program's.
    pub(crate) machine: bool,
}

/// Why a call is not let in.
#[derive(Debug)]
pub(crate) enum Denied {
    /// With a body for the caller, and seconds until another try makes sense.
    Refused(Box<ErrorBody>, Option<u64>),
    /// The store could not be asked.
    Store(StoreError),
}

/// Checks tokens.
#[derive(Debug)]
pub(crate) struct Auth {
    store: PlanStore,
    failures: Failures,
    /// Hashes of tokens that opened since the start. They are checked like any other.
    opened: Mutex<HashSet<[u8; 32]>>,
    clock: Arc<dyn Clock>,
}

impl Auth {
    pub(crate) fn new(store: PlanStore, clock: Arc<dyn Clock>) -> Auth {
        Auth { store, failures: Failures::default(), opened: Mutex::default(), clock }
    }

    /// Who shows this `Authorization` header from this address?
    pub(crate) async fn caller(
        &self,
        authorization: Option<&str>,
        from: IpAddr,
    ) -> Result<Caller, Denied> {
        let now = self.clock.now().us() / 1_000;
        let text = authorization.and_then(bearer);
        if let Some(seconds) = self.failures.wait(from, now)
            && !text.is_some_and(|text| self.has_opened(text))
        {
            let detail = format!("{FAILURES_MAX} tokens failed in this minute");
            let body = ErrorBody::new(ErrorCode::TooManyAttempts, detail);
            return Err(Denied::Refused(Box::new(body), Some(seconds)));
        }
        let Some(text) = text else {
            let body = ErrorBody::new(ErrorCode::TokenMissing, "there is no bearer token")
                .with_hint("send `Authorization: Bearer weiro_…`");
            return Err(Denied::Refused(Box::new(body), None));
        };
        match self.check(text, now).await {
            Ok(Some(caller)) => {
                self.remember(text);
                Ok(caller)
            }
            Ok(None) => {
                self.failures.add(from, now);
                let detail = "the token is unknown, revoked or expired";
                let body = ErrorBody::new(ErrorCode::TokenInvalid, detail);
                Err(Denied::Refused(Box::new(body), None))
            }
            Err(error) => Err(Denied::Store(error)),
        }
    }

    fn has_opened(&self, text: &str) -> bool {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.contains(token_hash(text).bytes())
    }

    fn remember(&self, text: &str) {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if opened.len() < OPENED_MAX {
            opened.insert(*token_hash(text).bytes());
        }
    }

    async fn check(&self, text: &str, now: u64) -> Result<Option<Caller>, StoreError> {
        let hash = token_hash(text);
        let id = text.strip_prefix("weiro_").and_then(|rest| rest.split_once('_'));
        let Some((id, _secret)) = id else { return Ok(None) };
        let Some(stored) = self.store.token(id).await? else { return Ok(None) };
        let token = &stored.object;
        // `KeyHash` compares in constant time.
        let opens = stored.hash == hash
            && token.revoked_at.is_none()
            && token.expires_at.is_none_or(|at| now < at);
        if !opens {
            return Ok(None);
        }
        if let Err(error) = self.store.used_token(token).await {
            tracing::debug!(%error, "cannot note that a token was used");
        }
        Ok(Some(Caller {
            actor: format!("{} ({})", token.name, token.id),
            role: token.role,
            token_id: token.id.clone(),
            name: token.name.clone(),
            machine: token.machine,
        }))
    }
}

/// The token of a bearer header; the scheme's letters may be of any case.
fn bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Failed tokens by address and minute.
#[derive(Debug, Default)]
struct Failures {
    by_address: Mutex<HashMap<IpAddr, (u64, u32)>>,
}

impl Failures {
    /// Seconds to wait, if there were too many.
    fn wait(&self, from: IpAddr, now: u64) -> Option<u64> {
        let minute = now / MINUTE_MS;
        let counts = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, count) = counts.get(&network(from)).copied().unwrap_or((0, 0));
        let seconds = (MINUTE_MS - now % MINUTE_MS).div_ceil(1_000);
        (at == minute && count >= FAILURES_MAX).then_some(seconds)
    }

    fn add(&self, from: IpAddr, now: u64) {
        let minute = now / MINUTE_MS;
        let mut counts = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() >= ADDRESSES_MAX {
            counts.retain(|_, (at, _)| *at == minute);
        }
        if counts.len() >= ADDRESSES_MAX && !counts.contains_key(&network(from)) {
            return;
        }
        let (at, count) = counts.entry(network(from)).or_default();
        if *at != minute {
            (*at, *count) = (minute, 0);
        }
        *count += 1;
    }
}

/// One IPv6 customer has at least a /64.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64))),
        },
    }
}

/// Where a bootstrap token is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tell {
    /// On stderr, and in the file if there is one.
    People,
    /// In the file alone.
    FileOnly,
}

/// Makes and tells a bootstrap token if nobody could make tokens otherwise.
pub(crate) async fn bootstrap(
    store: &PlanStore,
    file: Option<&Path>,
    tell: Tell,
) -> Result<(), Failure> {
    if store.has_admin().await.map_err(Failure::other)? {
        return Ok(());
    }
    let token = OperatorToken::generate().map_err(Failure::other)?;
    let spec = TokenSpec {
        name: "bootstrap".to_owned(),
        role: Role::Bootstrap,
        machine: false,
        expires_at: Some(store.now() + BOOTSTRAP_MS),
    };
    store.create_token(&spec, &token, &Stamp::start()).await.map_err(Failure::other)?;
    if let Some(path) = file {
        write_private(path, format!("{}\n", token.text).as_bytes())
            .map_err(|error| Failure::Settings(vec![format!("--bootstrap-token-file: {error}")]))?;
    }
    if tell == Tell::FileOnly {
        return Ok(());
    }
    let text = format!(
        "There is no admin token yet. This one is valid for an hour and makes one (weir token \
         create --role admin):\n  {}\n",
        token.text
    );
    // Straight to stderr: a log line could be dropped, and logs are collected.
    std::io::stderr().write_all(text.as_bytes()).map_err(Failure::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_failures_close_the_rest_of_the_minute_for_that_address_alone() {
        let failures = Failures::default();
        let (bad, good): (IpAddr, IpAddr) = ("192.0.2.1".parse().unwrap(), [192, 0, 2, 2].into());
        for _ in 0..10 {
            assert_eq!(failures.wait(bad, 70_000), None);
            failures.add(bad, 70_000);
        }
        assert_eq!(failures.wait(bad, 70_000), Some(50));
        assert_eq!(failures.wait(bad, 119_999), Some(1));
        assert_eq!(failures.wait(bad, 120_000), None, "the next minute");
        assert_eq!(failures.wait(good, 70_000), None, "nobody else");
    }
}
