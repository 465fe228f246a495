//! What every store must do, whatever it is made of.
//!
//! The suite keeps a mirror of each bucket: it computes with [`bucket::apply`] what the store must
//! answer at the time that the store says it is, and compares whole replies. So the same tests run
//! under a clock that is moved by hand and under a server's real one. What `apply` cannot tell
//! (several callers at once, several keys, callers who leave) stands in `promises`.

mod promises;

use std::error::Error as _;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::ManualClock;
use super::generate::Generator;
use crate::bucket::{self, State};
use crate::call::{Found, LeaseReport, Owed, PlanNumbers, PlanVersion, Reply, Request, Witness};
use crate::key::{BucketKey, ScopeId, VersionSource};
use crate::limit::{Limit, Limits};
use crate::store::{BucketStore, StoreError};
use crate::time::Timestamp;
use crate::units::Capacity;

/// A store's expiry may be this much coarser than its clock.
const EXPIRY_SLACK_US: u64 = 2_000;

/// Lets a store's time pass.
pub trait Advance {
    /// Returns when it has.
    fn advance(&self, by: Duration) -> impl Future<Output = ()> + Send;
}

impl Advance for ManualClock {
    fn advance(&self, by: Duration) -> impl Future<Output = ()> + Send {
        ManualClock::advance(self, by);
        std::future::ready(())
    }
}

/// Scripts of one bucket each: `plan | step | step …`. A plan is `burst capacity@rate`, and
/// ` & sustained` if it has one; a step is a verb with numbers, then `= granted` where that is
/// certain whatever the clock does.
const SCRIPTS: &[&str] = &[
    "10@1/h | take 4 = 4 | take 8 1 = 6 | take 1 1 = 0 | peek = 0",
    "10@1/h | take 11 11 = 0 | take 10 10 = 10",
    "10@1/h | take 0 0 = 0 | peek = 0 | take 10 10 = 10",
    "10@1/h | take 8 8 = 8 | take 5 5 = 0 | take 2 2 = 2",
    "2@1/h & 10@1/h | take 2 2 = 2 | take 8 1 = 0",
    "10@1/h & 2@1/h | take 2 2 = 2 | take 1 1 = 0",
    "1@20/s | take 1 1 = 1 | wait 60 | take 1 1 = 1 | wait 60 | take 1 1 = 1",
    "3@0 | take 3 3 = 3 | wait 20 | take 1 1 = 0",
    "5@1000/s | take 5 5 = 5 | wait 1400 | take 5 5 = 5",
    "1000@100/s | lend 100 | settle | take 3 3 = 3 | lend 200 | wait 600 | settle | lend 50",
    "1000@100/s | lend 100 | wait 1700 | settle | take 1000 1",
    "100@1/h | take 60 60 = 60 | give 20 | take 60 60 = 60 | give 500 | take 100 100 = 100",
    "100@1/h | owe 7 0 | owe 500 0 | take 1 1 = 0",
    "50@1/h & 60@1/h | owe 10 50 | take 20 1 = 10",
    "100@1/h | take 90 90 = 90 | plan 200@1/h | take 110 110 = 110 | plan 10@1/h | take 1 1 = 0",
    "100@1/h | take 10 10 = 10 | plan 20@1/h & 30@1/h | take 25 1 = 20 | plan 40@1/h",
    "100@1/h | take 100 100 = 100 | reset | take 100 100 = 100",
    // A newer plan rules, whoever asks by an older one.
    "100@1/h | take 10 10 = 10 | plan 20@1/h | older take 30 30 = 0 | older take 20 20 = 20",
    // Who remembers fewer tokens is believed, up to one token; who remembers more is not.
    "100@1/h | take 10 10 = 10 | testify 50 | take 52 52 = 0 | take 51 51 = 51",
    "100@1/h | take 60 60 = 60 | testify 90 | take 41 41 = 0 | take 40 40 = 40",
    // A lease is spent elsewhere: what is lent cannot be taken, and ends by itself.
    "1000@100/s | lend 5000 | take 1000 1000 = 0 | wait 1700 | settle | peek",
];

/// Runs the suite over `store`, whose time passes as `time` says. `salt` keeps runs over a shared
/// store apart.
///
/// # Panics
/// With the script and step at which the store differs.
pub async fn check_store<S: BucketStore>(store: &Arc<S>, time: &impl Advance, salt: &str) {
    for script in SCRIPTS {
        play(store.as_ref(), time, salt, script).await;
    }
    random_calls(store.as_ref(), time, salt).await;
    promises::check(store, time, salt).await;
}

