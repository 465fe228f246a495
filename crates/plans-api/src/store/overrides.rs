//! Limits of single clients. Setting or ending one is a revision of the client, so gateways hear of
//! it with the client, and the client's entity tag is the override's too.

use daemon::sql::{Row, Transaction, Value};
use limiter_core::Limit;
use wire::client::plans::{Changed, ClientObject, OverrideBody};
use wire::plan::{LimitValue, PlanLimits};
use wire::policy::SafetyOverride;

use super::{Expect, PlanStore, Stamp, StoreError, clients, limit_of, plans};
use crate::model::overrides::{OverrideSpec, limit_value};
use crate::model::plan::limit_body;

const UPSERT: &str = "insert into client_override (client, burst_capacity, burst_tokens, \
    burst_per_us, sustained_capacity, sustained_tokens, sustained_per_us, failure, reason, set_at, \
    expires_at) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) \
    on conflict (client) do update set burst_capacity = excluded.burst_capacity, \
    burst_tokens = excluded.burst_tokens, burst_per_us = excluded.burst_per_us, \
    sustained_capacity = excluded.sustained_capacity, \
    sustained_tokens = excluded.sustained_tokens, \
    sustained_per_us = excluded.sustained_per_us, failure = excluded.failure, \
    reason = excluded.reason, set_at = excluded.set_at, expires_at = excluded.expires_at";

impl PlanStore {
    /// Gives a client limits of its own, in place of those it may have.
    pub(crate) async fn put_override(
        &self,
        id: &str,
        spec: &OverrideSpec,
        expect: Expect,
        stamp: &Stamp,
    ) -> Result<Changed<ClientObject>, StoreError> {
        let mut writing = self.begin(stamp).await?;
        let found = clients::find(&mut writing.tx, id).await?;
        let found = found.ok_or_else(|| clients::not_found(id))?;
        let has = expect != Expect::Absent || found.overridden.is_some();
        expect.of("override of the client", id, has.then_some((found.revision, &found)))?;
        if let Some(plan) = plans::find_sound(&mut writing.tx, &found.plan).await? {
            let limits = match plan.value().check().map(|plan| plan.limits) {
                Ok(PlanLimits::Limited(limits)) => Some(limits),
                Ok(PlanLimits::Unlimited) | Err(_) => None,
            };
            let unpayable = spec.unpayable(limits, &plan.costs);
            if !unpayable.is_empty() {
                return Err(StoreError::Refused(unpayable));
            }
        }
        let own = spec.body(&stamp.reason);
        let mut client = found.clone();
        client.overridden = Some(own);
        if client != found {
            client.revision = writing.next_revision();
            let now = writing.now();
            writing.tx.run(UPSERT, row_of(id, spec, &stamp.reason, now)).await?;
            clients::write(&mut writing, "client override", &client, Some(&found)).await?;
        }
        Ok(Changed { revision: writing.commit().await?, object: Some(client) })
    }

    /// Gives a client its plan's limits back.
    pub(crate) async fn delete_override(
        &self,
        id: &str,
        expect: Expect,
        stamp: &Stamp,
    ) -> Result<Changed<ClientObject>, StoreError> {
        let mut writing = self.begin(stamp).await?;
        let found = clients::find(&mut writing.tx, id).await?;
        let found = found.ok_or_else(|| clients::not_found(id))?;
        if found.overridden.is_none() {
            return Err(StoreError::NotFound { kind: "override of the client", id: id.to_owned() });
        }
        expect.of("override of the client", id, Some((found.revision, &found)))?;
        let mut client = found.clone();
        client.overridden = None;
        client.revision = writing.next_revision();
        writing.tx.run("delete from client_override where client = $1", [id.into()]).await?;
        clients::write(&mut writing, "client override end", &client, Some(&found)).await?;
        Ok(Changed { revision: writing.commit().await?, object: Some(client) })
    }
}

fn row_of(client: &str, spec: &OverrideSpec, reason: &str, now: u64) -> [Value; 11] {
    let number = |limit: Option<Limit>, of: fn(LimitValue) -> u64| {
        limit.map(|limit| of(limit.into())).into()
    };
    [
        client.into(),
        number(spec.burst, |limit| limit.capacity),
        number(spec.burst, |limit| limit.tokens),
        number(spec.burst, |limit| limit.per_us),
        number(spec.sustained, |limit| limit.capacity),
        number(spec.sustained, |limit| limit.tokens),
        number(spec.sustained, |limit| limit.per_us),
        spec.failure.map(|failure| failure.to_string()).into(),
        reason.into(),
        now.into(),
        spec.expires_at.into(),
    ]
}

/// The override in the row of the client `id`, if it has one.
pub(super) fn override_of(row: &Row, id: &str) -> Result<Option<OverrideBody>, StoreError> {
    let Some(expires_at) = row.count_or_null("expires_at")? else { return Ok(None) };
    let limit = |of| Ok::<_, StoreError>(limit_of(row, of, "client", id)?.map(limit_body));
    Ok(Some(OverrideBody {
        burst: limit("burst")?,
        sustained: limit("sustained")?,
        failure: row.text_or_null("failure")?,
        reason: row.text_or_null("reason")?.unwrap_or_default(),
        expires_at,
    }))
}

/// Limits that clients have of their own at a time, as services are told them.
pub(super) async fn in_force(
    tx: &mut Transaction,
    now: u64,
) -> Result<Vec<SafetyOverride>, StoreError> {
    let rows = tx
        .rows(
            "select client, burst_capacity, burst_tokens, burst_per_us, sustained_capacity, \
             sustained_tokens, sustained_per_us, failure, reason, expires_at \
             from client_override where expires_at > $1 \
             and (burst_capacity is not null or sustained_capacity is not null) order by client",
            [now.into()],
        )
        .await?;
    let mut overrides = Vec::with_capacity(rows.len());
    for row in &rows {
        let client = row.text("client")?;
        let own = match override_of(row, &client) {
            Ok(Some(own)) => own,
            Ok(None) => continue,
            Err(error @ StoreError::Damaged { .. }) => {
                tracing::error!(%error, "left out of the safety limits");
                continue;
            }
            Err(error) => return Err(error),
        };
        overrides.push(SafetyOverride {
            client,
            burst: own.burst.as_ref().map(limit_value),
            sustained: own.sustained.as_ref().map(limit_value),
        });
    }
    Ok(overrides)
}
