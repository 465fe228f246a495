//! One connection's commands and replies, without I/O: which reply belongs to which command, and
//! what leaves for the client, when and how.
//!
//! Replies come in the order of their commands; only pushes and messages to subscribers come
//! unasked. An injected answer waits for the replies of the commands before it.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::time::Instant;

use crate::resp;
use crate::rules::{Direction, Moment, Toxic};

/// Commands of one connection without a reply; beyond it no more are read.
pub const PENDING_MAX: usize = 16_384;
/// Bytes of replies held back for one connection; beyond it no more are read from the server.
pub const HELD_MAX: usize = 4 * 1024 * 1024;

/// The claim of a bulk of 512 MB, the most that a server may be told to take.
const HUGE_HEADER: &[u8] = b"$536870912\r\n";
/// An invalidation that nobody subscribed to.
const PUSH: &[u8] = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$9\r\nunrelated\r\n";

/// What the server sees of a command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ToServer {
    /// All of it.
    Pass,
    /// Nothing.
    Nothing,
    /// So many bytes, then a reset.
    Reset(usize),
}

/// What follows on a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    GoOn,
    Close,
    Reset,
}

/// Bytes for the client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub(crate) due: Instant,
    pub(crate) bytes: Bytes,
    /// Size of a piece, and the pause after it.
    pub(crate) pieces: Option<(usize, Duration)>,
    pub(crate) then: Then,
}

impl Delivery {
    /// Whether it may share a write with others.
    pub(crate) fn is_plain(&self) -> bool {
        self.pieces.is_none() && self.then == Then::GoOn
    }
}

#[derive(Debug)]
enum Pending {
    Asked(Vec<Toxic>),
    Answered(Bytes, Vec<Toxic>),
}

#[derive(Debug)]
pub(crate) struct Exchange {
    pending: VecDeque<Pending>,
    outbox: VecDeque<Delivery>,
    held_bytes: usize,
    last_due: Instant,
    /// A reply that has to wait for the next one.
    swapped: Option<Delivery>,
    subscribed: bool,
    nothing_to_server: bool,
    nothing_to_client: bool,
}

impl Exchange {
    pub(crate) fn new(now: Instant) -> Exchange {
        Exchange {
            pending: VecDeque::new(),
            outbox: VecDeque::new(),
            held_bytes: 0,
            last_due: now,
            swapped: None,
            subscribed: false,
            nothing_to_server: false,
            nothing_to_client: false,
        }
    }

    /// Whether another command can be taken.
    pub(crate) fn takes_commands(&self) -> bool {
        self.pending.len() < PENDING_MAX
    }

    /// Whether another reply can be taken.
    pub(crate) fn takes_replies(&self) -> bool {
        self.held_bytes < HELD_MAX
    }

    /// A command with what is to happen to it.
    pub(crate) fn command(
        &mut self,
        words: &[&[u8]],
        length: usize,
        toxics: Vec<Toxic>,
        now: Instant,
        garble: impl FnMut(&mut [u8], usize),
    ) -> ToServer {
        let Some(name) = words.first() else { return ToServer::Pass };
        if toxics.contains(&Toxic::Reset(Moment::Before)) {
            return ToServer::Reset(0);
        }
        if toxics.contains(&Toxic::Reset(Moment::During)) {
            return ToServer::Reset(length / 2);
        }
        self.nothing_to_server |= toxics.contains(&Toxic::Blackhole(Direction::ToServer));
        if self.nothing_to_server {
            return ToServer::Nothing;
        }
        if let Some(answer) = toxics.iter().find_map(injected) {
            self.pending.push_back(Pending::Answered(answer, toxics));
            self.emit_answered(now, garble);
            return ToServer::Nothing;
        }
        if resp::is_subscription(name) {
            self.subscribed = true;
        } else {
            self.pending.push_back(Pending::Asked(toxics));
        }
        ToServer::Pass
    }

    /// A reply of the server. `garble` changes so many bytes.
    pub(crate) fn reply(
        &mut self,
        reply: Bytes,
        now: Instant,
        mut garble: impl FnMut(&mut [u8], usize),
    ) {
        let unasked = resp::is_unasked(&reply, self.subscribed);
        let asked = if unasked { None } else { self.pending.pop_front() };
        match asked {
            Some(Pending::Asked(toxics)) => self.emit(reply, &toxics, now, &mut garble),
            // An answered one never stays in front.
            Some(Pending::Answered(..)) | None => self.emit(reply, &[], now, &mut garble),
        }
        self.emit_answered(now, garble);
    }

