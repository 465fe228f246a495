//! The process: claims the database, opens the evidence, serves until the drain, and lets the
//! keeper finish what it has begun.

use std::sync::Arc;
use std::time::Duration;

use daemon::sql::Database;
use daemon::{Context, Failure};
use limiter_core::SystemClock;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::config::{Config, Settings};
use crate::evidence::Shared;
use crate::http::auth::Tokens;
use crate::metrics::EvidenceMetrics;
use crate::store::claim::{Claim, ClaimError};
use crate::store::sql::SqlStore;
use crate::{http, keeper};

/// How long open calls may take after the drain began.
const DRAIN_DEADLINE: Duration = Duration::from_secs(10);
/// How often the claim on the database is looked after.
const CLAIM_LOOK: Duration = Duration::from_secs(10);

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
