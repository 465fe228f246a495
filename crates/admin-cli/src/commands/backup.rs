//! Everything that plans-api knows as a file, and back.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde_json::json;
use wire::backup::{BackupHead, Reader};

use super::keys::time;
use crate::args::{BackupCommand, ChangeFlags};
use crate::failure::{Exit, Failure};
use crate::output::{Report, Shown};
use crate::session::Session;

/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;

pub(crate) async fn run(command: BackupCommand, session: &Session<'_>) -> Result<Report, Failure> {
    match command {
        BackupCommand::Create { file } => create(&file, session).await,
        BackupCommand::Restore { file, change } => restore(&file, &change, session).await,
    }
}

/// Writes beside, and renames once the last line has come and fits.
async fn create(path: &Path, session: &Session<'_>) -> Result<Report, Failure> {
    if path.exists() {
        return Err(Failure::usage(format!(
            "{} is there already; nothing was done",
            path.display()
        )));
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    let beside = PathBuf::from(beside);
    let file = new_file(&beside)?;
    let written = write(file, &beside, session).await;
    let (head, rows) = match written {
        Ok(written) => written,
        Err(failure) => {
            if let Err(error) = std::fs::remove_file(&beside)
                && error.kind() != io::ErrorKind::NotFound
            {
                return Err(failure.and(format!("{} is left over: {error}", beside.display())));
            }
            return Err(failure);
        }
    };
    std::fs::rename(&beside, path).map_err(|error| of_file(path, &error))?;
    let line = format!("{rows} rows at revision {} in {}", head.revision, path.display());
    let json = json!({ "file": path, "rows": rows, "backup": head });
    Ok(Report::new(json, Shown::Text(line))
        .named(path.display().to_string())
        .note("keep a copy of the pepper beside it: without it the hashes of keys open nothing"))
}

/// A file that was not there: one that was keeps its mode, and others may read it.
fn new_file(path: &Path) -> Result<File, Failure> {
    let opened = File::options().write(true).create_new(true).mode(0o600).open(path);
    opened.map_err(|error| {
        if error.kind() != io::ErrorKind::AlreadyExists {
            return of_file(path, &error);
        }
        Failure::usage(format!(
            "{} is there already, of a backup that did not end or still runs; nothing was done, \
             remove it first",
            path.display()
        ))
    })
}

async fn write(
    mut file: File,
    beside: &Path,
    session: &Session<'_>,
) -> Result<(BackupHead, u64), Failure> {
    let mut reader = Reader::default();
    let take = |piece: &[u8]| {
        reader.push(piece).map_err(io::Error::other)?;
        file.write_all(piece)
    };
    session.answer(session.api.backup(take)).await?;
    let read = reader.finish().map_err(|error| {
        Failure::new(Exit::Unreachable, "cut", format!("what came is not whole: {error}"))
    })?;
    file.sync_all().map_err(|error| of_file(beside, &error))?;
    Ok(read)
}

async fn restore(
    path: &Path,
    change: &ChangeFlags,
    session: &Session<'_>,
) -> Result<Report, Failure> {
    let (head, rows) = checked(path)?;
    let made = time(Some(&json!(head.made_at)));
    let danger = format!(
        "replace all plans, clients, keys, the rollout and the audit of {} by the {rows} rows of \
         {made}, revision {}",
        session.target.addr, head.revision
    );
    session.confirm(change, &danger, Some("restore"))?;
    let file = File::open(path).map_err(|error| of_file(path, &error))?;
    let restored = session.answer(session.api.restore(file, session.reason(change)?)).await?;
    let mut line = format!(
        "restored {} rows of {made}; everything has revision {} in a new history",
        restored.rows, restored.revision
    );
    if 0 < restored.stay_revoked {
        line.push_str(&format!("; {} keys stay revoked", restored.stay_revoked));
    }
    if 0 < restored.stay_ended {
        line.push_str(&format!("; {} secrets end as they do here", restored.stay_ended));
    }
    let report = Report::new(json!(restored), Shown::Text(line)).named(restored.history.clone());
    Ok(session.finish(report, change).await)
}

/// Reads the file before anybody is asked: what is no whole backup is not sent.
fn checked(path: &Path) -> Result<(BackupHead, u64), Failure> {
    let mut file = File::open(path).map_err(|error| of_file(path, &error))?;
    let unusable = |error: wire::backup::BackupError| {
        let line = format!("{}: {error}", path.display());
        Failure::new(Exit::Invalid, "invalid_value", line).and("nothing was changed")
    };
    let (mut reader, mut piece) = (Reader::default(), vec![0; READ_BYTES]);
    loop {
        let read = file.read(&mut piece).map_err(|error| of_file(path, &error))?;
        match piece.get(..read).filter(|read| !read.is_empty()) {
            Some(read) => reader.push(read).map_err(unusable)?,
            None => return reader.finish().map_err(unusable),
        };
    }
}

fn of_file(path: &Path, error: &io::Error) -> Failure {
    Failure::new(Exit::Failed, "file", format!("{}: {error}", path.display()))
}
