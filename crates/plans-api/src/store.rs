//! The store: a method for each use case, each one transaction, one SQL text for Postgres and
//! SQLite.
//!
//! A writing transaction begins by locking the head row; every changed object takes the next
//! revision and leaves its row, a change for the feed and an audit row; the head is written last.
//! Whatever fails on the way, nothing of it happened. Tokens and sightings of gateways concern no
//! gateway, so they take no revision; tokens are audited all the same.

mod writing; // the transaction that changes something
mod schema; // migrations that the database lacks
mod forget; // gateways that are gone
mod bootstrap; // every key by hash
mod plans; // plans
mod size; // whether gateways can hold them all
mod clients; // clients
mod overrides; // their own limits
mod apply; // many objects at once
mod keys; // API keys
mod lookup; // who shows a key
mod many; // one statement for many rows
mod secrets; // their rotation, import and use
mod rollouts; // phases
mod killswitch; // everybody into shadow
mod feed; // changes, snapshot, gateways seen
mod tokens; // operator tokens
mod approvals; // what another person has to accept
mod once; // calls that may be sent twice
mod audit; // reading the audit
mod chain; // the audit's hashes
mod backup; // the whole catalog as lines
mod ended; // what a restore does not bring back
pub mod tables; // which tables and columns these have

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use daemon::sql::{Database, Row, SqlError, Step};
use limiter_core::Clock;
use tokio::sync::watch;
use wire::error::FieldError;

pub use crate::model::audit::{Once, Stamp};
pub(crate) use apply::{Desired, Prune};
pub(crate) use approvals::{Answering, Unanswered, Wanted};
pub(crate) use backup::Backup;
pub(crate) use clients::{ClientMove, Clients};
pub(crate) use feed::{After, LIVE_MS};
pub(crate) use once::Done;
pub(crate) use rollouts::{Basis, Step as RolloutStep};
pub(crate) use secrets::Import;
pub(crate) use tokens::TokenSpec;

/// The doorbell's channel in Postgres.
pub(crate) const CHANNEL: &str = "weir_head";
/// The head was read this recently: the database can be reached.
const REACHABLE_MS: u64 = 5_000;

const STEPS: [Step; 5] = [
    Step {
        number: 1,
        name: "catalog",
        postgres: include_str!("../../../migrations/postgres/0001_catalog.sql"),
        sqlite: include_str!("../../../migrations/sqlite/0001_catalog.sql"),
    },
    Step {
        number: 2,
        name: "rollout",
        postgres: include_str!("../../../migrations/postgres/0002_rollout.sql"),
        sqlite: include_str!("../../../migrations/sqlite/0002_rollout.sql"),
    },
    Step {
        number: 4,
        name: "operators",
        postgres: include_str!("../../../migrations/postgres/0004_operators.sql"),
        sqlite: include_str!("../../../migrations/sqlite/0004_operators.sql"),
    },
    Step {
        number: 5,
        name: "audit chain",
        postgres: include_str!("../../../migrations/postgres/0005_audit_chain.sql"),
        sqlite: include_str!("../../../migrations/sqlite/0005_audit_chain.sql"),
    },
    Step {
        number: 7,
        name: "killswitch",
        postgres: include_str!("../../../migrations/postgres/0007_killswitch.sql"),
        sqlite: include_str!("../../../migrations/sqlite/0007_killswitch.sql"),
    },
];

/// Why the store did not do it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no such object.
    #[error("there is no {kind} `{id}`")]
    NotFound {
        /// Its kind.
        kind: &'static str,
        /// Its id.
        id: String,
    },
    /// It has another revision than the caller expects.
    #[error("the {kind} `{id}` {found}, not at revision {expected}")]
    Changed {
        /// Its kind.
        kind: &'static str,
        /// Its id.
        id: String,
        /// How it stands.
        found: String,
        /// What the caller expected.
        expected: String,
        /// The object as it is.
        object: Option<Box<serde_json::Value>>,
    },
    /// The caller has sent this call before.
    #[error("this call was done before")]
    Repeated,
    /// Others depend on it, or its state forbids the step.
    #[error("{0}")]
    InUse(String),
    /// Values that are wrong given what is stored.
    #[error("{} values are wrong", .0.len())]
    Refused(Vec<FieldError>),
    /// The feed cannot be continued from there.
    #[error("{0}")]
    HistoryGone(String),
    /// A row does not read: somebody changed it by hand.
    #[error("the {kind} `{id}` is damaged in the database: {reason}")]
    Damaged {
        /// Its kind.
        kind: &'static str,
        /// Its id.
        id: String,
        /// What is wrong.
        reason: String,
    },
    /// The database holds keys made with another pepper.
    #[error(
        "the database's keys were made with pepper {database}, the state folder has {ours}: copy the right file"
    )]
    OtherPepper {
        /// The database's.
        database: String,
        /// The state folder's.
        ours: String,
    },
    /// A backup that this process cannot restore.
    #[error("the backup cannot be used: {0}")]
    Unusable(String),
    /// The database.
    #[error(transparent)]
    Sql(#[from] SqlError),
}

