//! Log set-up, and errors as log lines. The writer has a thread and a bounded queue of its own and drops lines rather than
//! wait, so a full pipe never slows a request.

use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

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
    let started = match flags.log_format {
        LogFormat::Text => builder.with_ansi(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    if let Err(error) = started {
        tracing::debug!(%error, "logs were set up before");
    }
    Ok(guard)
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
