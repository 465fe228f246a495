//! Whether the database takes writes: what became of the last one, and no connection that is stuck.
//!
//! SQLite ends a transaction by itself when the disk is full, and the driver goes on counting it as
//! open: a connection that comes back so can never begin again and has to be closed.

use std::sync::{Arc, Mutex, PoisonError};

use sqlx::pool::PoolOptions;
use sqlx::{Connection as _, Sqlite};

use super::{SqlError, WAIT_MAX};

/// The outcome of the last write. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Writes(Arc<Mutex<Option<String>>>);

impl Writes {
    /// Why the last write was not done; nothing if it was, or if the row or others were the cause.
    pub fn failure(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set(&self, failure: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }

    /// Remembers a failure that is neither the row's nor that of others who write.
    pub(super) fn noting<T>(&self, done: Result<T, SqlError>) -> Result<T, SqlError> {
        done.inspect_err(|error| {
            if matches!(error, SqlError::Unwritable(..) | SqlError::Gone(_) | SqlError::Silent) {
                self.set(Some(error.to_string()));
            }
        })
    }
}

/// Whether a code says that there is no room or no way to write. Postgres: class 53 (resources),
/// 58 (system), and a server that only reads. SQLite, in all extended forms: read-only, input or
/// output failed, full, cannot be opened.
pub(super) fn is_unwritable(code: &str) -> bool {
    match code.len() {
        5 => code.starts_with("53") || code.starts_with("58") || code == "25006",
        _ => code.parse::<i64>().is_ok_and(|code| matches!(code & 0xff, 8 | 10 | 13 | 14)),
    }
}

/// Connections to SQLite, at most `max`. One is used again only if no transaction is open on it.
pub(super) fn sqlite_pool(max: u32) -> PoolOptions<Sqlite> {
    let pool = PoolOptions::<Sqlite>::new().max_connections(max).acquire_timeout(WAIT_MAX);
    pool.after_release(|connection, _| {
        Box::pin(async move {
            // The rollback of a dropped transaction is under way: behind the ping it is over.
            connection.ping().await?;
            Ok(!connection.is_in_transaction())
        })
    })
}
