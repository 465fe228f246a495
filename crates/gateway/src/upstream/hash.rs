//! One key, one endpoint: consistent hashing with bounded load (pure).
//!
//! Every endpoint draws a number for the key, the higher the heavier, and the highest wins
//! (weighted rendezvous). So when one leaves only its own keys move, spread over all others, and
//! they come back with it. No endpoint takes more than 1.25 times its part of the requests that
//! are out: what is above goes to the key's next one.

use super::balance::Candidate;

/// What an endpoint may have out, as a part of its fair share: 5/4.
const BOUND: (u64, u64) = (5, 4);

/// The endpoint of `key` that has room within the bound.
pub(crate) fn preferred(
    candidates: impl Iterator<Item = Candidate> + Clone,
    key: u64,
) -> Option<usize> {
    let (out, weights) = candidates.clone().fold((0, 0), |(out, weights), candidate| {
        (out + candidate.in_flight, weights + candidate.weight)
    });
    candidates
        .filter(|candidate| candidate.in_flight < bound(out, candidate.weight, weights))
        .max_by(|one, other| draw(one, key).total_cmp(&draw(other, key)))
        .map(|candidate| candidate.index)
}

/// Most requests out at an endpoint, when one more than `out` are out at all.
fn bound(out: u64, weight: u64, weights: u64) -> u64 {
    let (more, than) = BOUND;
    (more * (out + 1) * weight).div_ceil((than * weights).max(1))
}

/// What `candidate` draws for `key`: the first of `weight` events that come at random.
fn draw(candidate: &Candidate, key: u64) -> f64 {
    let number = u32::try_from(mix(key ^ candidate.id) >> 32).unwrap_or(u32::MAX);
    let weight = u32::try_from(candidate.weight).unwrap_or(u32::MAX);
    let between_0_and_1 = (f64::from(number) + 0.5) / (f64::from(u32::MAX) + 1.0);
    f64::from(weight) / -between_0_and_1.ln()
}

/// A number for a text: the same in all gateways and versions (FNV-1a, mixed).
pub(crate) fn digest(text: &[u8]) -> u64 {
    let fnv = text.iter().fold(0xcbf2_9ce4_8422_2325, |sum: u64, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    mix(fnv)
}

/// The finish of splitmix64: every bit of the input turns half of the bits of the output.
const fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEYS: u64 = 2_000;

    fn candidates(weights: &[u64], in_flight: &[u64]) -> Vec<Candidate> {
        let endpoint = |(index, (weight, in_flight)): (usize, (&u64, &u64))| Candidate {
            index,
            in_flight: *in_flight,
            weight: *weight,
            id: digest(format!("10.0.0.{index}:80").as_bytes()),
        };
        weights.iter().zip(in_flight).enumerate().map(endpoint).collect()
    }

    fn key(number: u64) -> u64 {
        digest(format!("client-{number}").as_bytes())
    }

    fn homes(candidates: &[Candidate]) -> Vec<usize> {
        let home = |number| preferred(candidates.iter().copied(), key(number)).unwrap();
        (0..KEYS).map(home).collect()
    }

    proptest! {
        #[test]
        fn when_an_endpoint_leaves_only_its_keys_move(
            weights in prop::collection::vec(1_u64..=100, 2..9),
            leaving in 0_usize..9,
        ) {
            let leaving = leaving % weights.len();
            let all = candidates(&weights, &vec![0; weights.len()]);
            let left: Vec<Candidate> =
                all.iter().copied().filter(|candidate| candidate.index != leaving).collect();
            for (before, after) in homes(&all).into_iter().zip(homes(&left)) {
                prop_assert!(before == after || before == leaving, "{before} -> {after}");
                prop_assert_ne!(after, leaving);
            }
        }

        #[test]
        fn keys_are_spread_by_weight(weights in prop::collection::vec(1_u64..=10, 2..6)) {
            let homes = homes(&candidates(&weights, &vec![0; weights.len()]));
            let sum: u64 = weights.iter().sum();
            for (index, weight) in weights.iter().enumerate() {
                let count = homes.iter().filter(|home| **home == index).count() as u64;
                let fair = KEYS * weight / sum;
                // Five standard deviations, and one key for the rounding.
                let off = 5 * fair.isqrt() + 5;
                prop_assert!(count.abs_diff(fair) <= off, "{count} keys, {fair} would be fair");
            }
        }

        #[test]
        fn no_endpoint_is_ever_above_its_bound(
            weights in prop::collection::vec(1_u64..=100, 1..9),
            calls in prop::collection::vec((0_u64..4, any::<bool>()), 1..400),
        ) {
            let mut in_flight = vec![0; weights.len()];
            let sum: u64 = weights.iter().sum();
            for (number, ends) in calls {
                let all = candidates(&weights, &in_flight);
                let out: u64 = in_flight.iter().sum();
                // There is always one with room.
                let chosen = preferred(all.into_iter(), key(number)).unwrap();
                in_flight[chosen] += 1;
                let fair = (out + 1) * weights[chosen];
                prop_assert!((in_flight[chosen] - 1) * 4 * sum < 5 * fair, "{in_flight:?}");
                if ends {
                    in_flight[chosen] -= 1;
                }
            }
        }
    }

    #[test]
    fn a_key_stays_where_it_is_until_that_is_too_full_and_returns() {
        let idle = candidates(&[1, 1, 1], &[0, 0, 0]);
        let home = preferred(idle.iter().copied(), key(1)).unwrap();
        let out = |at_home: u64| {
            let mut in_flight = [8; 3];
            in_flight[home] = at_home;
            preferred(candidates(&[1, 1, 1], &in_flight).into_iter(), key(1)).unwrap()
        };
        assert_eq!(out(9), home);
        assert_ne!(out(20), home);
        assert_eq!(out(8), home);
    }

    #[test]
    fn there_is_none_without_endpoints() {
        assert_eq!(preferred([].into_iter(), 1), None);
    }
}
