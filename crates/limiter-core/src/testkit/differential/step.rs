//! One step: what is stored, what is asked, when; and what came back.

use redis::{Pipeline, Value};

use super::stored::state_bytes;
use crate::bucket::{Applied, State, apply};
use crate::call::{Found, Reply, Request};
use crate::store::redis::command;
use crate::testkit::generate::Generator;
use crate::time::Timestamp;

const KEY: &str = "weir:{0123456789abcdef0123456789abcdef}";
/// How much of a lifetime may have passed when it is read in the same round trip.
const LIFETIME_SLACK_MS: i64 = 60_000;

/// What is under the key before the call.
#[derive(Debug, Clone)]
enum Stored {
    Nothing,
    State(State),
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

    pub(super) fn state(&self) -> Option<State> {
        match &self.stored {
            Stored::State(state) => Some(*state),
            Stored::Nothing | Stored::Bytes(_) | Stored::List => None,
        }
    }

    pub(super) fn found(&self) -> Found {
        match &self.stored {
            Stored::State(_) => Found::Known,
            Stored::Nothing => Found::Nothing,
            Stored::Bytes(_) | Stored::List => Found::Unreadable,
        }
    }

    /// What `GET` shows if the call wrote nothing.
    fn bytes(&self) -> Option<Vec<u8>> {
        match &self.stored {
            Stored::State(state) => Some(state_bytes(state)),
            Stored::Bytes(bytes) => Some(bytes.clone()),
            Stored::Nothing | Stored::List => None,
        }
    }

    pub(super) fn send(&self, pipeline: &mut Pipeline, digest: &str) {
        pipeline.cmd("DEL").arg(KEY);
        match (&self.stored, self.bytes()) {
            (Stored::List, _) => pipeline.cmd("RPUSH").arg(KEY).arg("x"),
            (_, Some(bytes)) => pipeline.cmd("SET").arg(KEY).arg(bytes),
            (_, None) => pipeline.cmd("EXISTS").arg(KEY),
        };
        let now = self.now.us();
        let (seconds, us) = (now / 1_000_000, now % 1_000_000);
        pipeline.cmd("EVALSHA").arg(digest).arg(3).arg(KEY).arg(seconds).arg(us);
        for number in command::arguments(&self.request) {
            pipeline.arg(number);
        }
        pipeline.cmd("GET").arg(KEY);
        pipeline.cmd("PTTL").arg(KEY);
    }
}

/// What Redis said to a step.
pub(super) struct Answer {
    reply: Vec<i64>,
    pub(super) branches: u64,
    /// The lifetime that the script chose, if it counts: −1 for no write.
    keep: Option<i64>,
    stored: Option<Vec<u8>>,
    lifetime_ms: i64,
}

impl Answer {
    pub(super) fn read(values: &[Value], is_plain: bool) -> Result<Answer, String> {
        let [_, _, reply, stored, lifetime] = values else {
            return Err(format!("{} values", values.len()));
        };
        let Value::Array(items) = reply else { return Err(format!("an error: {reply:?}")) };
        let (reply, branches, keep) = if is_plain {
            (integers(items), 0, None)
        } else if let [Value::Array(reply), Value::Int(visited), Value::Int(keep)] =
            items.as_slice()
        {
            (integers(reply), visited.cast_unsigned(), Some(*keep))
        } else {
            return Err(format!("an unexpected shape: {items:?}"));
        };
        let stored = if let Value::BulkString(bytes) = stored { Some(bytes.clone()) } else { None };
        let lifetime_ms = if let Value::Int(ms) = lifetime { *ms } else { i64::MIN };
        Ok(Answer { reply, branches, keep, stored, lifetime_ms })
    }

    /// What differs from the model, if anything.
    pub(super) fn difference(&self, step: &Step, model: &Applied) -> Option<String> {
        match command::reply(&self.reply, &step.request) {
            Ok(reply) if reply == model.reply => {}
            Ok(reply) => return Some(replies(&reply, &model.reply)),
            Err(error) => return Some(error.to_string()),
        }
        let expected_keep = model.keep_ms.map_or(-1, u64::cast_signed);
        if self.keep.is_some_and(|keep| keep != expected_keep) {
            return Some(format!("lifetime: script {:?}, model {expected_keep}", self.keep));
        }
        let expected = match model.keep_ms {
            Some(_) => Some(state_bytes(&model.state)),
            None => step.bytes(),
        };
        if self.stored != expected {
            return Some(format!("stored: script {:?}, model {expected:?}", self.stored));
        }
        let lifetime_fits = match model.keep_ms {
            Some(_) => {
                self.lifetime_ms <= expected_keep
                    && expected_keep.saturating_sub(LIFETIME_SLACK_MS) <= self.lifetime_ms
            }
            None => self.lifetime_ms < 0,
        };
        (!lifetime_fits).then(|| format!("PTTL {}, model {expected_keep}", self.lifetime_ms))
    }
}

fn replies(script: &Reply, model: &Reply) -> String {
    format!("reply: script {script:?}\n       model {model:?}")
}

fn integers(items: &[Value]) -> Vec<i64> {
    let number = |item: &Value| if let Value::Int(n) = item { Some(*n) } else { None };
    items.iter().map_while(number).collect()
}

/// Makes steps: fresh ones, and ones that go on from what the last call left.
pub(super) struct Stepper {
    generator: Generator,
    last: Option<State>,
}

impl Stepper {
    pub(super) fn new(seed: u64) -> Stepper {
        Stepper { generator: Generator::new(seed), last: None }
    }

    pub(super) fn next_step(&mut self) -> Step {
        let generator = &mut self.generator;
        let stored = match (generator.below(100), self.last.take()) {
            (0..=2, _) => Stored::Nothing,
            (3..=5, _) => Stored::Bytes(unreadable(generator)),
            (6, _) => Stored::List,
            (7..=55, Some(state)) => Stored::State(state),
            _ => Stored::State(generator.state()),
        };
        let (state, now) = match &stored {
            Stored::State(state) => (Some(*state), generator.now_after(state)),
            Stored::Nothing | Stored::Bytes(_) | Stored::List => {
                let state = generator.state();
                (None, generator.now_after(&state))
            }
        };
        let request = generator.request_after(state.as_ref(), now);
        let step = Step { stored, request, now };
        self.last = Some(apply(step.state(), step.found(), &request, now).state);
        step
    }
}

/// Bytes that can be no state.
fn unreadable(generator: &mut Generator) -> Vec<u8> {
    let state = generator.state();
    let mut bytes = state_bytes(&state);
    let choice = generator.below(12);
    let field = 1 + 8 * usize::try_from(generator.below(11)).unwrap_or(0);
    let mut put = |field: usize, value: f64| {
        if let Some(slot) = bytes.get_mut(field..field + 8) {
            slot.copy_from_slice(&value.to_le_bytes());
        }
    };
    match choice {
        0 => return Vec::new(),
        1 => return b"10".to_vec(),
        2 => bytes.truncate(field),
        3 => bytes.push(0),
        4 => bytes.splice(0..1, [0]).for_each(drop),
        5 => bytes.splice(0..1, [3]).for_each(drop),
        6 => put(field, f64::NAN),
        7 => put(field, f64::INFINITY),
        8 => put(field, 0.5),
        9 => put(field, -9_007_199_254_740_992.0),
        10 => put(LEVEL, 1_000_000_000_001.0),
        _ => put(PERIOD, 0.0),
    }
    bytes
}

/// Where the burst level and the burst period are.
const LEVEL: usize = 1 + 8;
const PERIOD: usize = 1 + 10 * 8;
