//! Objects that no door would let in, as statements for a database whose constraints are gone.
//!
//! Each concerns one of the bad clients: its plan, itself, its key, its key's secret, or what the
//! feed would tell of them. Beside most rows stands the change that wakes the gateways.

use super::scene::{BAD, bad};

/// One damaged object.
#[derive(Debug, Clone)]
pub struct Mutation {
    /// The statement that damages a row, if one is damaged.
    pub row: Option<String>,
    /// What the feed is to tell: kind, id, and the value as text; nothing means deleted.
    pub change: (&'static str, String, Option<String>),
    /// The plan's row is one that no gateway may take.
    pub breaks_plan: Option<String>,
}

/// What a plan's row must not say.
const PLAN_ROWS: [&str; 29] = [
    "burst_capacity = 0",
    "burst_capacity = -1",
    "burst_capacity = 9223372036854775807",
    "burst_capacity = 1000000000001",
    "burst_capacity = null",
    "burst_capacity = null, burst_tokens = null, burst_per_us = null",
    "burst_tokens = -5",
    "burst_tokens = null",
    "burst_tokens = 2000000000, burst_per_us = 1",
    "burst_tokens = 9223372036854775807",
    "burst_per_us = 0",
    "burst_per_us = -1",
    "burst_per_us = 9223372036854775807",
    "burst_capacity = 1000000000000, burst_per_us = 2678400000000",
    "sustained_capacity = 5",
    "sustained_capacity = -5, sustained_tokens = -5, sustained_per_us = -5",
    "sustained_capacity = 0, sustained_tokens = 0, sustained_per_us = 0",
    "unlimited = 1",
    "scope = 'everybody'",
    "scope = ''",
    "failure = 'often'",
    "failure = '1e309'",
    "failure = 'nan'",
    "failure = '-1'",
    "failure = repeat('9', 100000)",
    "costs = 'x'",
    "costs = repeat('[', 100000)",
    "costs = '[{\"route\":\"orders\",\"cost\":-1}]'",
    "costs = '[{\"route\":\"orders\",\"cost\":1e400}]'",
];

/// What is no value of any kind.
const NO_VALUES: [&str; 14] = [
    "",
    "null",
    "0",
    "-1",
    "true",
    "\"text\"",
    "[]",
    "{}",
    "not JSON",
    "{\"name\":\"bad-00\"",
    "{\"name\":1,\"id\":2,\"plan\":3,\"revision\":-4}",
    "{\"revision\":1e400}",
    "{\"id\":\"x\",\"id\":\"y\",\"name\":\"x\",\"name\":\"y\"}",
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
];

/// Plans that read and must not be taken; `NAME` is the plan's.
const PLAN_VALUES: [&str; 12] = [
    r#"{"name":"NAME","burst":{"capacity":0,"tokens":1,"per_us":1},"sustained":null,"costs":[],"scope":"client","failure":"open","unlimited":false,"revision":1}"#,
    r#"{"name":"NAME","burst":{"capacity":1,"tokens":1,"per_us":0},"sustained":null,"costs":[],"scope":"client","failure":"open","unlimited":false,"revision":1}"#,
    r#"{"name":"NAME","burst":{"capacity":18446744073709551615,"tokens":18446744073709551615,"per_us":1},"sustained":null,"costs":[],"scope":"client","failure":"open","unlimited":false,"revision":1}"#,
    r#"{"name":"NAME","burst":null,"sustained":null,"costs":[],"scope":"client","failure":"open","unlimited":false,"revision":1}"#,
    r#"{"name":"NAME","burst":{"capacity":1,"tokens":1,"per_us":1},"sustained":null,"costs":[],"scope":"client","failure":"open","unlimited":true,"revision":1}"#,
    r#"{"name":"NAME","burst":{"capacity":5,"tokens":1,"per_us":1},"sustained":null,"costs":[{"route":"orders","cost":6}],"scope":"client","failure":"open","unlimited":false,"revision":1}"#,
    r#"{"name":"NAME","burst":{"capacity":5,"tokens":1,"per_us":1},"sustained":null,"costs":[{"route":"","cost":1}],"scope":"client","failure":"open","unlimited":false,"revision":1}"#,
    r#"{"name":"NAME","burst":{"capacity":5,"tokens":1,"per_us":1},"sustained":null,"costs":[],"scope":"client","failure":"1000","unlimited":false,"revision":1}"#,
    r#"{"name":"NAME","burst":{"capacity":5,"tokens":1,"per_us":1},"sustained":null,"costs":[],"scope":"client","failure":"","unlimited":false,"revision":1}"#,
    r#"{"name":"NAME","burst":{"capacity":5,"tokens":1,"per_us":1},"sustained":null,"costs":[],"scope":"client","failure":"NaN","unlimited":false,"revision":18446744073709551615}"#,
    // These two bear a sound plan's name.
    r#"{"name":"sound-00","burst":null,"sustained":null,"costs":[],"scope":"client","failure":"open","unlimited":true,"revision":1}"#,
    r#"{"name":"sound-01","burst":{"capacity":1,"tokens":0,"per_us":1},"sustained":null,"costs":[],"scope":"client","failure":"closed","unlimited":false,"revision":1}"#,
];

/// What a client's row must not say; `ID` is the client's.
const CLIENT_ROWS: [&str; 8] = [
    "update client set state = 'asleep' where id = 'ID'",
    "update client set state = '' where id = 'ID'",
    "update client set plan = 'nowhere' where id = 'ID'",
    "update client set plan = repeat('p', 100000) where id = 'ID'",
    "update client set labels = repeat('{', 100000) where id = 'ID'",
    "update client set reset_revision = -1 where id = 'ID'",
    "update client set reset_revision = 9223372036854775807, revision = 9223372036854775807 \
     where id = 'ID'",
    "delete from client where id = 'ID'",
];

/// What a key's row must not say; `ID` is its client's.
const KEY_ROWS: [&str; 8] = [
    "update api_key set env = 'moon' where client = 'ID'",
    "update api_key set state = 'lost' where client = 'ID'",
    "update api_key set expires_at = -5 where client = 'ID'",
    "update api_key set created_by = repeat('x', 100000) where client = 'ID'",
    "update api_key set revision = -1 where client = 'ID'",
    "update api_key set revision = 9223372036854775807 where client = 'ID'",
    "delete from api_key where client = 'ID'",
    "update api_key set client = 'nobody' where client = 'ID'",
];

/// What a secret's row must not say; `KEY` selects the bad client's key.
const SECRET_ROWS: [&str; 5] = [
    "update api_key_secret set valid_until = -1 where key_id in KEY",
    "update api_key_secret set hash = decode(md5(key_id), 'hex') where key_id in KEY",
    "update api_key_secret set hash = substring(hash from 1 for 31) where key_id in KEY",
    "update api_key_secret set hash = substring(hash from 1 for 3) where key_id in KEY",
    "update api_key_secret set key_id = 'ghost' where key_id in KEY",
];

/// Rollouts that no gateway may take, one after the other.
const ROLLOUT_ROWS: [&str; 4] = [
    "insert into rollout (name, active, share_bp, revision) values ('poison', 1, 99999999, 1)",
    "insert into rollout_rule (rollout, named_by, client, phase, since_revision) \
     values ('poison', 'all', '', 'maybe', -1)",
    "update rollout_rule set named_by = 'who', phase = '' where rollout = 'poison'",
    "update rollout set name = repeat('r', 1000), share_bp = -1, revision = -1",
];

const KINDS: [&str; 4] = ["plan", "client", "key", "rollout"];

/// All of them.
pub fn all() -> Vec<Mutation> {
    let mut all: Vec<Mutation> = Vec::new();
    // Who is next: every bad client gets its part.
    let mut next = (0..BAD).cycle().map(bad);
    let mut name = || next.next().unwrap_or_default();
    // A plan has one damage alone: two may come to something that is valid.
    for (number, row) in PLAN_ROWS.into_iter().enumerate() {
        for told in ["not JSON", "{}", "[1]"] {
            let plan = bad(number % BAD);
            all.push(Mutation {
                row: Some(format!("update plan set {row} where name = '{plan}'")),
                change: ("plan", plan.clone(), Some(told.to_owned())),
                breaks_plan: Some(plan),
            });
        }
    }
    for kind in KINDS {
        for value in NO_VALUES {
            let change = (kind, name(), Some(value.to_owned()));
            all.push(Mutation { row: None, change, breaks_plan: None });
        }
    }
    for value in PLAN_VALUES {
        let plan = name();
        let value = value.replace("NAME", &plan);
        all.push(Mutation { row: None, change: ("plan", plan, Some(value)), breaks_plan: None });
    }
    for (kind, rows) in
        [("client", &CLIENT_ROWS[..]), ("key", &KEY_ROWS[..]), ("key", &SECRET_ROWS[..])]
    {
        for row in rows {
            for told in [Some("{}".to_owned()), None] {
                let client = name();
                let key = format!("(select id from api_key where client = '{client}')");
                let row = row.replace("ID", &client).replace("KEY", &key);
                all.push(Mutation {
                    row: Some(row),
                    change: (kind, client, told),
                    breaks_plan: None,
                });
            }
        }
    }
    for row in ROLLOUT_ROWS {
        let change = ("rollout", "poison".to_owned(), Some("{}".to_owned()));
        all.push(Mutation { row: Some(row.to_owned()), change, breaks_plan: None });
    }
    for (number, odd) in
        ["'Not a name'", "''", "repeat('n', 100000)", "'sound-00 '"].into_iter().enumerate()
    {
        let columns = "burst_capacity, burst_tokens, burst_per_us, unlimited, scope, failure, \
            costs, labels, note, revision";
        let row = format!(
            "insert into plan (name, {columns}) select {odd}, {columns} from plan \
             where name = '{}'",
            bad(number)
        );
        let change = ("ghost", name(), Some("{}".to_owned()));
        all.push(Mutation { row: Some(row), change, breaks_plan: None });
    }
    all
}

impl Mutation {
    /// One transaction that writes it, counts a revision and rings the doorbell.
    pub fn transaction(&self) -> String {
        let (kind, id, value) = &self.change;
        let row = self.row.as_ref().map_or_else(String::new, |row| format!("{row}; "));
        let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
        let value = value.as_deref().map_or_else(|| "null".to_owned(), quoted);
        format!(
            "begin; {row}update head set revision = revision + 1; \
             insert into change (revision, at, kind, id, value) \
             select revision, (extract(epoch from now()) * 1000)::bigint, '{kind}', {}, {value} \
             from head; select pg_notify('weir_head', ''); commit",
            quoted(id)
        )
    }
}
