//! One instance at a time: an advisory lock held by an own connection (Postgres), a locked file
//! beside the database (SQLite). Both fall with the process, also with `kill -9`.
//!
//! A lock alone is not enough: a connection can die without anybody noticing. What makes a second
//! writer harmless is the owner's row that every writing transaction touches (see `sql.rs`).

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use daemon::sql::Database;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection, Row};

/// Name of the lock among the advisory locks of a Postgres database.
const LOCK: i64 = 0x7765_6972_2d73_6863; // "weir-shc"
/// How long a new instance waits for the end of an old one.
const CLAIM_WAIT: Duration = Duration::from_secs(5);
/// How often it asks meanwhile.
const CLAIM_RETRY: Duration = Duration::from_millis(100);

/// Why there is no claim.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimError {
    /// Another instance lives.
    #[error("another weir-shadow-compare is working on this database; only one may")]
    Taken,
    /// Postgres cannot be asked.
    #[error("the lock in the database cannot be taken")]
    Database(#[source] sqlx::Error),
    /// The file cannot be locked.
    #[error("{0} cannot be locked")]
    File(PathBuf, #[source] io::Error),
}

/// Held as long as this lives.
#[derive(Debug)]
pub(crate) enum Claim {
    /// The locked file.
    File(#[expect(dead_code, reason = "its lock ends when it is closed")] File),
    /// The connection that holds the lock, and how to make another.
    Connection(Box<PgConnectOptions>, PgConnection),
}

impl Claim {
    /// Takes the claim on `database`, which was opened from `url`.
    pub(crate) async fn take(url: &str, database: &Database) -> Result<Claim, ClaimError> {
        let mut left = CLAIM_WAIT;
        loop {
            match Claim::try_take(url, database).await {
                Err(ClaimError::Taken) if !left.is_zero() => {
                    tokio::time::sleep(CLAIM_RETRY).await;
                    left = left.saturating_sub(CLAIM_RETRY);
                }
                other => return other,
            }
        }
    }

    async fn try_take(url: &str, database: &Database) -> Result<Claim, ClaimError> {
        match database {
            Database::Sqlite { .. } => {
                let path = lock_path(url);
                lock_file(&path).map(Claim::File)
            }
            Database::Postgres(pool, _) => {
                let options = Box::new((*pool.connect_options()).clone());
                let connection = lock_connection(&options).await?;
                Ok(Claim::Connection(options, connection))
            }
        }
    }

    /// Sees to it that the claim is held; takes it again if the connection broke.
    pub(crate) async fn hold(&mut self) -> Result<(), ClaimError> {
        match self {
            Claim::File(_) => Ok(()),
            Claim::Connection(options, connection) => {
                if connection.ping().await.is_err() {
                    *connection = lock_connection(options).await?;
                }
                Ok(())
            }
        }
    }
}

async fn lock_connection(options: &PgConnectOptions) -> Result<PgConnection, ClaimError> {
    let mut connection = options.connect().await.map_err(ClaimError::Database)?;
    let held = sqlx::query("select pg_try_advisory_lock($1) as held")
        .bind(LOCK)
        .fetch_one(&mut connection)
        .await
        .and_then(|row| row.try_get::<bool, _>("held"))
        .map_err(ClaimError::Database)?;
    if held { Ok(connection) } else { Err(ClaimError::Taken) }
}

/// The file that is locked for the database of this URL.
fn lock_path(url: &str) -> PathBuf {
    let path = url.strip_prefix("sqlite://").unwrap_or(url);
    PathBuf::from(format!("{path}.shadow-compare.lock"))
}

fn lock_file(path: &Path) -> Result<File, ClaimError> {
    let failed = |error| ClaimError::File(path.to_owned(), error);
    let file =
        OpenOptions::new().create(true).truncate(false).write(true).open(path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(ClaimError::Taken),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}
