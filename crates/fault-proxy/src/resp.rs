//! Where one RESP value ends and what a command is called: the bytes themselves are never changed.
//!
//! A client library's parser builds values, which loses the bytes and the place where they ended;
//! a proxy needs just those. Lengths that a peer claims are compared with [`FRAME_MAX`] and never
//! allocated. Version 3 types are known; Redis sends no streamed ones.

/// Longest command or reply that passes; beyond it the connection is closed.
pub const FRAME_MAX: usize = 8 * 1024 * 1024;
/// Longest line: a simple string, an error, a length.
const LINE_MAX: usize = 64 * 1024;

/// Why bytes cannot be understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    /// Longer than [`FRAME_MAX`].
    #[error("longer than {FRAME_MAX} bytes")]
    TooLong,
    /// TLS, HTTP or garbage.
    #[error("not RESP")]
    NotResp,
}

/// Finds the ends of values in a growing buffer, and looks at each byte once.
#[derive(Debug, Default)]
pub(crate) struct Scanner {
    at: usize,
    /// Values that the one under way is still made of; 0 between two.
    open: usize,
}

impl Scanner {
    /// The length of the first whole value of `buffer`, which has only grown since the last call
    /// that found none.
    pub(crate) fn scan(&mut self, buffer: &[u8]) -> Result<Option<usize>, Malformed> {
        if self.open == 0 {
            if buffer.is_empty() {
                return Ok(None);
            }
            self.at = 0;
            self.open = 1;
        }
        while self.open > 0 {
            let Some(line) = line(buffer, self.at)? else { return Ok(None) };
            let next = self.at + line.len() + 2;
            let (kind, rest) = line.split_first().ok_or(Malformed::NotResp)?;
            match kind {
                b'+' | b'-' | b':' | b',' | b'#' | b'(' | b'_' => self.close_one(next)?,
                b'$' | b'=' | b'!' => match length(rest)? {
                    None => self.close_one(next)?,
                    Some(bytes) => {
                        let end = bounded(next, bytes)? + 2;
                        if buffer.len() < end {
                            return Ok(None);
                        }
                        self.close_one(end)?;
                    }
                },
                b'*' | b'~' | b'>' => self.open_many(length(rest)?.unwrap_or(0), 1, next)?,
                b'%' => self.open_many(length(rest)?.unwrap_or(0), 2, next)?,
                // The value that it describes comes after it.
                b'|' => {
                    self.open_many(length(rest)?.unwrap_or(0), 2, next)?;
                    self.open += 1;
                }
                _ => return Err(Malformed::NotResp),
            }
        }
        Ok(Some(self.at))
    }

    fn close_one(&mut self, next: usize) -> Result<(), Malformed> {
        self.at = bounded(next, 0)?;
        self.open -= 1;
        Ok(())
    }

    fn open_many(&mut self, items: usize, each: usize, next: usize) -> Result<(), Malformed> {
        let more = items.checked_mul(each).ok_or(Malformed::TooLong)?;
        // An item has three bytes at least.
        bounded(next, more)?;
        self.close_one(next)?;
        self.open += more;
        Ok(())
    }
}

fn bounded(at: usize, more: usize) -> Result<usize, Malformed> {
    at.checked_add(more).filter(|end| *end <= FRAME_MAX).ok_or(Malformed::TooLong)
}

/// The line that begins at `at`, without its end; `None` until it is there.
fn line(buffer: &[u8], at: usize) -> Result<Option<&[u8]>, Malformed> {
    let rest = buffer.get(at..).unwrap_or_default();
    let end = rest.windows(2).take(LINE_MAX).position(|pair| pair == b"\r\n");
    match end {
        Some(end) => Ok(rest.get(..end)),
        None if rest.len() > LINE_MAX => Err(Malformed::NotResp),
        None if at == 0 && rest.first().is_some_and(|kind| !KINDS.contains(kind)) => {
            Err(Malformed::NotResp)
        }
        None => Ok(None),
    }
}

const KINDS: &[u8] = b"+-:,#(_$=!*~>%|";

fn length(digits: &[u8]) -> Result<Option<usize>, Malformed> {
    if digits == b"-1" {
        return Ok(None);
    }
    if digits.is_empty() || digits.len() > 19 || !digits.iter().all(u8::is_ascii_digit) {
        return Err(Malformed::NotResp);
    }
    let text = str::from_utf8(digits).map_err(|_not_ascii| Malformed::NotResp)?;
    text.parse().map(Some).map_err(|_too_big| Malformed::TooLong)
}

/// The length of the first whole command of `buffer`: an array of bulks, or a line typed by hand.
pub(crate) fn scan_command(
    scanner: &mut Scanner,
    buffer: &[u8],
) -> Result<Option<usize>, Malformed> {
    match buffer.first() {
        None => Ok(None),
        Some(b'*') => scanner.scan(buffer),
        Some(first) if first.is_ascii_alphabetic() || first.is_ascii_whitespace() => {
            match buffer.iter().take(LINE_MAX).position(|byte| *byte == b'\n') {
                Some(end) => Ok(Some(end + 1)),
                None if buffer.len() >= LINE_MAX => Err(Malformed::TooLong),
                None => Ok(None),
            }
        }
        Some(_) => Err(Malformed::NotResp),
    }
}

/// Words of a command that are looked at: its name, and as far as the first key of a script call.
const WORDS: usize = 4;

