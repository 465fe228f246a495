//! Plans: written only if they say something new, deleted only if no client has them.

use daemon::sql::{Row, Transaction, Value};
use serde_json::json;
use wire::client::plans::{Changed, Page, PlanObject};
use wire::plan::{LimitValue, PlanSpec};
use wire::policy::Object;

use super::writing::{Told, Writing};
use super::{
    Expect, PlanStore, Stamp, StoreError, json_of, labels_of, limit_of, readable, size, text_of,
    word, word_of,
};
use crate::model::plan::PlanRow;

const ONE: &str = "select name, burst_capacity, burst_tokens, burst_per_us, sustained_capacity, \
    sustained_tokens, sustained_per_us, unlimited, scope, failure, costs, labels, note, revision \
    from plan where name = $1";
const PAGE: &str = "select name, burst_capacity, burst_tokens, burst_per_us, sustained_capacity, \
    sustained_tokens, sustained_per_us, unlimited, scope, failure, costs, labels, note, revision \
    from plan where name > $1 order by name limit $2";

impl PlanStore {
    /// One plan.
    pub(crate) async fn plan(&self, name: &str) -> Result<PlanObject, StoreError> {
        let mut tx = self.database.read().await?;
        let row = find(&mut tx, name).await?.ok_or_else(|| not_found(name))?;
        Ok(row.object())
    }

    /// A page of plans by name.
    pub(crate) async fn plans(
        &self,
        after: &str,
        limit: u32,
    ) -> Result<Page<PlanObject>, StoreError> {
        let mut tx = self.database.read().await?;
        let rows = tx.rows(PAGE, [after.into(), (limit + 1).into()]).await?;
        readable(&rows, limit, "name", |row| Ok(plan_of(row)?.object()))
    }

    /// Makes or changes a plan; says the same again without a new revision.
    pub(crate) async fn put_plan(
        &self,
        spec: &PlanSpec,
        expect: Expect,
        stamp: &Stamp,
    ) -> Result<Changed<PlanObject>, StoreError> {
        let mut writing = self.begin(stamp).await?;
        let found = find_sound(&mut writing.tx, spec.name.as_str()).await?;
        let was = found.as_ref().map(PlanRow::object);
        let was = was.as_ref().map(|plan| (plan.revision, plan));
        expect.of("plan", spec.name.as_str(), was)?;
        let plan = put(&mut writing, spec, found).await?;
        let revision = writing.commit().await?;
        Ok(Changed { revision, object: Some(plan.object()) })
    }

    /// Deletes a plan that no client has.
    pub(crate) async fn delete_plan(
        &self,
        name: &str,
        expect: Expect,
        stamp: &Stamp,
    ) -> Result<Changed<PlanObject>, StoreError> {
        let mut writing = self.begin(stamp).await?;
        let found = find(&mut writing.tx, name).await?.ok_or_else(|| not_found(name))?;
        expect.of("plan", name, Some((found.revision, &found.object())))?;
        let users = writing
            .tx
            .row("select count(*) as users from client where plan = $1", [name.into()])
            .await?;
        let users = users.map_or(Ok(0), |row| row.count("users"))?;
        if users > 0 {
            let detail = format!("{users} clients have the plan `{name}`: give them another first");
            return Err(StoreError::InUse(detail));
        }
        delete(&mut writing, &found, "plan delete").await?;
        Ok(Changed { revision: writing.commit().await?, object: None })
    }
}

/// Deletes a plan that no client has.
pub(super) async fn delete(
    writing: &mut Writing<'_>,
    plan: &PlanRow,
    command: &str,
) -> Result<(), StoreError> {
    let name = plan.name.as_str();
    writing.next_revision();
    writing.tx.run("delete from plan where name = $1", [name.into()]).await?;
    writing.sizes = None;
    let before = Some(json!(plan.object()));
    let told = Told { command, kind: "plan", id: name, before, after: None };
    writing.record(&Object::Plan { id: name.to_owned(), value: None }, told).await
}

