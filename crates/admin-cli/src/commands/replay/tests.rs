//! A log of any length costs one pass and no memory of its own.

use std::io::{self, BufReader, Read};

use super::*;

const PLANS: &str = "\
[plan.free]
burst = { capacity = 20, refill = \"5/s\" }
[client.acme]
plan = \"free\"
[client.zeta]
plan = \"free\"
";

/// A log that is made up while it is read.
struct Endless {
    lines: u64,
    exact: bool,
    at: u64,
    left: Vec<u8>,
    read: u64,
}

impl Read for Endless {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.left.is_empty() && self.at < self.lines {
            let client = if self.at.is_multiple_of(3) { "zeta" } else { "acme" };
            let seconds = 1_795_857_242 + self.at / 12;
            let fraction = if self.exact { ".250" } else { "" };
            self.left =
                format!("{{\"time\":{seconds}{fraction},\"client\":\"{client}\"}}\n").into();
            self.at += 1;
        }
        let count = self.left.len().min(into.len());
        let rest = self.left.split_off(count);
        into[..count].copy_from_slice(&self.left);
        self.left = rest;
        self.read += count as u64;
        Ok(count)
    }
}

fn reading() -> Reading {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plans.toml");
    std::fs::write(&file, PLANS).unwrap();
    let plans = Plans::new(files::read(&[file]).unwrap(), None).unwrap();
    Reading {
        format: None,
        asked: Asked::default(),
        shape: None,
        book: Book::new(plans),
        unread: Unread::default(),
    }
}

/// Requests replayed, and what they cost: allocations of the replay itself, and most bytes at once.
fn replayed(lines: u64, exact: bool) -> (u64, u64, u64) {
    let mut reading = reading();
    let log = Endless { lines, exact, at: 0, left: Vec::new(), read: 0 };
    let mut log = BufReader::new(log);
    let mut made = 0;
    let cost = allocation_counter::measure(|| {
        // what making the lines up costs is counted apart and taken off
        made = allocation_counter::measure(|| {
            let mut alone = Endless { lines, exact, at: 0, left: Vec::new(), read: 0 };
            io::copy(&mut alone, &mut io::sink()).unwrap();
        })
        .count_total;
        reading.lines(Path::new("made-up"), &mut log).unwrap();
    });
    assert_eq!(log.get_ref().at, lines, "read once, to its end");
    assert_eq!(reading.unread.count, 0);
    assert_eq!(reading.book.counts.requests, lines);
    let (accounts, ..) = reading.book.close();
    let requests: u64 = accounts.iter().map(|account| account.tally.requests).sum();
    assert_eq!(requests, lines);
    assert!(accounts.iter().any(|account| account.tally.is_hit()));
    (cost.count_total.saturating_sub(2 * made), cost.bytes_max, lines)
}

#[test]
fn a_longer_log_allocates_no_more_and_is_read_once() {
    for exact in [true, false] {
        let (few, few_bytes, _) = replayed(40_000, exact);
        let (many, many_bytes, _) = replayed(160_000, exact);
        assert!(many <= few + 64, "{few} allocations became {many}");
        assert!(many_bytes <= few_bytes + 4_096, "{few_bytes} bytes became {many_bytes}");
    }
}
