//! The end of a process: stop accepting, finish what was begun. The only place that hears signals,
//! SIGHUP too.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// A signal so soon after another is the same wish: `timeout` signals a process and its group in
/// one moment, and no hand is that impatient.
const SAME_WISH: Duration = Duration::from_secs(1);

/// Told once, heard by everybody. Clones share it.
#[derive(Debug, Clone)]
pub struct Drain {
    begun: watch::Sender<bool>,
}

impl Default for Drain {
    fn default() -> Drain {
        Drain::new()
    }
}

impl Drain {
    /// One that has not started.
    pub fn new() -> Drain {
        Drain { begun: watch::Sender::new(false) }
    }

    /// Starts it; again changes nothing.
    pub fn start(&self) {
        self.begun.send_replace(true);
    }

    /// Whether it has started.
    pub fn is_started(&self) -> bool {
        *self.begun.borrow()
    }

    /// Waits for the start. Borrows nothing, so it can be moved into a task.
    pub fn started(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut begun = self.begun.subscribe();
        let sender = self.begun.clone(); // keeps the channel open while somebody waits
        async move {
            if begun.wait_for(|begun| *begun).await.is_err() {
                drop(sender);
            }
        }
    }
}

/// SIGHUPs, by which operators ask for a fresh look at the settings.
#[derive(Debug)]
pub struct Hangups(Option<tokio::signal::unix::Signal>);

impl Hangups {
    /// None ever: inside another process, whose own signals they are.
    pub(crate) fn none() -> Hangups {
        Hangups(None)
    }

    /// Listens from now on; until then a SIGHUP ends the process.
    pub(crate) fn hear() -> std::io::Result<Hangups> {
        signal(SignalKind::hangup()).map(|signal| Hangups(Some(signal)))
    }

    /// The next one.
    pub async fn next(&mut self) {
        let heard = match &mut self.0 {
            Some(signal) => signal.recv().await,
            None => None,
        };
        if heard.is_none() {
            std::future::pending().await
        }
    }
}

/// SIGTERM or SIGINT, one after the other.
pub(crate) struct Signals {
    term: tokio::signal::unix::Signal,
    int: tokio::signal::unix::Signal,
}

impl Signals {
    /// Listens from now on.
    pub(crate) fn hear() -> std::io::Result<Signals> {
        let term = signal(SignalKind::terminate())?;
        Ok(Signals { term, int: signal(SignalKind::interrupt())? })
    }

    /// The next one.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }

    /// After one: the next that is a wish of its own.
    pub(crate) async fn next_wish(&mut self) {
        let same = tokio::time::sleep(SAME_WISH);
        tokio::pin!(same);
        loop {
            tokio::select! {
                biased;
                () = &mut same => break,
                () = self.next() => tracing::info!("a signal again, at once: still draining"),
            }
        }
        self.next().await;
    }
}

/// SIGUSR2: somebody asks for a new process in the place of this one.
pub(crate) struct Successions(tokio::signal::unix::Signal);

impl Successions {
    /// Listens from now on.
    pub(crate) fn hear() -> std::io::Result<Successions> {
        signal(SignalKind::user_defined2()).map(Successions)
    }

    /// The next one.
    pub(crate) async fn next(&mut self) {
        if self.0.recv().await.is_none() {
            std::future::pending().await
        }
    }
}
