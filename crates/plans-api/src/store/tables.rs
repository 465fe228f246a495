//! What a backup holds: tables and columns, in the order in which they can be filled.
//!
//! A table that is not here is not in a backup, and a test compares the list with the schema: new
//! tables and columns belong here, or among [`LEFT_OUT`] with a reason.

use std::sync::LazyLock;

use daemon::sql::{Row, Value};
use serde_json::{Map, Value as Json};

use super::StoreError;

/// Tables that a backup has not: the head and its changes begin anew with a restore, and gateways
/// say themselves where they stand. A kill switch that is set stays set, whatever is restored;
/// approvals and calls that may be repeated are over within minutes and a day.
pub const LEFT_OUT: &[&str] =
    &["head", "change", "gateway", "killswitch", "approval", "idempotency"];

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Int,
    /// A whole number that a backup from before the column has as 0.
    Count,
    Text,
    Bytes,
}

/// How rows come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Return {
    /// All that are there leave first.
    Replaced,
    /// Those that are there stay, so that whoever restores keeps a token that opens; one that both
    /// have is as the backup says, and revoked if either says so.
    Joined,
}

/// One table.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) name: &'static str,
    columns: Vec<(&'static str, Kind)>,
    key: Vec<&'static str>,
    /// Its rows take the revision of the restore.
    restamped: bool,
    pub(super) returns: Return,
    /// A page, from the first row on.
    pub(super) first: String,
    /// A page behind a row.
    pub(super) next: String,
    pub(super) insert: String,
    /// Takes some rows away; for a table with one key column.
    pub(super) delete: String,
}

/// Rows of a page, and rows that one statement takes away.
pub(super) const PAGE_ROWS: u32 = 100;

/// All tables. `key` names the first columns that are the key.
pub(super) static TABLES: LazyLock<Vec<Table>> = LazyLock::new(|| {
    vec![
        table(
            "plan",
            "name text, burst_capacity int, burst_tokens int, burst_per_us int, \
             sustained_capacity int, sustained_tokens int, sustained_per_us int, unlimited int, \
             scope text, failure text, costs text, labels text, note text, revision int",
            1,
        ),
        table(
            "client",
            "id text, name text, plan text, state text, labels text, reset_revision count, \
             revision int",
            1,
        ),
        table(
            "client_override",
            "client text, burst_capacity int, burst_tokens int, burst_per_us int, \
             sustained_capacity int, sustained_tokens int, sustained_per_us int, failure text, \
             reason text, set_at int, expires_at int",
            1,
        ),
        table(
            "api_key",
            "id text, client text, env text, state text, expires_at int, created_at int, \
             created_by text, revision int",
            1,
        ),
        table(
            "api_key_secret",
            "hash bytes, key_id text, algorithm text, valid_until int, created_at count, \
             last_used_at int",
            1,
        ),
        table("rollout", "name text, active int, share_bp int, revision int", 1),
        table(
            "rollout_rule",
            "rollout text, named_by text, client text, phase text, since_revision int",
            3,
        ),
        table(
            "operator_token",
            "id text, hash bytes, name text, role text, machine count, created_at int, \
             expires_at int, last_used_at int, revoked_at int",
            1,
        ),
        table(
            "audit",
            "seq int, revision int, at int, actor text, via text, command text, reason text, \
             kind text, id text, before text, after text, request_id text, prev text, hash text",
            1,
        ),
    ]
});