/// The first words of a whole command; empty for an empty line, which has no reply.
pub(crate) fn words(command: &[u8]) -> Vec<&[u8]> {
    if command.first() != Some(&b'*') {
        return command
            .split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty())
            .take(WORDS)
            .collect();
    }
    let mut words = Vec::new();
    let mut at = line(command, 0).ok().flatten().map_or(command.len(), |line| line.len() + 2);
    while words.len() < WORDS {
        let Ok(Some(header)) = line(command, at) else { break };
        let start = at + header.len() + 2;
        let claimed = header.strip_prefix(b"$").and_then(|digits| length(digits).ok().flatten());
        let Some(word) = claimed.and_then(|bytes| command.get(start..start + bytes)) else { break };
        words.push(word);
        at = start + word.len() + 2;
    }
    words
}

/// The first key of a command by its words, where it has one.
pub(crate) fn first_key<'a>(words: &[&'a [u8]]) -> Option<&'a [u8]> {
    let (name, rest) = words.split_first()?;
    let by_script = ["EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "FCALL", "FCALL_RO"];
    if by_script.iter().any(|verb| name.eq_ignore_ascii_case(verb.as_bytes())) {
        let [_script, count, key, ..] = rest else { return None };
        return (*count != b"0").then_some(*key);
    }
    rest.first().copied()
}

const SUBSCRIPTIONS: [&[u8]; 6] =
    [b"subscribe", b"psubscribe", b"ssubscribe", b"unsubscribe", b"punsubscribe", b"sunsubscribe"];
const MESSAGES: [&[u8]; 3] = [b"message", b"pmessage", b"smessage"];

/// Whether a command is answered like an event: its confirmations, one for each channel, are told
/// from other replies by what they say.
pub(crate) fn is_subscription(name: &[u8]) -> bool {
    SUBSCRIPTIONS.iter().any(|kind| name.eq_ignore_ascii_case(kind))
}

/// Whether this is a reply to no command: a push, or what a subscriber of version 2 hears.
pub(crate) fn is_unasked(reply: &[u8], subscribed: bool) -> bool {
    let event = |kind: &&[u8]| is_subscription(kind) || MESSAGES.contains(kind);
    match reply.first() {
        Some(b'>') => true,
        Some(b'*') => subscribed && words(reply).first().is_some_and(event),
        Some(_) | None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(bytes: &[u8]) -> Vec<usize> {
        let (mut scanner, mut rest, mut ends) = (Scanner::default(), bytes, Vec::new());
        while let Some(end) = scanner.scan(rest).unwrap() {
            ends.push(end);
            rest = &rest[end..];
        }
        ends
    }

    #[test]
    fn a_value_ends_where_its_last_part_ends() {
        for value in [
            "+OK\r\n",
            "-ERR no\r\n",
            ":-12\r\n",
            "$0\r\n\r\n",
            "$5\r\na\r\nbc\r\n",
            "$-1\r\n",
            "*-1\r\n",
            "*0\r\n",
            "*3\r\n:1\r\n*2\r\n+a\r\n$1\r\nb\r\n_\r\n",
            "%1\r\n+k\r\n*1\r\n:1\r\n",
            "|1\r\n+ttl\r\n:3\r\n$2\r\nhi\r\n",
            ">2\r\n+invalidate\r\n*1\r\n+k\r\n",
            "=7\r\ntxt:abc\r\n",
            "#t\r\n",
            ",1.5\r\n",
            "(123\r\n",
            "~2\r\n:1\r\n:2\r\n",
        ] {
            let twice = [value, value].concat();
            assert_eq!(ends(twice.as_bytes()), [value.len(), value.len()], "{value:?}");
        }
    }

    #[test]
    fn it_does_not_matter_how_the_bytes_arrive() {
        let value = b"*3\r\n:1\r\n*2\r\n+a\r\n$4\r\nb\r\nb\r\n$-1\r\n";
        let mut scanner = Scanner::default();
        for end in 0..value.len() {
            assert_eq!(scanner.scan(&value[..end]).unwrap(), None, "at byte {end}");
        }
        assert_eq!(scanner.scan(value).unwrap(), Some(value.len()));
    }

    #[test]
    fn what_is_claimed_is_never_waited_for_beyond_the_bound() {
        for claim in ["$536870912\r\n", "*99999999999\r\n", "%9223372036854775807\r\n"] {
            let scanned = Scanner::default().scan(claim.as_bytes());
            assert_eq!(scanned, Err(Malformed::TooLong), "{claim:?}");
        }
    }

    #[test]
    fn other_protocols_are_told_apart_at_their_first_byte() {
        for other in ["\u{16}\u{3}\u{1}", "HTTP/1.1 200", "$x\r\n", "$+5\r\n", "\r\n"] {
            let scanned = Scanner::default().scan(other.as_bytes());
            assert_eq!(scanned, Err(Malformed::NotResp), "{other:?}");
        }
        let mut scanner = Scanner::default();
        assert_eq!(scan_command(&mut scanner, b"\x16\x03\x01"), Err(Malformed::NotResp));
    }

    #[test]
    fn commands_give_their_name_and_first_key() {
        let call = b"*5\r\n$7\r\nEVALSHA\r\n$2\r\nab\r\n$1\r\n1\r\n$3\r\nkey\r\n$1\r\n9\r\n";
        assert_eq!(scan_command(&mut Scanner::default(), call).unwrap(), Some(call.len()));
        assert_eq!(first_key(&words(call)), Some(&b"key"[..]));
        let no_key = b"*3\r\n$4\r\nEVAL\r\n$1\r\nx\r\n$1\r\n0\r\n";
        assert_eq!(first_key(&words(no_key)), None);
        assert_eq!(first_key(&words(b"get some\r\n")), Some(&b"some"[..]));
        assert_eq!(words(b"\r\n"), [b""; 0]);
        assert_eq!(scan_command(&mut Scanner::default(), b"PING\r\nPI").unwrap(), Some(6));
    }
}
