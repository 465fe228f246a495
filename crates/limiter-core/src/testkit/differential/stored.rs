//! The bytes of a stored state, as the script packs them.

use crate::bucket::State;
use crate::store::redis::command;

/// First byte of a stored state with one bucket, and with two.
const KIND_BURST_ONLY: u8 = 1;
const KIND_BOTH: u8 = 2;

/// The bytes of a state, as the script packs them.
pub(super) fn state_bytes(state: &State) -> Vec<u8> {
    let limits = command::limits_numbers(&state.plan.limits);
    let levels = state.levels;
    let both = state.plan.limits.sustained.is_some();
    let mut bytes = vec![if both { KIND_BOTH } else { KIND_BURST_ONLY }];
    let mut put = |number: i64| bytes.extend_from_slice(&double(number).to_le_bytes());
    let whole = u64::cast_signed;
    for number in [
        whole(state.at.us()),
        levels.burst.tokens,
        whole(levels.burst.remainder),
        whole(state.lent_now),
        whole(state.lent_before),
        whole(state.granted_total),
        whole(state.incarnation),
        whole(state.plan.version.0),
    ] {
        put(number);
    }
    let (burst, sustained) = limits.split_at(command::PLAN_NUMBERS / 2);
    burst.iter().copied().for_each(&mut put);
    if both {
        put(levels.sustained.tokens);
        put(whole(levels.sustained.remainder));
        sustained.iter().copied().for_each(&mut put);
    }
    bytes
}

#[expect(clippy::cast_precision_loss, reason = "every stored number is below 2^53")]
const fn double(number: i64) -> f64 {
    number as f64
}
