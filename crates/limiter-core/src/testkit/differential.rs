//! The script against the model: the same random steps through `take.lua` in a real Redis and
//! through [`crate::bucket::apply`], compared in reply, stored bytes and lifetime.
//!
//! The script runs as it ships but for one marked line: the time is given instead of read. In most
//! rounds the branch marks are made live as well, so that visits are counted where they happen.
//! A step is one `SET` (or `DEL`) of a state, the call, `GET` and `PTTL`; many steps share a round
//! trip. It assumes a Redis of its own, in a folder that nobody misses.

mod build;
mod faults;
pub mod raw; // the script itself
mod states;
mod step;
mod stored;
mod timed;

use redis::{Connection, Pipeline, RedisResult, Value};

pub use self::build::{BRANCHES, Script};
pub use self::faults::{FAULTS, Fault};
use self::step::{Answer, Step, Stepper};
pub use self::timed::TimedRedis;

/// Steps that share a round trip.
const STEPS_PER_ROUND: u64 = 256;
/// One round in so many runs the script without counters, exactly as it ships but for the time.
const PLAIN_ROUND_EVERY: u64 = 4;

/// What a run saw.
#[derive(Debug, Default)]
pub struct Tally {
    /// Steps made.
    pub steps: u64,
    /// Steps in which script and model differ.
    pub differences: u64,
    /// The first of them, in words.
    pub first_difference: Option<String>,
    /// Steps that asked for tokens.
    pub asked: u64,
    /// Of those, steps that got none.
    pub denied: u64,
    /// Visits of each branch mark of the script.
    pub branches: Vec<u64>,
}

impl Tally {
    /// Visits of the least visited branch, and which that is (marks count from 1).
    pub fn least_visited(&self) -> (usize, u64) {
        let visits = self.branches.iter().copied().enumerate();
        visits.min_by_key(|(_, count)| *count).map_or((0, 0), |(index, count)| (index + 1, count))
    }
}

/// When a run ends before its last step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// It does not.
    Done,
    /// At the end of the round with the first difference.
    FirstDifference,
}

/// Runs `steps` steps of `seed` through `script` and the model.
pub fn run(
    connection: &mut Connection,
    script: &Script,
    seed: u64,
    steps: u64,
    until: Until,
) -> RedisResult<Tally> {
    redis::cmd("FLUSHALL").exec(connection)?;
    let plain = load(connection, script.plain())?;
    let counting = load(connection, script.counting())?;
    let mut stepper = Stepper::new(seed);
    let mut tally = Tally { branches: vec![0; BRANCHES], ..Tally::default() };
    let mut round = 0;
    while tally.steps < steps {
        let count = STEPS_PER_ROUND.min(steps - tally.steps);
        let is_plain = round % PLAIN_ROUND_EVERY == PLAIN_ROUND_EVERY - 1;
        let digest = if is_plain { &plain } else { &counting };
        let batch: Vec<Step> = (0..count).map(|_| stepper.next_step()).collect();
        play(connection, digest, &batch, is_plain, &mut tally)?;
        if until == Until::FirstDifference && tally.differences > 0 {
            break;
        }
        round += 1;
    }
    Ok(tally)
}

fn load(connection: &mut Connection, text: &str) -> RedisResult<String> {
    redis::cmd("SCRIPT").arg("LOAD").arg(text).query(connection)
}

fn play(
    connection: &mut Connection,
    digest: &str,
    batch: &[Step],
    is_plain: bool,
    tally: &mut Tally,
) -> RedisResult<()> {
    let mut pipeline = Pipeline::with_capacity(batch.len() * 4);
    pipeline.ignore_errors();
    for step in batch {
        step.send(&mut pipeline, digest);
    }
    let values: Vec<Value> = pipeline.query(connection)?;
    let mut answers = values.chunks_exact(Step::COMMANDS);
    for step in batch {
        let answer = answers.next().map(|values| Answer::read(values, is_plain));
        let applied = step.applied();
        tally.steps += 1;
        tally.asked += u64::from(step.request.need > 0);
        tally.denied += u64::from(step.request.need > 0 && applied.reply.granted == 0);
        let difference = match answer {
            Some(Ok(answer)) => {
                for (index, visits) in tally.branches.iter_mut().enumerate() {
                    *visits += (answer.branches >> index) & 1;
                }
                answer.difference(step, &applied)
            }
            Some(Err(text)) => Some(text),
            None => Some("no answer".to_owned()),
        };
        if let Some(what) = difference {
            tally.differences += 1;
            tally.first_difference.get_or_insert_with(|| format!("{what}\n{step:#?}"));
        }
    }
    Ok(())
}
