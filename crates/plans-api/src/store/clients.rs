//! Clients: their plan, whether they may call, and when their bucket was last filled by hand.

use std::sync::LazyLock;

use daemon::sql::{Row, Transaction, Value};
use serde_json::json;
use wire::client::plans::{Changed, ClientObject, Page};
use wire::error::{ErrorCode, FieldError};
use wire::policy::{ClientState, Object};

use super::writing::{Told, Writing};
use super::{
    Expect, PlanStore, Stamp, StoreError, keys, labels_of, many, overrides, readable, text_of,
    word, word_of,
};
use crate::model::client::{self, ClientSpec};

macro_rules! columns {
    () => {
        "select c.id, c.name, c.plan, c.state, c.labels, c.reset_revision, c.revision, \
         o.burst_capacity, o.burst_tokens, o.burst_per_us, o.sustained_capacity, \
         o.sustained_tokens, o.sustained_per_us, o.failure, o.reason, o.expires_at \
         from client c left join client_override o on o.client = c.id"
    };
}
const ONE: &str = concat!(columns!(), " where c.id = $1");
static MANY: LazyLock<String> =
    LazyLock::new(|| many::statement(concat!(columns!(), " where c.id in"), ""));
/// Of one plan, unless that is empty; with limits of their own at a time, unless that is 0.
const PAGE: &str = concat!(
    columns!(),
    " where c.id > $1 and ($3 = '' or c.plan = $3) and ($4 = 0 or o.expires_at > $4) \
     order by c.id limit $2"
);
const UPSERT: &str = "insert into client (id, name, plan, state, labels, reset_revision, revision) \
    values ($1, $2, $3, $4, $5, $6, $7) \
    on conflict (id) do update set name = excluded.name, plan = excluded.plan, \
    state = excluded.state, labels = excluded.labels, reset_revision = excluded.reset_revision, \
    revision = excluded.revision";

/// A step of a client that needs no body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientMove {
    Suspend,
    Resume,
    ResetLimit,
}

impl ClientMove {
    const fn command(self) -> &'static str {
        match self {
            ClientMove::Suspend => "client suspend",
            ClientMove::Resume => "client resume",
            ClientMove::ResetLimit => "limit reset",
        }
    }
}

/// Which clients a list has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clients<'a> {
    pub(crate) plan: Option<&'a str>,
    /// Only those with limits of their own now.
    pub(crate) overridden: bool,
}

impl PlanStore {
    /// One client.
    pub(crate) async fn client(&self, id: &str) -> Result<ClientObject, StoreError> {
        let mut tx = self.database.read().await?;
        find(&mut tx, id).await?.ok_or_else(|| not_found(id))
    }

    /// A page of clients by id.
    pub(crate) async fn clients(
        &self,
        of: Clients<'_>,
        after: &str,
        limit: u32,
    ) -> Result<Page<ClientObject>, StoreError> {
        let mut tx = self.database.read().await?;
        let now = if of.overridden { self.now() } else { 0 };
        let place = [after.into(), (limit + 1).into(), of.plan.unwrap_or("").into(), now.into()];
        let rows = tx.rows(PAGE, place).await?;
        readable(&rows, limit, "id", client_of)
    }

    /// Makes or changes a client.
    pub(crate) async fn put_client(
        &self,
        spec: &ClientSpec,
        expect: Expect,
        stamp: &Stamp,
    ) -> Result<Changed<ClientObject>, StoreError> {
        let mut writing = self.begin(stamp).await?;
        let found = find(&mut writing.tx, spec.id.as_str()).await?;
        let was = found.as_ref().map(|client| (client.revision, client));
        expect.of("client", spec.id.as_str(), was)?;
        let plan = spec.plan.as_str();
        if super::plans::find(&mut writing.tx, plan).await?.is_none() {
            return Err(StoreError::Refused(vec![no_plan("plan", plan)]));
        }
        let client = put(&mut writing, spec, found).await?;
        Ok(Changed { revision: writing.commit().await?, object: Some(client) })
    }

    /// Suspends, resumes, or fills the bucket.
    pub(crate) async fn move_client(
        &self,
        id: &str,
        step: ClientMove,
        expect: Expect,
        stamp: &Stamp,
    ) -> Result<Changed<ClientObject>, StoreError> {
        let mut writing = self.begin(stamp).await?;
        let found = find(&mut writing.tx, id).await?.ok_or_else(|| not_found(id))?;
        expect.of("client", id, Some((found.revision, &found)))?;
        let next = writing.revision() + 1;
        let mut client = found.clone();
        match step {
            ClientMove::Suspend => client.state = ClientState::Suspended,
            ClientMove::Resume => client.state = ClientState::Active,
            ClientMove::ResetLimit => client.reset_revision = next,
        }
        if client != found {
            client.revision = writing.next_revision();
            write(&mut writing, step.command(), &client, Some(&found)).await?;
        }
        Ok(Changed { revision: writing.commit().await?, object: Some(client) })
    }

