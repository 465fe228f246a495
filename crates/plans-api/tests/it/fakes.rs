//! A shadow-compare that answers what the test says, and a gateway's operations port.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Json;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use wire::gate::GateReport;

pub(crate) const CONTROL_TOKEN: &str = "control-secret";

#[derive(Clone, Default)]
pub(crate) struct FakeShadow {
    pub(crate) report: Arc<Mutex<GateReport>>,
    pub(crate) asked: Arc<Mutex<Vec<Value>>>,
}

impl FakeShadow {
    pub(crate) async fn start(&self) -> String {
        let router = Router::new()
            .route("/v1/gate", post(gate))
            .route("/v1/clients/top", get(top))
            .with_state(self.clone());
        format!("http://{}", listen(router).await)
    }

    pub(crate) fn say(&self, pairs: u64, disagreements: u64, lost: u64) {
        *self.report.lock().unwrap() =
            GateReport { pairs, disagreements, lost, ..GateReport::default() };
    }
}

async fn gate(
    State(fake): State<FakeShadow>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Response {
    if !knows_the_secret(&headers) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    fake.asked.lock().unwrap().push(body);
    Json(fake.report.lock().unwrap().clone()).into_response()
}

async fn top(headers: HeaderMap) -> Response {
    if !knows_the_secret(&headers) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let line = json!({
        "client": "acme", "phase": "shadow", "requests": 9, "would_deny": 4,
        "pairs": 8, "disagreements": 1,
    });
    Json(json!({ "items": [line] })).into_response()
}

fn knows_the_secret(headers: &HeaderMap) -> bool {
    headers["authorization"] == format!("Bearer {CONTROL_TOKEN}").as_str()
}

pub(crate) const OPERATIONS_TOKEN: &str = "operations-secret";

/// A gateway that reads the bucket of everybody but `stranger`.
pub(crate) async fn operations_port() -> String {
    let router = Router::new().route(
        "/limits/{client}",
        get(|Path(client): Path<String>, uri: Uri, headers: HeaderMap| async move {
            let told = uri.query().unwrap_or_default();
            assert!(told.contains("plan=") && told.contains("revision="), "{told}");
            assert_eq!(headers["authorization"], format!("Bearer {OPERATIONS_TOKEN}").as_str());
            let own = told.contains("override=%7B%22burst%22");
            let capacity = if own { 50 } else { 10 };
            Json(json!({ "client": client, "burst": { "level": 7, "capacity": capacity } }))
        }),
    );
    format!("http://{}", listen(router).await)
}

async fn listen(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    daemon::tasks::spawn("fake", async move {
        axum::serve(listener, router).await.unwrap();
    });
    address
}
