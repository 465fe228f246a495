//! Waiting for something that a server will do, with a bound.

use std::time::{Duration, Instant};

use anyhow::bail;

/// How long anything local may take before a test gives up; slow machines compile beside us.
pub const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);

/// Asks until there is an answer, for as long as [`PATIENCE`].
pub fn until<T>(
    what: &str,
    mut ask: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let started = now();
    loop {
        let asked = ask();
        if let Ok(Some(found)) = asked {
            return Ok(found);
        }
        if started.elapsed() > PATIENCE {
            match asked {
                Err(error) => return Err(error.context(format!("in vain: {what}"))),
                Ok(_) => bail!("in vain: {what}"),
            }
        }
        std::thread::sleep(POLL);
    }
}

#[expect(clippy::disallowed_methods, reason = "a test's patience is a matter of its own machine")]
fn now() -> Instant {
    Instant::now()
}
