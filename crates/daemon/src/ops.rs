//! The operations port: is it alive, is it ready, what does it count, what was it built from.
//!
//! A service merges its own routes into [`router`]. [`serve`] ends when the drain starts and what
//! was begun is answered, at the latest after the deadline.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use axum::serve::ListenerExt;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use self::unanswered::Answering;
use crate::drain::Drain;
use crate::metrics::{CONTENT_TYPE, Metrics};

mod unanswered; // connections that nobody should wait on

/// Whether a process wants traffic, and why (not).
#[derive(Debug, Clone, PartialEq)]
pub struct Readiness {
    /// Send traffic.
    pub ready: bool,
    /// Shown to people.
    pub detail: Value,
}

impl Readiness {
    /// Ready, with something to show.
    pub fn yes(detail: Value) -> Readiness {
        Readiness { ready: true, detail }
    }

    /// Not ready, and why.
    pub fn no(detail: Value) -> Readiness {
        Readiness { ready: false, detail }
    }
}

/// `/livez`, `/readyz`, `/metrics` and `/buildz`.
pub fn router<S>(
    program: &'static str,
    metrics: Metrics,
    ready: impl Fn() -> Readiness + Send + Sync + 'static,
) -> Router<S>
where
    S: Clone + Send + Sync + 'static,
{
    let ready = Arc::new(ready);
    let build = json!({ "program": program, "version": env!("CARGO_PKG_VERSION") });
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(move || std::future::ready(readyz(&ready()))))
        .route(
            "/metrics",
            get(move || {
                std::future::ready(([(header::CONTENT_TYPE, CONTENT_TYPE)], metrics.render()))
            }),
        )
        .route("/buildz", get(move || std::future::ready(Json(build.clone()))))
}

fn readyz(readiness: &Readiness) -> Response {
    let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = json!({ "ready": readiness.ready, "detail": readiness.detail });
    (status, Json(body)).into_response()
}

/// Serves `router` until the drain; handlers may ask for `ConnectInfo<SocketAddr>`.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    drain: &Drain,
    deadline: Duration,
) -> std::io::Result<()> {
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    // The tap does nothing; it is what `ConnectInfo` knows besides a bare listener.
    let listener = Answering(listener).tap_io(|_connection| {});
    let server = axum::serve(listener, service).with_graceful_shutdown(drain.started());
    let late = async {
        drain.started().await;
        tokio::time::sleep(deadline).await;
    };
    tokio::select! {
        ended = server.into_future() => ended,
        () = late => {
            tracing::warn!(?deadline, "gave up waiting for open requests");
            Ok(())
        }
    }
}
