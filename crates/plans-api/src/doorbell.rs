//! Wakes whoever waits for changes: at once in this process, by a notification from another one
//! over Postgres, and by reading the head each second whatever happens. Beside it, after a write that
//! failed, one is tried each second: whoever is not ready may not be asked to write.
//!
//! A notification is only a doorbell and carries nothing. When its connection is lost, the order is
//! LISTEN first, then read the head: a change made in between is either heard or read, never lost.

use std::time::Duration;

use daemon::Context;
use daemon::log::chain;
use daemon::sql::PgListener;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use crate::metrics::Metrics;
use crate::store::{CHANNEL, PlanStore};

/// How often the head is read in any case.
const HEAD_EVERY: Duration = Duration::from_secs(1);
/// How often a write is tried after one that failed.
const WRITE_AGAIN: Duration = Duration::from_secs(1);
/// How long after a failed attempt to listen the next one comes.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);
/// How often old changes are forgotten.
const FORGET_EVERY: Duration = Duration::from_secs(3_600);

/// Starts the background work of the store.
pub(crate) fn start(store: &PlanStore, metrics: &Metrics, context: &Context) {
    let heads = read_heads(store.clone(), metrics.clone());
    let rings = hear_rings(store.clone(), metrics.clone());
    let forget = forget(store.clone());
    for (name, work) in [
        ("head", Box::pin(heads) as std::pin::Pin<Box<dyn Future<Output = ()> + Send>>),
        ("doorbell", Box::pin(rings)),
        ("write-again", Box::pin(write_again(store.clone()))),
        ("forget-changes", Box::pin(forget)),
    ] {
        let begun = context.drain.started();
        context.tasks.spawn(name, async move {
            tokio::select! {
                () = work => {}
                () = begun => {}
            }
        });
    }
}

async fn read_heads(store: PlanStore, metrics: Metrics) {
    let mut every = interval(HEAD_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        read_head(&store, &metrics).await;
        if let Ok(missing) = store.missing_migrations().await {
            metrics.migrations_missing.set(missing);
        }
    }
}

async fn read_head(store: &PlanStore, metrics: &Metrics) {
    match store.reread().await {
        Ok(revision) => metrics.saw_revision(revision),
        Err(error) => tracing::warn!(error = %chain(&error), "cannot read the head"),
    }
}

async fn write_again(store: PlanStore) {
    let mut every = interval(WRITE_AGAIN);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        if store.unwritable().is_none() {
            continue;
        }
        match store.try_write().await {
            Ok(()) => tracing::info!("the database takes writes again"),
            Err(error) => tracing::warn!(error = %chain(&error), "the database takes no writes"),
        }
    }
}

async fn hear_rings(store: PlanStore, metrics: Metrics) {
    loop {
        let next_attempt = Instant::now() + LISTEN_AGAIN;
        match store.database().listen(CHANNEL).await {
            Ok(None) => {
                metrics.listening.set(1); // SQLite: nobody else writes
                return;
            }
            Ok(Some(listener)) => {
                metrics.listening.set(1);
                read_head(&store, &metrics).await;
                listen(listener, &store, &metrics).await;
                metrics.listening.set(0);
                metrics.doorbell_lost.inc();
                tracing::warn!("the doorbell's connection was lost; listening again");
            }
            Err(error) => tracing::warn!(error = %chain(&error), "cannot listen for changes"),
        }
        sleep_until(next_attempt).await;
    }
}

/// Hears until the connection is lost. One that is silent is replaced now and then: a dead peer
/// says nothing either, and listening anew costs little.
async fn listen(mut listener: PgListener, store: &PlanStore, metrics: &Metrics) {
    const SILENT_MAX: Duration = Duration::from_secs(300);
    listener.eager_reconnect(false);
    loop {
        match timeout(SILENT_MAX, listener.try_recv()).await {
            Ok(Ok(Some(_ring))) => read_head(store, metrics).await,
            Ok(Ok(None) | Err(_)) | Err(_) => return,
        }
    }
}

async fn forget(store: PlanStore) {
    let mut every = interval(FORGET_EVERY);
    loop {
        every.tick().await;
        match store.forget_old_changes().await {
            Ok(0) => {}
            Ok(changes) => tracing::info!(changes, "forgot old changes"),
            Err(error) => tracing::warn!(error = %chain(&error), "cannot forget old changes"),
        }
    }
}
