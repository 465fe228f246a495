//! Many plans and clients at once: all or nothing, and first shown if so asked.

mod prune; // what is in no file any more

use std::collections::BTreeMap;

use serde_json::json;
use wire::client::plans::{Applied, AppliedAction, AppliedChange, ApplyMode, ClientObject};
use wire::error::FieldError;
use wire::plan::PlanSpec;
use wire::policy::ClientState;

pub(crate) use self::prune::Prune;
use super::writing::Writing;
use super::{PlanStore, Stamp, StoreError, clients, plans};
use crate::model::client::ClientSpec;
use crate::model::differences;

/// Checked plans and clients.
#[derive(Debug, Clone, Default)]
pub(crate) struct Desired {
    pub(crate) plans: Vec<PlanSpec>,
    pub(crate) clients: Vec<ClientSpec>,
    /// Clients of which the file says whether they may call; others stay as they are.
    pub(crate) states: BTreeMap<String, ClientState>,
    /// What may be deleted; nothing otherwise.
    pub(crate) prune: Option<Prune>,
}

impl PlanStore {
    /// Plans that `clients` name and that neither stand in `also` nor in the database, as mistakes.
    pub(crate) async fn missing_plans(
        &self,
        clients: &[ClientSpec],
        also: &[&str],
    ) -> Result<Vec<FieldError>, StoreError> {
        let mut tx = self.database.read().await?;
        let mut missing = Vec::new();
        for client in clients {
            let plan = client.plan.as_str();
            if !also.contains(&plan) && plans::find(&mut tx, plan).await?.is_none() {
                missing.push(clients::no_plan(&format!("client.{}.plan", client.id), plan));
            }
        }
        Ok(missing)
    }

    /// Makes it all so, or says what would become of it.
    pub(crate) async fn apply(
        &self,
        desired: &Desired,
        mode: ApplyMode,
        stamp: &Stamp,
    ) -> Result<Applied, StoreError> {
        let mut writing = self.begin(stamp).await?;
        let before = writing.revision();
        let mut changes = Vec::new();
        for spec in &desired.plans {
            let found = plans::find_sound(&mut writing.tx, spec.name.as_str()).await?;
            let old = found.as_ref().map(|plan| json!(plan.object()));
            let plan = plans::put(&mut writing, spec, found).await?;
            changes.push(change("plan", &plan.name, old.as_ref(), &json!(plan.object())));
        }
        for spec in &desired.clients {
            let found = clients::find(&mut writing.tx, spec.id.as_str()).await?;
            let old = found.as_ref().map(|client| json!(client));
            let client = clients::put(&mut writing, spec, found).await?;
            let state = desired.states.get(spec.id.as_str()).copied();
            let client = with_state(&mut writing, client, state).await?;
            changes.push(change("client", &client.id, old.as_ref(), &json!(client)));
        }
        if let Some(prune) = &desired.prune {
            prune::prune(&mut writing, desired, prune, &mut changes).await?;
        }
        Ok(match mode {
            // Dropped without a commit: none of it happened.
            ApplyMode::DryRun => Applied { revision: before, dry_run: true, changes },
            ApplyMode::Apply => {
                Applied { revision: writing.commit().await?, dry_run: false, changes }
            }
        })
    }
}

async fn with_state(
    writing: &mut Writing<'_>,
    client: ClientObject,
    state: Option<ClientState>,
) -> Result<ClientObject, StoreError> {
    let Some(state) = state.filter(|state| *state != client.state) else { return Ok(client) };
    let command = match state {
        ClientState::Suspended => "client suspend",
        ClientState::Active => "client resume",
    };
    let moved = ClientObject { state, revision: writing.next_revision(), ..client.clone() };
    clients::write(writing, command, &moved, Some(&client)).await?;
    Ok(moved)
}

fn change(
    kind: &str,
    id: &str,
    old: Option<&serde_json::Value>,
    new: &serde_json::Value,
) -> AppliedChange {
    let fields = old.map_or_else(Vec::new, |old| differences(old, new));
    let action = match old {
        None => AppliedAction::Create,
        Some(_) if fields.is_empty() => AppliedAction::Same,
        Some(_) => AppliedAction::Update,
    };
    AppliedChange { kind: kind.to_owned(), id: id.to_owned(), action, fields }
}
