//! The incident as a script: one client at many times its contract over some gateways and all
//! services, and fifty others well within theirs.
//!
//! A script is data: who offers what. [`Script::shots`] turns it into moments, the same for the
//! same seed; whoever sends them decides what a gateway or a service is.

use std::time::Duration;

/// The plan of the noisy client.
pub const NOISY_PLAN: PlanLine = PlanLine { name: "noisy", capacity: 40, refill: "40/s" };
/// The plan of everybody else.
pub const QUIET_PLAN: PlanLine = PlanLine { name: "quiet", capacity: 20, refill: "10/s" };
/// The noisy client.
pub const NOISY_CLIENT: &str = "noisy";

/// A plan as the script needs it: one burst limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanLine {
    /// Its name.
    pub name: &'static str,
    /// Tokens at once.
    pub capacity: u64,
    /// Tokens over time, as in plans.
    pub refill: &'static str,
}

/// What one client offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// The client.
    pub client: String,
    /// Its plan.
    pub plan: PlanLine,
    /// Requests in a hundred seconds.
    pub per_100_s: u64,
    /// Weights of the gateways that it uses.
    pub gateways: Vec<u32>,
}

/// Who offers what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    /// All clients; the noisy one is the first.
    pub offers: Vec<Offer>,
    /// How many services the requests are spread over.
    pub services: usize,
}

/// One request to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shot {
    /// From the start of the script.
    pub at: Duration,
    /// Index of the client in [`Script::offers`].
    pub client: usize,
    /// Index of the gateway.
    pub gateway: usize,
    /// Index of the service.
    pub service: usize,
}

impl Script {
    /// One client at `times` its contract rate over 70, 20 and 10 % of three gateways; `others`
    /// at two requests a second each, a fifth of what they may.
    pub fn incident(times: u64, others: usize) -> Script {
        let noisy = Offer {
            client: NOISY_CLIENT.to_owned(),
            plan: NOISY_PLAN,
            per_100_s: NOISY_PLAN.capacity * 100 * times,
            gateways: vec![70, 20, 10],
        };
        let quiet = (1..=others).map(|number| Offer {
            client: format!("quiet-{number:02}"),
            plan: QUIET_PLAN,
            per_100_s: 200,
            gateways: vec![1, 1, 1],
        });
        Script { offers: std::iter::once(noisy).chain(quiet).collect(), services: 3 }
    }

    /// Every request of `length`, in order of time. Each client is evenly paced with a random
    /// shift inside each of its intervals, so that clients do not march in step.
    pub fn shots(&self, length: Duration, seed: u64) -> Vec<Shot> {
        let mut random = Random(seed);
        let mut shots = Vec::new();
        for (client, offer) in self.offers.iter().enumerate() {
            if offer.per_100_s == 0 {
                continue;
            }
            let interval_us = 100_000_000 / offer.per_100_s;
            let count = length.as_micros() * u128::from(offer.per_100_s) / 100_000_000;
            for number in 0..u64::try_from(count).unwrap_or(u64::MAX) {
                // Times of the number, not of the interval: no rounding adds up.
                let begin = u128::from(number) * 100_000_000 / u128::from(offer.per_100_s);
                let begin = u64::try_from(begin).unwrap_or(u64::MAX);
                shots.push(Shot {
                    at: Duration::from_micros(begin + random.below(interval_us.max(1))),
                    client,
                    gateway: random.weighted(&offer.gateways),
                    service: usize::try_from(random.below(self.services.max(1) as u64))
                        .unwrap_or(0),
                });
            }
        }
        shots.sort_by_key(|shot| shot.at);
        shots
    }
}

/// Small and repeatable (splitmix64); nothing here needs more.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn weighted(&mut self, weights: &[u32]) -> usize {
        let sum: u64 = weights.iter().copied().map(u64::from).sum();
        let mut drawn = self.below(sum.max(1));
        for (index, weight) in weights.iter().enumerate() {
            let weight = u64::from(*weight);
            if drawn < weight {
                return index;
            }
            drawn -= weight;
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_offers_what_it_says_to_whom_it_says() {
        let script = Script::incident(10, 50);
        let shots = script.shots(Duration::from_secs(10), 7);
        assert_eq!(shots.len(), 4_000 + 50 * 20);
        assert!(shots.is_sorted_by_key(|shot| shot.at));
        assert!(shots.iter().all(|shot| shot.at < Duration::from_secs(11)));
        let noisy: Vec<_> = shots.iter().filter(|shot| shot.client == 0).collect();
        let share = |gateway| noisy.iter().filter(|shot| shot.gateway == gateway).count();
        for (gateway, percent) in [(0, 70), (1, 20), (2, 10)] {
            let seen = share(gateway) * 100 / noisy.len();
            assert!(seen.abs_diff(percent) <= 3, "gateway {gateway}: {seen} %");
        }
        for service in 0..3 {
            let seen = noisy.iter().filter(|shot| shot.service == service).count();
            assert!(seen.abs_diff(noisy.len() / 3) < noisy.len() / 10, "service {service}: {seen}");
        }
    }

    #[test]
    fn the_others_stay_within_their_contract_and_a_seed_repeats_the_script() {
        let script = Script::incident(10, 3);
        let shots = script.shots(Duration::from_secs(30), 1);
        assert_eq!(shots, script.shots(Duration::from_secs(30), 1));
        assert_ne!(shots, script.shots(Duration::from_secs(30), 2));
        for client in 1..=3 {
            let times: Vec<_> = shots.iter().filter(|s| s.client == client).map(|s| s.at).collect();
            let most = times.windows(6).filter(|w| w[5] - w[0] < Duration::from_secs(1)).count();
            assert_eq!(most, 0, "more than five requests of client {client} within a second");
        }
    }
}
