//! What outlives the process: the last good policy and the keys that were in use, in a folder of the
//! gateway's own, so that it starts without anybody to ask.
//!
//! Whoever changes something in memory never waits for the disk. A keeper writes what changed, in an
//! order that a kill at any moment leaves whole: keys first, then the policy, then `keys.mark`, which
//! says as of which revision both hold and where the log of keys ends at least. Only then is the
//! revision *saved*, and only what is saved may be acknowledged. A disk that fails costs nothing but
//! that: the keeper tries again, and then writes everything.

mod keeper; // writes in the background
mod policy; // policy.a, policy.b
mod sealed; // whole files

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::key_cache::log::{self, End, Entry, ReadLog};
use crate::key_cache::{AsOf, Changes, KeyCache};
use crate::plan_book::{PlanBook, Stamp};
use policy::Generations;
use sealed::Sealed;

pub(crate) use keeper::Keeper;
pub(crate) use policy::KeptPolicy;

const LOG: &str = "keys.log";
const MARK: &str = "keys.mark";
const LOCK: &str = "policy.lock";
/// Longest mark that is read, in bytes.
const MARK_BYTES_MAX: u64 = 4_096;
/// Longest log that is read, in bytes; a million keys and as many changes fit.
const LOG_BYTES_MAX: u64 = 1 << 30;
/// That the control plane was heard is written down this long after it was last, if nothing else is.
const HEARD_EVERY_MS: u64 = 60_000;
/// Lines that may be appended before a log is written anew, beside two for each key that is known.
const LINES_MAX: usize = 10_000;

/// What the files of the folder hold together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    log: u64,
    next: u64,
    history: String,
    revision: u64,
    generation: u64,
    heard_ms: u64,
}

/// What a folder says at the start.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    pub(crate) policy: Option<KeptPolicy>,
    pub(crate) keys: ReadLog,
    /// What the keys are as of, and the policy too if it has this history. Unknown, the keys are to
    /// be asked for again.
    pub(crate) as_of: Option<AsOf>,
    /// When the control plane had been heard; 0 if unknown.
    pub(crate) heard_ms: u64,
}

/// What became of a save.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Saved {
    /// A restart would begin with this.
    AsOf(AsOf),
    /// All is written, but known keys are of another history than the policy: they are being asked
    /// for again.
    Apart,
    /// Nothing is: another process writes here.
    Elsewhere,
}

/// A state folder, as one process sees it.
#[derive(Debug)]
struct Folder {
    path: PathBuf,
    /// Held as long as the process writes here.
    lock: Option<File>,
    generations: Generations,
    /// Which policy the newest generation is.
    stamp: Option<Stamp>,
    /// Where the log ends; unknown, it is written anew.
    log: Option<End>,
    last_log: u64,
    appended: usize,
    mark: Option<Mark>,
}

impl Folder {
    /// The folder is made if it is not there.
    fn at(path: &Path) -> io::Result<Folder> {
        use std::os::unix::fs::DirBuilderExt as _;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        Ok(Folder {
            path: path.to_owned(),
            lock: None,
            generations: Generations::default(),
            stamp: None,
            log: None,
            last_log: 0,
            appended: 0,
            mark: None,
        })
    }

    /// Reads what the last process left, and takes its place if it has ended.
    fn load(&mut self) -> Loaded {
        if let Err(error) = self.take_lock() {
            tracing::warn!(%error, "the lock of the state folder cannot be had");
        }
        self.read()
    }

    fn read(&mut self) -> Loaded {
        let mark = self.read_mark();
        let committed = mark.as_ref().map(|mark| End { id: mark.log, next: mark.next });
        let keys = self.read_log(committed);
        let (generations, policy) = policy::read(&self.path);
        (self.generations, self.stamp, self.last_log) = (generations, None, keys.end.id);
        self.log = (!keys.torn).then_some(keys.end);
        self.appended = usize::try_from(keys.end.next).unwrap_or(usize::MAX);
        if keys.lost > 0 {
            let (lost, left) = (keys.lost, keys.keys.len());
            tracing::error!(
                lost,
                left,
                "keys.log is damaged: what cannot be relied on is left out"
            );
        }
        let heard_ms = mark.as_ref().map_or(0, |mark| mark.heard_ms);
        // Keys as of a revision, and a policy that is another one or a later one: the keys are older.
        let as_of = mark.as_ref().filter(|mark| {
            let same = |kept: &KeptPolicy| {
                kept.policy.history == mark.history && kept.policy.revision <= mark.revision
            };
            policy.as_ref().is_some_and(same)
        });
        let holds = |mark: &Mark| mark.generation == generations.newest;
        let as_of = as_of.map(|mark| AsOf {
            history: mark.history.clone(),
            revision: match &policy {
                Some(kept) if !holds(mark) => kept.policy.revision,
                Some(_) | None => mark.revision,
            },
        });
        self.mark = mark;
        Loaded { policy, keys, as_of, heard_ms }
    }

