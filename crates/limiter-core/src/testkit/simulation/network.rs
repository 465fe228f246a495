//! How long a call takes: log-normal around a median, now and then several times as long, rarely a
//! stall of many milliseconds.

use std::f64::consts::TAU;

#[derive(Debug, Clone, Copy)]
pub(super) struct Network {
    /// Median round trip in microseconds.
    pub(super) median_us: f64,
    /// Extra delay of every call, in microseconds.
    pub(super) extra_us: u64,
}

impl Network {
    /// One round trip, in microseconds.
    pub(super) fn round_trip_us(self, luck: &mut fastrand::Rng) -> u64 {
        let normal = (-2.0 * (1.0 - luck.f64()).ln()).sqrt() * (TAU * luck.f64()).cos();
        let mut us = self.median_us * (0.25 * normal).exp();
        let tail = luck.f64();
        if tail < 0.01 {
            us *= 4.0 + 6.0 * luck.f64();
        } else if tail < 0.011 {
            us += exponential(luck, 10_000.0);
        }
        whole(us) + self.extra_us
    }
}

/// An exponential draw with this mean.
pub(super) fn exponential(luck: &mut fastrand::Rng, mean: f64) -> f64 {
    -mean * (1.0 - luck.f64()).ln()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "durations of a run, never negative"
)]
pub(super) fn whole(us: f64) -> u64 {
    us.max(1.0) as u64
}
