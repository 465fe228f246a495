//! The evidence for enforcing: what the edge decided, what the services decided, and how far the
//! two agree.
//!
//! A *pair* is one request of a client in phase shadow of which both decisions are known. The pair
//! is a *disagreement* when they differ. A request whose service half is not known is *unpaired*,
//! and one that the edge decided degraded is *undecided*: neither is ever agreement. Otherwise a
//! service that stopped limiting in a way we recognise, or a store that was down, would open the
//! gate. Decisions that never arrived count as disagreements, since nobody saw them agree.
//!
//! Nothing here decides about a phase: plans-api does, from the report. Nothing is sampled: the
//! number rests on exact tallies; records are for explaining single requests.

mod batch; // what a gateway may say
mod boot; // what of a process is missing
mod tally; // exact sums
mod recent; // records to explain requests
mod book; // all of that together, in memory
mod gate; // the raw number
mod store; // the database
mod keeper; // the one that writes
mod evidence; // start here: what can be posted and asked
mod config;
mod http;
mod metrics;
#[cfg(test)]
mod testing;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use daemon::sql::Database;
use daemon::{Context, Failure};
use limiter_core::SystemClock;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::config::Config;
use crate::evidence::Shared;
use crate::http::auth::Tokens;
use crate::metrics::EvidenceMetrics;
use crate::store::claim::{Claim, ClaimError};
use crate::store::sql::SqlStore;

pub use crate::config::Settings;

/// How long open calls may take after the drain began.
const DRAIN_DEADLINE: Duration = Duration::from_secs(10);
/// How often the claim on the database is looked after.
const CLAIM_LOOK: Duration = Duration::from_secs(10);

/// The program `weir-shadow-compare`.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    daemon::run("weir-shadow-compare", args, serve)
}

/// Runs until the drain; announces `api`.
pub async fn serve(settings: Settings, context: Context) -> Result<(), Failure> {
    let config = Config::load(settings)?;
    let database = Database::open(&config.database).await.map_err(Failure::other)?;
    let claim = Claim::take(&config.database, &database).await.map_err(Failure::other)?;
    let store = SqlStore::take_over(database.clone(), instance()?).await.map_err(Failure::other)?;
    let metrics = EvidenceMetrics::default();
    metrics.register(&context.metrics);
    let shared = Shared::new(store, Arc::new(SystemClock::new()), metrics);
    let (keeper, evidence) =
        keeper::open(shared, config.settle_every).await.map_err(Failure::other)?;

    let listener = TcpListener::bind(config.listen).await.map_err(Failure::other)?;
    let address = listener.local_addr().map_err(Failure::other)?;
    let tokens = Tokens::new(config.gateways, config.gateway_tokens_file, config.control);
    let follow = tokens.clone().follow_file(context.drain.clone());
    context.tasks.spawn("gateway-tokens", follow);
    let router = http::router(&evidence, tokens, context.metrics.clone());
    context.announce("api", address);
    context.ready();

    let (stop, stopped) = oneshot::channel();
    let server = async {
        let ended = daemon::ops::serve(listener, router, &context.drain, DRAIN_DEADLINE).await;
        drop(stop);
        ended
    };
    let kept = keeper.run(stopped);
    tokio::pin!(server, kept);
    let ended = tokio::select! {
        served = &mut server => kept.await.map_err(Failure::other).and(served.map_err(Failure::other)),
        failed = &mut kept => failed.map_err(Failure::other),
        lost = look_after(claim) => Err(Failure::other(lost)),
    };
    database.close().await;
    ended
}

/// Ends only when the claim is lost.
async fn look_after(mut claim: Claim) -> ClaimError {
    loop {
        tokio::time::sleep(CLAIM_LOOK).await;
        match claim.hold().await {
            Ok(()) => {}
            Err(ClaimError::Taken) => return ClaimError::Taken,
            // Nobody can write there now, and whoever takes over is noticed at the next write.
            Err(error @ (ClaimError::Database(_) | ClaimError::File(..))) => {
                tracing::warn!(%error, "the claim on the database cannot be looked after");
            }
        }
    }
}

/// A name for this process.
fn instance() -> Result<String, Failure> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(Failure::other)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
