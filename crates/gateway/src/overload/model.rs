//! A worker on a clock of events, to see what the judge makes of loads that no machine offers twice
//! alike. A turn is everything that was ready at its beginning, in order.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::LOOK_EVERY;
use super::judge::{Judge, Seen};
use crate::config::OverloadRules;

const RULES: OverloadRules =
    OverloadRules { target: Duration::from_millis(5), interval: Duration::from_millis(100) };
const SECOND_US: u64 = 1_000_000;
/// Until a service has answered.
const SERVICE_US: u64 = 60;

/// What a request costs its worker, in microseconds.
#[derive(Clone, Copy)]
struct Costs {
    refusal: u64,
    /// Head, way to the service, way back, answer.
    forward: [u64; 4],
}

const LIGHT: Costs = Costs { refusal: 8, forward: [6, 3, 3, 5] };
const HEAVY: Costs = Costs { refusal: 9, forward: [8, 5, 30, 1_060] };

/// A request that is ready for its next step from some moment on.
struct Task {
    ready: u64,
    came: u64,
    step: usize,
}

#[derive(Default)]
struct Outcome {
    /// From arrival to answer, of those that came after the first two seconds.
    took_us: Vec<u64>,
    shed: usize,
}

impl Outcome {
    fn p99(&self) -> u64 {
        let mut took = self.took_us.clone();
        took.sort_unstable();
        took[took.len() * 99 / 100]
    }
}

/// `per_s` requests a second, at moments of chance, for `seconds`.
fn run(costs: Costs, per_s: f64, seconds: u64, rules: Option<OverloadRules>) -> Outcome {
    let mut random = fastrand::Rng::with_seed(5);
    let start: Instant = {
        #[expect(clippy::disallowed_methods, reason = "any beginning will do")]
        std::time::Instant::now().into()
    };
    let mut judge = rules.map(Judge::new);
    let (mut room, mut shed, mut under_way) = (usize::MAX, 0, 0_usize);
    let (mut now, mut next_look) = (0_u64, 5_000_u64);
    let mut at = 0.0;
    let mut gap = || {
        at -= (1.0 - random.f64()).ln() / per_s;
        u64::try_from(Duration::from_secs_f64(at).as_micros()).unwrap()
    };
    let mut next = gap();
    let mut tasks: VecDeque<Task> = VecDeque::new();
    let mut outcome = Outcome::default();
    while now < seconds * SECOND_US {
        while next <= now {
            tasks.push_back(Task { ready: next, came: next, step: 0 });
            next = gap();
        }
        let begun = now;
        let looks = next_look <= begun;
        for _ in 0..tasks.len() {
            let task = tasks.pop_front().unwrap();
            if begun < task.ready {
                tasks.push_back(task);
                continue;
            }
            if task.step == 0 && room <= under_way {
                (now, shed) = (now + costs.refusal, shed + 1);
                outcome.shed += usize::from(2 * SECOND_US < task.came);
                continue;
            }
            now += costs.forward[task.step];
            match task.step {
                0 => under_way += 1,
                3 => {
                    under_way -= 1;
                    if 2 * SECOND_US < task.came {
                        outcome.took_us.push(now - task.came);
                    }
                    continue;
                }
                _ => {}
            }
            let wait = if task.step == 1 { SERVICE_US } else { 0 };
            tasks.push_back(Task { ready: now + wait, came: task.came, step: task.step + 1 });
        }
        if looks {
            let delay = Duration::from_micros(now - begun);
            let moment = start + Duration::from_micros(now);
            let seen = Seen { now: moment, delay, worked: delay, under_way, shed };
            if let Some(judge) = &mut judge {
                room = judge.look(&seen).unwrap_or(usize::MAX);
            }
            let pause = if delay < LOOK_EVERY { LOOK_EVERY } else { Duration::ZERO };
            next_look = now + u64::try_from(pause.as_micros()).unwrap();
        }
        if now == begun {
            let ready = tasks.iter().map(|task| task.ready).min().unwrap_or(u64::MAX);
            now = ready.min(next).min(next_look.max(now + 1)).max(now + 1);
        }
    }
    outcome
}

fn capacity_per_s(costs: Costs) -> f64 {
    1e6 / f64::from(u32::try_from(costs.forward.iter().sum::<u64>()).unwrap())
}

fn share(served: usize, seconds: u64, capacity_per_s: f64) -> f64 {
    let seconds = f64::from(u32::try_from(seconds - 2).unwrap());
    f64::from(u32::try_from(served).unwrap()) / seconds / capacity_per_s
}

#[test]
fn ten_times_the_capacity_leaves_most_of_it_to_those_who_are_served_and_they_are_served_soon() {
    let capacity = capacity_per_s(HEAVY);
    let normal = run(HEAVY, 0.8 * capacity, 20, Some(RULES));
    assert!(normal.shed * 1_000 <= normal.took_us.len(), "{} shed", normal.shed);
    let over = run(HEAVY, 10.0 * capacity, 20, Some(RULES));
    let good = share(over.took_us.len(), 20, capacity);
    assert!((0.85..=1.0).contains(&good), "{good}");
    let (normal, over) = (normal.p99(), over.p99());
    assert!(over <= 3 * normal, "{over} µs after {normal} µs");
}

#[test]
fn a_little_too_much_is_a_little_shed() {
    for costs in [LIGHT, HEAVY] {
        let capacity = capacity_per_s(costs);
        let over = run(costs, 1.2 * capacity, 12, Some(RULES));
        let good = share(over.took_us.len(), 12, capacity);
        let most = over.p99();
        // What refusing the rest takes cannot serve.
        let refusal = f64::from(u32::try_from(costs.refusal).unwrap()) * capacity / 1e6;
        let best = (1.0 - 1.2 * refusal) / (1.0 - refusal);
        assert!((0.9..=1.01).contains(&(good / best)), "{good} of {best}");
        assert!(most < 100_000, "{most} µs");
    }
}

#[test]
fn without_it_everybody_waits() {
    let capacity = capacity_per_s(HEAVY);
    let over = run(HEAVY, 1.5 * capacity, 10, None);
    assert!(over.shed == 0 && over.p99() > SECOND_US, "{} µs", over.p99());
}

#[test]
fn nobody_is_shed_at_nine_tenths_of_the_capacity() {
    let over = run(LIGHT, 0.9 * capacity_per_s(LIGHT), 20, Some(RULES));
    assert_eq!(over.shed, 0);
}
