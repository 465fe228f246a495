//! Overrides of single clients, the secrets of keys, and approvals: their bodies and calls.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    Changed, ClientObject, KeyObject, LimitBody, NewKey, Page, PlansClient, client_path, key_path,
};
use crate::client::{Call, ClientError, Method, segment};
use crate::key::KeyEnv;

/// A client's own limits as the API shows them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OverrideBody {
    /// Burst limit in place of the plan's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<LimitBody>,
    /// Sustained limit in place of the plan's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sustained: Option<LimitBody>,
    /// Failure policy in place of the plan's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Why.
    pub reason: String,
    /// Until then, in milliseconds since 1970.
    pub expires_at: u64,
}

/// `POST /v1/keys:import`: one key that was made elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ImportedKey {
    /// SHA-256 of the whole key, 64 hex digits.
    pub sha256: String,
    /// Whose it is.
    pub client: String,
    /// What it is for.
    #[serde(default)]
    pub env: KeyEnv,
    /// Until when it opens, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<u64>,
}

/// Its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Imported {
    /// The newest revision after it.
    pub revision: u64,
    /// The keys, in the order of the body; one that was there already is unchanged.
    pub items: Vec<KeyObject>,
}

/// `GET /v1/keys/{id}/usage`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeyUsage {
    /// The key.
    pub id: String,
    /// Its secrets, the newest first.
    pub secrets: Vec<SecretObject>,
}

/// A secret of a key, without what would tell it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SecretObject {
    /// `weir`, or `sha256` for an imported one.
    pub algorithm: String,
    /// When it was made, in milliseconds since 1970.
    pub created_at: u64,
    /// Until when it opens beside its successor.
    pub valid_until: Option<u64>,
    /// When a gateway last saw it; to the minute.
    pub last_used_at: Option<u64>,
}

/// What somebody asked for and another person has to accept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Approval {
    /// Its id.
    pub id: String,
    /// What would be done, as `set all enforce`.
    pub command: String,
    /// Kind of the object.
    pub kind: String,
    /// Its id.
    pub subject: String,
    /// Why it is asked for.
    pub reason: String,
    /// What the evidence said when it was asked for.
    pub evidence: Value,
    /// Whose token asked.
    pub requested_by: String,
    /// When, in milliseconds since 1970.
    pub requested_at: u64,
    /// Unanswered it ends then.
    pub expires_at: u64,
    /// How it stands.
    pub state: ApprovalState,
    /// Whose token answered.
    #[serde(default)]
    pub decided_by: Option<String>,
    /// When.
    #[serde(default)]
    pub decided_at: Option<u64>,
}

/// How an approval stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ApprovalState {
    /// Nobody has answered.
    Open,
    /// Done.
    Accepted,
    /// Not done.
    Refused,
    /// Nobody answered in time.
    Expired,
}

/// What is valid in a plan and most likely not meant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PlanFinding {
    /// The plan.
    pub plan: String,
    /// Where in it.
    pub field: String,
    /// What.
    pub finding: String,
}

impl PlansClient {
    /// Gives a client limits of its own; `body` has any of `burst`, `sustained`, `failure`, and
    /// `expires_at`. Without a revision, whatever the client is like.
    pub async fn put_override(
        &self,
        client: &str,
        body: &Value,
        reason: &str,
        if_match: Option<u64>,
    ) -> Result<Changed<ClientObject>, ClientError> {
        let path = format!("{}/override", client_path(client));
        let call = Call::new(Method::PUT, path).json(body).query("reason", reason);
        self.http.send(call.if_match_or_insist(if_match)).await
    }

    /// Takes them away.
    pub async fn delete_override(
        &self,
        client: &str,
        reason: &str,
    ) -> Result<Changed<ClientObject>, ClientError> {
        let path = format!("{}/override", client_path(client));
        let call = Call::new(Method::DELETE, path).query("reason", reason);
        self.http.send(call.if_match_or_insist(None)).await
    }

    /// Clients with limits of their own now.
    pub async fn overridden_clients(&self) -> Result<Vec<ClientObject>, ClientError> {
        self.all_pages("/v1/clients", &[("overridden", "true")]).await
    }

    /// Another secret for a key; the present one ends after `overlap_ms`, at once for 0.
    pub async fn rotate_key(
        &self,
        id: &str,
        overlap_ms: Option<u64>,
        reason: &str,
    ) -> Result<NewKey, ClientError> {
        let body = match overlap_ms {
            Some(overlap_ms) => json!({ "overlap_ms": overlap_ms }),
            None => json!({}),
        };
        let call = Call::post(format!("{}:rotate", key_path(id)), &body).query("reason", reason);
        self.http.send(call.if_match_or_insist(None)).await
    }

    /// Takes over keys that were made elsewhere, by their SHA-256; all or none.
    pub async fn import_keys(
        &self,
        keys: &[ImportedKey],
        reason: &str,
    ) -> Result<Imported, ClientError> {
        let call = Call::post("/v1/keys:import", &json!({ "keys": keys }));
        self.http.send(call.query("reason", reason)).await
    }

    /// When a key's secrets were last used.
    pub async fn key_usage(&self, id: &str) -> Result<KeyUsage, ClientError> {
        self.http.send(Call::get(format!("{}/usage", key_path(id)))).await
    }

    /// What is valid in a plan and most likely not meant.
    pub async fn lint_plan(&self, name: &str) -> Result<Vec<PlanFinding>, ClientError> {
        let path = format!("/v1/plans/{}/lint", segment(name));
        let found: Page<PlanFinding> = self.http.send(Call::get(path)).await?;
        Ok(found.items)
    }

    /// All approvals that are kept.
    pub async fn approvals(&self) -> Result<Vec<Approval>, ClientError> {
        self.all_pages("/v1/approvals", &[]).await
    }

    /// One approval.
    pub async fn approval(&self, id: &str) -> Result<Approval, ClientError> {
        self.http.send(Call::get(format!("/v1/approvals/{}", segment(id)))).await
    }

    /// Does what somebody else asked for.
    pub async fn accept(&self, id: &str, reason: &str) -> Result<Approval, ClientError> {
        self.verb(format!("/v1/approvals/{}:accept", segment(id)), reason).await
    }

    /// Ends it without doing it.
    pub async fn refuse(&self, id: &str, reason: &str) -> Result<Approval, ClientError> {
        self.verb(format!("/v1/approvals/{}:refuse", segment(id)), reason).await
    }
}
