//! Every state that a model can reach, breadth first, so that the first violation found is a
//! shortest one.
//!
//! Visited states are remembered by a 64-bit fingerprint: among three million states the chance
//! that two share one is below one in four million.
//!
//! A state may have a *rank*: of two states that differ in nothing else, whatever can happen to
//! the one of higher rank can happen to the lower one, and breaks a promise there first. So the
//! higher one is not explored.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Debug;
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};

/// What is explored.
pub trait Model {
    /// All there is to know at one moment.
    type State: Copy + Eq + Hash + Debug;
    /// What may happen next.
    type Action: Copy + Debug;

    /// Where it begins.
    fn start(&self) -> Self::State;

    /// Everything that may happen in `state`.
    fn actions(&self, state: &Self::State, into: &mut Vec<Self::Action>);

    /// The state without its rank, and the rank. By default all have the same.
    fn ranked(&self, state: &Self::State) -> (Self::State, i16) {
        (*state, 0)
    }

    /// What comes of it, or which promise it breaks.
    fn next(&self, state: &Self::State, action: Self::Action) -> Result<Self::State, String>;
}

/// What an exploration has seen.
#[derive(Debug, Clone)]
pub struct Explored {
    /// Different states.
    pub states: usize,
    /// Steps between them.
    pub steps: u64,
    /// Steps from the start to the farthest state.
    pub depth: usize,
    /// Whether no state was left out.
    pub complete: bool,
    /// The first broken promise, with a shortest way to it.
    pub broken: Option<Broken>,
}

/// A broken promise.
#[derive(Debug, Clone)]
pub struct Broken {
    /// Which.
    pub promise: String,
    /// What happened until then, one line each.
    pub history: Vec<String>,
}

/// Explores until nothing is new, a promise breaks, or `states_max` states are known.
pub fn explore<M: Model>(model: &M, states_max: usize) -> Explored {
    let mut seen = Seen::default();
    let mut arena: Vec<(M::State, u32, Option<M::Action>)> = vec![(model.start(), 0, None)];
    seen.is_new(model.ranked(&model.start()));
    let (mut steps, mut depth, mut level_end, mut at) = (0, 0, 1, 0);
    let mut actions = Vec::new();
    while let Some((state, ..)) = arena.get(at).copied() {
        if at == level_end {
            depth += 1;
            level_end = arena.len();
        }
        if arena.len() >= states_max {
            return Explored { states: arena.len(), steps, depth, complete: false, broken: None };
        }
        actions.clear();
        model.actions(&state, &mut actions);
        for action in actions.iter().copied() {
            steps += 1;
            match model.next(&state, action) {
                Ok(next) => {
                    if seen.is_new(model.ranked(&next)) {
                        arena.push((next, index(at), Some(action)));
                    }
                }
                Err(promise) => {
                    let mut history = history(&arena, at);
                    history.push(format!("{action:?}"));
                    let broken = Some(Broken { promise, history });
                    return Explored { states: arena.len(), steps, depth, complete: false, broken };
                }
            }
        }
        at += 1;
    }
    Explored { states: arena.len(), steps, depth, complete: true, broken: None }
}

fn index(at: usize) -> u32 {
    u32::try_from(at).expect("fewer than 2³² states fit the memory")
}

fn history<S: Copy + Debug, A: Copy + Debug>(
    arena: &[(S, u32, Option<A>)],
    mut at: usize,
) -> Vec<String> {
    let mut lines = Vec::new();
    while let Some((state, parent, Some(action))) = arena.get(at) {
        lines.push(format!("{action:?} → {state:?}"));
        at = usize::try_from(*parent).unwrap_or(0);
    }
    lines.reverse();
    lines
}

/// The lowest rank met so far, by fingerprint.
#[derive(Default)]
struct Seen(HashMap<u64, i16, BuildHasherDefault<Plain>>);

impl Seen {
    fn is_new<S: Hash>(&mut self, (state, rank): (S, i16)) -> bool {
        match self.0.entry(fingerprint(&state)) {
            Entry::Vacant(place) => {
                place.insert(rank);
                true
            }
            Entry::Occupied(mut place) if rank < *place.get() => {
                place.insert(rank);
                true
            }
            Entry::Occupied(_) => false,
        }
    }
}

fn fingerprint<S: Hash>(state: &S) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}

/// Fingerprints are hashed already.
#[derive(Default)]
struct Plain(u64);

impl Hasher for Plain {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {
        debug_assert!(false, "only fingerprints are kept");
    }

    fn write_u64(&mut self, fingerprint: u64) {
        self.0 = fingerprint;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts to ten in steps of one or three, and must not pass through `forbidden`.
    struct Counter {
        forbidden: u8,
    }

    impl Model for Counter {
        type State = u8;
        type Action = u8;

        fn start(&self) -> u8 {
            0
        }

        fn actions(&self, state: &u8, into: &mut Vec<u8>) {
            into.extend([1, 3].into_iter().filter(|step| state + step <= 10));
        }

        fn next(&self, state: &u8, action: u8) -> Result<u8, String> {
            let next = state + action;
            if next == self.forbidden { Err(format!("{next} is forbidden")) } else { Ok(next) }
        }
    }

    #[test]
    fn everything_reachable_is_reached_once() {
        let explored = explore(&Counter { forbidden: 99 }, 1_000);
        assert!(explored.complete && explored.broken.is_none());
        assert_eq!((explored.states, explored.steps), (11, 18));
    }

    #[test]
    fn the_history_of_a_broken_promise_is_a_shortest_one() {
        let broken = explore(&Counter { forbidden: 7 }, 1_000).broken.unwrap();
        assert_eq!(broken.promise, "7 is forbidden");
        assert_eq!(broken.history.len(), 3);
    }

    #[test]
    fn a_search_that_was_cut_short_says_so() {
        assert!(!explore(&Counter { forbidden: 99 }, 5).complete);
    }
}
