//! Typed client of shadow-compare, and the bodies that only its callers and it exchange. A
//! gateway's token posts batches and nothing else; the control token asks and posts none.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Call, Client, ClientError, segment};
use crate::batch::{Batch, BatchAck, Explanation, TopClient};
use crate::gate::GateReport;
use crate::rollout::RolloutValue;

/// Most clients in a list of top clients.
pub const TOP_MAX: u32 = 500;
/// Longest window in minutes: a day.
pub const WINDOW_MINUTES_MAX: u32 = 24 * 60;
/// Window that is used when none is said.
pub const WINDOW_MINUTES_DEFAULT: u32 = 60;
/// How long a report may take.
const REPORT_DEADLINE: Duration = Duration::from_secs(10);

/// `POST /v1/gate`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateRequest {
    /// The rollout whose number is asked for.
    pub rollout: RolloutValue,
}

/// What top clients are ranked by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TopBy {
    /// Requests that the edge denies or would deny.
    #[default]
    WouldDeny,
    /// Pairs in which the decisions differ.
    Disagree,
    /// Requests.
    Requests,
}

impl TopBy {
    /// All of them.
    pub const ALL: [TopBy; 3] = [TopBy::WouldDeny, TopBy::Disagree, TopBy::Requests];

    /// As written in commands and queries.
    pub const fn name(self) -> &'static str {
        match self {
            TopBy::WouldDeny => "would_deny",
            TopBy::Disagree => "disagree",
            TopBy::Requests => "requests",
        }
    }

    /// The one with this name.
    pub fn named(name: &str) -> Option<TopBy> {
        TopBy::ALL.into_iter().find(|by| by.name() == name)
    }
}

/// `GET /v1/clients/top`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopClients {
    /// Most first.
    pub items: Vec<TopClient>,
}

/// `GET /v1/usage`: what one client used, minute by minute. Counted exactly.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// The client.
    pub client: String,
    /// Nothing of the window is missing: no table was full and no batch was lost.
    pub complete: bool,
    /// Minutes with requests, oldest first.
    pub minutes: Vec<UsageMinute>,
}

/// One minute of a client's usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct UsageMinute {
    /// Minutes since 1970.
    pub minute: u64,
    /// Requests.
    pub requests: u64,
    /// Requests that the edge denied or, in phase shadow, would deny.
    pub edge_denied: u64,
    /// Requests rejected at the edge.
    pub rejected: u64,
    /// Requests that a service denied.
    pub service_denied: u64,
    /// Tokens of the requests that the edge allowed.
    pub cost_allowed: u64,
}

/// Talks to one shadow-compare. Clones share the connections.
#[derive(Debug, Clone)]
pub struct ShadowClient {
    http: Client,
}

impl ShadowClient {
    /// At `base`, with a gateway's token or the control token.
    pub fn new(base: &str, token: &str) -> Result<ShadowClient, ClientError> {
        Ok(ShadowClient { http: Client::new(base, Some(token))? })
    }

    /// The shared client below, for calls of another kind.
    pub fn http(&self) -> &Client {
        &self.http
    }

    /// Posts a batch; answered after it is on disk. Posting it again is harmless.
    pub async fn post_batch(
        &self,
        batch: &Batch,
        deadline: Duration,
    ) -> Result<BatchAck, ClientError> {
        self.http.send(Call::post("/v1/batches", batch).deadline(deadline)).await
    }

    /// Posts a batch that is JSON already.
    pub async fn post_batch_bytes(
        &self,
        json: Vec<u8>,
        deadline: Duration,
    ) -> Result<BatchAck, ClientError> {
        let call = Call::new(super::Method::POST, "/v1/batches").bytes(json);
        self.http.send(call.deadline(deadline)).await
    }

    /// The raw number of a rollout.
    pub async fn gate(&self, rollout: &RolloutValue) -> Result<GateReport, ClientError> {
        let body = GateRequest { rollout: rollout.clone() };
        self.http.send(Call::post("/v1/gate", &body).deadline(REPORT_DEADLINE)).await
    }

    /// The top `n` clients over the newest minutes.
    pub async fn top_clients(
        &self,
        by: TopBy,
        n: u32,
        window_minutes: u32,
    ) -> Result<Vec<TopClient>, ClientError> {
        let call = Call::get("/v1/clients/top")
            .query("by", by.name())
            .query("n", n.to_string())
            .query("window_minutes", window_minutes.to_string());
        Ok(self.http.send::<TopClients>(call).await?.items)
    }

    /// One request explained, if its record is still there.
    pub async fn explain(&self, request_id: &str) -> Result<Explanation, ClientError> {
        self.http.send(Call::get(format!("/v1/requests/{}", segment(request_id)))).await
    }

    /// What a client used over the newest minutes.
    pub async fn usage(&self, client: &str, window_minutes: u32) -> Result<Usage, ClientError> {
        let call = Call::get("/v1/usage")
            .query("client", client)
            .query("window_minutes", window_minutes.to_string());
        self.http.send(call).await
    }
}
