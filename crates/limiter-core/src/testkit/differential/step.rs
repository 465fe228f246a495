//! One step: what is stored, what is asked, when; and what came back.

use redis::{Pipeline, Value};

use super::stored::{IMPOSSIBLE, KIND, Kept, Lifetime, bytes_after, lifetime};
use crate::bucket::{Applied, State, apply};
use crate::call::{Found, Reply, Request};
use crate::limit::Limits;
use crate::store::redis::command;
use crate::testkit::generate::Generator;
use crate::time::Timestamp;

const KEY: &str = "weir:{0123456789abcdef0123456789abcdef}";
/// Lifetime of what is stored before a call, longer than the script sets any: it shows whether
/// the call left it alone.
const LIFETIME_BEFORE_MS: i64 = 1 << 56;
/// How much of a lifetime may have passed when it is read in the same round trip.
const LIFETIME_SLACK_MS: i64 = 60_000;

/// What is under the key before the call.
#[derive(Debug, Clone)]
enum Stored {
    Nothing,
    State(Kept),
    Bytes(Vec<u8>),
    List,
}

/// A step.
#[derive(Debug, Clone)]
pub(super) struct Step {
    stored: Stored,
    pub(super) request: Request,
    pub(super) now: Timestamp,
}

impl Step {
    /// Commands of a step.
    pub(super) const COMMANDS: usize = 5;

    fn kept(&self) -> Option<Kept> {
        match &self.stored {
            Stored::State(kept) => Some(*kept),
            Stored::Nothing | Stored::Bytes(_) | Stored::List => None,
        }
    }

    /// What the model makes of it.
    pub(super) fn applied(&self) -> Applied {
        let state = self.kept().map(|kept| kept.state);
        apply(state, self.found(), &self.request, self.now)
    }

    fn found(&self) -> Found {
        match &self.stored {
            Stored::State(_) => Found::Known,
            Stored::Nothing => Found::Nothing,
            Stored::Bytes(_) | Stored::List => Found::Unreadable,
        }
    }

    /// What `GET` shows if the call wrote nothing.
    fn bytes(&self) -> Option<Vec<u8>> {
        match &self.stored {
            Stored::State(kept) => Some(kept.bytes()),
            Stored::Bytes(bytes) => Some(bytes.clone()),
            Stored::Nothing | Stored::List => None,
        }
    }

    /// Follows from the step, so that it differs from most others'.
    fn tag(&self) -> u16 {
        let [low, high, ..] = self.now.us().to_le_bytes();
        u16::from_le_bytes([low, high])
    }

    pub(super) fn send(&self, pipeline: &mut Pipeline, digest: &str) {
        pipeline.cmd("DEL").arg(KEY);
        match (&self.stored, self.bytes()) {
            (Stored::List, _) => pipeline.cmd("RPUSH").arg(KEY).arg("x"),
            (_, Some(bytes)) => {
                pipeline.cmd("SET").arg(KEY).arg(bytes).arg("PX").arg(LIFETIME_BEFORE_MS)
            }
            (_, None) => pipeline.cmd("EXISTS").arg(KEY),
        };
        let now = self.now.us();
        let (seconds, us) = (now / 1_000_000, now % 1_000_000);
        pipeline.cmd("EVALSHA").arg(digest).arg(3).arg(KEY).arg(seconds).arg(us);
        pipeline.arg(command::argument(&self.request, self.tag()));
        pipeline.cmd("GET").arg(KEY);
        pipeline.cmd("PTTL").arg(KEY);
    }
}

/// What Redis said to a step.
pub(super) struct Answer {
    reply: Vec<u8>,
    pub(super) branches: u64,
    /// The lifetime that the script chose, if it counts: −1 for no write, 0 for the one it found.
    keep: Option<i64>,
    stored: Option<Vec<u8>>,
    lifetime_ms: i64,
}

impl Answer {
    pub(super) fn read(values: &[Value], is_plain: bool) -> Result<Answer, String> {
        let [_, _, reply, stored, Value::Int(lifetime_ms)] = values else {
            return Err(format!("unexpected answers: {values:?}"));
        };
        let (reply, branches, keep) = if is_plain {
            let Value::BulkString(reply) = reply else {
                return Err(format!("no plain reply: {reply:?}"));
            };
            (reply, 0, None)
        } else {
            let Value::Array(items) = reply else {
                return Err(format!("no counted reply: {reply:?}"));
            };
            let [Value::BulkString(reply), Value::Int(visited), Value::Int(keep)] =
                items.as_slice()
            else {
                return Err(format!("an unexpected shape: {items:?}"));
            };
            (reply, visited.cast_unsigned(), Some(*keep))
        };
        let stored = if let Value::BulkString(bytes) = stored { Some(bytes.clone()) } else { None };
        Ok(Answer { reply: reply.clone(), branches, keep, stored, lifetime_ms: *lifetime_ms })
    }

