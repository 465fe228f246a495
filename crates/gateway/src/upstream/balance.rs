//! Which endpoint: the less loaded of two random ones, the next in turn, or the one of a key
//! (pure).
//!
//! Two random choices keep load even without comparing all, and do not send everybody to the one
//! that just came back. If too few are usable, by default none, all are used (panic): a health
//! check that is wrong about everything must not take a service down that still answers.

use http::HeaderName;

use super::hash;

/// How an upstream's endpoints share its requests, each by its weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Balance {
    /// The less loaded of two random ones.
    LeastRequest,
    /// One after the other.
    RoundRobin,
    /// By the value of this header as the service sees it; requests without it as above.
    Hash(HeaderName),
}

/// An endpoint as the balancer sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Load {
    /// Healthy and not ejected.
    pub usable: bool,
    /// It may have more requests out.
    pub has_room: bool,
    /// Requests out now.
    pub in_flight: u64,
    /// Its weight.
    pub weight: u64,
    /// What it counts with now, in hundredths of a weight: less than all soon after a return.
    pub ramped: u64,
    /// Its number for [`hash`].
    pub id: u64,
}

/// One that may be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) index: usize,
    pub(crate) in_flight: u64,
    pub(crate) weight: u64,
    pub(crate) id: u64,
}

/// By what one is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pick {
    /// Load.
    Least,
    /// So many were taken before.
    Turn(u64),
    /// Digest of a key.
    Key(u64),
}

/// The choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Index of the endpoint.
    pub index: usize,
    /// Too few endpoints were usable, so all were candidates.
    pub panic: bool,
}

/// Why there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoChoice {
    /// There is no endpoint, or no other one.
    Nobody,
    /// All have as many requests out as they may.
    Full,
}

/// Chooses among `loads`, without those `tried`. All are used if none is usable, or fewer than
/// `panic_percent` of them. `random(n)` is below `n`.
pub(crate) fn choose(
    loads: impl Iterator<Item = Load> + Clone,
    panic_percent: usize,
    tried: &[usize],
    pick: Pick,
    random: impl FnMut(u64) -> u64,
) -> Result<Choice, NoChoice> {
    let (mut all, mut usable) = (0, 0);
    for load in loads.clone() {
        all += 1;
        usable += usize::from(load.usable);
    }
    let panic = usable == 0 || usable * 100 < panic_percent * all;
    let open =
        loads.enumerate().filter(|(index, load)| (load.usable || panic) && !tried.contains(index));
    let candidates = open.clone().filter(|(_, load)| load.has_room).map(|(index, load)| {
        // Who is used because nobody is well has no return to be careful about.
        let weight = if panic { load.weight * 100 } else { load.ramped };
        Candidate { index, in_flight: load.in_flight, weight, id: load.id }
    });
    let index = match pick {
        Pick::Least => less_of_two(candidates, random),
        Pick::Turn(turn) => in_turn(candidates, turn),
        Pick::Key(key) => hash::preferred(candidates, key),
    };
    match index {
        Some(index) => Ok(Choice { index, panic }),
        None if open.count() > 0 => Err(NoChoice::Full),
        None => Err(NoChoice::Nobody),
    }
}

fn less_of_two(
    candidates: impl Iterator<Item = Candidate> + Clone,
    mut random: impl FnMut(u64) -> u64,
) -> Option<usize> {
    let weights: u64 = candidates.clone().map(|candidate| candidate.weight).sum();
    if weights == 0 {
        return None;
    }
    let first = at(candidates.clone(), random(weights))?;
    let others = weights - first.weight;
    if others == 0 {
        return Some(first.index);
    }
    let second = at(candidates.filter(|other| other.index != first.index), random(others))?;
    let less = second.in_flight * first.weight < first.in_flight * second.weight;
    Some(if less { second.index } else { first.index })
}

/// As many turns of each as its weight, spread out: the places of all weights are visited in
/// strides of about the golden section.
fn in_turn(candidates: impl Iterator<Item = Candidate> + Clone, turn: u64) -> Option<usize> {
    let part = candidates.clone().fold(0, |part, candidate| divisor(part, candidate.weight));
    if part == 0 {
        return None;
    }
    let candidates =
        candidates.map(|candidate| Candidate { weight: candidate.weight / part, ..candidate });
    let places: u64 = candidates.clone().map(|candidate| candidate.weight).sum();
    let golden = (places * 618 / 1_000).max(1);
    let stride = (golden..).find(|stride| divisor(*stride, places) == 1)?;
    at(candidates, (turn % places) * stride % places).map(|candidate| candidate.index)
}

/// Greatest common divisor.
const fn divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The candidate at a place, if each has as many places as its weight.
fn at(mut candidates: impl Iterator<Item = Candidate>, mut place: u64) -> Option<Candidate> {
    candidates.find(|candidate| {
        let here = place < candidate.weight;
        place = place.saturating_sub(candidate.weight);
        here
    })
}

#[cfg(test)]
mod tests;
