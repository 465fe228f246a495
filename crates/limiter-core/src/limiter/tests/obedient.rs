//! What a limiter promises a caller who waits as long as it was told.

use super::*;

#[tokio::test(start_paused = true)]
async fn remaining_counts_down_and_a_denial_tells_its_wait() {
    let world = World::new(3, "1/s", FailurePolicy::CLOSED);
    for remaining in [2, 1, 0] {
        assert_eq!(world.take(1).await.outcome, Outcome::Allowed { remaining });
    }
    let wait = Wait::Until(Duration::from_secs(1));
    assert_eq!(world.take(1).await.outcome, Outcome::Denied { wait });
}

/// Empties the bucket, then asks at ever longer distances; whenever it is refused it comes back when
/// it was told to. Returns what refused it then.
async fn refused_after_waiting(refill: &str, applies_after: Duration) -> Vec<(Duration, Decision)> {
    let world = World::leasing(10, refill, FailurePolicy::CLOSED);
    *world.store.otherwise.lock() = Act::AnswerAfter(applies_after, Duration::ZERO);
    let mut refused = Vec::new();
    world.take(10).await;
    let began = Instant::now();
    for pause_us in (0..15_000).step_by(700) {
        advance(Duration::from_micros(pause_us)).await;
        let Outcome::Denied { wait: Wait::Until(wait) } = world.take(1).await.outcome else {
            continue;
        };
        advance(wait).await;
        let again = world.take(1).await;
        if !again.is_allowed() {
            refused.push((began.elapsed(), again));
        }
    }
    refused
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_waits_as_told_is_admitted_however_late_the_store_applied_its_call() {
    for refill in ["20/s", "50/s", "80/s", "100/s", "120/s", "150/s", "190/s"] {
        for ms in 0..=3 {
            let refused = refused_after_waiting(refill, Duration::from_millis(ms)).await;
            assert!(refused.is_empty(), "{refill}, applied after {ms} ms: refused at {refused:?}");
        }
    }
}
