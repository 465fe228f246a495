//! The exact bucket pair that admissions, or all arrivals, are fed to. In floats: it judges to a
//! hundredth of a token over a minute, which no rounding of a double reaches.

use crate::limit::{Limit, Limits};

#[derive(Debug, Clone)]
pub(super) struct Ideal {
    at_us: u64,
    levels: Vec<Level>,
}

#[derive(Debug, Clone)]
struct Level {
    capacity: f64,
    per_us: f64,
    tokens: f64,
    lowest: f64,
}

impl Ideal {
    pub(super) fn full(limits: &Limits) -> Ideal {
        let levels = limits.iter().map(|limit| {
            let capacity = float(limit.capacity().get());
            Level { capacity, per_us: per_us(limit), tokens: capacity, lowest: 0.0 }
        });
        Ideal { at_us: 0, levels: levels.collect() }
    }

    /// A share of a plan, in ten-thousandths; at least one token.
    pub(super) fn part(limits: &Limits, share: u32) -> Ideal {
        let share = f64::from(share) / 10_000.0;
        let mut part = Ideal::full(limits);
        for level in &mut part.levels {
            level.capacity = (level.capacity * share).max(1.0);
            level.per_us *= share;
            level.tokens = level.capacity;
        }
        part
    }

    fn refill(&mut self, now_us: u64) {
        let elapsed = float(now_us.saturating_sub(self.at_us));
        self.at_us = self.at_us.max(now_us);
        for level in &mut self.levels {
            level.tokens = (level.tokens + elapsed * level.per_us).min(level.capacity);
        }
    }

    /// Takes `cost` whatever is there; the lowest level is remembered.
    pub(super) fn charge(&mut self, cost: u64, now_us: u64) {
        self.refill(now_us);
        for level in &mut self.levels {
            level.tokens -= float(cost);
            level.lowest = level.lowest.min(level.tokens);
        }
    }

    /// Takes `cost` if both buckets have it.
    pub(super) fn take(&mut self, cost: u64, now_us: u64) -> bool {
        self.refill(now_us);
        let enough = self.levels.iter().all(|level| level.tokens + 1e-6 >= float(cost));
        if enough {
            for level in &mut self.levels {
                level.tokens -= float(cost);
            }
        }
        enough
    }

    /// As the store does it: what was used stays used, less capacity cuts.
    pub(super) fn adopt(&mut self, limits: &Limits, now_us: u64) {
        self.refill(now_us);
        for (level, limit) in self.levels.iter_mut().zip(limits.iter()) {
            let capacity = float(limit.capacity().get());
            level.tokens = if capacity > level.capacity {
                level.tokens + capacity - level.capacity
            } else {
                level.tokens.min(capacity)
            };
            level.capacity = capacity;
            level.per_us = per_us(limit);
        }
    }

    /// A reset fills it.
    pub(super) fn fill(&mut self, now_us: u64) {
        self.refill(now_us);
        for level in &mut self.levels {
            level.tokens = level.tokens.max(level.capacity);
        }
    }

    /// Deepest excess of what was charged, in tokens.
    pub(super) fn deepest(&self) -> f64 {
        self.levels.iter().map(|level| -level.lowest).fold(0.0, f64::max)
    }
}

fn per_us(limit: Limit) -> f64 {
    float(limit.refill().tokens()) / float(limit.refill().per_us())
}

#[expect(clippy::cast_precision_loss, reason = "counts of tokens and microseconds of a run")]
pub(super) fn float(number: u64) -> f64 {
    number as f64
}
