//! What gateways ask for: changes after a revision, the whole policy, and where they stand.

use std::collections::BTreeSet;

use daemon::sql::{Row, Transaction};
use wire::client::plans::{GatewayObject, Page};
use wire::killswitch::KillswitchValue;
use wire::plan::PlanValue;
use wire::policy::{
    Change, ClientValue, FEED_CHANGES_MAX, FeedRequest, KeyValue, Object, SafetyLimits, Snapshot,
};
use wire::rollout::RolloutValue;

use super::plans::plan_of;
use super::{PlanStore, StoreError, json_of, killswitch, overrides, readable, rollouts, text_of};

/// A gateway is live while its last poll is this recent.
pub(crate) const LIVE_MS: u64 = 15_000;
/// Changes are kept this long …
const CHANGES_KEPT_MS: u64 = 7 * 86_400_000;
/// … but never more than this many.
const CHANGES_KEPT_MAX: u64 = 1_000_000;
/// Services keep this many times the plan.
const SAFETY_MULTIPLE: u32 = 10;

/// What came after a revision.
#[derive(Debug)]
pub(crate) struct After {
    pub(crate) history: String,
    pub(crate) head: u64,
    pub(crate) live: u32,
    pub(crate) changes: Vec<Change>,
}

impl PlanStore {
    /// Notes that a gateway is there and where it stands.
    pub(crate) async fn saw_gateway(&self, request: &FeedRequest) -> Result<(), StoreError> {
        let mut tx = self.database.write().await?;
        let row = [
            request.gateway.as_str().into(),
            request.boot.as_str().into(),
            request.build.as_str().into(),
            request.ops_url.as_deref().into(),
            text_of(&request.routes).into(),
            request.applied.into(),
            text_of(&request.rejected).into(),
            self.now().into(),
            request.killswitch.as_deref().into(),
        ];
        tx.run(
            "insert into gateway (id, boot, build, ops_url, routes, applied, rejected, seen_at, \
             killswitch) values ($1, $2, $3, $4, $5, $6, $7, $8, $9) \
             on conflict (id) do update set boot = excluded.boot, build = excluded.build, \
             ops_url = excluded.ops_url, routes = excluded.routes, applied = excluded.applied, \
             rejected = excluded.rejected, seen_at = excluded.seen_at, \
             killswitch = excluded.killswitch",
            row,
        )
        .await?;
        Ok(tx.commit().await?)
    }

    /// The changes after `after` in one history; an error if they cannot all be told.
    pub(crate) async fn changes_after(
        &self,
        history: &str,
        after: u64,
    ) -> Result<After, StoreError> {
        let mut tx = self.database.read().await?;
        let (ours, head) = place(&mut tx).await?;
        if history != ours {
            let detail = format!("the history is {ours}, not `{history}`");
            return Err(StoreError::HistoryGone(detail));
        }
        if after > head {
            let detail = format!("revision {after} is newer than the newest one, {head}");
            return Err(StoreError::HistoryGone(detail));
        }
        let oldest = tx.row("select min(revision) as oldest from change", []).await?;
        let oldest = oldest.map_or(Ok(None), |row| row.count_or_null("oldest"))?;
        if after < head && oldest.is_none_or(|oldest| oldest > after + 1) {
            let detail = format!("changes after revision {after} are not kept any more");
            return Err(StoreError::HistoryGone(detail));
        }
        let limit = u32::try_from(FEED_CHANGES_MAX).unwrap_or(u32::MAX);
        let rows = tx
            .rows(
                "select revision, kind, id, value from change where revision > $1 \
                 order by revision limit $2",
                [after.into(), limit.into()],
            )
            .await?;
        let changes = rows.iter().map(change_of).collect::<Result<_, _>>()?;
        let live = count_live(&mut tx, self.now().saturating_sub(LIVE_MS)).await?;
        Ok(After { history: ours, head, live, changes })
    }

    /// Gateways seen at or after a time.
    pub(crate) async fn gateways_since(&self, at: u64) -> Result<u32, StoreError> {
        let mut tx = self.database.read().await?;
        count_live(&mut tx, at).await
    }

