//! Plans, clients and API keys straight into the database, as the API would have stored them: a
//! million keys one call after the other would take hours. Most have secrets that nobody knows; the
//! keys of the clients that are watched are real.

use std::fmt::Write as _;
use std::path::Path;
use std::str::FromStr as _;

use anyhow::Context as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use system_tests::world::{PLANS_DATABASE, World};
use wire::key::{ApiKey, KeyEnv, Pepper};

/// Rows that are written in one transaction.
const ROWS_AT_ONCE: u32 = 100_000;
/// What a seeded plan allows, of tokens that come back a million a second.
pub const CAPACITY: u64 = 1_000_000;

/// How much there is.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Plans.
    pub plans: u32,
    /// Clients, spread evenly over the plans; client n has plan n while there are plans.
    pub clients: u32,
    /// Keys, spread evenly over the clients.
    pub keys: u32,
}

/// A client whose key is known to the experiment.
#[derive(Debug, Clone)]
pub struct Known {
    /// Its id.
    pub client: String,
    /// Its plan, which nobody else known has.
    pub plan: String,
    /// The key's public id.
    pub key_id: String,
    /// The key.
    pub key: String,
}

/// The plan of a number.
pub fn plan_name(number: u32) -> String {
    format!("p{number:05}")
}

/// Fills the database of `world`, with a key for each of the clients `known`.
pub async fn fill(world: &World, size: Size, known: &[u32]) -> anyhow::Result<Vec<Known>> {
    let state = world.dir().join("plans-state");
    let pepper = Pepper::from_bytes(&std::fs::read(state.join("pepper"))?)?;
    let mut database = match &world.postgres {
        Some(postgres) => Filling::Postgres(postgres.connect(PLANS_DATABASE).await?),
        None => Filling::Sqlite(sqlite(&state.join("plans.db")).await?),
    };
    for setting in database.settings() {
        database.run(setting).await?;
    }
    // The revision of everything that is seeded: the next one, of which no change is kept.
    let next = "(select revision + 1 from head)";
    let plans = series(0, size.plans);
    database
        .run(&format!(
            "insert into plan (name, burst_capacity, burst_tokens, burst_per_us, unlimited, scope, \
             failure, costs, labels, note, revision) \
             select 'p' || substr(cast(100000 + i as text), 2), {CAPACITY}, 1, 1, 0, 'client', \
             'coarse', '[]', '{{}}', '', {next} from {plans}"
        ))
        .await?;
    let of = size.plans;
    for (from, to) in parts(size.clients) {
        let clients = series(from, to);
        database
            .run(&format!(
                "insert into client (id, name, plan, state, labels, reset_revision, revision) \
                 select 'c' || substr(cast(10000000 + i as text), 2), '', \
                 'p' || substr(cast(100000 + (i % {of}) as text), 2), 'active', '{{}}', 0, {next} \
                 from {clients}"
            ))
            .await?;
    }
    let known = real_keys(&mut database, &pepper, known, size).await?;
    let others = size.keys.saturating_sub(u32::try_from(known.len())?);
    let (of, secret) = (size.clients, database.random());
    for (from, to) in parts(others) {
        let keys = series(from, to);
        let id = "'k' || substr(cast(1000000000 + i as text), 2)";
        database
            .run(&format!(
                "begin; insert into api_key (id, client, env, state, expires_at, created_at, \
                 created_by, revision) select {id}, \
                 'c' || substr(cast(10000000 + (i % {of}) as text), 2), 'live', 'active', null, \
                 0, 'seed', {next} from {keys}; \
                 insert into api_key_secret (hash, key_id, algorithm, valid_until) \
                 select {secret}, {id}, 'weir', null from {keys}; commit"
            ))
            .await?;
    }
    database.run("update head set revision = revision + 1").await?;
    database.close().await?;
    Ok(known)
}

async fn real_keys(
    database: &mut Filling,
    pepper: &Pepper,
    clients: &[u32],
    size: Size,
) -> anyhow::Result<Vec<Known>> {
    let mut all = Vec::with_capacity(clients.len());
    let (mut keys, mut secrets) = (String::new(), String::new());
    for number in clients {
        let made = ApiKey::generate(KeyEnv::Live, pepper)?;
        let client = format!("c{number:07}");
        let id = &made.id;
        let comma = if keys.is_empty() { "" } else { ", " };
        write!(
            keys,
            "{comma}('{id}', '{client}', 'live', 'active', null, 0, 'seed', \
             (select revision + 1 from head))"
        )?;
        let hash = database.bytes(&made.hash.to_hex());
        write!(secrets, "{comma}({hash}, '{id}', 'weir', null)")?;
        let plan = plan_name(number % size.plans);
        all.push(Known { client, plan, key_id: made.id, key: made.text });
    }
    let into_keys = "insert into api_key (id, client, env, state, expires_at, created_at, \
        created_by, revision) values ";
    let into_secrets = "insert into api_key_secret (hash, key_id, algorithm, valid_until) values ";
    database.run(&format!("begin; {into_keys}{keys}; {into_secrets}{secrets}; commit")).await?;
    Ok(all)
}

/// Numbers from … to as a table `n` with the column `i`, in both dialects.
fn series(from: u32, to: u32) -> String {
    format!(
        "(with recursive s(i) as (select {from} union all select i + 1 from s where i + 1 < {to}) \
         select i from s) as n"
    )
}

fn parts(all: u32) -> impl Iterator<Item = (u32, u32)> {
    let step = usize::try_from(ROWS_AT_ONCE).unwrap_or(usize::MAX);
    (0..all).step_by(step).map(move |from| (from, (from + ROWS_AT_ONCE).min(all)))
}

/// A connection past every door of ours.
enum Filling {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

async fn sqlite(file: &Path) -> anyhow::Result<SqliteConnection> {
    let url = format!("sqlite://{}", file.display());
    let options = SqliteConnectOptions::from_str(&url)?.foreign_keys(false);
    let connecting = SqliteConnection::connect_with(&options).await;
    connecting.with_context(|| url)
}

impl Filling {
    /// Nothing of this has to survive a loss of power, and no row refers to one that is not there.
    fn settings(&self) -> &'static [&'static str] {
        match self {
            Filling::Sqlite(_) => &["pragma synchronous = off", "pragma cache_size = -200000"],
            Filling::Postgres(_) => &["set session_replication_role = replica"],
        }
    }

    /// 32 bytes that are different in each row.
    fn random(&self) -> &'static str {
        match self {
            Filling::Sqlite(_) => "randomblob(32)",
            Filling::Postgres(_) => "sha256(('other' || i)::text::bytea)",
        }
    }

    fn bytes(&self, hex: &str) -> String {
        match self {
            Filling::Sqlite(_) => format!("x'{hex}'"),
            Filling::Postgres(_) => format!("'\\x{hex}'::bytea"),
        }
    }

    async fn run(&mut self, sql: &str) -> anyhow::Result<()> {
        let statement = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
        let shown = || sql.chars().take(120).collect::<String>();
        match self {
            Filling::Sqlite(connection) => {
                connection.execute(statement).await.with_context(shown)?;
            }
            Filling::Postgres(connection) => {
                connection.execute(statement).await.with_context(shown)?;
            }
        }
        Ok(())
    }

    async fn close(self) -> anyhow::Result<()> {
        match self {
            Filling::Sqlite(connection) => connection.close().await?,
            Filling::Postgres(connection) => connection.close().await?,
        }
        Ok(())
    }
}
