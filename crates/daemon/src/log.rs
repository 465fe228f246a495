//! Log set-up, and errors as log lines. The writer has a thread and a bounded queue of its own and drops lines rather than
//! wait, so a full pipe never slows a request.

use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};

use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::reload::Handle;

use crate::settings::{LogFormat, ProcessFlags};

/// Lines waiting to be written. Beyond it lines are dropped.
const LINES_QUEUED_MAX: usize = 8_192;

/// Starts logging to stderr; the guard writes what is left when it is dropped. The error is a line
/// for people: the level cannot be read.
pub(crate) fn start(flags: &ProcessFlags) -> Result<WorkerGuard, String> {
    let filter = EnvFilter::try_new(&flags.log_level)
        .map_err(|error| format!("--log-level: `{}`: {error}", flags.log_level))?;
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(LINES_QUEUED_MAX)
        .thread_name("log")
        .finish(std::io::stderr());
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    // A second program in one process (a test) keeps the first one's logs.
    let (started, control) = match flags.log_format {
        LogFormat::Text => {
            let builder = builder.with_ansi(false).with_filter_reloading();
            let control = Control::new(&flags.log_level, builder.reload_handle());
            (builder.try_init(), control)
        }
        LogFormat::Json => {
            let builder = builder.json().flatten_event(true).with_filter_reloading();
            let control = Control::new(&flags.log_level, builder.reload_handle());
            (builder.try_init(), control)
        }
    };
    if let Err(error) = started {
        tracing::debug!(%error, "logs were set up before");
    } else if CONTROL.set(control).is_err() {
        tracing::debug!("the level of these logs cannot change");
    }
    Ok(guard)
}

/// Puts a filter in force.
type Put = Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>;

/// What changes the level of the process's logs.
struct Control {
    put: Put,
    level: Mutex<String>,
}

static CONTROL: OnceLock<Control> = OnceLock::new();

impl Control {
    fn new<S: 'static>(level: &str, handle: Handle<EnvFilter, S>) -> Control {
        let put = move |filter| handle.reload(filter).map_err(|error| error.to_string());
        Control { put: Box::new(put), level: Mutex::new(level.to_owned()) }
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("level", &self.level).finish_non_exhaustive()
    }
}

/// Why the level of the logs stays.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LevelError {
    /// What was given is no level.
    #[error("{0}")]
    Unreadable(String),
    /// This process writes no logs, or another program in it does.
    #[error("the logs of this process are not this program's")]
    NotOurs,
}

/// Which log lines are written.
pub fn level() -> Option<String> {
    let control = CONTROL.get()?;
    Some(control.level.lock().unwrap_or_else(PoisonError::into_inner).clone())
}

/// Writes other log lines from now on; the level of before.
pub fn set_level(text: &str) -> Result<String, LevelError> {
    let filter = understood(text)?;
    let control = CONTROL.get().ok_or(LevelError::NotOurs)?;
    let mut level = control.level.lock().unwrap_or_else(PoisonError::into_inner);
    (control.put)(filter).map_err(LevelError::Unreadable)?;
    Ok(std::mem::replace(&mut *level, text.to_owned()))
}

/// A word alone must be a level: a filter would take it for the name of a module that nobody has,
/// and write nothing any more.
fn understood(text: &str) -> Result<EnvFilter, LevelError> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let stranger = text
        .split(',')
        .map(str::trim)
        .find(|part| !part.contains('=') && !LEVELS.contains(&part.to_ascii_lowercase().as_str()));
    if let Some(part) = stranger {
        let what = format!("must be error, warn, info, debug or module=level, not `{part}`");
        return Err(LevelError::Unreadable(what));
    }
    EnvFilter::try_new(text).map_err(|error| LevelError::Unreadable(error.to_string()))
}

/// An error with its causes, as one line. A cause that the text before it tells already is left
/// out.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let more = source.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_level_is_not_taken_for_a_module() {
        for good in ["info", "DEBUG", "off", "warn,gateway=debug", "gateway::reload=trace"] {
            assert!(understood(good).is_ok(), "{good}");
        }
        for bad in ["", "debugg", "info,", "gateway", "gateway=loud"] {
            assert!(matches!(understood(bad), Err(LevelError::Unreadable(_))), "{bad}");
        }
    }
}