fn not_found(name: &str) -> StoreError {
    StoreError::NotFound { kind: "plan", id: name.to_owned() }
}

/// The plan's row, if there is one.
pub(super) async fn find(tx: &mut Transaction, name: &str) -> Result<Option<PlanRow>, StoreError> {
    tx.row(ONE, [name.into()]).await?.as_ref().map(plan_of).transpose()
}

/// The same, and a row that cannot be read counts as missing: whoever writes the plan repairs it.
pub(super) async fn find_sound(
    tx: &mut Transaction,
    name: &str,
) -> Result<Option<PlanRow>, StoreError> {
    match find(tx, name).await {
        Err(error @ StoreError::Damaged { .. }) => {
            tracing::error!(%error, "written anew");
            Ok(None)
        }
        found => found,
    }
}

/// Writes a plan unless it is so already.
pub(super) async fn put(
    writing: &mut Writing<'_>,
    spec: &PlanSpec,
    found: Option<PlanRow>,
) -> Result<PlanRow, StoreError> {
    let wanted = PlanRow::of(spec, 0);
    match &found {
        Some(found) if found.says(&wanted) => return Ok(found.clone()),
        Some(_) | None => size::fits(writing, &wanted).await?,
    }
    let plan = PlanRow { revision: writing.next_revision(), ..wanted };
    writing.tx.run(UPSERT, values(&plan)).await?;
    let before = found.map(|found| json!(found.object()));
    let told = Told {
        command: "plan set",
        kind: "plan",
        id: &plan.name,
        before,
        after: Some(json!(plan.object())),
    };
    let object = Object::Plan { id: plan.name.clone(), value: Some(plan.value()) };
    writing.record(&object, told).await?;
    Ok(plan)
}

const UPSERT: &str = "insert into plan (name, burst_capacity, burst_tokens, burst_per_us, \
    sustained_capacity, sustained_tokens, sustained_per_us, unlimited, scope, failure, costs, \
    labels, note, revision) \
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) \
    on conflict (name) do update set burst_capacity = excluded.burst_capacity, \
    burst_tokens = excluded.burst_tokens, burst_per_us = excluded.burst_per_us, \
    sustained_capacity = excluded.sustained_capacity, \
    sustained_tokens = excluded.sustained_tokens, sustained_per_us = excluded.sustained_per_us, \
    unlimited = excluded.unlimited, scope = excluded.scope, failure = excluded.failure, \
    costs = excluded.costs, labels = excluded.labels, note = excluded.note, \
    revision = excluded.revision";

fn values(plan: &PlanRow) -> [Value; 14] {
    let number = |limit: Option<LimitValue>, of: fn(LimitValue) -> u64| limit.map(of).into();
    [
        plan.name.as_str().into(),
        number(plan.burst, |limit| limit.capacity),
        number(plan.burst, |limit| limit.tokens),
        number(plan.burst, |limit| limit.per_us),
        number(plan.sustained, |limit| limit.capacity),
        number(plan.sustained, |limit| limit.tokens),
        number(plan.sustained, |limit| limit.per_us),
        i64::from(plan.unlimited).into(),
        word(plan.scope).into(),
        plan.failure.as_str().into(),
        text_of(&plan.costs).into(),
        text_of(&plan.labels).into(),
        plan.note.as_str().into(),
        plan.revision.into(),
    ]
}

/// A plan from its row.
pub(super) fn plan_of(row: &Row) -> Result<PlanRow, StoreError> {
    let name = row.text("name")?;
    Ok(PlanRow {
        burst: limit_of(row, "burst", "plan", &name)?,
        sustained: limit_of(row, "sustained", "plan", &name)?,
        unlimited: row.int("unlimited")? == 1,
        scope: word_of(row, "scope", "plan", &name)?,
        failure: row.text("failure")?,
        costs: json_of(row, "costs", "plan", &name)?,
        labels: labels_of(row, "plan", &name)?,
        note: row.text("note")?,
        revision: row.count("revision")?,
        name,
    })
}
