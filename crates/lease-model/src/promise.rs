//! What must hold in every world.

use crate::protocol::Protocol;
use crate::world::{Gateway, Lane, Tick, World};

/// Every promise that can be read off a world.
pub(crate) fn check(protocol: &Protocol, world: &World) -> Result<(), String> {
    let seen = protocol.look(world);
    let capacity = i64::from(protocol.scale.capacity());
    let (level, outstanding) = (seen.levels.burst.tokens, seen.outstanding);
    if level + outstanding.cast_signed() > capacity && level > 0 {
        return Err(format!("I1: level {level} and {outstanding} lent in a bucket of {capacity}"));
    }
    if world.forgotten == 0 && unspent(protocol, world) > outstanding {
        let unspent = unspent(protocol, world);
        return Err(format!("I2: {unspent} unspent, but only {outstanding} on the books"));
    }
    let gap = gap(protocol, world);
    if gap > world.forgotten {
        let exact = f32::from(world.exact) / 2.0;
        return Err(format!(
            "theorem: the exact bucket has {exact} tokens, but level and leases can still give {} \
             half tokens more (allowed {})",
            gap, world.forgotten
        ));
    }
    if world.exact + world.forgotten < 0 {
        return Err(format!("I3: {} half tokens admitted beyond the contract", -world.exact));
    }
    let lanes = if protocol.beside { 4 } else { 2 };
    if world.admitted + world.forgotten < -2 * lanes {
        return Err(format!(
            "I3: {} half tokens admitted beyond the contract, more than need in flight",
            -world.admitted
        ));
    }
    Ok(())
}

/// By how much level and unspent leases exceed the exact bucket, in half tokens.
pub(crate) fn gap(protocol: &Protocol, world: &World) -> i16 {
    let level = protocol.look(world).levels.burst;
    let parts = 2 * level.tokens + i64::from(level.remainder > 0);
    let parts = parts + 2 * unspent(protocol, world).cast_signed();
    i16::try_from(parts).unwrap_or(i16::MAX) - world.exact
}

/// After a loss of data: with each witness that has spoken, no more is there than it saw, and what
/// was earned or given back since, and one.
pub(crate) fn check_witnesses(protocol: &Protocol, world: &World) -> Result<(), String> {
    let Some(loss) = world.loss else { return Ok(()) };
    let level = protocol.look(world).levels.burst.tokens;
    for memory in loss.memories.iter().filter(|memory| memory.heard) {
        let Some(seen) = memory.seen else { continue };
        let earned = i64::from(world.now.saturating_sub(seen.at).div_ceil(2));
        let most = i64::from(seen.level) + earned + 1 + i64::from(loss.given_back);
        if level > most {
            return Err(format!("I10: level {level}, but a witness that was heard allows {most}"));
        }
    }
    Ok(())
}

/// Tokens that gateways could still spend without asking, replies on their way included.
fn unspent(protocol: &Protocol, world: &World) -> u64 {
    world.gateways.iter().map(|gateway| u64::from(spendable(protocol, gateway, world.now))).sum()
}

fn spendable(protocol: &Protocol, gateway: &Gateway, now: Tick) -> u8 {
    let alive = if now < gateway.deadline { gateway.held } else { 0 };
    match gateway.main {
        Lane::Idle => alive,
        // The reply may give it a later deadline, if the store still knows its stamp.
        Lane::Asked(_) if gateway.stamp + 1 >= protocol.scale.stamp(now) => gateway.held,
        Lane::Asked(_) => alive,
        Lane::Answered(answer) if now >= answer.deadline => alive,
        Lane::Answered(answer) if answer.lease_dead => answer.lent.max(alive),
        Lane::Answered(answer) => gateway.held + answer.lent,
    }
}
