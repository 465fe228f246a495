//! What a proxy has seen and done.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Different command names that are counted; the rest is `OTHER`.
const NAMES_MAX: usize = 256;
const NAME_MAX: usize = 32;
const OTHER: &str = "OTHER";

/// Counted since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections accepted.
    pub connections: u64,
    /// Of these, open now.
    pub open: u64,
    /// Connections that the server did not accept in time; the client's was closed.
    pub unreachable: u64,
    /// Commands by name, in capitals.
    pub commands: BTreeMap<String, u64>,
    /// Replies of the server, pushes included.
    pub replies: u64,
    /// Bytes passed on.
    pub bytes_to_server: u64,
    /// Bytes passed on or made up.
    pub bytes_to_client: u64,
    /// Commands that met a toxic, by its name.
    pub faults: BTreeMap<&'static str, u64>,
    /// Connections closed because their bytes were not RESP, or a value was too long.
    pub malformed: u64,
}

impl Counters {
    /// Commands of this name, in capitals.
    pub fn command(&self, name: &str) -> u64 {
        self.commands.get(name).copied().unwrap_or(0)
    }

    /// Commands that met the toxic of this name.
    pub fn fault(&self, name: &str) -> u64 {
        self.faults.get(name).copied().unwrap_or(0)
    }

    /// As the control port tells it.
    pub fn json(&self) -> Value {
        json!({
            "connections": self.connections,
            "open": self.open,
            "unreachable": self.unreachable,
            "commands": self.commands,
            "replies": self.replies,
            "bytes_to_server": self.bytes_to_server,
            "bytes_to_client": self.bytes_to_client,
            "faults": self.faults,
            "malformed": self.malformed,
        })
    }

    pub(crate) fn count_command(&mut self, name: &[u8]) {
        let mut capitals = [0; NAME_MAX];
        let known = capitals.get_mut(..name.len()).and_then(|capitals| {
            capitals.copy_from_slice(name);
            capitals.make_ascii_uppercase();
            str::from_utf8(capitals).ok()
        });
        let name = known.unwrap_or(OTHER);
        if let Some(count) = self.commands.get_mut(name) {
            *count += 1;
            return;
        }
        let name = if self.commands.len() < NAMES_MAX { name } else { OTHER };
        *self.commands.entry(name.to_owned()).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_counted_in_capitals_and_their_number_is_bounded() {
        let mut counters = Counters::default();
        counters.count_command(b"get");
        counters.count_command(b"GET");
        counters.count_command(&[b'x'; 100]);
        assert_eq!((counters.command("GET"), counters.command("OTHER")), (2, 1));
        for n in 0..1_000 {
            counters.count_command(format!("c{n}").as_bytes());
        }
        assert!(counters.commands.len() <= NAMES_MAX + 1);
        assert_eq!(counters.commands.values().sum::<u64>(), 1_003);
    }
}
