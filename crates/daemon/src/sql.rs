//! Opens Postgres or SQLite from a URL, and runs one SQL text on both.
//!
//! Values are whole numbers, texts and bytes, so the columns are `bigint`, `text` and `bytea` /
//! `blob`; placeholders are `$1`…. There are no tables here and no queries: those belong to the
//! services. SQLite has one writer (`begin immediate`) and a few readers. Errors come in classes
//! named after what the caller does next.

mod writes; // whether it takes writes

use std::str::FromStr;
use std::time::Duration;

use sqlx::migrate::{Migration, MigrationType, Migrator};
pub use sqlx::postgres::PgListener;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions, PgRow};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqliteRow, SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, Postgres, Row as _, SqlSafeStr, Sqlite};

pub use self::writes::Writes;

/// Connections to Postgres.
const POSTGRES_CONNECTIONS_MAX: u32 = 8;
/// Reading connections to SQLite.
const SQLITE_READERS_MAX: u32 = 4;
/// How long a caller waits for a lock or an answer.
pub const WAIT_MAX: Duration = Duration::from_secs(3);
/// How long a caller waits for a connection to Postgres that answers: when none does, or all are in
/// use, it is told so at once rather than late.
const CONNECTION_WAIT_MAX: Duration = Duration::from_millis(1_500);

