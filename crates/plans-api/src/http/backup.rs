//! `/v1/backup`: the whole catalog as one file, out and in.
//!
//! Neither way is the file in memory. What comes in is kept on disk until its end fits, so that a
//! damaged or slow one locks nothing; only then is the catalog replaced, in one transaction.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::State;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use daemon::log::chain;
use futures_util::StreamExt;
use tokio::sync::mpsc;
use tokio::time::timeout;
use wire::backup::{BackupError, BackupHead, Line, Reader};
use wire::client::plans::Restored;
use wire::error::{ErrorBody, ErrorCode};

use super::ask::{Ask, bad_request};
use super::error::ApiError;
use super::{App, answer};
use crate::store::{Backup, Stamp};

/// Longest restore, from head to answer.
pub(super) const RESTORE_MAX: Duration = Duration::from_secs(3_600);
/// How long either side waits for the next piece of the other.
const PIECE_MAX: Duration = Duration::from_secs(30);
/// Pieces that are read ahead of a slow reader.
const AHEAD_MAX: usize = 4;
/// Longest backup that is taken in, in bytes: some ten million rows.
const BACKUP_BYTES_MAX: u64 = 8 << 30;
/// Bytes that are read back at once.
const READ_BYTES: usize = 64 << 10;

pub(super) async fn create(State(app): State<Arc<App>>, ask: Ask) -> Result<Response, ApiError> {
    ask.only(&[])?;
    let mut backup = app.store.backup().await?;
    let first = backup.piece().await?;
    let (to, from) = mpsc::channel(AHEAD_MAX);
    let begun = app.drain.started();
    daemon::tasks::spawn("backup", async move {
        tokio::select! {
            () = send(backup, first, to) => {}
            () = begun => {}
        }
    });
    let pieces = futures_util::stream::unfold(from, |mut from| async {
        from.recv().await.map(|piece| (piece, from))
    });
    let headers = [
        (CONTENT_TYPE, "application/x-ndjson"),
        (CONTENT_DISPOSITION, "attachment; filename=\"weir-backup.ndjson\""),
    ];
    Ok((headers, Body::from_stream(pieces)).into_response())
}

/// Sends all pieces. A failure breaks the answer off: without its last line it is no backup.
async fn send(
    mut backup: Backup,
    first: Option<Vec<u8>>,
    to: mpsc::Sender<Result<Bytes, io::Error>>,
) {
    let mut next = Ok(first);
    loop {
        let piece = match next {
            Ok(None) => return,
            Ok(Some(piece)) => Ok(Bytes::from(piece)),
            Err(error) => {
                tracing::error!(error = %chain(&error), "a backup ended early");
                Err(io::Error::other("the database did not give all rows"))
            }
        };
        let failed = piece.is_err();
        match timeout(PIECE_MAX, to.send(piece)).await {
            Ok(Ok(())) if !failed => next = backup.piece().await,
            Ok(Ok(()) | Err(_)) | Err(_) => return,
        }
    }
}

/// `:restore`.
pub(super) async fn restore(
    State(app): State<Arc<App>>,
    ask: Ask,
    body: Body,
) -> Result<Response, ApiError> {
    ask.only(&["reason"])?;
    let stamp = ask.stamp(None)?;
    let (mut file, head) = taken_in(&app.state_dir, body.into_data_stream(), PIECE_MAX).await?;
    file.rewind().map_err(|error| disk(&error))?;
    answer(&put_back(&app, file, head, &stamp).await?, None)
}

/// Keeps what comes in a file without a name, and checks it on the way.
async fn taken_in(
    folder: &Path,
    mut pieces: BodyDataStream,
    wait: Duration,
) -> Result<(File, BackupHead), ApiError> {
    let mut file = nameless(folder).map_err(|error| disk(&error))?;
    let (mut reader, mut length) = (Reader::default(), 0_u64);
    loop {
        let piece = timeout(wait, pieces.next()).await;
        let late = || format!("nothing more of the backup arrived within {wait:?}");
        let piece = piece.map_err(|_slow| bad_request(late()))?;
        let Some(piece) = piece else { break };
        let piece = piece.map_err(|_broken| bad_request("the backup did not arrive whole"))?;
        length += piece.len() as u64;
        if BACKUP_BYTES_MAX < length {
            return Err(ApiError::of(ErrorCode::BodyTooLarge));
        }
        reader.push(&piece)?;
        file.write_all(&piece).map_err(|error| disk(&error))?;
    }
    let (head, _rows) = reader.finish()?;
    Ok((file, head))
}

/// Reads the file once more and puts its rows back.
async fn put_back(
    app: &App,
    mut file: File,
    head: BackupHead,
    stamp: &Stamp,
) -> Result<Restored, ApiError> {
    let mut restoring = app.store.restore(head, stamp).await?;
    let (mut reader, mut piece) = (Reader::default(), vec![0; READ_BYTES]);
    loop {
        let read = file.read(&mut piece).map_err(|error| disk(&error))?;
        let Some(read) = piece.get(..read).filter(|read| !read.is_empty()) else { break };
        for line in reader.push(read)? {
            match line {
                Line::Row(row) => restoring.put(row).await?,
                Line::Head(_) | Line::End => {}
            }
        }
    }
    reader.finish()?;
    Ok(restoring.finish().await?)
}

/// A file that is gone once it is closed, however this process ends.
fn nameless(folder: &Path) -> io::Result<File> {
    let path = folder.join(format!("restore.{}", uuid::Uuid::now_v7()));
    // Others may read it for as long as it has a name, so its mode counts.
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

fn disk(error: &io::Error) -> ApiError {
    tracing::error!(%error, "a backup cannot be kept in the state folder");
    let detail = format!("the state folder of plans-api cannot hold the backup: {error}");
    ErrorBody::new(ErrorCode::Internal, detail).into()
}

impl From<BackupError> for ApiError {
    fn from(error: BackupError) -> ApiError {
        let body = ErrorBody::new(ErrorCode::InvalidValue, error.to_string());
        body.with_hint("nothing was changed").into()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::http::error::CODES;

    #[test]
    fn what_comes_in_is_kept_for_nobody_else() {
        let folder = tempfile::tempdir().unwrap();
        let file = nameless(folder.path()).unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_backup_that_stops_coming_is_refused_with_a_promised_code() {
        let folder = tempfile::tempdir().unwrap();
        let silent = futures_util::stream::pending::<Result<Bytes, io::Error>>();
        let pieces = Body::from_stream(silent).into_data_stream();
        let wait = Duration::from_millis(1);
        let refused = taken_in(folder.path(), pieces, wait).await.err().unwrap();
        assert!(CODES.contains(&refused.code()), "{refused:?}");
    }
}
