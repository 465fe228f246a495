//! What goes wrong when, drawn before a run starts. The last quarter of a run is quiet.

use super::scenario::{Kind, Scenario};

/// Something that happens at a moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Fault {
    /// From now on so many of a thousand requests, and replies, are lost.
    Lose(u32),
    /// From now on every call takes so many microseconds longer.
    Slow(u64),
    /// A gateway dies and comes back without memory.
    Crash(usize),
    /// A gateway stands still until then.
    Pause(usize, u64),
    /// The store has no data any more.
    Forget,
    /// The store is as it was so many microseconds ago.
    Rollback(u64),
    /// Nothing reaches the store until then.
    Away(u64),
    /// The store's clock is set forward or back.
    Step(i64),
    /// The plan's capacity and rate are multiplied by this, in percent.
    Plan(u64),
    /// The client is reset.
    Reset,
}

/// The faults of a run, in order.
pub(super) fn draw(scenario: &Scenario, luck: &mut fastrand::Rng) -> Vec<(u64, Fault)> {
    let length = scenario.length_us * 3 / 4;
    let count = luck.usize(1..6);
    let mut faults: Vec<(u64, Fault)> = (0..count)
        .filter_map(|_| {
            let at = luck.u64(length / 10..length);
            one(scenario, at, luck).map(|fault| (at, fault))
        })
        .collect();
    if matches!(scenario.kind, Kind::Lossy | Kind::Mixed) {
        faults.push((0, Fault::Lose(luck.u32(1..50))));
    }
    faults.push((length, Fault::Lose(0)));
    faults.push((length, Fault::Slow(0)));
    faults.sort_by_key(|(at, _)| *at);
    faults
}

fn one(scenario: &Scenario, at: u64, luck: &mut fastrand::Rng) -> Option<Fault> {
    let gateway = luck.usize(..scenario.gateways);
    let slow = Fault::Slow([1_000, 4_000, 8_000, 60_000][luck.usize(..4)]);
    let pause = Fault::Pause(gateway, at + luck.u64(50_000..3_000_000));
    let plan = Fault::Plan([10, 50, 150, 300][luck.usize(..4)]);
    Some(match scenario.kind {
        Kind::Calm => return None,
        Kind::Lossy => slow,
        Kind::Gateways if luck.bool() => Fault::Crash(gateway),
        Kind::Gateways => pause,
        Kind::Forgetful if luck.bool() => Fault::Forget,
        Kind::Forgetful => Fault::Rollback(luck.u64(10_000..1_000_000)),
        Kind::Outage => Fault::Away(at + luck.u64(500_000..10_000_000)),
        Kind::Clock => Fault::Step([-5_000_000, -500_000, 300_000, 5_000_000][luck.usize(..4)]),
        Kind::Plans if luck.f64() < 0.3 => Fault::Reset,
        Kind::Plans => plan,
        Kind::Mixed => [slow, pause, plan, Fault::Crash(gateway)][luck.usize(..4)],
    })
}
