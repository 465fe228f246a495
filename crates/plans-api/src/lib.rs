//! The control plane: plans, clients, API keys and the rollout, and how every gateway learns them.
//!
//! A change is one transaction: row, change, audit, head. The revision is the head row plus one,
//! taken under its lock, so revisions have no gaps and become visible in order. Gateways get a
//! whole snapshot once and then whole values by revision, never rows: a gateway that missed
//! something asks again from where it stands, and two gateways with one revision decide alike.
//!
//! Nothing here is on the path of a request whose key a gateway has seen before; this process may
//! be gone for days. It decides nothing about single requests, and stores no secret that opens.

mod config; // flags and settings
mod model; // what can be written, checked
pub mod store; // one transaction for each use case
mod doorbell; // who waits for changes is woken
mod live; // how many gateways there are
mod auth; // operator token → caller and role
mod gate; // the number, and whether it allows the step
mod ready; // /readyz
mod metrics; // what is counted
mod http; // the routes

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use daemon::ops;
use daemon::{Context, Failure};
use limiter_core::{Clock, SystemClock};
use tokio::net::TcpListener;

pub use config::{Flags, Settings, ShadowCompare};
pub use http::{CODES, Needs, ROUTES, Route};

use crate::auth::{Auth, Tell};
use crate::http::App;
use crate::store::PlanStore;

/// How long open requests may take after the drain has begun.
const DRAIN_DEADLINE: Duration = Duration::from_secs(10);

/// The whole program.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    daemon::run("weir-plans-api", args, |flags: Flags, context| async move {
        serve_and_tell(flags.check()?, context, Tell::People).await
    })
}

/// Serves until the drain. A program around it reads the bootstrap token from its file; without a
/// file it is printed.
pub async fn serve(settings: Settings, context: Context) -> Result<(), Failure> {
    let tell = match settings.bootstrap_token_file {
        Some(_) => Tell::FileOnly,
        None => Tell::People,
    };
    serve_and_tell(settings, context, tell).await
}

async fn serve_and_tell(settings: Settings, context: Context, tell: Tell) -> Result<(), Failure> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let pepper = config::pepper(&settings.state_dir)?;
    let store = PlanStore::open(&settings.database, &pepper.id(), Arc::clone(&clock))
        .await
        .map_err(Failure::other)?;
    auth::bootstrap(&store, settings.bootstrap_token_file.as_deref(), tell).await?;
    let listener = TcpListener::bind(settings.listen).await.map_err(|error| {
        Failure::Settings(vec![format!("--listen: cannot bind {}: {error}", settings.listen)])
    })?;
    let address = listener.local_addr().map_err(Failure::other)?;

    let metrics = metrics::Metrics::register(&context.metrics);
    doorbell::start(&store, &metrics, &context);
    let live = live::LiveGateways::default();
    let now = clock.now().us() / 1_000;
    let lately = store.gateways_since(now.saturating_sub(live::WINDOW_MS)).await;
    live.observe(now, lately.map_err(Failure::other)?);
    let (counted, told) = (metrics.clone(), Arc::clone(&clock));
    let app = Arc::new(App {
        auth: Auth::new(store.clone(), Arc::clone(&clock)),
        evidence: settings.shadow_compare.as_ref().map(gate::Evidence::new).transpose()?,
        operations_token: settings.operations_token,
        live,
        drain: context.drain.clone(),
        store: store.clone(),
        pepper,
        metrics,
        clock,
        state_dir: settings.state_dir,
    });
    let seen = store.clone();
    let ready = move || ready::of(&seen, &counted, &told);
    let router =
        ops::router("weir-plans-api", context.metrics.clone(), ready).merge(http::router(app));
    context.announce("api", address);
    context.ready();
    ops::serve(listener, router, &context.drain, DRAIN_DEADLINE).await.map_err(Failure::other)?;
    store.close().await;
    Ok(())
}
