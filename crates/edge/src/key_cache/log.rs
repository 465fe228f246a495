//! The text of `keys.log`: who holds which key, a line for each change, so that a restart knows the
//! keys that were in use. Keys stand in it by hash alone.
//!
//! Each line bears its number and a short hash over the log's id, the number and what it says. So a
//! line that was lost or damaged is missed, and everything before it is distrusted: what was lost
//! may have been the revocation of any of it. What comes after it stands on its own.

use std::collections::HashMap;
use std::io::{self, BufRead, Read as _, Write};
use std::sync::Arc;

use wire::key::KeyHash;
use wire::policy::{ClientValue, KeyState};

/// Longest line that is read, in bytes: a client with all that may be said of it.
const LINE_BYTES_MAX: u64 = 64 << 10;
const HEAD: &str = "weir-keys/1 ";
const CHECK_CHARS: usize = 16;

/// A key, as far as a request needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyLine {
    pub(crate) hash: KeyHash,
    pub(crate) key_id: String,
    pub(crate) client: String,
    pub(crate) state: KeyState,
    pub(crate) until_ms: Option<u64>,
    pub(crate) revision: u64,
    pub(crate) used_ms: u64,
}

/// What a line says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    /// This is known of a key.
    Key(KeyLine),
    /// Nothing is known of it any more.
    Gone(KeyHash),
    /// This is known of a client.
    Client(Arc<ClientValue>),
}

/// Where a log ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct End {
    /// Grows with each log that is written anew.
    pub(crate) id: u64,
    /// Number of the next line.
    pub(crate) next: u64,
}

/// What a log says.
#[derive(Debug, Default)]
pub(crate) struct ReadLog {
    pub(crate) end: End,
    pub(crate) keys: HashMap<KeyHash, KeyLine>,
    pub(crate) clients: HashMap<String, ClientValue>,
    /// Lines that were lost or cannot be relied on.
    pub(crate) lost: u64,
    /// Nothing may be appended to it: it ends in the middle of a line, or something was lost.
    pub(crate) torn: bool,
}

impl Entry {
    /// Appends the line with this number.
    pub(crate) fn write(&self, to: &mut impl Write, end: &mut End) -> io::Result<()> {
        let body = match self {
            Entry::Key(key) => {
                let until = key.until_ms.map_or_else(|| "-".to_owned(), |until| until.to_string());
                let (hash, state) = (key.hash.to_hex(), letter(key.state));
                let KeyLine { key_id, client, revision, used_ms, .. } = key;
                format!("k {hash} {state} {until} {revision} {used_ms} {key_id} {client}")
            }
            Entry::Gone(hash) => format!("x {}", hash.to_hex()),
            Entry::Client(client) => format!("c {}", serde_json::to_string(&**client)?),
        };
        writeln!(to, "{} {} {body}", check(*end, &body), end.next)?;
        end.next += 1;
        Ok(())
    }

    fn read(body: &str) -> Option<Entry> {
        let (kind, rest) = body.split_once(' ')?;
        match kind {
            "k" => {
                let mut parts = rest.split(' ');
                let key = KeyLine {
                    hash: KeyHash::from_hex(parts.next()?)?,
                    state: state(parts.next()?)?,
                    until_ms: match parts.next()? {
                        "-" => None,
                        until => Some(until.parse().ok()?),
                    },
                    revision: parts.next()?.parse().ok()?,
                    used_ms: parts.next()?.parse().ok()?,
                    key_id: parts.next()?.to_owned(),
                    client: parts.next()?.to_owned(),
                };
                parts.next().is_none().then_some(Entry::Key(key))
            }
            "x" => KeyHash::from_hex(rest).map(Entry::Gone),
            "c" => serde_json::from_str(rest).ok().map(|client| Entry::Client(Arc::new(client))),
            _ => None,
        }
    }
}

/// Begins a log.
pub(crate) fn begin(to: &mut impl Write, id: u64) -> io::Result<End> {
    writeln!(to, "{HEAD}{id}")?;
    Ok(End { id, next: 0 })
}

/// Reads a log. `committed` is where it ended at least, if that is known.
pub(crate) fn read(mut from: impl BufRead, committed: Option<End>) -> io::Result<ReadLog> {
    let mut log = ReadLog::default();
    let head = next_line(&mut from)?.unwrap_or_default();
    let id = head.strip_prefix(HEAD).and_then(|id| id.parse().ok());
    log.torn = id.is_none();
    // A damaged head hides nothing: the lines tell whether the guess is right.
    log.end.id = id.or(committed.map(|end| end.id)).unwrap_or_default();
    while let Some(line) = next_line(&mut from)? {
        log.add(&line);
    }
    Ok(log.missing(committed))
}

/// The next line without its end; one that is too long or no text is one that says nothing. The
/// last one may lack its end, and then its check does not hold either.
fn next_line(from: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    let read = from.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut bytes)?;
    if read == 0 {
        return Ok(None);
    }
    let line = bytes.strip_suffix(b"\n").map(<[u8]>::to_vec);
    Ok(Some(line.and_then(|line| String::from_utf8(line).ok()).unwrap_or_default()))
}

impl ReadLog {
    fn add(&mut self, line: &str) {
        let Some((number, entry)) = parse(line, self.end.id) else {
            self.torn = true;
            return;
        };
        if number != self.end.next {
            self.distrust(number.saturating_sub(self.end.next).max(1));
        }
        self.end.next = number.saturating_add(1);
        match entry {
            Entry::Key(key) => drop(self.keys.insert(key.hash, key)),
            Entry::Gone(hash) => drop(self.keys.remove(&hash)),
            Entry::Client(client) => {
                drop(self.clients.insert(client.id.clone(), (*client).clone()));
            }
        }
    }

    /// Whether it ends before what was committed, or is an older log altogether.
    fn missing(mut self, committed: Option<End>) -> ReadLog {
        let Some(committed) = committed else { return self };
        let older = self.end.id < committed.id && 0 < committed.next;
        let shorter = self.end.id == committed.id && self.end.next < committed.next;
        if older || shorter {
            self.distrust(committed.next.saturating_sub(self.end.next).max(1));
        }
        self.end.id = self.end.id.max(committed.id);
        self
    }

    fn distrust(&mut self, lost: u64) {
        self.lost += lost;
        self.torn = true;
        self.keys.clear();
        self.clients.clear();
    }
}

fn parse(line: &str, id: u64) -> Option<(u64, Entry)> {
    let (told, rest) = line.split_at_checked(CHECK_CHARS)?;
    let (number, body) = rest.strip_prefix(' ')?.split_once(' ')?;
    let next = number.parse().ok()?;
    if check(End { id, next }, body) != told {
        return None;
    }
    Some((next, Entry::read(body)?))
}

fn check(end: End, body: &str) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&end.id.to_le_bytes()).update(&end.next.to_le_bytes()).update(body.as_bytes());
    hasher.finalize().to_hex().chars().take(CHECK_CHARS).collect()
}

const fn letter(state: KeyState) -> char {
    match state {
        KeyState::Active => 'a',
        KeyState::Disabled => 'd',
        KeyState::Revoked => 'r',
    }
}

fn state(letter: &str) -> Option<KeyState> {
    match letter {
        "a" => Some(KeyState::Active),
        "d" => Some(KeyState::Disabled),
        "r" => Some(KeyState::Revoked),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