/// Why the database did not do it.
#[derive(Debug, thiserror::Error)]
pub enum SqlError {
    /// A constraint refused the row; its name, if the database says it.
    #[error("the database refuses the row ({0})")]
    Constraint(String, #[source] sqlx::Error),
    /// Others hold the lock: try again later.
    #[error("the database is busy")]
    Busy(#[source] sqlx::Error),
    /// It cannot be reached: nothing was changed unless a commit was under way.
    #[error("the database cannot be reached")]
    Gone(#[source] sqlx::Error),
    /// It is full, its disk fails, or it only reads; as with gone, nothing was changed unless a
    /// commit was under way.
    #[error("the database cannot write ({0})")]
    Unwritable(String, #[source] sqlx::Error),
    /// It says nothing for [`WAIT_MAX`]; as with gone, a commit may or may not have happened.
    #[error("the database does not answer")]
    Silent,
    /// A wrong URL, a wrong migration, a bug.
    #[error("the database reports an error")]
    Other(#[source] sqlx::Error),
    /// The URL names neither.
    #[error("a database is postgres://… or sqlite://PATH, not `{0}`")]
    Url(String),
}

impl From<sqlx::Error> for SqlError {
    fn from(error: sqlx::Error) -> SqlError {
        if let sqlx::Error::Database(told) = &error {
            let code = told.code().unwrap_or_default().into_owned();
            let named = told.constraint().map(ToOwned::to_owned);
            return match code.as_str() {
                // Postgres class 23; SQLite primary code 19 in its extended forms.
                code if code.starts_with("23") && code.len() == 5 => {
                    SqlError::Constraint(named.unwrap_or_default(), error)
                }
                code if code.parse::<i64>().is_ok_and(|code| code & 0xff == 19) => {
                    SqlError::Constraint(named.unwrap_or_else(|| told.message().to_owned()), error)
                }
                // 57014: the wait for a lock was as long as a statement may take.
                "5" | "6" | "261" | "517" | "40001" | "40P01" | "55P03" | "57014" => {
                    SqlError::Busy(error)
                }
                code if code.starts_with("57P") || code.starts_with("08") => SqlError::Gone(error),
                code if writes::is_unwritable(code) => {
                    SqlError::Unwritable(told.message().to_owned(), error)
                }
                _ => SqlError::Other(error),
            };
        }
        let gone = matches!(
            error,
            sqlx::Error::Io(_)
                | sqlx::Error::Tls(_)
                | sqlx::Error::PoolTimedOut
                | sqlx::Error::PoolClosed
                | sqlx::Error::WorkerCrashed
        );
        if gone { SqlError::Gone(error) } else { SqlError::Other(error) }
    }
}

/// A bound value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `bigint`.
    Int(Option<i64>),
    /// `text`.
    Text(Option<String>),
    /// `bytea` or `blob`.
    Bytes(Option<Vec<u8>>),
}

macro_rules! value_from {
    ($($variant:ident $from:ty;)*) => {$(
        impl From<$from> for Value {
            fn from(value: $from) -> Value { Value::$variant(Some(value.into())) }
        }
        impl From<Option<$from>> for Value {
            fn from(value: Option<$from>) -> Value { Value::$variant(value.map(Into::into)) }
        }
    )*};
}
value_from! { Int i64; Int i32; Int u32; Text String; Text &str; Bytes Vec<u8>; Bytes &[u8]; }

impl From<u64> for Value {
    /// Beyond what `bigint` holds it is the largest one.
    fn from(value: u64) -> Value {
        Value::Int(Some(i64::try_from(value).unwrap_or(i64::MAX)))
    }
}

impl From<Option<u64>> for Value {
    fn from(value: Option<u64>) -> Value {
        value.map_or(Value::Int(None), Value::from)
    }
}

/// A row that was read.
#[derive(Debug)]
pub struct Row(RowOf);

#[derive(Debug)]
enum RowOf {
    Postgres(PgRow),
    Sqlite(SqliteRow),
}

macro_rules! column {
    ($($name:ident $of:ty, $doc:literal;)*) => {$(
        #[doc = $doc]
        pub fn $name(&self, column: &str) -> Result<$of, SqlError> {
            Ok(match &self.0 {
                RowOf::Postgres(row) => row.try_get(column)?,
                RowOf::Sqlite(row) => row.try_get(column)?,
            })
        }
    )*};
}

impl Row {
    column! {
        int i64, "A whole number.";
        int_or_null Option<i64>, "A whole number or null.";
        text String, "A text.";
        text_or_null Option<String>, "A text or null.";
        bytes Vec<u8>, "Bytes.";
    }

    /// A number that is never negative; a negative one reads as 0.
    pub fn count(&self, column: &str) -> Result<u64, SqlError> {
        Ok(u64::try_from(self.int(column)?).unwrap_or(0))
    }

    /// A number that is never negative, or null.
    pub fn count_or_null(&self, column: &str) -> Result<Option<u64>, SqlError> {
        Ok(self.int_or_null(column)?.map(|number| u64::try_from(number).unwrap_or(0)))
    }
}

/// An open database. Clones share its connections.
#[derive(Debug, Clone)]
pub enum Database {
    /// A Postgres server, and whether it takes writes.
    Postgres(PgPool, Writes),
    /// A SQLite file.
    Sqlite {
        /// The one that writes.
        writer: SqlitePool,
        /// Those that read.
        readers: SqlitePool,
        /// Whether it takes writes.
        writes: Writes,
    },
}

/// One numbered step of a schema, the same on both sides: what it is called and its two texts.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// Its number; no two services use the same.
    pub number: i64,
    /// What it adds.
    pub name: &'static str,
    /// For Postgres.
    pub postgres: &'static str,
    /// For SQLite.
    pub sqlite: &'static str,
}

impl Database {
    /// Opens it; a SQLite file is made if it is not there.
    pub async fn open(url: &str) -> Result<Database, SqlError> {
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            let options = PgConnectOptions::from_str(url)?
                .options([("statement_timeout", "3000"), ("lock_timeout", "3000")]);
            let pool = PgPoolOptions::new()
                .max_connections(POSTGRES_CONNECTIONS_MAX)
                .acquire_timeout(CONNECTION_WAIT_MAX)
                .connect_with(options)
                .await?;
            return Ok(Database::Postgres(pool, Writes::default()));
        }
        let path =
            url.strip_prefix("sqlite://").ok_or_else(|| SqlError::Url(without_secret(url)))?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(WAIT_MAX)
            .foreign_keys(true);
        let writer = writes::sqlite_pool(1).connect_with(options.clone()).await?;
        let readers = writes::sqlite_pool(SQLITE_READERS_MAX).connect_with(options).await?;
        Ok(Database::Sqlite { writer, readers, writes: Writes::default() })
    }

    /// Brings the schema forward. Steps of other services in the same database are left alone.
    pub async fn migrate(&self, steps: &[Step]) -> Result<(), SqlError> {
        let migrations = steps
            .iter()
            .map(|step| {
                let text = match self {
                    Database::Postgres(..) => step.postgres,
                    Database::Sqlite { .. } => step.sqlite,
                };
                let (kind, name) = (MigrationType::Simple, step.name.into());
                Migration::new(step.number, name, kind, text.into_sql_str(), false)
            })
            .collect();
        let mut migrator = Migrator::with_migrations(migrations);
        migrator.set_ignore_missing(true);
        let done = match self {
            Database::Postgres(pool, _) => migrator.run(pool).await,
            Database::Sqlite { writer, .. } => migrator.run(writer).await,
        };
        done.map_err(|error| SqlError::from(sqlx::Error::from(error)))
    }

    /// A transaction that writes. SQLite: the only one.
    pub async fn write(&self) -> Result<Transaction, SqlError> {
        let writes = self.writes().clone();
        let begun = match self {
            Database::Postgres(pool, _) => {
                Box::pin(in_time(pool.begin())).await.map(Begun::Postgres)
            }
            Database::Sqlite { writer, .. } => {
                let begun = writer.begin_with("begin immediate").await.map(Begun::Sqlite);
                begun.map_err(SqlError::from)
            }
        };
        Ok(Transaction { begun: writes.noting(begun)?, writes })
    }

    /// A transaction that reads one state.
    pub async fn read(&self) -> Result<Transaction, SqlError> {
        let begun = match self {
            Database::Postgres(pool, _) => Begun::Postgres(
                Box::pin(in_time(
                    pool.begin_with("begin isolation level repeatable read read only"),
                ))
                .await?,
            ),
            Database::Sqlite { readers, .. } => Begun::Sqlite(readers.begin().await?),
        };
        Ok(Transaction { begun, writes: Writes::default() })
    }

    /// What became of the last write.
    pub fn writes(&self) -> &Writes {
        match self {
            Database::Postgres(_, writes) | Database::Sqlite { writes, .. } => writes,
        }
    }

    /// A connection of its own that hears notifications on `channel`; SQLite has none.
    pub async fn listen(&self, channel: &str) -> Result<Option<PgListener>, SqlError> {
        match self {
            Database::Sqlite { .. } => Ok(None),
            Database::Postgres(pool, _) => {
                let options = (*pool.connect_options()).clone().application_name("weir doorbell");
                let own = PgPoolOptions::new().max_connections(1).acquire_timeout(WAIT_MAX);
                let mut listener =
                    PgListener::connect_with(&own.connect_lazy_with(options)).await?;
                listener.listen(channel).await?;
                Ok(Some(listener))
            }
        }
    }

    /// Closes all connections.
    pub async fn close(&self) {
        match self {
            Database::Postgres(pool, _) => pool.close().await,
            Database::Sqlite { writer, readers, .. } => {
                readers.close().await;
                writer.close().await;
            }
        }
    }
}

/// A transaction; dropped without [`Transaction::commit`] it never happened.
#[derive(Debug)]
pub struct Transaction {
    begun: Begun,
    writes: Writes,
}

#[derive(Debug)]
enum Begun {
    Postgres(sqlx::Transaction<'static, Postgres>),
    Sqlite(sqlx::Transaction<'static, Sqlite>),
}

macro_rules! bound {
    ($sql:expr, $values:expr) => {{
        let mut query = sqlx::query($sql);
        for value in $values {
            query = match value {
                Value::Int(value) => query.bind(value),
                Value::Text(value) => query.bind(value),
                Value::Bytes(value) => query.bind(value),
            };
        }
        query
    }};
}

macro_rules! on_either {
    ($begun:expr, $tx:ident => $done:expr) => {
        match $begun {
            Begun::Postgres($tx) => $done,
            Begun::Sqlite($tx) => $done,
        }
    };
}

impl Transaction {
    /// Runs a statement; how many rows it touched.
    pub async fn run(
        &mut self,
        sql: &'static str,
        values: impl IntoIterator<Item = Value>,
    ) -> Result<u64, SqlError> {
        let done = on_either!(&mut self.begun, tx => {
            in_time(bound!(sql, values).execute(&mut **tx)).await.map(|done| done.rows_affected())
        });
        self.writes.noting(done)
    }

    /// Runs several statements without values; for tests and tools, never with text from outside.
    pub async fn run_text(&mut self, sql: &str) -> Result<(), SqlError> {
        let sql = AssertSqlSafe(sql.to_owned());
        let done = on_either!(&mut self.begun, tx => {
            in_time(sqlx::raw_sql(sql).execute(&mut **tx)).await.map(|_| ())
        });
        self.writes.noting(done)
    }

    /// All rows.
    pub async fn rows(
        &mut self,
        sql: &'static str,
        values: impl IntoIterator<Item = Value>,
    ) -> Result<Vec<Row>, SqlError> {
        let rows = match &mut self.begun {
            Begun::Postgres(tx) => in_time(bound!(sql, values).fetch_all(&mut **tx))
                .await
                .map(|rows| rows.into_iter().map(RowOf::Postgres).map(Row).collect()),
            Begun::Sqlite(tx) => in_time(bound!(sql, values).fetch_all(&mut **tx))
                .await
                .map(|rows| rows.into_iter().map(RowOf::Sqlite).map(Row).collect()),
        };
        self.writes.noting(rows)
    }

    /// The first row, if there is one.
    pub async fn row(
        &mut self,
        sql: &'static str,
        values: impl IntoIterator<Item = Value>,
    ) -> Result<Option<Row>, SqlError> {
        Ok(self.rows(sql, values).await?.into_iter().next())
    }

    /// Rings the doorbell `channel` when this commits; nothing on SQLite.
    pub async fn notify(&mut self, channel: &'static str) -> Result<(), SqlError> {
        match &mut self.begun {
            Begun::Postgres(_) => {
                self.rows("select 1 as one from pg_notify($1, '')", [channel.into()]).await?;
            }
            Begun::Sqlite(_) => {}
        }
        Ok(())
    }

    /// Makes it so.
    pub async fn commit(self) -> Result<(), SqlError> {
        let done = on_either!(self.begun, tx => in_time(tx.commit()).await);
        self.writes.noting(done).inspect(|()| self.writes.set(None))
    }
}

/// A peer may fall silent without closing: no answer is waited for without end.
async fn in_time<T>(answer: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, SqlError> {
    match tokio::time::timeout(WAIT_MAX, answer).await {
        Ok(answer) => Ok(answer?),
        Err(_elapsed) => Err(SqlError::Silent),
    }
}

/// A URL as an error may show it: whatever stands before an `@` may be a password.
fn without_secret(url: &str) -> String {
    match url.rsplit_once('@') {
        Some((_, host)) => format!("…@{host}"),
        None => url.to_owned(),
    }
}
