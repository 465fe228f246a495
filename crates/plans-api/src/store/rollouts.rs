//! Rollouts: at most one is active.

use daemon::sql::Transaction;
use serde_json::json;
use wire::client::plans::{Moved, Page, RolloutMove, RolloutObject, Whom};
use wire::error::{ErrorCode, FieldError};
use wire::policy::Object;
use wire::rollout::{Phase, RolloutRule, RolloutValue, RuleSubject};

use super::writing::{Told, Writing};
use super::{Expect, PlanStore, Stamp, StoreError, clients, page, word, word_of};
use crate::model::rollout::moved;

const NAMES: &str = "select name from rollout where name > $1 order by name limit $2";
const ONE: &str = "select name, share_bp, revision from rollout where name = $1";
const ACTIVE: &str = "select name, share_bp, revision from rollout where active = 1";
const RULES: &str = "select named_by, client, phase, since_revision from rollout_rule \
    where rollout = $1 order by named_by desc, client";
const HISTORY: &str = "select revision, at, actor, command, reason from audit \
    where kind = 'rollout' and id = $1 order by seq";

/// A move, with the rollout that the caller decided on.
#[derive(Debug)]
pub(crate) struct Step<'a> {
    pub(crate) name: &'a str,
    pub(crate) whom: &'a Whom,
    pub(crate) phase: Phase,
    pub(crate) command: &'a str,
    pub(crate) basis: Basis,
    pub(crate) expect: Expect,
}

/// What a move rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Basis {
    /// Whatever the rollout is like.
    Free,
    /// Evidence about the rollout as it was at this revision.
    Evidence(u64),
    /// There must be such a rollout.
    Existing,
}

impl PlanStore {
    /// One rollout with its history.
    pub(crate) async fn rollout(&self, name: &str) -> Result<RolloutObject, StoreError> {
        let mut tx = self.database.read().await?;
        let value = find(&mut tx, ONE, Some(name)).await?.ok_or_else(|| not_found(name))?;
        object(&mut tx, value).await
    }

    /// The rollout, if there is one.
    pub(crate) async fn find_rollout(
        &self,
        name: &str,
    ) -> Result<Option<RolloutValue>, StoreError> {
        let mut tx = self.database.read().await?;
        find(&mut tx, ONE, Some(name)).await
    }

    /// A page of rollouts by name.
    pub(crate) async fn rollouts(
        &self,
        after: &str,
        limit: u32,
    ) -> Result<Page<RolloutObject>, StoreError> {
        let mut tx = self.database.read().await?;
        let names = tx.rows(NAMES, [after.into(), (limit + 1).into()]).await?;
        let mut rollouts = Vec::new();
        for row in names {
            let name = row.text("name")?;
            if let Some(value) = find(&mut tx, ONE, Some(&name)).await? {
                rollouts.push(object(&mut tx, value).await?);
            }
        }
        Ok(page(rollouts, limit, |rollout: &RolloutObject| rollout.name.clone()))
    }

    /// Moves clients to a phase; the first move of a name makes the rollout.
    pub(crate) async fn move_rollout(
        &self,
        step: &Step<'_>,
        stamp: &Stamp,
    ) -> Result<Moved, StoreError> {
        let mut writing = self.begin(stamp).await?;
        let (object, replaced) = move_in(&mut writing, step).await?;
        Ok(Moved { revision: writing.commit().await?, object, replaced })
    }
}

/// A move inside a transaction; the rollout after it, and how many single rules it replaces.
pub(super) async fn move_in(
    writing: &mut Writing<'_>,
    step: &Step<'_>,
) -> Result<(RolloutObject, u64), StoreError> {
    let was_there = find(&mut writing.tx, ONE, Some(step.name)).await?;
    let current = was_there.as_ref();
    step.expect.of("rollout", step.name, current.map(|current| (current.revision, current)))?;
    check_basis(&mut writing.tx, step, current).await?;
    let next = writing.revision() + 1;
    let (mut value, replaced) = moved(step.name, current, step.whom, step.phase, next);
    if let Some(current) = current.filter(|current| current.rules == value.rules) {
        value.revision = current.revision;
    } else {
        writing.next_revision();
        write(writing, &value).await?;
        let told = Told {
            command: step.command,
            kind: "rollout",
            id: step.name,
            before: current.map(|current| json!(current)),
            after: Some(json!(value)),
        };
        let object = Object::Rollout { id: step.name.to_owned(), value: Some(value.clone()) };
        writing.record(&object, told).await?;
    }
    Ok((object(&mut writing.tx, value).await?, replaced))
}