/// Which version of an object the caller means to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Whatever there is.
    Any,
    /// This revision (`If-Match: "7"`).
    Revision(u64),
    /// None: it must be new (`If-None-Match: *`).
    Absent,
}

impl Expect {
    /// Refuses any other version than the one that is meant, and shows the object as it is.
    fn of(
        self,
        kind: &'static str,
        id: &str,
        found: Option<(u64, &impl serde::Serialize)>,
    ) -> Result<(), StoreError> {
        let at = found.map(|(revision, _)| revision);
        let (fits, expected) = match self {
            Expect::Any => return Ok(()),
            Expect::Revision(revision) => (at == Some(revision), format!("{revision}")),
            Expect::Absent => (at.is_none(), "none".to_owned()),
        };
        if fits {
            return Ok(());
        }
        let how = at.map_or_else(
            || "does not exist".to_owned(),
            |revision| format!("is at revision {revision}"),
        );
        let object = found.and_then(|(_, object)| serde_json::to_value(object).ok());
        let object = object.map(Box::new);
        Err(StoreError::Changed { kind, id: id.to_owned(), found: how, expected, object })
    }
}

/// The store. Clones share it.
#[derive(Debug, Clone)]
pub struct PlanStore {
    database: Database,
    clock: Arc<dyn Clock>,
    pepper_id: Arc<str>,
    head: watch::Sender<u64>,
    read_at: Arc<AtomicU64>,
}

impl PlanStore {
    /// Opens the database, brings its schema forward, makes the head if there is none.
    pub async fn open(
        url: &str,
        pepper_id: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<PlanStore, StoreError> {
        let database = Database::open(url).await?;
        database.migrate(&STEPS).await?;
        let mut tx = database.write().await?;
        tx.run(
            "insert into head (one, history, pepper_id, revision, audit_seq) \
             values (1, $1, $2, 0, 0) on conflict (one) do nothing",
            [uuid::Uuid::now_v7().to_string().into(), pepper_id.into()],
        )
        .await?;
        let head = tx.row("select pepper_id, revision from head", []).await?;
        tx.commit().await?;
        let head = head.ok_or_else(no_head)?;
        let kept = head.text("pepper_id")?;
        if kept != pepper_id {
            return Err(StoreError::OtherPepper { database: kept, ours: pepper_id.to_owned() });
        }
        let store = PlanStore {
            database,
            pepper_id: pepper_id.into(),
            head: watch::Sender::new(head.count("revision")?),
            read_at: Arc::new(AtomicU64::new(clock.now().us() / 1_000)),
            clock,
        };
        store.link_all().await?;
        Ok(store)
    }

    /// The database, for what is no use case: tests.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Milliseconds since 1970.
    pub(crate) fn now(&self) -> u64 {
        self.clock.now().us() / 1_000
    }

    /// The newest revision known here, if the database answered lately.
    pub fn reachable(&self) -> Option<u64> {
        let age = self.now().saturating_sub(self.read_at.load(Ordering::Relaxed));
        (age <= REACHABLE_MS).then(|| *self.head.borrow())
    }

    /// Why the last write was not done, if it was not.
    pub fn unwritable(&self) -> Option<String> {
        self.database.writes().failure()
    }

    /// Writes a row that is no gateway's and takes it away again: nothing is kept but the answer to
    /// whether writes work.
    pub async fn try_write(&self) -> Result<(), StoreError> {
        let mut tx = self.database.write().await?;
        tx.run(
            "insert into gateway (id, boot, build, routes, applied, rejected, seen_at) \
             values ('', '', '', '[]', 0, '[]', 0)",
            [],
        )
        .await?;
        tx.run("delete from gateway where id = ''", []).await?;
        Ok(tx.commit().await?)
    }

    /// Changes with each new revision.
    pub(crate) fn bell(&self) -> watch::Receiver<u64> {
        self.head.subscribe()
    }

    /// Rings the bell if `revision` is new.
    pub(crate) fn ring(&self, revision: u64) {
        self.head.send_if_modified(|head| {
            let newer = revision > *head;
            *head = revision.max(*head);
            newer
        });
    }

    /// Reads the head and rings the bell if it has moved.
    pub(crate) async fn reread(&self) -> Result<u64, StoreError> {
        let mut tx = self.database.read().await?;
        let row = tx.row("select revision from head", []).await?;
        let revision = row.map_or(Ok(0), |row| row.count("revision"))?;
        self.read_at.store(self.now(), Ordering::Relaxed);
        self.ring(revision);
        Ok(revision)
    }

    /// Closes all connections.
    pub async fn close(&self) {
        self.database.close().await;
    }
}

fn no_head() -> StoreError {
    StoreError::Damaged { kind: "head", id: String::new(), reason: "the row is missing".to_owned() }
}

/// At most `limit` of `rows`, and where the next page begins.
fn page<T>(
    mut items: Vec<T>,
    limit: u32,
    id: impl Fn(&T) -> String,
) -> wire::client::plans::Page<T> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = items.len() > limit;
    items.truncate(limit);
    let next = items.last().filter(|_| more).map(id);
    wire::client::plans::Page { items, next }
}

