//! Typed client of plans-api: one method for each call, and the whole of each list.

mod bodies; // objects and answers
mod catalog; // overrides, secrets of keys, approvals
mod keeping; // audit and backup
mod gateways; // the kill switch, and what gateways report
mod export; // what a bootstrap file is made of

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::{Call, Client, ClientError, Method, segment};
use crate::batch::{Explanation, TopClient};
use crate::key::{KeyEnv, KeyHash};
use crate::policy::{FeedAnswer, FeedRequest, LookupAnswer, LookupRequest, SafetyLimits, Snapshot};
use crate::rollout::Phase;

pub use bodies::{
    Applied, AppliedAction, AppliedChange, ApplyMode, AuditFilter, AuditRow, Changed, ClientObject,
    Gate, GatewayObject, Items, KeyObject, LimitBody, Moved, NewKey, NewToken, Page, PlanObject,
    Restored, Role, RolloutMove, RolloutObject, TokenObject, TopBy, Whom,
};
pub use catalog::{
    Approval, ApprovalState, Imported, ImportedKey, KeyUsage, OverrideBody, PlanFinding,
    SecretObject,
};

pub use export::BootstrapPage;

/// How much longer than its wait a feed call may take.
const FEED_GRACE: Duration = Duration::from_secs(5);

/// Talks to plans-api with one token.
#[derive(Debug, Clone)]
pub struct PlansClient {
    http: Client,
}

fn plan_path(name: &str) -> String {
    format!("/v1/plans/{}", segment(name))
}

fn client_path(id: &str) -> String {
    format!("/v1/clients/{}", segment(id))
}

fn key_path(id: &str) -> String {
    format!("/v1/keys/{}", segment(id))
}

fn rollout_path(name: &str) -> String {
    format!("/v1/rollouts/{}", segment(name))
}

impl PlansClient {
    /// `base` is the API's address.
    pub fn new(base: &str, token: Option<&str>) -> Result<PlansClient, ClientError> {
        Ok(PlansClient { http: Client::new(base, token)? })
    }

    /// The same, but every change is only tried: checked and answered, and nothing of it kept.
    #[must_use]
    pub fn trying(self) -> PlansClient {
        PlansClient { http: self.http.trying() }
    }

    /// The client underneath, for calls that have no method here.
    pub fn http(&self) -> &Client {
        &self.http
    }

    /// Whether it is ready; the detail is for people.
    pub async fn ready(&self) -> Result<Value, ClientError> {
        self.http.send(Call::get("/readyz")).await
    }

    // --- plans

    /// All plans.
    pub async fn plans(&self) -> Result<Vec<PlanObject>, ClientError> {
        self.all_pages("/v1/plans", &[]).await
    }

    /// One plan.
    pub async fn plan(&self, name: &str) -> Result<PlanObject, ClientError> {
        self.http.send(Call::get(plan_path(name))).await
    }

    /// Makes or changes a plan; `body` is what [`crate::plan::PlanSpec::parse`] reads.
    pub async fn put_plan(
        &self,
        name: &str,
        body: &Value,
        reason: &str,
        if_match: Option<u64>,
    ) -> Result<Changed<PlanObject>, ClientError> {
        let call = Call::new(Method::PUT, plan_path(name)).json(body);
        self.http.send(call.query("reason", reason).if_match_or_insist(if_match)).await
    }

    /// Deletes a plan that no client has.
    pub async fn delete_plan(
        &self,
        name: &str,
        reason: &str,
    ) -> Result<Changed<PlanObject>, ClientError> {
        let call = Call::new(Method::DELETE, plan_path(name));
        self.http.send(call.query("reason", reason).if_match_or_insist(None)).await
    }

    // --- clients

    /// All clients.
    pub async fn clients(&self) -> Result<Vec<ClientObject>, ClientError> {
        self.all_pages("/v1/clients", &[]).await
    }

    /// One client.
    pub async fn client(&self, id: &str) -> Result<ClientObject, ClientError> {
        self.http.send(Call::get(client_path(id))).await
    }

    /// Makes or changes a client; `body` is `{"plan", "name"?, "labels"?}`.
    pub async fn put_client(
        &self,
        id: &str,
        body: &Value,
        reason: &str,
        if_match: Option<u64>,
    ) -> Result<Changed<ClientObject>, ClientError> {
        let call = Call::new(Method::PUT, client_path(id)).json(body);
        self.http.send(call.query("reason", reason).if_match_or_insist(if_match)).await
    }

