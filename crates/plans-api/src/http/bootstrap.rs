//! `/v1/bootstrap`: the policy and all keys by hash, for a file that gateways start with.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use wire::client::plans::BootstrapPage;
use wire::key::KeyHash;

use super::ask::{Ask, bad_request};
use super::error::ApiError;
use super::{App, answer};
use crate::store::LIVE_MS;

pub(super) async fn page(State(app): State<Arc<App>>, ask: Ask) -> Result<Response, ApiError> {
    ask.only(&["cursor"])?;
    let after = match ask.param("cursor") {
        None => None,
        Some(text) => match KeyHash::from_hex(text) {
            Some(hash) => Some(hash),
            None => return Err(bad_request("the cursor is none that was given out")),
        },
    };
    // the policy first: keys of a later revision are harmless, of an earlier one they would not be
    let policy = match after {
        Some(_) => None,
        None => {
            let now = app.clock.now().us() / 1_000;
            let live = app.store.gateways_since(now.saturating_sub(LIVE_MS)).await?;
            Some(app.store.snapshot(app.live.observe(now, live)).await?)
        }
    };
    let (keys, next) = app.store.keys_by_hash(after).await?;
    answer(&BootstrapPage { policy, keys, next: next.map(|hash| hash.to_hex()) }, None)
}