fn table(name: &'static str, columns: &'static str, key: usize) -> Table {
    let columns: Vec<(&'static str, Kind)> = columns
        .split(", ")
        .map(|column| match column.trim().split_once(' ') {
            Some((name, "int")) => (name, Kind::Int),
            Some((name, "count")) => (name, Kind::Count),
            Some((name, "bytes")) => (name, Kind::Bytes),
            Some((name, _)) => (name, Kind::Text),
            None => (column, Kind::Text),
        })
        .collect();
    let key: Vec<&'static str> = columns.iter().take(key).map(|(name, _)| *name).collect();
    let quoted = |names: &[&str]| {
        names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
    };
    let places =
        |count: usize| (1..=count).map(|place| format!("${place}")).collect::<Vec<_>>().join(", ");
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let (all, order) = (quoted(&names), quoted(&key));
    let limit = key.len() + 1;
    let joined = name == "operator_token";
    let conflict = if joined { JOIN_TOKEN } else { "" };
    Table {
        name,
        first: format!("select {all} from {name} order by {order} limit $1"),
        next: format!(
            "select {all} from {name} where ({order}) > ({}) order by {order} limit ${limit}",
            places(key.len())
        ),
        insert: format!("insert into {name} ({all}) values ({}){conflict}", places(columns.len())),
        delete: format!(
            "delete from {name} where ({order}) in (select {order} from {name} limit {PAGE_ROWS})"
        ),
        restamped: name != "audit" && names.contains(&"revision"),
        returns: if joined { Return::Joined } else { Return::Replaced },
        columns,
        key,
    }
}

const JOIN_TOKEN: &str = " on conflict (id) do update set hash = excluded.hash, \
    name = excluded.name, role = excluded.role, machine = excluded.machine, created_at = excluded.created_at, \
    expires_at = excluded.expires_at, last_used_at = excluded.last_used_at, \
    revoked_at = coalesce(operator_token.revoked_at, excluded.revoked_at)";

impl Table {
    /// A row as a document.
    pub(super) fn document(&self, row: &Row) -> Result<Map<String, Json>, StoreError> {
        let mut document = Map::new();
        for (name, kind) in &self.columns {
            let value = match kind {
                Kind::Int | Kind::Count => row.int_or_null(name)?.map_or(Json::Null, Json::from),
                Kind::Text => row.text_or_null(name)?.map_or(Json::Null, Json::from),
                Kind::Bytes => Json::from(hex(&row.bytes(name)?)),
            };
            document.insert((*name).to_owned(), value);
        }
        Ok(document)
    }

    /// The key of a row, for the page behind it.
    pub(super) fn key_of(&self, row: &Row) -> Result<Vec<Value>, StoreError> {
        let columns = self.columns.iter().take(self.key.len());
        columns
            .map(|(name, kind)| {
                Ok(match kind {
                    Kind::Int | Kind::Count => row.int(name)?.into(),
                    Kind::Text => row.text(name)?.into(),
                    Kind::Bytes => row.bytes(name)?.into(),
                })
            })
            .collect()
    }

    /// A document as the values of a row at a new revision; what is wrong with it otherwise.
    pub(super) fn values(
        &self,
        mut document: Map<String, Json>,
        revision: u64,
    ) -> Result<Vec<Value>, String> {
        let mut values = Vec::with_capacity(self.columns.len());
        for (name, kind) in &self.columns {
            let given = document.remove(*name).unwrap_or(Json::Null);
            let stamp = *name == "revision" && self.restamped;
            values.push(match (kind, given) {
                (Kind::Int, _) if stamp => revision.into(),
                (Kind::Int, Json::Null) => Value::Int(None),
                (Kind::Count, Json::Null) => Value::Int(Some(0)),
                (Kind::Int | Kind::Count, Json::Number(number)) if number.is_i64() => {
                    Value::Int(number.as_i64())
                }
                (Kind::Text, Json::Null) => Value::Text(None),
                (Kind::Text, Json::String(text)) => text.into(),
                (Kind::Bytes, Json::Null) => Value::Bytes(None),
                (Kind::Bytes, Json::String(text)) => match bytes(&text) {
                    Some(bytes) => bytes.into(),
                    None => return Err(format!("{name} is not in hexadecimal digits")),
                },
                (kind, other) => return Err(format!("{name} is no {kind:?}: {other}")),
            });
        }
        match document.keys().next() {
            None => Ok(values),
            Some(column) => Err(format!(
                "this build knows no column {column}: use the build that made the backup, or a \
                 later one"
            )),
        }
    }
}

/// Names of tables and columns, for comparing them with the schema.
pub fn kept() -> Vec<(&'static str, Vec<&'static str>)> {
    let columns = |table: &Table| table.columns.iter().map(|(name, _)| *name).collect();
    TABLES.iter().map(|table| (table.name, columns(table))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(text: &str) -> Option<Vec<u8>> {
    let digits = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    if !text.bytes().all(|byte| byte.is_ascii_hexdigit()) || !text.len().is_multiple_of(2) {
        return None;
    }
    text.as_bytes().chunks(2).map(digits).collect()
}