    /// Deletes a client whose keys are revoked.
    pub async fn delete_client(
        &self,
        id: &str,
        reason: &str,
    ) -> Result<Changed<ClientObject>, ClientError> {
        let call = Call::new(Method::DELETE, client_path(id));
        self.http.send(call.query("reason", reason).if_match_or_insist(None)).await
    }

    /// Suspends a client.
    pub async fn suspend(
        &self,
        id: &str,
        reason: &str,
    ) -> Result<Changed<ClientObject>, ClientError> {
        self.verb(format!("{}:suspend", client_path(id)), reason).await
    }

    /// Lets a suspended client call again.
    pub async fn resume(
        &self,
        id: &str,
        reason: &str,
    ) -> Result<Changed<ClientObject>, ClientError> {
        self.verb(format!("{}:resume", client_path(id)), reason).await
    }

    /// How a client's bucket stands, as one live gateway reads it.
    pub async fn inspect_limit(&self, id: &str) -> Result<Value, ClientError> {
        self.http.send(Call::get(format!("{}/limit", client_path(id)))).await
    }

    /// Fills a client's bucket.
    pub async fn reset_limit(
        &self,
        id: &str,
        reason: &str,
    ) -> Result<Changed<ClientObject>, ClientError> {
        self.verb(format!("{}/limit:reset", client_path(id)), reason).await
    }

    // --- keys

    /// All keys, or a client's.
    pub async fn keys(&self, client: Option<&str>) -> Result<Vec<KeyObject>, ClientError> {
        match client {
            Some(client) => self.all_pages("/v1/keys", &[("client", client)]).await,
            None => self.all_pages("/v1/keys", &[]).await,
        }
    }

    /// One key.
    pub async fn key(&self, id: &str) -> Result<KeyObject, ClientError> {
        self.http.send(Call::get(key_path(id))).await
    }

    /// Makes a key; the answer is the only place where it can be seen.
    pub async fn create_key(
        &self,
        client: &str,
        env: KeyEnv,
        expires_at: Option<u64>,
        reason: &str,
    ) -> Result<NewKey, ClientError> {
        let mut body = Map::new();
        body.insert("client".to_owned(), json!(client));
        body.insert("env".to_owned(), json!(env));
        if let Some(at) = expires_at {
            body.insert("expires_at".to_owned(), json!(at));
        }
        self.http.send(Call::post("/v1/keys", &body).query("reason", reason)).await
    }

    /// Ends a key for good.
    pub async fn revoke_key(
        &self,
        id: &str,
        reason: &str,
    ) -> Result<Changed<KeyObject>, ClientError> {
        self.verb(format!("{}:revoke", key_path(id)), reason).await
    }

    /// Ends a key until it is enabled.
    pub async fn disable_key(
        &self,
        id: &str,
        reason: &str,
    ) -> Result<Changed<KeyObject>, ClientError> {
        self.verb(format!("{}:disable", key_path(id)), reason).await
    }

    /// Lets a disabled key open again.
    pub async fn enable_key(
        &self,
        id: &str,
        reason: &str,
    ) -> Result<Changed<KeyObject>, ClientError> {
        self.verb(format!("{}:enable", key_path(id)), reason).await
    }

    // --- apply

    /// Makes plans and clients so, all or nothing: `{"plan": {name: …}, "client": {id: …}}`.
    pub async fn apply(
        &self,
        body: &Value,
        reason: &str,
        mode: ApplyMode,
    ) -> Result<Applied, ClientError> {
        let call = Call::post("/v1/apply", body).query("reason", reason);
        self.http
            .send(match mode {
                ApplyMode::DryRun => call.query("dry_run", "true"),
                ApplyMode::Apply => call,
            })
            .await
    }

    // --- rollouts and evidence

    /// All rollouts.
    pub async fn rollouts(&self) -> Result<Vec<RolloutObject>, ClientError> {
        self.all_pages("/v1/rollouts", &[]).await
    }

    /// One rollout with its history.
    pub async fn rollout(&self, name: &str) -> Result<RolloutObject, ClientError> {
        self.http.send(Call::get(rollout_path(name))).await
    }

    /// Moves clients to a phase.
    pub async fn set_rollout(
        &self,
        name: &str,
        whom: &Whom,
        phase: Phase,
        reason: &str,
    ) -> Result<Moved, ClientError> {
        let body = match whom {
            Whom::All => json!({ "all": true, "phase": phase, "reason": reason }),
            Whom::Clients(clients) => {
                json!({ "clients": clients, "phase": phase, "reason": reason })
            }
        };
        let call = Call::post(format!("{}:set", rollout_path(name)), &body);
        self.http.send(call.if_match_or_insist(None)).await
    }

