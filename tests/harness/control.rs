//! What an operator says to plans-api: plans, clients, keys, phases. Plain bodies, so that what
//! the API promises is tested here as a stranger would use it.

use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};
use wire::client::{Call, Client, ClientError, Method, segment};
use wire::policy::SafetyLimits;

use crate::process::eventually;

/// The rollout that tests and experiments move.
pub const ROLLOUT: &str = "edge";
const REASON: &str = "harness";
/// How long every gateway may take to apply a change; the promise is far below it.
pub const APPLY_MAX: Duration = Duration::from_secs(10);

/// plans-api with an operator's token.
#[derive(Debug, Clone)]
pub struct Control {
    client: Client,
}

impl Control {
    /// `base` is the address of plans-api.
    pub fn new(base: &str, token: &str) -> anyhow::Result<Control> {
        Ok(Control { client: Client::new(base, Some(token))? })
    }

    /// The address of plans-api.
    pub fn base(&self) -> &str {
        self.client.base()
    }

    /// Any call.
    pub async fn call(&self, call: Call) -> Result<Value, ClientError> {
        self.client.send(call).await
    }

    /// A read.
    pub async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.client.send(Call::get(path)).await.with_context(|| path.to_owned())
    }

    async fn change(&self, method: Method, path: &str, body: &Value) -> anyhow::Result<Value> {
        let call = Call::new(method, path).query("reason", REASON).json(body);
        let call = call.if_match_or_insist(None);
        self.client.send(call).await.with_context(|| format!("{path} {body}"))
    }

    /// A new operator token with `role`.
    pub async fn create_token(&self, name: &str, role: &str) -> anyhow::Result<String> {
        let body = json!({ "name": name, "role": role });
        let answer = self.change(Method::POST, "/v1/tokens", &body).await?;
        let token = answer.get("token").and_then(Value::as_str);
        Ok(token.with_context(|| format!("no token in {answer}"))?.to_owned())
    }

    /// Creates or replaces a plan; the revision.
    pub async fn put_plan(&self, name: &str, plan: &Value) -> anyhow::Result<u64> {
        let path = format!("/v1/plans/{}", segment(name));
        revision(&self.change(Method::PUT, &path, plan).await?)
    }

    /// Creates or replaces a client; the revision.
    pub async fn put_client(&self, id: &str, plan: &str) -> anyhow::Result<u64> {
        let path = format!("/v1/clients/{}", segment(id));
        revision(&self.change(Method::PUT, &path, &json!({ "plan": plan })).await?)
    }

    /// A new API key: its id and the secret text.
    pub async fn create_key(&self, client: &str) -> anyhow::Result<(String, String)> {
        let body = json!({ "client": client });
        let answer = self.change(Method::POST, "/v1/keys", &body).await?;
        let key = answer.get("key").and_then(Value::as_str);
        let id = answer.pointer("/object/id").and_then(Value::as_str);
        let (id, key) = id.zip(key).context("no key in the answer")?;
        Ok((id.to_owned(), key.to_owned()))
    }

    /// Revokes a key; the revision.
    pub async fn revoke_key(&self, id: &str) -> anyhow::Result<u64> {
        let path = format!("/v1/keys/{}:revoke", segment(id));
        revision(&self.change(Method::POST, &path, &json!({})).await?)
    }

    /// Fills a client's bucket; the revision.
    pub async fn reset_limit(&self, client: &str) -> anyhow::Result<u64> {
        let path = format!("/v1/clients/{}/limit:reset", segment(client));
        revision(&self.change(Method::POST, &path, &json!({})).await?)
    }

    /// Moves everybody whom no other rule names.
    pub async fn set_all(&self, phase: &str) -> Result<Value, ClientError> {
        self.set(json!({ "all": true, "phase": phase, "reason": REASON })).await
    }

    /// Moves single clients.
    pub async fn set_clients(&self, clients: &[String], phase: &str) -> Result<Value, ClientError> {
        self.set(json!({ "clients": clients, "phase": phase, "reason": REASON })).await
    }

    async fn set(&self, body: Value) -> Result<Value, ClientError> {
        let call = Call::post(format!("/v1/rollouts/{ROLLOUT}:set"), &body);
        self.client.send(call.if_match_or_insist(None)).await
    }

    /// Back to shadow, at once.
    pub async fn rollback(&self) -> anyhow::Result<u64> {
        let path = format!("/v1/rollouts/{ROLLOUT}:rollback");
        revision(&self.change(Method::POST, &path, &json!({ "reason": REASON })).await?)
    }

    /// What services keep.
    pub async fn safety_limits(&self) -> anyhow::Result<SafetyLimits> {
        Ok(self.client.send(Call::get("/v1/safety-limits")).await?)
    }

    /// Gateways with the revision that each has applied.
    pub async fn applied(&self) -> anyhow::Result<Vec<(String, u64)>> {
        let answer = self.get("/v1/gateways").await?;
        let items = answer.get("items").and_then(Value::as_array).context("no items")?;
        let one = |item: &Value| {
            let id = item.get("id")?.as_str()?.to_owned();
            Some((id, item.get("applied")?.as_u64()?))
        };
        Ok(items.iter().filter_map(one).collect())
    }

    /// Waits until each of `gateways` gateways has applied `revision`.
    pub async fn wait_applied(&self, gateways: usize, revision: u64) -> anyhow::Result<()> {
        let what = format!("revision {revision} on {gateways} gateways");
        eventually(&what, APPLY_MAX, || async {
            let applied = self.applied().await?;
            let done = applied.iter().filter(|(_, applied)| *applied >= revision).count();
            Ok((done >= gateways).then_some(()))
        })
        .await
    }
}

/// The revision of an answer to a change.
pub fn revision(answer: &Value) -> anyhow::Result<u64> {
    answer
        .get("revision")
        .and_then(Value::as_u64)
        .with_context(|| format!("no revision in {answer}"))
}

/// A plan of one bucket, as a body.
pub fn plan(capacity: u64, refill: &str, failure: &str) -> Value {
    json!({ "burst": { "capacity": capacity, "refill": refill }, "failure": failure })
}