    /// Deletes a client whose keys are all revoked, with those keys.
    pub(crate) async fn delete_client(
        &self,
        id: &str,
        expect: Expect,
        stamp: &Stamp,
    ) -> Result<Changed<ClientObject>, StoreError> {
        let mut writing = self.begin(stamp).await?;
        let found = find(&mut writing.tx, id).await?.ok_or_else(|| not_found(id))?;
        expect.of("client", id, Some((found.revision, &found)))?;
        delete(&mut writing, &found, "client delete").await?;
        Ok(Changed { revision: writing.commit().await?, object: None })
    }
}

/// Deletes a client with all that is its own; refuses while one of its keys could still open.
pub(super) async fn delete(
    writing: &mut Writing<'_>,
    client: &ClientObject,
    command: &str,
) -> Result<(), StoreError> {
    let id = client.id.as_str();
    keys::delete_revoked(writing, id).await?;
    writing.next_revision();
    writing.tx.run("delete from client_override where client = $1", [id.into()]).await?;
    writing.tx.run("delete from client where id = $1", [id.into()]).await?;
    let told = Told { command, kind: "client", id, before: Some(json!(client)), after: None };
    writing.record(&Object::Client { id: id.to_owned(), value: None }, told).await
}

pub(super) fn not_found(id: &str) -> StoreError {
    StoreError::NotFound { kind: "client", id: id.to_owned() }
}

/// A plan is named that does not exist.
pub(super) fn no_plan(field: &str, plan: &str) -> FieldError {
    FieldError {
        field: field.to_owned(),
        code: ErrorCode::InvalidValue,
        detail: format!("there is no plan `{plan}`"),
    }
}

/// The client, if there is one.
pub(super) async fn find(
    tx: &mut Transaction,
    id: &str,
) -> Result<Option<ClientObject>, StoreError> {
    tx.row(ONE, [id.into()]).await?.as_ref().map(client_of).transpose()
}

/// These clients; one that cannot be read is left out, and hides no other.
pub(super) async fn find_many(
    tx: &mut Transaction,
    ids: &[Value],
) -> Result<Vec<ClientObject>, StoreError> {
    let rows = many::rows(tx, ONE, MANY.as_str(), ids).await?;
    many::sound(rows.iter().map(client_of))
}

/// Writes a client unless it is so already; its state and last reset stay.
pub(super) async fn put(
    writing: &mut Writing<'_>,
    spec: &ClientSpec,
    found: Option<ClientObject>,
) -> Result<ClientObject, StoreError> {
    let mut client = found.clone().unwrap_or_else(|| ClientObject {
        id: spec.id.to_string(),
        name: String::new(),
        plan: String::new(),
        state: ClientState::Active,
        overridden: None,
        labels: std::collections::BTreeMap::new(),
        reset_revision: 0,
        revision: 0,
    });
    client.name.clone_from(&spec.name);
    client.plan = spec.plan.to_string();
    client.labels.clone_from(&spec.labels);
    if found.as_ref() == Some(&client) {
        return Ok(client);
    }
    client.revision = writing.next_revision();
    write(writing, "client set", &client, found.as_ref()).await?;
    Ok(client)
}

/// Writes a client's own row; its limits stand in another.
pub(super) async fn write(
    writing: &mut Writing<'_>,
    command: &str,
    client: &ClientObject,
    before: Option<&ClientObject>,
) -> Result<(), StoreError> {
    let row = [
        client.id.as_str().into(),
        client.name.as_str().into(),
        client.plan.as_str().into(),
        word(client.state).into(),
        text_of(&client.labels).into(),
        client.reset_revision.into(),
        client.revision.into(),
    ];
    writing.tx.run(UPSERT, row).await?;
    let told = Told {
        command,
        kind: "client",
        id: &client.id,
        before: before.map(|before| json!(before)),
        after: Some(json!(client)),
    };
    let object = Object::Client { id: client.id.clone(), value: Some(client::value(client)) };
    writing.record(&object, told).await
}

/// A client from its row.
pub(super) fn client_of(row: &Row) -> Result<ClientObject, StoreError> {
    let id = row.text("id")?;
    Ok(ClientObject {
        name: row.text("name")?,
        plan: row.text("plan")?,
        state: word_of(row, "state", "client", &id)?,
        overridden: overrides::override_of(row, &id)?,
        labels: labels_of(row, "client", &id)?,
        reset_revision: row.count("reset_revision")?,
        revision: row.count("revision")?,
        id,
    })
}