    /// Moves everybody to shadow (or `to`), without a gate.
    pub async fn roll_back(
        &self,
        name: &str,
        to: Option<Phase>,
        reason: &str,
    ) -> Result<Moved, ClientError> {
        let body = match to {
            Some(to) => json!({ "to": to, "reason": reason }),
            None => json!({ "reason": reason }),
        };
        let call = Call::post(format!("{}:rollback", rollout_path(name)), &body);
        self.http.send(call.if_match_or_insist(None)).await
    }

    /// The number of a rollout, and what it allows.
    pub async fn gate(&self, name: &str) -> Result<Gate, ClientError> {
        self.http.send(Call::get(format!("/v1/gates/{}", segment(name)))).await
    }

    /// The clients that matter most.
    pub async fn shadow_top(&self, by: TopBy, n: u32) -> Result<Vec<TopClient>, ClientError> {
        let call = Call::get("/v1/shadow/clients/top").query("by", by.name());
        let top: Items<TopClient> = self.http.send(call.query("n", n.to_string())).await?;
        Ok(top.items)
    }

    /// One decision explained.
    pub async fn shadow_explain(&self, request_id: &str) -> Result<Explanation, ClientError> {
        let path = format!("/v1/shadow/requests/{}", segment(request_id));
        self.http.send(Call::get(path)).await
    }

    // --- gateways and services

    /// All gateways that ever polled.
    pub async fn gateways(&self) -> Result<Vec<GatewayObject>, ClientError> {
        self.all_pages("/v1/gateways", &[]).await
    }

    /// Waits for changes.
    pub async fn feed(&self, request: &FeedRequest) -> Result<FeedAnswer, ClientError> {
        let deadline = Duration::from_millis(request.wait_ms) + FEED_GRACE;
        self.http.send(Call::post("/v1/feed", request).deadline(deadline)).await
    }

    /// The whole policy.
    pub async fn snapshot(&self) -> Result<Snapshot, ClientError> {
        self.http.send(Call::get("/v1/snapshot")).await
    }

    /// Who shows these keys?
    pub async fn lookup(
        &self,
        hashes: Vec<KeyHash>,
        deadline: Duration,
    ) -> Result<LookupAnswer, ClientError> {
        let request = LookupRequest { hashes };
        self.http.send(Call::post("/v1/keys:lookup", &request).deadline(deadline)).await
    }

    /// What services keep.
    pub async fn safety_limits(&self) -> Result<SafetyLimits, ClientError> {
        self.http.send(Call::get("/v1/safety-limits")).await
    }

    // --- tokens and audit

    /// All operator tokens.
    pub async fn tokens(&self) -> Result<Vec<TokenObject>, ClientError> {
        self.all_pages("/v1/tokens", &[]).await
    }

    /// Makes a token; without `expires_at` the role's default holds.
    pub async fn create_token(
        &self,
        name: &str,
        role: Role,
        expires_at: Option<u64>,
        reason: &str,
    ) -> Result<NewToken, ClientError> {
        let mut body = Map::new();
        body.insert("name".to_owned(), json!(name));
        body.insert("role".to_owned(), json!(role));
        if let Some(at) = expires_at {
            body.insert("expires_at".to_owned(), json!(at));
        }
        self.http.send(Call::post("/v1/tokens", &body).query("reason", reason)).await
    }

    /// Ends a token for good.
    pub async fn revoke_token(
        &self,
        id: &str,
        reason: &str,
    ) -> Result<Changed<TokenObject>, ClientError> {
        self.verb(format!("/v1/tokens/{}:revoke", segment(id)), reason).await
    }

    async fn verb<T: DeserializeOwned>(
        &self,
        path: String,
        reason: &str,
    ) -> Result<T, ClientError> {
        let call = Call::new(Method::POST, path).query("reason", reason);
        self.http.send(call.if_match_or_insist(None)).await
    }

    async fn all_pages<T: DeserializeOwned>(
        &self,
        path: &str,
        filters: &[(&'static str, &str)],
    ) -> Result<Vec<T>, ClientError> {
        let mut items = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let mut call = Call::get(path).query("limit", "500").maybe("cursor", cursor);
            for (name, value) in filters {
                call = call.query(name, *value);
            }
            let page: Page<T> = self.http.send(call).await?;
            items.extend(page.items);
            match page.next {
                Some(next) => cursor = Some(next),
                None => return Ok(items),
            }
        }
    }
}
