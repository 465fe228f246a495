//! What is logged, to see what is not.

use std::io::Write;
use std::sync::{Arc, Mutex};

use tracing::{Level, Subscriber};

/// What was logged.
#[derive(Clone, Default)]
pub(crate) struct Kept(Arc<Mutex<Vec<u8>>>);

impl Kept {
    /// Keeps what is logged down to this level, wherever the subscriber is put.
    pub(crate) fn new(level: Level) -> (Kept, impl Subscriber + Send + Sync) {
        let kept = Kept::default();
        let writer = kept.clone();
        let logging = tracing_subscriber::fmt().with_max_level(level);
        (kept, logging.with_writer(move || writer.clone()).finish())
    }

    /// All of it.
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