async fn check_basis(
    tx: &mut Transaction,
    step: &Step<'_>,
    current: Option<&RolloutValue>,
) -> Result<(), StoreError> {
    let found = current.map(|current| current.revision);
    match step.basis {
        Basis::Evidence(revision) if found != Some(revision) => {
            return Err(StoreError::Changed {
                kind: "rollout",
                id: step.name.to_owned(),
                found: "was moved while its evidence was read".to_owned(),
                expected: revision.to_string(),
                object: current.map(|current| Box::new(json!(current))),
            });
        }
        Basis::Existing if found.is_none() => return Err(not_found(step.name)),
        Basis::Free | Basis::Evidence(_) | Basis::Existing => {}
    }
    if let Some(active) = find(tx, ACTIVE, None).await?
        && active.name != step.name
    {
        let detail = format!("the rollout `{}` is active, and there is one at a time", active.name);
        return Err(StoreError::InUse(detail));
    }
    let Whom::Clients(names) = step.whom else { return Ok(()) };
    let mut unknown = Vec::new();
    for (index, name) in names.iter().enumerate() {
        if clients::find(tx, name).await?.is_none() {
            let (code, detail) = (ErrorCode::InvalidValue, format!("there is no client `{name}`"));
            unknown.push(FieldError { field: format!("clients[{index}]"), code, detail });
        }
    }
    if unknown.is_empty() { Ok(()) } else { Err(StoreError::Refused(unknown)) }
}

fn not_found(name: &str) -> StoreError {
    StoreError::NotFound { kind: "rollout", id: name.to_owned() }
}

/// The active rollout as gateways are told it. One that does not read is told with a share that
/// every gateway refuses: it withholds no plan, and the last valid version stays.
pub(super) async fn active(tx: &mut Transaction) -> Result<Option<RolloutValue>, StoreError> {
    match find(tx, ACTIVE, None).await {
        Err(error @ StoreError::Damaged { .. }) => {
            tracing::error!(%error, "told as an invalid rollout");
            let row = tx.row(ACTIVE, None).await?;
            row.map(|row| {
                let (name, revision) = (row.text("name")?, row.count("revision")?);
                Ok(RolloutValue { name, rules: Vec::new(), share_bp: u32::MAX, revision })
            })
            .transpose()
        }
        read => read,
    }
}

async fn find(
    tx: &mut Transaction,
    sql: &'static str,
    name: Option<&str>,
) -> Result<Option<RolloutValue>, StoreError> {
    let Some(row) = tx.row(sql, name.map(Into::into)).await? else { return Ok(None) };
    let name = row.text("name")?;
    let mut rules = Vec::new();
    for rule in tx.rows(RULES, [name.as_str().into()]).await? {
        let subject = match rule.text("named_by")?.as_str() {
            "all" => RuleSubject::All,
            _ => RuleSubject::Client { client: rule.text("client")? },
        };
        let phase = word_of(&rule, "phase", "rollout", &name)?;
        rules.push(RolloutRule { subject, phase, since_revision: rule.count("since_revision")? });
    }
    let share_bp = u32::try_from(row.count("share_bp")?).unwrap_or(u32::MAX);
    Ok(Some(RolloutValue { name, rules, share_bp, revision: row.count("revision")? }))
}

async fn write(writing: &mut Writing<'_>, value: &RolloutValue) -> Result<(), StoreError> {
    let name = value.name.as_str();
    let upsert = "insert into rollout (name, active, share_bp, revision) values ($1, 1, $2, $3) \
        on conflict (name) do update set share_bp = excluded.share_bp, \
        revision = excluded.revision";
    let row = [name.into(), value.share_bp.into(), value.revision.into()];
    writing.tx.run(upsert, row).await?;
    writing.tx.run("delete from rollout_rule where rollout = $1", [name.into()]).await?;
    for rule in &value.rules {
        let (by, client) = match &rule.subject {
            RuleSubject::All => ("all", ""),
            RuleSubject::Client { client } => ("client", client.as_str()),
        };
        let row = [
            name.into(),
            by.into(),
            client.into(),
            word(rule.phase).into(),
            rule.since_revision.into(),
        ];
        let insert = "insert into rollout_rule (rollout, named_by, client, phase, since_revision) \
            values ($1, $2, $3, $4, $5)";
        writing.tx.run(insert, row).await?;
    }
    Ok(())
}

async fn object(tx: &mut Transaction, value: RolloutValue) -> Result<RolloutObject, StoreError> {
    let mut history = Vec::new();
    for row in tx.rows(HISTORY, [value.name.as_str().into()]).await? {
        history.push(RolloutMove {
            revision: row.count_or_null("revision")?.unwrap_or(0),
            at: row.count("at")?,
            actor: row.text("actor")?,
            command: row.text("command")?,
            reason: row.text("reason")?,
        });
    }
    Ok(RolloutObject {
        name: value.name,
        rules: value.rules,
        share_bp: value.share_bp,
        revision: value.revision,
        history,
    })
}
