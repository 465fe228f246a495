//! Clients of very different size: the first asks most, the others ever less, by the Zipf law that
//! all experiments with many clients use.

use system_tests::oracle::float;

/// Exponent of that law.
const ZIPF: f64 = 1.2;

/// Clients, numbered from 0 by size.
#[derive(Debug)]
pub struct Crowd {
    /// Running sums of the sizes.
    sums: Vec<f64>,
}

impl Crowd {
    /// So many of them, at least one.
    pub fn of(clients: usize) -> Crowd {
        let mut sum = 0.0;
        let sums = (1..=clients.max(1)).map(|rank| {
            sum += float(rank).powf(-ZIPF);
            sum
        });
        Crowd { sums: sums.collect() }
    }

    /// One at random, large ones more often.
    pub fn one(&self, random: &mut fastrand::Rng) -> usize {
        let point = random.f64() * self.sums.last().copied().unwrap_or(1.0);
        let number = self.sums.partition_point(|sum| *sum <= point);
        number.min(self.sums.len().saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_clients_ask_most_and_all_ask() {
        const CLIENTS: usize = 1_000;
        let (crowd, mut random) = (Crowd::of(CLIENTS), fastrand::Rng::with_seed(2));
        let mut counts = vec![0_usize; CLIENTS];
        for _ in 0..1_000_000 {
            counts[crowd.one(&mut random)] += 1;
        }
        assert!((200_000..300_000).contains(&counts[0]), "{}", counts[0]);
        assert!(counts[..80].iter().sum::<usize>() > 800_000);
        assert!(counts.iter().all(|count| *count > 0));
    }
}
