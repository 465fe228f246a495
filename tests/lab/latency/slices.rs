//! Slices of traffic on one of three ways, gathered into rounds, and the times that they took.

use std::collections::BTreeMap;
use std::time::Duration;

use demo::incident::Shot;
use serde_json::{Value, json};
use system_tests::oracle::{float, offered_achieved, quantile};
use system_tests::traffic::{Sent, statuses};

use super::CLIENTS;
use crate::crowd::Crowd;

/// A request sent later than this is not the intended load.
const LATE_MAX: Duration = Duration::from_millis(50);
const OFFERED_MIN: f64 = 0.98;

/// Where requests go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// To the service itself.
    Direct,
    /// Through the gateway, under an unlimited plan.
    Unlimited,
    /// Through the gateway, under limits.
    Limited,
}

impl Way {
    /// All three.
    pub const ALL: [Way; 3] = [Way::Direct, Way::Unlimited, Way::Limited];

    /// Its name in figures.
    pub const fn name(self) -> &'static str {
        match self {
            Way::Direct => "direct",
            Way::Unlimited => "unlimited",
            Way::Limited => "limited",
        }
    }

    /// Index of its target.
    pub const fn target(self) -> usize {
        match self {
            Way::Direct => 0,
            Way::Unlimited | Way::Limited => 1,
        }
    }

    /// Index of the client with this number among those who go this way.
    pub const fn client(self, number: usize) -> usize {
        match self {
            Way::Direct | Way::Limited => number,
            Way::Unlimited => CLIENTS + number,
        }
    }
}

/// Evenly paced requests of clients at random, with a random shift inside each interval.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small, above 0")]
pub fn shots(way: Way, per_s: f64, length: Duration, seed: u64) -> Vec<Shot> {
    let mut random = fastrand::Rng::with_seed(seed);
    let crowd = Crowd::of(CLIENTS);
    let count = (per_s * length.as_secs_f64()) as usize;
    let one = |number: usize| Shot {
        at: Duration::from_secs_f64((float(number) + random.f64()) / per_s),
        client: way.client(crowd.one(&mut random)),
        gateway: way.target(),
        service: 0,
    };
    (0..count).map(one).collect()
}

/// What one stretch on one way took.
#[derive(Debug)]
pub struct Slice {
    way: Way,
    took: Vec<Duration>,
    /// How many have each status but 200; 0 is no answer at all.
    strange: BTreeMap<u16, usize>,
    offered: f64,
}

impl Slice {
    /// Of these answers to so many intended requests.
    pub fn of(way: Way, sent: &[Sent], intended: usize) -> Slice {
        Slice {
            way,
            took: sent.iter().map(|sent| sent.took).collect(),
            strange: statuses(sent).into_iter().filter(|(status, _)| *status != 200).collect(),
            offered: offered_achieved(sent, intended, LATE_MAX),
        }
    }

    /// What the machine did to it, if it was too busy with something else.
    pub fn spoilt(&self) -> Option<String> {
        let late = self.offered < OFFERED_MIN;
        late.then(|| format!("{}: {:.3} sent in time", self.way.name(), self.offered))
    }
}

/// Some slices of each way, taken in turn.
#[derive(Debug)]
pub struct Round(Vec<Slice>);

/// As many rounds as wanted, of equal size as nearly as can be.
pub fn rounds(turns: Vec<Vec<Slice>>, wanted: usize) -> Vec<Round> {
    let mut rounds: Vec<Round> = (0..wanted.min(turns.len())).map(|_| Round(Vec::new())).collect();
    let count = rounds.len().max(1);
    for (number, turn) in turns.into_iter().enumerate() {
        if let Some(round) = rounds.get_mut(number % count) {
            round.0.extend(turn);
        }
    }
    rounds
}

impl Round {
    fn slices(&self, way: Way) -> impl Iterator<Item = &Slice> {
        self.0.iter().filter(move |slice| slice.way == way)
    }

    /// Requests on a way.
    pub fn count(&self, way: Way) -> usize {
        self.slices(way).map(|slice| slice.took.len()).sum()
    }

    /// A quantile of the times on a way, in milliseconds.
    pub fn quantile_ms(&self, way: Way, share: f64) -> f64 {
        let took = self.slices(way).flat_map(|slice| slice.took.iter().copied());
        quantile(took, share).as_secs_f64() * 1e3
    }

    /// What limits add.
    pub fn added_ms(&self, share: f64) -> f64 {
        self.quantile_ms(Way::Limited, share) - self.quantile_ms(Way::Unlimited, share)
    }

    /// What the gateway adds without limits.
    pub fn gateway_ms(&self, share: f64) -> f64 {
        self.quantile_ms(Way::Unlimited, share) - self.quantile_ms(Way::Direct, share)
    }

    /// Requests that were not served.
    pub fn not_served(&self) -> usize {
        self.0.iter().flat_map(|slice| slice.strange.values()).sum()
    }

    /// The same, by status.
    fn strange(&self, way: Way) -> BTreeMap<u16, usize> {
        let mut all = BTreeMap::new();
        for (status, count) in self.slices(way).flat_map(|slice| &slice.strange) {
            *all.entry(*status).or_default() += count;
        }
        all
    }

    /// The least share of the intended load over its slices.
    pub fn offered(&self) -> f64 {
        self.0.iter().map(|slice| slice.offered).fold(1.0, f64::min)
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let way = |way: Way| {
            let ms = |share| self.quantile_ms(way, share);
            json!({ "way": way.name(), "count": self.count(way), "p50_ms": ms(0.5),
                    "p99_ms": ms(0.99), "p999_ms": ms(0.999), "not_served": self.strange(way) })
        };
        json!({ "ways": Way::ALL.map(way), "added_ms_p50": self.added_ms(0.5),
                "added_ms_p99": self.added_ms(0.99), "added_ms_p999": self.added_ms(0.999) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_turn_is_in_a_round_and_clients_of_two_ways_differ() {
        let slice =
            |way| Slice { way, took: vec![Duration::ZERO], strange: BTreeMap::new(), offered: 1.0 };
        let turns: Vec<Vec<Slice>> =
            (0..16).map(|_| Way::ALL.into_iter().map(slice).collect()).collect();
        let rounds = rounds(turns, 7);
        assert_eq!(rounds.len(), 7);
        assert_eq!(rounds.iter().map(|round| round.count(Way::Limited)).sum::<usize>(), 16);
        let clients = |way| {
            let shots = shots(way, 1_000.0, Duration::from_secs(2), 5);
            assert_eq!(shots.len(), 2_000);
            assert!(shots.is_sorted_by_key(|shot| shot.at));
            shots.into_iter().map(|shot| shot.client).collect::<Vec<_>>()
        };
        assert!(clients(Way::Limited).iter().max() < clients(Way::Unlimited).iter().min());
    }
}
