//! The thread that writes lines, and where they go. It may block on a reader that does not read;
//! nothing else waits for it, not even the end of the process.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use edge::limiter::Clock;
use tokio::sync::oneshot;

use super::{AccessLog, AccessLogMetrics, Finished, QUEUED_MAX, line};
use crate::config::{AccessLogRules, LogTarget};
use crate::nonblocking::{NONBLOCK, is_without_reader};

/// Lines that are written at once.
const LINES_MAX: usize = 256;
/// How often a file is looked for that was moved away while there is nothing to write.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Pause before a full pipe of somebody else's settings is tried again.
const FULL_PAUSE: Duration = Duration::from_millis(10);
/// Longest wait for the last lines at the end of the process.
const LAST_LINES_MAX: Duration = Duration::from_secs(1);
/// Clients and paths are not for everybody.
const FILE_MODE: u32 = 0o640;

/// The end of the writer.
#[derive(Debug)]
pub(crate) struct Ended(oneshot::Receiver<()>);

impl Ended {
    /// Waits until everything is written, but not for a reader that does not read.
    pub(crate) async fn wait(self) {
        if tokio::time::timeout(LAST_LINES_MAX, self.0).await.is_err() {
            tracing::warn!("the last lines of the access log could not be written");
        }
    }
}

impl AccessLog {
    /// Opens what lines go to and starts the thread that writes them. It ends when the last
    /// holder of the log is gone.
    pub(crate) fn start(
        rules: AccessLogRules,
        clock: Arc<dyn Clock>,
        metrics: AccessLogMetrics,
    ) -> io::Result<(Arc<AccessLog>, Ended)> {
        let sink = Sink::open(&rules.to)?;
        let (queue, notes) = sync_channel(QUEUED_MAX);
        let (ending, ended) = oneshot::channel();
        let writer = Writer {
            sink,
            rules: rules.clone(),
            metrics: metrics.clone(),
            failing: false,
            torn: false,
        };
        thread::Builder::new().name("weir-access-log".to_owned()).spawn(move || {
            writer.run(&notes);
            drop(ending);
        })?;
        Ok((Arc::new(AccessLog { rules, queue, clock, metrics }), Ended(ended)))
    }
}

struct Writer {
    sink: Sink,
    rules: AccessLogRules,
    metrics: AccessLogMetrics,
    /// The last lines were lost: said once, not for each.
    failing: bool,
    /// The last line was cut off: the next one begins on a line of its own.
    torn: bool,
}

impl Writer {
    fn run(mut self, notes: &Receiver<Finished>) {
        let mut text = String::new();
        loop {
            let first = match notes.recv_timeout(LOOK_EVERY) {
                Ok(first) => Some(first),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            text.clear();
            let notes = first.into_iter().chain(notes.try_iter().take(LINES_MAX - 1));
            if self.torn {
                text.push('\n');
            }
            let mut lines: u64 = 0;
            for finished in notes {
                line::write(&mut text, &finished, self.rules.format, self.rules.query);
                lines += 1;
            }
            self.sink.follow_name();
            let (written, error) = self.sink.write(text.as_bytes());
            let out = text.as_bytes().get(..written).unwrap_or_default();
            let ends = out.iter().filter(|byte| **byte == b'\n').count();
            let whole = ends - usize::from(self.torn && !out.is_empty());
            self.metrics.lost.inc_by(lines.saturating_sub(whole as u64));
            self.torn = out.last().map_or(self.torn, |last| *last != b'\n');
            match &error {
                Some(error) if !self.failing => {
                    tracing::warn!(%error, "lines of the access log are lost");
                }
                Some(_) | None => {}
            }
            self.failing = error.is_some() || (self.failing && lines == 0);
        }
    }
}

/// Where lines go.
#[derive(Debug)]
enum Sink {
    /// Somewhere that stays.
    Stream(File),
    /// To the file of this name, whichever that is.
    Named { path: PathBuf, file: Option<(File, Identity)> },
}

/// Tells files apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    fn of(metadata: &Metadata) -> Identity {
        Identity { device: metadata.dev(), inode: metadata.ino() }
    }
}

