//! Whose requests come, one after the other: drawn beforehand, so that drawing costs nothing while
//! decisions are measured.

use crate::crowd::Crowd;

/// Requests drawn; a slice goes round.
const DRAWN: usize = 1 << 20;

/// A circle of client numbers.
#[derive(Debug)]
pub struct Order(Vec<u32>);

impl Order {
    /// Always the first client.
    pub fn one_key() -> Order {
        Order(vec![0])
    }

    /// Of `keys` clients, the first ones often.
    pub fn zipf(keys: u32, random: &mut fastrand::Rng) -> Order {
        let crowd = Crowd::of(usize::try_from(keys).unwrap_or(usize::MAX));
        let draw = |_| u32::try_from(crowd.one(random)).unwrap_or(u32::MAX);
        Order((0..DRAWN).map(draw).collect())
    }

    /// Client numbers from some place on, without end.
    pub fn from(&self, start: usize) -> impl Iterator<Item = u32> + '_ {
        let skipped = start % self.0.len().max(1);
        self.0.iter().copied().cycle().skip(skipped)
    }
}