/// Runs the part of the suite that needs somebody to spoil what is stored: `damage` puts something
/// that cannot be a bucket where the bucket of a key is. Such a bucket counts as missing, is told
/// as unreadable once, and is good again afterwards. For a store whose state nobody else can
/// write there is nothing to check.
///
/// # Panics
/// With what the store did instead.
pub async fn check_damaged_state<S: BucketStore>(
    store: &Arc<S>,
    salt: &str,
    damage: impl AsyncFn(&BucketKey),
) {
    let plan = PlanNumbers { version: PlanVersion(2), limits: parse_limits("10@1/h") };
    let key = key(salt, "damaged");
    let take = Request::take(plan, 4, 4);
    call(store.as_ref(), &key, &take, "before the damage").await;
    damage(&key).await;
    let reply = call(store.as_ref(), &key, &take, "after the damage").await;
    let what = "a bucket that cannot be read must be told as `Found::Unreadable`";
    assert_eq!(reply.found, Found::Unreadable, "{what}");
    let what = "a bucket that cannot be read must count as a full one";
    assert_eq!((reply.granted, reply.levels.burst.tokens), (4, 6), "{what}");
    let reply = call(store.as_ref(), &key, &take, "the call after that").await;
    let what = "what cannot be read must be overwritten by the first call that finds it";
    assert_eq!((reply.found, reply.levels.burst.tokens), (Found::Known, 2), "{what}");
}

/// A call that must be answered.
async fn call<S: BucketStore>(store: &S, key: &BucketKey, request: &Request, when: &str) -> Reply {
    match store.call(key, request).await {
        Ok(reply) => reply,
        Err(error) => refuse(when, &error),
    }
}

#[expect(clippy::panic, reason = "a suite for tests fails as tests do")]
fn refuse(when: &str, error: &StoreError) -> Reply {
    let cause = error.source().map(ToString::to_string).unwrap_or_default();
    panic!("{when}: a healthy store answers, not: {error} {cause}")
}

/// What a bucket must be.
struct Mirror {
    key: BucketKey,
    state: Option<Kept>,
    last_at: Timestamp,
    last: Option<Reply>,
}

#[derive(Clone, Copy)]
struct Kept {
    state: State,
    until: Timestamp,
}

impl Mirror {
    fn new(salt: &str, name: &str) -> Mirror {
        Mirror { key: key(salt, name), state: None, last_at: Timestamp::default(), last: None }
    }

    async fn call<S: BucketStore>(&mut self, store: &S, request: &Request, label: &str) -> Reply {
        let reply = call(store, &self.key, request, label).await;
        assert!(
            self.last_at <= reply.at,
            "{label}: the store's time ran back, from {:?} to {:?}",
            self.last_at,
            reply.at
        );
        self.last_at = reply.at;
        self.last = Some(reply);
        let known = match reply.found {
            Found::Known => {
                Some(self.state.expect("a store knows only what was written to it").state)
            }
            Found::Nothing => {
                let until = self.state.map_or(0, |kept| kept.until.us());
                let lost_early = reply.at.us() + EXPIRY_SLACK_US < until;
                assert!(!lost_early, "{label}: forgotten before it was full again");
                None
            }
            Found::Unreadable => unreachable_state(label),
        };
        let expected = bucket::apply(known, reply.found, request, reply.at);
        let wrong = differences(&reply, &expected.reply);
        assert!(
            wrong.is_empty(),
            "{label}: the reply differs from `bucket::apply`: {}\nrequest {request:?}\n\
             on the state {known:?}\nreply {reply:?}\nexpected {:?}",
            wrong.join(", "),
            expected.reply
        );
        if let Some(keep_ms) = expected.keep_ms {
            let until = reply.at.after(Duration::from_millis(keep_ms));
            self.state = Some(Kept { state: expected.state, until });
        } else if reply.found == Found::Nothing {
            self.state = None;
        }
        reply
    }
}

/// Which parts of a reply are wrong, in words.
fn differences(reply: &Reply, expected: &Reply) -> Vec<String> {
    let (r, e) = (reply, expected);
    let parts = [
        ("granted", r.granted.to_string(), e.granted.to_string()),
        ("lent", r.lent.to_string(), e.lent.to_string()),
        ("counted", r.counted.to_string(), e.counted.to_string()),
        ("generation", r.generation.to_string(), e.generation.to_string()),
        ("valid", format!("{:?}", r.valid), format!("{:?}", e.valid)),
        ("lease_dead", r.lease_dead.to_string(), e.lease_dead.to_string()),
        ("levels", format!("{:?}", r.levels), format!("{:?}", e.levels)),
        ("outstanding", r.outstanding.to_string(), e.outstanding.to_string()),
        ("at", r.at.us().to_string(), e.at.us().to_string()),
        ("granted_total", r.granted_total.to_string(), e.granted_total.to_string()),
        ("incarnation", r.incarnation.to_string(), e.incarnation.to_string()),
        ("plan", format!("{:?}", r.plan), format!("{:?}", e.plan)),
        ("found", format!("{:?}", r.found), format!("{:?}", e.found)),
    ];
    let wrong = parts.into_iter().filter(|(_, given, wanted)| given != wanted);
    wrong.map(|(name, given, wanted)| format!("`{name}` is {given} and not {wanted}")).collect()
}

