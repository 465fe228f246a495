//! What all connections of a proxy share: the target, the rules in force, and the counters.

use std::net::SocketAddr;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::counters::Counters;
use crate::resp;
use crate::rules::{Active, Rules, Toxic};

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) target: Mutex<SocketAddr>,
    rules: Mutex<Active>,
    counters: Mutex<Counters>,
    /// Changes whenever all connections have to close.
    pub(crate) closing: watch::Sender<u64>,
}

impl Shared {
    pub(crate) fn new(target: SocketAddr) -> Shared {
        Shared {
            target: Mutex::new(target),
            rules: Mutex::new(Active::new(Rules::default())),
            counters: Mutex::default(),
            closing: watch::Sender::new(0),
        }
    }

    pub(crate) fn set(&self, rules: Rules) {
        *self.rules.lock() = Active::new(rules);
    }

    pub(crate) fn counters(&self) -> Counters {
        self.counters.lock().clone()
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut Counters)) {
        change(&mut self.counters.lock());
    }

    /// Counts a command and decides what happens to it.
    pub(crate) fn draw(&self, words: &[&[u8]]) -> Vec<Toxic> {
        let Some(name) = words.first() else { return Vec::new() };
        let toxics = self.rules.lock().draw(name, resp::first_key(words));
        let mut counters = self.counters.lock();
        counters.count_command(name);
        for toxic in &toxics {
            *counters.faults.entry(toxic.name()).or_default() += 1;
        }
        toxics
    }

    pub(crate) fn garble(&self, bytes: &mut [u8], count: usize) {
        self.rules.lock().garble(bytes, count);
    }
}
