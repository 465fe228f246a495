//! Whose requests come, one after the other: drawn beforehand, so that drawing costs nothing while
//! decisions are measured.

/// Requests drawn; a slice goes round.
const DRAWN: usize = 1 << 20;
/// Exponent of the Zipf law of the clients' sizes.
const ZIPF: f64 = 1.2;

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
        let mut sum = 0.0;
        let sums: Vec<f64> = (1..=keys)
            .map(|rank| {
                sum += f64::from(rank).powf(-ZIPF);
                sum
            })
            .collect();
        let draw = |_| {
            let point = random.f64() * sum;
            let rank = sums.partition_point(|sum| *sum <= point);
            u32::try_from(rank).unwrap_or(u32::MAX).min(keys - 1)
        };
        Order((0..DRAWN).map(draw).collect())
    }

    /// Client numbers from some place on, without end.
    pub fn from(&self, start: usize) -> impl Iterator<Item = u32> + '_ {
        let skipped = start % self.0.len().max(1);
        self.0.iter().copied().cycle().skip(skipped)
    }
}