    /// What differs from the model, if anything.
    pub(super) fn difference(&self, step: &Step, model: &Applied) -> Option<String> {
        match command::reply(&self.reply, &step.request, step.tag()) {
            Ok(reply) if reply == model.reply => {}
            Ok(reply) => return Some(replies(&reply, &model.reply)),
            Err(error) => return Some(error.to_string()),
        }
        let written = lifetime(step.kept(), model, step.now.us());
        let (keep, longest) = match (written, &step.stored) {
            (Some((Lifetime::Set(ms), _)), _) => (ms.cast_signed(), ms.cast_signed()),
            (Some((Lifetime::Kept, _)), _) => (0, LIFETIME_BEFORE_MS),
            (None, Stored::State(_) | Stored::Bytes(_)) => (-1, LIFETIME_BEFORE_MS),
            (None, Stored::List) => (-1, -1),
            (None, Stored::Nothing) => (-1, -2),
        };
        if self.keep.is_some_and(|chosen| chosen != keep) {
            return Some(format!("lifetime: script {:?}, model {keep}", self.keep));
        }
        let expected = match written {
            Some((_, expires_us)) => Some(bytes_after(model, expires_us)),
            None => step.bytes(),
        };
        if self.stored != expected {
            return Some(format!("stored: script {:?}, model {expected:?}", self.stored));
        }
        let passed = longest.saturating_sub(self.lifetime_ms);
        let fits =
            if longest < 0 { passed == 0 } else { (0..=LIFETIME_SLACK_MS).contains(&passed) };
        (!fits).then(|| format!("PTTL {}, model {longest}", self.lifetime_ms))
    }
}

fn replies(script: &Reply, model: &Reply) -> String {
    format!("reply: script {script:?}\n       model {model:?}")
}

/// Makes steps: fresh ones, and ones that go on from what the last call left.
pub(super) struct Stepper {
    generator: Generator,
    last: Option<Kept>,
}

impl Stepper {
    pub(super) fn new(seed: u64) -> Stepper {
        Stepper { generator: Generator::new(seed), last: None }
    }

    pub(super) fn next_step(&mut self) -> Step {
        let generator = &mut self.generator;
        let fresh = |generator: &mut Generator| Kept { state: generator.state(), expires_us: 0 };
        let mut stored = match (generator.below(100), self.last.take()) {
            (0..=2, _) => Stored::Nothing,
            (3..=5, _) => Stored::Bytes(unreadable(generator)),
            (6, _) => Stored::List,
            (7..=55, Some(kept)) => Stored::State(kept),
            _ => Stored::State(fresh(generator)),
        };
        let (state, now) = match &stored {
            Stored::State(kept) => (Some(kept.state), generator.now_after(&kept.state)),
            Stored::Nothing | Stored::Bytes(_) | Stored::List => {
                let state = generator.state();
                (None, generator.now_after(&state))
            }
        };
        let request = generator.request_after(state.as_ref(), now);
        if let Stored::State(kept) = &mut stored
            && (kept.expires_us == 0 || generator.percent(50))
        {
            let applied = apply(Some(kept.state), Found::Known, &request, now);
            kept.expires_us = generator.expires_near(&applied.state);
        }
        let step = Step { stored, request, now };
        let applied = step.applied();
        let expires_us = match (lifetime(step.kept(), &applied, now.us()), step.kept()) {
            (Some((_, expires_us)), _) => expires_us,
            (None, Some(kept)) => kept.expires_us,
            (None, None) => 0,
        };
        self.last = Some(Kept { state: applied.state, expires_us });
        step
    }
}

/// Bytes that can be no state.
fn unreadable(generator: &mut Generator) -> Vec<u8> {
    let mut state: State = generator.state();
    state.plan.limits = Limits { sustained: None, ..state.plan.limits };
    let mut bytes = Kept { state, expires_us: state.at.us() }.bytes();
    let (at, width, byte) = IMPOSSIBLE
        .get(usize::try_from(generator.below(10)).unwrap_or(0))
        .copied()
        .unwrap_or_default();
    match generator.below(12) {
        0 => return Vec::new(),
        1 => return b"10".to_vec(),
        2 => bytes.truncate(at),
        3 => bytes.push(0),
        4 => bytes.splice(KIND..=KIND, [0]).for_each(drop),
        5 => bytes.splice(KIND..=KIND, [32]).for_each(drop),
        6 => bytes.splice(KIND..=KIND, [48]).for_each(drop),
        _ => bytes.splice(at..at + width, std::iter::repeat_n(byte, width)).for_each(drop),
    }
    bytes
}