    /// The next delivery, if it is due.
    pub(crate) fn next_due(&mut self, now: Instant) -> Option<Delivery> {
        if self.next_at()? > now {
            return None;
        }
        let delivery = self.outbox.pop_front()?;
        self.held_bytes -= delivery.bytes.len();
        Some(delivery)
    }

    /// When the next delivery is due.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.outbox.front().map(|delivery| delivery.due)
    }

    fn emit_answered(&mut self, now: Instant, mut garble: impl FnMut(&mut [u8], usize)) {
        while let Some(Pending::Answered(..)) = self.pending.front() {
            if let Some(Pending::Answered(bytes, toxics)) = self.pending.pop_front() {
                self.emit(bytes, &toxics, now, &mut garble);
            }
        }
    }

    fn emit(
        &mut self,
        reply: Bytes,
        toxics: &[Toxic],
        now: Instant,
        garble: &mut impl FnMut(&mut [u8], usize),
    ) {
        let black = Toxic::Blackhole(Direction::ToClient);
        self.nothing_to_client |= toxics.contains(&black);
        if self.nothing_to_client || toxics.contains(&Toxic::Swallow) {
            return;
        }
        let delivery = mangled(reply, toxics, now, garble);
        if toxics.contains(&Toxic::Swap) && self.swapped.is_none() {
            self.swapped = Some(delivery);
            return;
        }
        self.enqueue(delivery);
        if let Some(swapped) = self.swapped.take() {
            self.enqueue(swapped);
        }
    }

    fn enqueue(&mut self, mut delivery: Delivery) {
        delivery.due = delivery.due.max(self.last_due);
        self.last_due = delivery.due;
        self.held_bytes += delivery.bytes.len();
        self.outbox.push_back(delivery);
    }
}

/// The reply as its toxics leave it. Whatever their order in the rules: what is added comes first,
/// then changes, then the cut.
fn mangled(
    reply: Bytes,
    toxics: &[Toxic],
    now: Instant,
    garble: &mut impl FnMut(&mut [u8], usize),
) -> Delivery {
    let mut delivery = Delivery { due: now, bytes: reply, pieces: None, then: Then::GoOn };
    for toxic in toxics {
        let bytes = &delivery.bytes;
        if *toxic == Toxic::Repeat {
            delivery.bytes = joined(bytes, bytes);
        } else if *toxic == Toxic::HugeHeader {
            delivery.bytes = joined(HUGE_HEADER, bytes);
        } else if *toxic == Toxic::Push {
            delivery.bytes = joined(PUSH, bytes);
        } else if let Toxic::Delay { by, .. } = toxic {
            delivery.due += *by;
        } else if let Toxic::Slice { bytes, pause } = toxic {
            delivery.pieces = Some(((*bytes).max(1), *pause));
        }
    }
    for toxic in toxics {
        if let Toxic::Garble { bytes } = toxic {
            let mut changed = BytesMut::from(&*delivery.bytes);
            garble(&mut changed, *bytes);
            delivery.bytes = changed.freeze();
        }
    }
    for toxic in toxics {
        if let Toxic::Cut { after } = toxic {
            delivery.bytes.truncate(*after);
            delivery.then = Then::Close;
        } else if *toxic == Toxic::Reset(Moment::After) {
            delivery.bytes.clear();
            delivery.then = Then::Reset;
        }
    }
    delivery
}

fn joined(before: &[u8], after: &[u8]) -> Bytes {
    let mut both = BytesMut::with_capacity(before.len() + after.len());
    both.extend_from_slice(before);
    both.extend_from_slice(after);
    both.freeze()
}