impl Sink {
    fn open(target: &LogTarget) -> io::Result<Sink> {
        // A descriptor of their own: nobody else waits for a lock that a full pipe holds.
        Ok(match target {
            LogTarget::Stdout => {
                Sink::Stream(File::from(io::stdout().as_fd().try_clone_to_owned()?))
            }
            LogTarget::Stderr => {
                Sink::Stream(File::from(io::stderr().as_fd().try_clone_to_owned()?))
            }
            LogTarget::File(path) => {
                let file = match open(path) {
                    Ok(opened) => Some(opened),
                    // Nobody reads it yet. Waiting for somebody would hold up the start.
                    Err(error) if is_without_reader(&error) && is_pipe(path) => None,
                    Err(error) => return Err(error),
                };
                Sink::Named { path: path.clone(), file }
            }
        })
    }

    /// Opens the file of the name again if that is another one by now, or none.
    fn follow_name(&mut self) {
        let Sink::Named { path, file } = self else { return };
        let there = std::fs::metadata(&*path).ok().map(|metadata| Identity::of(&metadata));
        let open_one = file.as_ref().map(|(_, identity)| *identity);
        if there.is_none() || there != open_one {
            *file = match open(path) {
                Ok(opened) => Some(opened),
                Err(error) => {
                    tracing::debug!(%error, "the access log cannot be opened again");
                    None
                }
            };
        }
    }

    /// Writes as much as can be; how much it was, and what was in the way of the rest.
    fn write(&mut self, mut bytes: &[u8]) -> (usize, Option<io::Error>) {
        let file = match self {
            Sink::Stream(file) | Sink::Named { file: Some((file, _)), .. } => file,
            Sink::Named { file: None, .. } if bytes.is_empty() => return (0, None),
            Sink::Named { file: None, .. } => {
                let what = "the file cannot be made, or nobody reads the pipe";
                return (0, Some(io::Error::new(io::ErrorKind::NotFound, what)));
            }
        };
        let mut written = 0;
        while !bytes.is_empty() {
            match file.write(bytes) {
                Ok(0) => return (written, Some(io::ErrorKind::WriteZero.into())),
                Ok(count) => {
                    written += count;
                    bytes = bytes.get(count..).unwrap_or_default();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    thread::sleep(FULL_PAUSE);
                }
                Err(error) => return (written, Some(error)),
            }
        }
        (written, None)
    }
}

fn open(path: &Path) -> io::Result<(File, Identity)> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(FILE_MODE).custom_flags(NONBLOCK);
    let file = options.open(path)?;
    let identity = Identity::of(&file.metadata()?);
    Ok((file, identity))
}

fn is_pipe(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_moved_away_is_followed_by_another_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.log");
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        let mut sink = Sink::open(&LogTarget::File(path.clone())).unwrap();
        let mut write = |text: &str| {
            sink.follow_name();
            let (written, error) = sink.write(text.as_bytes());
            assert!(written == text.len() && error.is_none(), "{error:?}");
        };
        write("one\n");
        std::fs::rename(&path, folder.path().join("access.log.1")).unwrap();
        write("two\n");
        assert_eq!((read("access.log.1"), read("access.log")), ("one\n".into(), "two\n".into()));
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "of somebody else\n").unwrap();
        write("three\n");
        assert_eq!(read("access.log"), "of somebody else\nthree\n");
    }

    #[test]
    fn a_folder_that_is_gone_costs_lines_and_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("logs");
        std::fs::create_dir(&inner).unwrap();
        let path = inner.join("access.log");
        let mut sink = Sink::open(&LogTarget::File(path.clone())).unwrap();
        std::fs::remove_dir_all(&inner).unwrap();
        sink.follow_name();
        let (written, error) = sink.write(b"lost\n");
        assert!(written == 0 && error.is_some());
        std::fs::create_dir(&inner).unwrap();
        sink.follow_name();
        assert_eq!(sink.write(b"kept\n").0, 5);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "kept\n");
    }

    #[test]
    fn a_place_that_cannot_be_written_is_told_at_the_start() {
        let target = LogTarget::File("/nowhere/at/all/access.log".into());
        assert!(Sink::open(&target).is_err());
    }
}