    /// The whole policy at one revision.
    pub(crate) async fn snapshot(&self, live_gateways: u32) -> Result<Snapshot, StoreError> {
        let mut tx = self.database.read().await?;
        let (history, revision) = place(&mut tx).await?;
        Ok(Snapshot {
            history,
            revision,
            pepper_id: self.pepper_id.to_string(),
            live_gateways,
            plans: all_plans(&mut tx).await?,
            rollout: rollouts::active(&mut tx).await?,
            killswitch: killswitch::current(&mut tx).await?,
        })
    }

    /// What services keep.
    pub(crate) async fn safety_limits(&self) -> Result<SafetyLimits, StoreError> {
        let mut tx = self.database.read().await?;
        let (revision, plans) = (head(&mut tx).await?, all_plans(&mut tx).await?);
        let overrides = overrides::in_force(&mut tx, self.now()).await?;
        Ok(SafetyLimits { revision, multiple: SAFETY_MULTIPLE, plans, overrides })
    }

    /// Routes of all live gateways.
    pub(crate) async fn known_routes(&self) -> Result<BTreeSet<String>, StoreError> {
        let since = self.now().saturating_sub(LIVE_MS);
        let mut tx = self.database.read().await?;
        let rows =
            tx.rows("select id, routes from gateway where seen_at >= $1", [since.into()]).await?;
        let mut routes = BTreeSet::new();
        for row in rows {
            routes.extend(json_of::<Vec<String>>(&row, "routes", "gateway", &row.text("id")?)?);
        }
        Ok(routes)
    }

    /// A page of gateways by id.
    pub(crate) async fn gateways(
        &self,
        after: &str,
        limit: u32,
    ) -> Result<Page<GatewayObject>, StoreError> {
        let live_since = self.now().saturating_sub(LIVE_MS);
        let mut tx = self.database.read().await?;
        let rows = tx
            .rows(
                "select id, boot, build, ops_url, routes, applied, rejected, seen_at, killswitch \
                 from gateway where id > $1 order by id limit $2",
                [after.into(), (limit + 1).into()],
            )
            .await?;
        readable(&rows, limit, "id", |row| gateway_of(row, live_since))
    }

    /// Forgets changes that are too old or too many; who stands before them reads the snapshot.
    pub(crate) async fn forget_old_changes(&self) -> Result<u64, StoreError> {
        let at = self.now().saturating_sub(CHANGES_KEPT_MS);
        let mut tx = self.database.write().await?;
        let upto = head(&mut tx).await?.saturating_sub(CHANGES_KEPT_MAX);
        let forgotten = tx
            .run("delete from change where at < $1 or revision <= $2", [at.into(), upto.into()])
            .await?;
        tx.commit().await?;
        Ok(forgotten)
    }
}

async fn head(tx: &mut Transaction) -> Result<u64, StoreError> {
    let row = tx.row("select revision from head", []).await?;
    Ok(row.map_or(Ok(0), |row| row.count("revision"))?)
}

/// The history and its newest revision: a restore through any process begins another one.
async fn place(tx: &mut Transaction) -> Result<(String, u64), StoreError> {
    let row = tx.row("select history, revision from head", []).await?;
    let row = row.ok_or_else(super::no_head)?;
    Ok((row.text("history")?, row.count("revision")?))
}

async fn count_live(tx: &mut Transaction, since: u64) -> Result<u32, StoreError> {
    let row =
        tx.row("select count(*) as live from gateway where seen_at >= $1", [since.into()]).await?;
    let live = row.map_or(Ok(0), |row| row.count("live"))?;
    Ok(u32::try_from(live).unwrap_or(u32::MAX))
}

/// All plans as gateways are told them. A row that does not read is told as a plan without limits,
/// which every gateway refuses: it hides no other plan, and never means unlimited.
async fn all_plans(tx: &mut Transaction) -> Result<Vec<PlanValue>, StoreError> {
    let rows = tx
        .rows(
            "select name, burst_capacity, burst_tokens, burst_per_us, sustained_capacity, \
             sustained_tokens, sustained_per_us, unlimited, scope, failure, costs, labels, note, \
             revision from plan order by name",
            [],
        )
        .await?;
    let mut plans = Vec::with_capacity(rows.len());
    for row in &rows {
        match plan_of(row) {
            Ok(plan) => plans.push(plan.value()),
            Err(error) => {
                tracing::error!(%error, "told as an invalid plan");
                plans.push(damaged(row)?);
            }
        }
    }
    Ok(plans)
}