fn injected(toxic: &Toxic) -> Option<Bytes> {
    match toxic {
        Toxic::Inject { error } => Some(Bytes::from(format!("-{error}\r\n"))),
        Toxic::Delay { .. }
        | Toxic::Cut { .. }
        | Toxic::Reset(_)
        | Toxic::Blackhole(_)
        | Toxic::Slice { .. }
        | Toxic::Garble { .. }
        | Toxic::Swap
        | Toxic::Repeat
        | Toxic::Swallow
        | Toxic::HugeHeader
        | Toxic::Push => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Bytes {
        Bytes::copy_from_slice(text.as_bytes())
    }

    struct Run {
        exchange: Exchange,
        now: Instant,
    }

    impl Run {
        fn new() -> Run {
            let now = Instant::now();
            Run { exchange: Exchange::new(now), now }
        }

        fn command(&mut self, toxics: Vec<Toxic>) -> ToServer {
            self.exchange.command(&[b"GET"], 20, toxics, self.now, |_, _| {})
        }

        fn reply(&mut self, text: &str) {
            self.exchange.reply(bytes(text), self.now, |bytes, _| bytes[0] = b'?');
        }

        fn out(&mut self, ms: u64) -> Vec<String> {
            let at = self.now + Duration::from_millis(ms);
            let mut out = Vec::new();
            while let Some(delivery) = self.exchange.next_due(at) {
                out.push(String::from_utf8(delivery.bytes.to_vec()).unwrap());
            }
            out
        }
    }

    #[test]
    fn an_injected_answer_waits_for_the_replies_before_it() {
        let mut run = Run::new();
        assert_eq!(run.command(vec![]), ToServer::Pass);
        assert_eq!(run.command(vec![Toxic::inject("OOM x")]), ToServer::Nothing);
        assert_eq!(run.command(vec![]), ToServer::Pass);
        assert_eq!(run.out(0), [""; 0]);
        run.reply("+1\r\n");
        run.reply("+3\r\n");
        assert_eq!(run.out(0), ["+1\r\n", "-OOM x\r\n", "+3\r\n"]);
    }

    #[test]
    fn a_delayed_reply_keeps_the_later_ones_behind_it() {
        let mut run = Run::new();
        run.command(vec![Toxic::delay(Duration::from_millis(5))]);
        run.command(vec![]);
        run.reply("+1\r\n");
        run.reply("+2\r\n");
        assert_eq!(run.out(4), [""; 0]);
        assert_eq!(run.out(5), ["+1\r\n", "+2\r\n"]);
    }

    #[test]
    fn pushes_and_messages_belong_to_no_command() {
        let mut run = Run::new();
        run.exchange.command(&[b"SUBSCRIBE"], 9, vec![], run.now, |_, _| {});
        run.reply("*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
        run.command(vec![Toxic::Swallow]);
        run.reply(">2\r\n+invalidate\r\n*0\r\n");
        run.reply("*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n");
        assert_eq!(run.out(0).len(), 3);
        run.reply("+the swallowed one\r\n");
        assert_eq!(run.out(0), [""; 0]);
    }

    #[test]
    fn toxics_of_one_command_add_up_in_a_fixed_order() {
        let mut run = Run::new();
        let garble = Toxic::Garble { bytes: 1 };
        run.command(vec![Toxic::Cut { after: 7 }, garble, Toxic::Repeat]);
        run.reply("+OK\r\n");
        assert_eq!(run.out(0), ["?OK\r\n+O"]);
    }

    #[test]
    fn after_a_blackhole_nothing_passes_in_its_direction() {
        let mut run = Run::new();
        run.command(vec![Toxic::Blackhole(Direction::ToClient)]);
        assert_eq!(run.command(vec![]), ToServer::Pass);
        run.reply("+1\r\n");
        run.reply("+2\r\n");
        assert_eq!(run.out(0), [""; 0]);
        assert_eq!(run.command(vec![Toxic::Blackhole(Direction::ToServer)]), ToServer::Nothing);
        assert_eq!(run.command(vec![]), ToServer::Nothing);
    }

    #[test]
    fn what_is_held_back_has_a_bound() {
        let mut run = Run::new();
        let long = bytes(&"x".repeat(HELD_MAX / 2));
        for _ in 0..2 {
            assert!(run.exchange.takes_replies());
            run.command(vec![Toxic::delay(Duration::from_secs(1))]);
            run.exchange.reply(long.clone(), run.now, |_, _| {});
        }
        assert!(!run.exchange.takes_replies());
        assert_eq!(run.out(1_000).len(), 2);
        assert!(run.exchange.takes_replies());
    }
}
