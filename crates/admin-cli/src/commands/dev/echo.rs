//! Answers where there is no service yet: who called and what arrived, as a service behind the
//! gateway sees it.

use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::response::Json;
use daemon::{Context, Failure};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::parts::{self, Part};

/// How long open answers may take at the end.
const END: Duration = Duration::from_secs(1);

pub(super) async fn start() -> Result<Part, Failure> {
    parts::start("echo", serve).await
}

async fn serve(context: Context) -> Result<(), Failure> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(Failure::other)?;
    context.announce("echo", listener.local_addr().map_err(Failure::other)?);
    context.ready();
    let router = Router::new().fallback(answer);
    daemon::ops::serve(listener, router, &context.drain, END).await.map_err(Failure::other)
}

async fn answer(request: Request) -> Json<Value> {
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
    Json(json!({
        "service": "echo",
        "method": request.method().as_str(),
        "path": request.uri().path(),
        "client": header("x-weir-client"),
        "plan": header("x-weir-plan"),
        "request_id": header("x-request-id"),
    }))
}