fn damaged(row: &Row) -> Result<PlanValue, StoreError> {
    Ok(PlanValue {
        name: row.text("name")?,
        burst: None,
        sustained: None,
        costs: Vec::new(),
        scope: wire::plan::Scope::Client,
        failure: "closed".to_owned(),
        unlimited: false,
        revision: row.count("revision")?,
    })
}

/// A change as gateways are told it. One that does not read must not stop all others for as long as
/// it is kept: it is told as such, and gateways skip it alone and name it.
fn change_of(row: &Row) -> Result<Change, StoreError> {
    let (kind, id) = (row.text("kind")?, row.text("id")?);
    let object = match object_of(row, &kind, &id) {
        Ok(object) => object,
        Err(error @ StoreError::Damaged { .. }) => {
            tracing::error!(%error, "told as a change that does not read");
            Object::Unreadable { of: kind, id, reason: error.to_string() }
        }
        Err(error) => return Err(error),
    };
    Ok(Change { revision: row.count("revision")?, object })
}

fn object_of(row: &Row, kind: &str, id: &str) -> Result<Object, StoreError> {
    let gone = row.text_or_null("value")?.is_none();
    let id = id.to_owned();
    Ok(match kind {
        "plan" => {
            let value = value_of::<PlanValue>(row, gone, "plan", &id)?;
            own("plan", &id, value.as_ref().map(|plan| plan.name.as_str()))?;
            Object::Plan { id, value }
        }
        "client" => {
            let value = value_of::<ClientValue>(row, gone, "client", &id)?;
            own("client", &id, value.as_ref().map(|client| client.id.as_str()))?;
            Object::Client { id, value }
        }
        "key" => {
            let value = value_of::<KeyValue>(row, gone, "key", &id)?;
            own("key", &id, value.as_ref().map(|key| key.id.as_str()))?;
            Object::Key { id, value }
        }
        "rollout" => {
            let value = value_of::<RolloutValue>(row, gone, "rollout", &id)?;
            own("rollout", &id, value.as_ref().map(|rollout| rollout.name.as_str()))?;
            Object::Rollout { id, value }
        }
        "killswitch" => {
            let value = value_of::<KillswitchValue>(row, gone, "killswitch", &id)?;
            Object::Killswitch { value, id }
        }
        other => {
            let reason = format!("a change has the unknown kind `{other}`");
            return Err(StoreError::Damaged { kind: "change", id, reason });
        }
    })
}

/// A value that bears another object's name would be put in that one's place.
fn own(kind: &'static str, id: &str, named: Option<&str>) -> Result<(), StoreError> {
    if named.is_none_or(|named| named == id) {
        return Ok(());
    }
    let reason = "the value is another object's".to_owned();
    Err(StoreError::Damaged { kind, id: id.to_owned(), reason })
}

fn value_of<T: serde::de::DeserializeOwned>(
    row: &Row,
    gone: bool,
    kind: &'static str,
    id: &str,
) -> Result<Option<T>, StoreError> {
    if gone { Ok(None) } else { json_of(row, "value", kind, id).map(Some) }
}

pub(super) fn gateway_of(row: &Row, live_since: u64) -> Result<GatewayObject, StoreError> {
    let id = row.text("id")?;
    let seen_at = row.count("seen_at")?;
    Ok(GatewayObject {
        boot: row.text("boot")?,
        build: row.text("build")?,
        ops_url: row.text_or_null("ops_url")?,
        routes: json_of(row, "routes", "gateway", &id)?,
        applied: row.count("applied")?,
        rejected: json_of(row, "rejected", "gateway", &id)?,
        killswitch: row.text_or_null("killswitch")?,
        seen_at,
        live: seen_at >= live_since,
        id,
    })
}
