//! Where the policy comes from, and the port behind which a control plane is asked.
//!
//! The port speaks wire bodies, so a test can be a control plane in a few lines. Whatever goes
//! wrong here, the last good policy stays in force.

pub(crate) mod file; // a standalone gateway's own file
pub(crate) mod http; // a control plane's snapshot and feed
mod pace; // how often it is asked

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use wire::client::ClientError;
use wire::client::plans::PlansClient;
use wire::error::ErrorCode;
use wire::policy::{FeedAnswer, FeedRequest, LookupAnswer, LookupRequest, Snapshot};

/// Longest time that one look-up call may take; whoever waits for it may wait less.
const LOOKUP_DEADLINE: Duration = Duration::from_secs(5);

/// A call under way. Boxed: none of these is on the path of a known key.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What an edge asks of a control plane.
pub trait ControlPlane: Send + Sync + 'static {
    /// The whole policy.
    fn snapshot(&self) -> Pending<'_, Result<Snapshot, FeedError>>;

    /// What changed, held back by the other side until something has.
    fn feed<'a>(&'a self, request: &'a FeedRequest) -> Pending<'a, Result<FeedAnswer, FeedError>>;

    /// Who holds these keys.
    fn lookup<'a>(
        &'a self,
        request: &'a LookupRequest,
    ) -> Pending<'a, Result<LookupAnswer, LookupError>>;
}

/// Why a snapshot or feed call brought nothing.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// The other side no longer has what we would need: read the snapshot.
    #[error("the change log no longer reaches back to our revision")]
    HistoryGone,
    /// Try again later.
    #[error("the control plane gives no policy")]
    Away(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// A look-up that nobody answered.
#[derive(Debug, thiserror::Error)]
#[error("the control plane does not tell who holds a key")]
pub struct LookupError(#[source] pub Box<dyn std::error::Error + Send + Sync>);

impl ControlPlane for PlansClient {
    fn snapshot(&self) -> Pending<'_, Result<Snapshot, FeedError>> {
        Box::pin(async { PlansClient::snapshot(self).await.map_err(FeedError::from) })
    }

    fn feed<'a>(&'a self, request: &'a FeedRequest) -> Pending<'a, Result<FeedAnswer, FeedError>> {
        Box::pin(async { PlansClient::feed(self, request).await.map_err(FeedError::from) })
    }

    fn lookup<'a>(
        &'a self,
        request: &'a LookupRequest,
    ) -> Pending<'a, Result<LookupAnswer, LookupError>> {
        Box::pin(async {
            let answer = PlansClient::lookup(self, request.hashes.clone(), LOOKUP_DEADLINE).await;
            answer.map_err(|error| LookupError(Box::new(error)))
        })
    }
}

impl From<ClientError> for FeedError {
    fn from(error: ClientError) -> FeedError {
        match error.refused().map(|body| body.code) {
            Some(ErrorCode::HistoryGone) => FeedError::HistoryGone,
            Some(_) | None => FeedError::Away(Box::new(error)),
        }
    }
}

/// Where the policy comes from.
#[derive(Clone)]
pub enum PolicySource {
    /// A control plane.
    ControlPlane(Arc<dyn ControlPlane>),
    /// The gateway's own file.
    File(file::FilePolicy),
}

impl std::fmt::Debug for PolicySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PolicySource::ControlPlane(_) => f.write_str("ControlPlane"),
            PolicySource::File(policy) => f.debug_tuple("File").field(&policy.revision).finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::error::ErrorBody;

    #[test]
    fn only_a_gone_history_asks_for_the_snapshot() {
        let refused = |code| ClientError::Refused(Box::new(ErrorBody::new(code, "told to be")));
        let gone = FeedError::from(refused(ErrorCode::HistoryGone));
        assert!(matches!(gone, FeedError::HistoryGone));
        let away = FeedError::from(refused(ErrorCode::TokenInvalid));
        assert!(matches!(away, FeedError::Away(_)));
    }
}