fn unreachable_state(label: &str) -> Option<State> {
    let readable = false;
    assert!(readable, "{label}: the store cannot read what it wrote");
    None
}

fn key(salt: &str, name: &str) -> BucketKey {
    BucketKey::new(VersionSource::File, ScopeId::ApiKey { client: salt, key: name })
}

async fn play<S: BucketStore>(store: &S, time: &impl Advance, salt: &str, script: &str) {
    let mut steps = script.split('|').map(str::trim);
    let limits = parse_limits(steps.next().expect("a script starts with its plan"));
    let mut plan = PlanNumbers { version: PlanVersion(2), limits };
    let mut mirror = Mirror::new(salt, script);
    let mut older = plan;
    let mut lease: Option<LeaseReport> = None;
    for step in steps {
        let label = format!("`{script}` at `{step}`");
        let (words, granted) = match step.split_once('=') {
            Some((words, granted)) => (words, granted.trim().parse::<u64>().ok()),
            None => (step, None),
        };
        let (words, by_older) = match words.trim().strip_prefix("older ") {
            Some(words) => (words, true),
            None => (words.trim(), false),
        };
        let (verb, rest) = words.split_once(' ').unwrap_or((words, ""));
        let numbers: Vec<u64> = rest.split(' ').filter_map(|word| word.parse().ok()).collect();
        let number = |index: usize| numbers.get(index).copied().unwrap_or(0);
        let nothing = Request::take(plan, 0, 0);
        let request = match verb {
            "wait" => {
                time.advance(Duration::from_millis(number(0))).await;
                continue;
            }
            "plan" => {
                older = plan;
                plan = PlanNumbers {
                    version: PlanVersion(plan.version.0 + 2),
                    limits: parse_limits(rest),
                };
                Request::take(plan, 0, 0)
            }
            "reset" => {
                let reset = PlanVersion(plan.version.0 + 2);
                plan.version = reset;
                Request { reset, ..Request::take(plan, 0, 0) }
            }
            "take" => Request::take(plan, number(0), number(1)),
            "peek" => Request::peek(plan),
            "lend" => Request { demand_per_s: number(0), lease: lease.take(), ..nothing },
            "settle" => Request { lease: lease.take(), ..nothing },
            "give" => Request { unused_need: number(0), ..nothing },
            "testify" => {
                let reply = mirror.last.expect("a witness saw something before");
                Request { witness: Some(witness(&reply, number(0))), ..nothing }
            }
            "owe" => Request { owed: Owed { burst: number(0), sustained: number(1) }, ..nothing },
            _ => {
                assert!(verb.is_empty(), "{label}: no such verb");
                nothing
            }
        };
        let request = if by_older { Request { plan: older, ..request } } else { request };
        let reply = mirror.call(store, &request, &label).await;
        if let Some(granted) = granted {
            assert_eq!(reply.granted, granted, "{label}: so many tokens must be granted");
        }
        if reply.counted > 0 {
            let (generation, counted) = (reply.generation, reply.counted);
            lease =
                Some(LeaseReport { generation, counted, held: counted / 2, returned: counted / 4 });
        }
    }
}

/// Somebody who saw so many tokens in the burst bucket just now.
fn witness(reply: &Reply, tokens: u64) -> Witness {
    Witness {
        at: reply.at,
        burst: tokens.cast_signed(),
        sustained: reply.levels.sustained.tokens,
        granted_total: reply.granted_total,
        incarnation: reply.incarnation,
        version: reply.plan.version,
        force: true,
    }
}

fn parse_limits(text: &str) -> Limits {
    let limit = |text: &str| {
        let (capacity, rate) = text.trim().split_once('@')?;
        let capacity = Capacity::new(capacity.parse().ok()?).ok()?;
        Limit::new(capacity, rate.parse().ok()?).ok()
    };
    let mut limits = text.split('&').map(|text| limit(text).expect("a limit is `capacity@rate`"));
    let burst = limits.next().expect("a plan has a burst limit");
    Limits { burst, sustained: limits.next() }
}

/// Calls of every kind on a few keys: what the scripts did not think of.
async fn random_calls<S: BucketStore>(store: &S, time: &impl Advance, salt: &str) {
    let mut generator = Generator::new(0x5eed);
    for number in 0..8_u32 {
        let mut mirror = Mirror::new(salt, &format!("random {number}"));
        for step in 0..60_u32 {
            let state = mirror.state.map(|kept| kept.state);
            let present = mirror.last_at;
            let request = generator.request_after(state.as_ref(), present);
            let label = format!("random calls, key {number}, step {step}");
            mirror.call(store, &request, &label).await;
            if step % 10 == 9 {
                time.advance(Duration::from_millis(generator.below(120))).await;
            }
        }
    }
}