    fn read_mark(&self) -> Option<Mark> {
        match sealed::read(&self.path.join(MARK), MARK_BYTES_MAX) {
            Sealed::Whole(bytes) => serde_json::from_slice(&bytes).ok(),
            Sealed::Absent => None,
            Sealed::Damaged(why) => {
                tracing::error!(why, "keys.mark is damaged: known keys are asked for again");
                None
            }
        }
    }

    fn read_log(&self, committed: Option<End>) -> ReadLog {
        let path = self.path.join(LOG);
        let read = match File::open(&path) {
            Ok(file) if file.metadata().is_ok_and(|data| data.len() <= LOG_BYTES_MAX) => {
                log::read(BufReader::new(file), committed)
            }
            Ok(_) => Err(io::Error::other("it is longer than any of ours")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => log::read(&b""[..], committed),
            Err(error) => Err(error),
        };
        read.unwrap_or_else(|error| {
            tracing::error!(%error, "keys.log does not read: its keys are looked up again");
            let end = committed.unwrap_or_default();
            ReadLog { end, torn: true, ..ReadLog::default() }
        })
    }

    /// Whether the folder is this process's. A predecessor that still answers keeps it till its end.
    fn take_lock(&mut self) -> io::Result<bool> {
        if self.lock.is_some() {
            return Ok(true);
        }
        let mut options = OpenOptions::new();
        let file = sealed::private(options.write(true).create(true), &self.path.join(LOCK))?;
        match file.try_lock() {
            Ok(()) => self.lock = Some(file),
            Err(std::fs::TryLockError::WouldBlock) => return Ok(false),
            Err(std::fs::TryLockError::Error(error)) => return Err(error),
        }
        Ok(true)
    }

    /// Writes what changed.
    fn save(&mut self, book: &PlanBook, keys: &KeyCache, heard_ms: u64) -> io::Result<Saved> {
        let had_it = self.lock.is_some();
        if !self.take_lock()? {
            return Ok(Saved::Elsewhere);
        }
        if !had_it {
            // Another process wrote here since this one looked.
            drop(self.read());
            keys.save_everything();
        }
        let as_of = self.save_keys(keys)?;
        if self.stamp.as_ref() != Some(&book.stamp()) {
            policy::write(&self.path, &mut self.generations, book.kept())?;
            self.stamp = Some(book.stamp());
        }
        let as_of = as_of.unwrap_or_default();
        let revision = match as_of.history == book.history() {
            true => as_of.revision.min(book.revision()),
            false => as_of.revision,
        };
        let saved = AsOf { revision, ..as_of };
        self.save_mark(&saved, heard_ms)?;
        Ok(if saved.history == book.history() { Saved::AsOf(saved) } else { Saved::Apart })
    }

    fn save_keys(&mut self, keys: &KeyCache) -> io::Result<Option<AsOf>> {
        let most = keys.len().saturating_mul(2).saturating_add(LINES_MAX);
        if let Some(mut end) = self.log.filter(|_| self.appended <= most)
            && let (Changes::Some(entries), as_of) = keys.unsaved()
        {
            let appended = self.append(&entries, &mut end);
            // Half a line may be there now.
            self.log = appended.as_ref().ok().map(|()| end);
            self.appended = self.appended.saturating_add(entries.len());
            appended.inspect_err(|_| keys.save_everything())?;
            return Ok(as_of);
        }
        self.log = None;
        self.rewrite(keys).inspect_err(|_| keys.save_everything())
    }

    fn append(&self, entries: &[Entry], end: &mut End) -> io::Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        let mut text = Vec::new();
        entries.iter().try_for_each(|entry| entry.write(&mut text, end))?;
        let mut options = OpenOptions::new();
        let mut file = sealed::private(options.append(true), &self.path.join(LOG))?;
        file.write_all(&text)?;
        file.sync_all()
    }

    fn rewrite(&mut self, keys: &KeyCache) -> io::Result<Option<AsOf>> {
        let (mut end, mut as_of) = (End::default(), None);
        let id = self.last_log + 1;
        sealed::replace(&self.path, LOG, |file| {
            let mut to = BufWriter::new(file);
            end = log::begin(&mut to, id)?;
            as_of = keys.everything(|entry| entry.write(&mut to, &mut end))?;
            to.flush()
        })?;
        (self.log, self.last_log, self.appended) = (Some(end), id, 0);
        Ok(as_of)
    }

    fn save_mark(&mut self, saved: &AsOf, heard_ms: u64) -> io::Result<()> {
        let end = self.log.unwrap_or_default();
        let mark = Mark {
            log: end.id,
            next: end.next,
            history: saved.history.clone(),
            revision: saved.revision,
            generation: self.generations.newest,
            heard_ms,
        };
        let same = |last: &Mark| {
            *last == Mark { heard_ms: last.heard_ms, ..mark.clone() }
                && heard_ms < last.heard_ms.saturating_add(HEARD_EVERY_MS)
        };
        if !self.mark.as_ref().is_some_and(same) {
            sealed::write(&self.path, MARK, &serde_json::to_vec(&mark)?)?;
            self.mark = Some(mark);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