/// A page of rows of which one may be damaged, by somebody's hand: it hides no other.
fn readable<T>(
    rows: &[Row],
    limit: u32,
    id: &str,
    item: impl Fn(&Row) -> Result<T, StoreError>,
) -> Result<wire::client::plans::Page<T>, StoreError> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let here = rows.get(..limit).unwrap_or(rows);
    let last = here.last().filter(|_| here.len() < rows.len());
    let next = last.map(|row| row.text(id)).transpose()?;
    let mut items = Vec::with_capacity(here.len());
    for row in here {
        match item(row) {
            Ok(item) => items.push(item),
            Err(error @ StoreError::Damaged { .. }) => {
                tracing::error!(%error, "left out of a list");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(wire::client::plans::Page { items, next })
}

/// A limit in its three columns. What is half there, or negative, is no number of another meaning.
fn limit_of(
    row: &Row,
    prefix: &str,
    kind: &'static str,
    id: &str,
) -> Result<Option<wire::plan::LimitValue>, StoreError> {
    let number = |of: &str| row.int_or_null(&format!("{prefix}_{of}"));
    let found = [number("capacity")?, number("tokens")?, number("per_us")?];
    match found.map(|number| number.map(u64::try_from)) {
        [None, None, None] => Ok(None),
        [Some(Ok(capacity)), Some(Ok(tokens)), Some(Ok(per_us))] => {
            Ok(Some(wire::plan::LimitValue { capacity, tokens, per_us }))
        }
        _ => {
            let reason = format!("capacity, tokens, per_us of {prefix} are {found:?}");
            Err(StoreError::Damaged { kind, id: id.to_owned(), reason })
        }
    }
}

/// Labels are for people: damaged ones are none, and nothing else suffers.
fn labels_of(
    row: &Row,
    kind: &'static str,
    id: &str,
) -> Result<std::collections::BTreeMap<String, String>, StoreError> {
    match json_of(row, "labels", kind, id) {
        Err(error @ StoreError::Damaged { .. }) => {
            tracing::error!(%error, "shown without labels");
            Ok(std::collections::BTreeMap::new())
        }
        read => read,
    }
}

/// Reads a JSON column.
fn json_of<T: serde::de::DeserializeOwned>(
    row: &Row,
    column: &str,
    kind: &'static str,
    id: &str,
) -> Result<T, StoreError> {
    serde_json::from_str(&row.text(column)?).map_err(|error| StoreError::Damaged {
        kind,
        id: id.to_owned(),
        reason: format!("{column}: {error}"),
    })
}

/// Reads a column that holds one word of a closed list.
fn word_of<T: serde::de::DeserializeOwned>(
    row: &Row,
    column: &str,
    kind: &'static str,
    id: &str,
) -> Result<T, StoreError> {
    let text = row.text(column)?;
    serde_json::from_value(serde_json::Value::String(text)).map_err(|error| StoreError::Damaged {
        kind,
        id: id.to_owned(),
        reason: format!("{column}: {error}"),
    })
}

/// A body as text for a JSON column.
fn text_of(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("bodies have text keys and no failing parts")
}

/// The word that a closed list's member is written as.
fn word<T: serde::Serialize>(value: T) -> String {
    text_of(&value).trim_matches('"').to_owned()
}
