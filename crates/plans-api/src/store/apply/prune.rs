//! Takes away what carries a label and stands in no file: clients first, then plans that nobody
//! has any more. Few at once, unless the caller says how many it may be.

use wire::client::plans::{AppliedAction, AppliedChange};
use wire::error::{ErrorCode, FieldError};

use super::super::writing::Writing;
use super::super::{StoreError, clients, plans};
use super::Desired;

/// As the audit names it.
const COMMAND: &str = "apply prune";
/// More than one in so many objects with the label is refused, unless the caller allows it.
const SHARE_ONE_IN: u64 = 10;

/// What may be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Prune {
    /// Name and text of the label that it carries.
    pub(crate) label: (String, String),
    /// So many at most; a tenth of what carries the label otherwise.
    pub(crate) allowed: Option<u64>,
}

/// Deletes, in the transaction of the rest.
pub(super) async fn prune(
    writing: &mut Writing<'_>,
    desired: &Desired,
    prune: &Prune,
    changes: &mut Vec<AppliedChange>,
) -> Result<(), StoreError> {
    let (name, text) = &prune.label;
    let mut labelled = 0_u64;
    let mut doomed_clients = Vec::new();
    for id in carriers(writing, "select id as id from client where labels like $1", prune).await? {
        let Some(client) = clients::find(&mut writing.tx, &id).await? else { continue };
        if client.labels.get(name) == Some(text) {
            labelled += 1;
            let wanted = desired.clients.iter().any(|spec| spec.id.as_str() == id);
            doomed_clients.extend((!wanted).then_some(client));
        }
    }
    let mut doomed_plans = Vec::new();
    for id in carriers(writing, "select name as id from plan where labels like $1", prune).await? {
        let Some(plan) = plans::find(&mut writing.tx, &id).await? else { continue };
        if plan.labels.get(name) == Some(text) {
            labelled += 1;
            let wanted = desired.plans.iter().any(|spec| spec.name.as_str() == id);
            doomed_plans.extend((!wanted).then_some(plan));
        }
    }
    let doomed = doomed_clients.len() as u64 + doomed_plans.len() as u64;
    few_enough(doomed, labelled, prune)?;
    for client in doomed_clients {
        clients::delete(writing, &client, COMMAND).await?;
        changes.push(deleted("client", &client.id));
    }
    for plan in doomed_plans {
        unused(writing, &plan.name).await?;
        plans::delete(writing, &plan, COMMAND).await?;
        changes.push(deleted("plan", &plan.name));
    }
    Ok(())
}

/// Ids of rows that may carry the label; whether they do is seen when they are read.
async fn carriers(
    writing: &mut Writing<'_>,
    sql: &'static str,
    prune: &Prune,
) -> Result<Vec<String>, StoreError> {
    let quoted = serde_json::Value::from(prune.label.1.as_str()).to_string();
    let written = format!("\"{}\":{quoted}", prune.label.0);
    let pattern: String = written
        .chars()
        // one character of any kind stands for those that have a meaning in a pattern
        .map(|char| if matches!(char, '%' | '\\') { '_' } else { char })
        .collect();
    let rows = writing.tx.rows(sql, [format!("%{pattern}%").into()]).await?;
    rows.iter().map(|row| Ok(row.text("id")?)).collect()
}

fn few_enough(doomed: u64, labelled: u64, prune: &Prune) -> Result<(), StoreError> {
    let few = doomed * SHARE_ONE_IN <= labelled || prune.allowed.is_some_and(|most| doomed <= most);
    if few {
        return Ok(());
    }
    let (name, text) = &prune.label;
    let detail = format!(
        "would delete {doomed} of {labelled} objects with {name}={text}, more than one in \
         {SHARE_ONE_IN}; nothing was changed, allow {doomed} if that is meant"
    );
    let field = "?allow_deletes".to_owned();
    Err(StoreError::Refused(vec![FieldError { field, code: ErrorCode::InvalidValue, detail }]))
}

async fn unused(writing: &mut Writing<'_>, plan: &str) -> Result<(), StoreError> {
    let sql = "select id from client where plan = $1 order by id limit 1";
    match writing.tx.row(sql, [plan.into()]).await? {
        None => Ok(()),
        Some(row) => {
            let client = row.text("id")?;
            Err(StoreError::InUse(format!(
                "the plan `{plan}` is not in the files and carries the label, but the client \
                 `{client}` has it: give it another plan first"
            )))
        }
    }
}

fn deleted(kind: &str, id: &str) -> AppliedChange {
    AppliedChange {
        kind: kind.to_owned(),
        id: id.to_owned(),
        action: AppliedAction::Delete,
        fields: Vec::new(),
    }
}
