//! This gateway's part of a key's traffic, learned from what the store granted here and to all:
//! how much of the plan it may admit when the store is gone.

use std::time::Duration;

use crate::degraded::PlanPart;
use crate::time::Timestamp;

/// Grants are counted over one to two of these.
const PERIOD: Duration = Duration::from_secs(5);
/// Nothing heard for so long before the outage: no traffic of this key came here.
const HEARD_WITHIN: Duration = Duration::from_secs(10);
/// What was learned holds so long into an outage, then gives way over as long again.
const TRUSTED_FOR: Duration = Duration::from_secs(30);
const WHOLE: u64 = 10_000;
/// The learned part weighs so much, in ten-thousandths; the rest is shared equally.
const LEARNED: u64 = 8_000;

#[derive(Debug, Default)]
pub(crate) struct LearnedShare {
    incarnation: u64,
    heard_at: Timestamp,
    present: Period,
    before: Option<Period>,
    /// Since when the store is missed, and what was known then in ten-thousandths.
    outage: Option<(Timestamp, u64)>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Period {
    began: Timestamp,
    own: u64,
    all_at_begin: u64,
    all: u64,
}

impl LearnedShare {
    /// A reply gave `own` tokens here, and has given `all` to everybody since the incarnation.
    pub(crate) fn note(&mut self, own: u64, all: u64, incarnation: u64, now: Timestamp) {
        self.outage = None;
        let follows = incarnation == self.incarnation && all >= self.present.all;
        let stale = now.since(self.heard_at) > HEARD_WITHIN;
        self.heard_at = now;
        if !follows || stale {
            self.incarnation = incarnation;
            self.before = None;
            let all_at_begin = all.saturating_sub(own);
            self.present = Period { began: now, own, all_at_begin, all };
            return;
        }
        if now.since(self.present.began) >= PERIOD {
            self.before = Some(self.present);
            self.present = Period { began: now, own: 0, all_at_begin: self.present.all, all };
        }
        self.present.own += own;
        self.present.all = all;
    }

    /// The part of the plan that falls to this one of `gateways`.
    pub(crate) fn part(&mut self, gateways: u32, now: Timestamp) -> PlanPart {
        let learned = self.learned(now);
        let (began, learned) = *self.outage.get_or_insert((now, learned));
        let gateways = u64::from(gateways.max(1));
        let lasted = now.since(began);
        let fades = lasted.saturating_sub(TRUSTED_FOR).min(TRUSTED_FOR).as_millis();
        let trust = TRUSTED_FOR.as_millis() - fades;
        let weight = LEARNED * u64::try_from(trust * u128::from(WHOLE)).unwrap_or(0)
            / u64::try_from(TRUSTED_FOR.as_millis()).unwrap_or(1);
        // Both terms in parts of WHOLE · WHOLE · WHOLE.
        let equal = (WHOLE * WHOLE - weight) * WHOLE / gateways;
        let parts = (weight * learned + equal) / (WHOLE * WHOLE);
        PlanPart::of_ten_thousand(u32::try_from(parts).unwrap_or(u32::MAX))
    }

    fn learned(&self, now: Timestamp) -> u64 {
        if now.since(self.heard_at) > HEARD_WITHIN {
            return 0;
        }
        let first = self.before.unwrap_or(self.present);
        let own = self.present.own + self.before.map_or(0, |before| before.own);
        let all = self.present.all.saturating_sub(first.all_at_begin);
        (own * WHOLE).checked_div(all).map_or(0, |part| part.min(WHOLE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_us(1_000_000_000 + ms * 1_000)
    }

    fn ten_thousandths(share: &mut LearnedShare, gateways: u32, now: Timestamp) -> u64 {
        let (parts, whole) = share.part(gateways, now).fraction();
        assert_eq!(whole, WHOLE);
        parts
    }

    /// Replies for 20 s: of ten tokens granted, `own` come here.
    fn taught(own: u64) -> LearnedShare {
        let mut share = LearnedShare::default();
        for n in 1..=200 {
            share.note(own, n * 10, 7, at(n * 100));
        }
        share
    }

    #[test]
    fn the_part_follows_the_traffic_and_the_parts_make_one_whole() {
        let parts = [9, 1, 0].map(|own| ten_thousandths(&mut taught(own), 3, at(20_000)));
        assert!((7_700..=8_000).contains(&parts[0]), "{parts:?}");
        assert!((1_300..=1_700).contains(&parts[1]), "{parts:?}");
        assert!((9_900..=10_010).contains(&parts.iter().sum::<u64>()), "{parts:?}");
    }

    #[test]
    fn a_gateway_without_traffic_has_an_equal_part_of_the_small_rest() {
        let mut share = LearnedShare::default();
        assert_eq!(ten_thousandths(&mut share, 4, at(0)), 500);
        let mut quiet = taught(10);
        assert_eq!(ten_thousandths(&mut quiet, 4, at(31_000)), 500, "not heard for 11 s");
    }

    #[test]
    fn what_was_learned_gives_way_to_equal_parts_in_a_long_outage() {
        let mut share = taught(10);
        assert_eq!(ten_thousandths(&mut share, 4, at(20_000)), 8_500);
        assert_eq!(ten_thousandths(&mut share, 4, at(49_000)), 8_500);
        assert_eq!(ten_thousandths(&mut share, 4, at(65_000)), 5_500);
        assert_eq!(ten_thousandths(&mut share, 4, at(80_000)), 2_500);
        assert_eq!(ten_thousandths(&mut share, 4, at(800_000)), 2_500);
    }

    #[test]
    fn a_store_that_lost_its_count_is_learned_anew() {
        let mut share = taught(1);
        share.note(5, 5, 8, at(20_100));
        assert_eq!(ten_thousandths(&mut share, 2, at(20_200)), 9_000);
        share.note(0, 4, 8, at(20_300));
        assert_eq!(ten_thousandths(&mut share, 2, at(20_400)), 1_000);
    }
}
