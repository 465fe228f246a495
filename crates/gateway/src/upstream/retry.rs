//! When a request is sent again: a few times at most, within a budget that all workers share, and
//! only where that cannot do anything twice.
//!
//! What was not sent may always go out again. What may have arrived may do so if its method is
//! idempotent and it has no body, and if the connection broke before a response. Nothing follows a
//! response. Sending again is no new request: it is not decided about, charged or recorded twice.
//!
//! The budget keeps an upstream that fails everything from being sent everything twice.

use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, Method, Request};

use crate::body::Upload;

/// The budget looks back this far.
const WINDOW_S: u64 = 10;
/// Of a slot's 64 bits these count; the rest says which second it counts.
const COUNT_BITS: u32 = 32;

/// How often requests are sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryRules {
    /// Times that one request is sent again; 0 never does.
    pub attempts: u32,
    /// Requests of the last ten seconds that may be sent again, in hundredths.
    pub budget_percent: u64,
    /// And so many more in a second.
    pub per_second_min: u64,
}

/// What may still be sent again, shared by all workers.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    requests: Window,
    retries: Window,
}

impl Budget {
    /// Counts a request in.
    pub(crate) fn request(&self, now_us: u64) {
        self.requests.add(second(now_us));
    }

    /// Takes one retry, if the budget has one.
    pub(crate) fn take(&self, now_us: u64, rules: &RetryRules) -> bool {
        let now = second(now_us);
        // Taken first and looked at then, so that workers at the same moment do not share the last.
        self.retries.add(now);
        let share = self.requests.sum(now).saturating_mul(rules.budget_percent) / 100;
        if self.retries.sum(now) <= share + rules.per_second_min * WINDOW_S {
            return true;
        }
        self.retries.remove(now);
        false
    }
}

fn second(now_us: u64) -> u64 {
    now_us / 1_000_000
}

/// Counts of the last seconds.
#[derive(Debug, Default)]
struct Window([AtomicU64; 10]);

impl Window {
    fn slot(&self, second: u64) -> &AtomicU64 {
        let index = usize::try_from(second % WINDOW_S).unwrap_or(0);
        self.0.get(index).expect("there is a slot for each second of the window")
    }

    fn add(&self, second: u64) {
        let slot = self.slot(second);
        let seen = slot.load(Ordering::Relaxed);
        let first = second << COUNT_BITS | 1;
        let begun = seen >> COUNT_BITS == second
            || slot.compare_exchange(seen, first, Ordering::Relaxed, Ordering::Relaxed).is_err();
        if begun {
            slot.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn remove(&self, second: u64) {
        let less = |seen: u64| {
            (seen >> COUNT_BITS == second && count(seen) > 0).then(|| seen.saturating_sub(1))
        };
        if self.slot(second).fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err() {
            tracing::trace!("its second is over");
        }
    }

    fn sum(&self, now: u64) -> u64 {
        let slots = self.0.iter().map(|slot| slot.load(Ordering::Relaxed));
        let recent = slots.filter(|seen| {
            let second = seen >> COUNT_BITS;
            second <= now && now < second + WINDOW_S
        });
        recent.map(count).sum()
    }
}

const fn count(slot: u64) -> u64 {
    slot & (u64::MAX >> COUNT_BITS)
}

/// A copy of a request that may be sent again although it may have arrived.
#[derive(Debug)]
pub(crate) struct Spare {
    method: Method,
    headers: HeaderMap,
}

impl Spare {
    /// Of this one, if doing it twice does no more than doing it once, and it has no body to replay.
    pub(crate) fn of(request: &Request<Upload>) -> Option<Spare> {
        let whole = matches!(request.body(), Upload::Empty);
        (whole && is_idempotent(request.method()))
            .then(|| Spare { method: request.method().clone(), headers: request.headers().clone() })
    }

    /// The request again, without its address.
    pub(crate) fn request(self) -> Request<Upload> {
        let mut request = Request::new(Upload::Empty);
        *request.method_mut() = self.method;
        *request.headers_mut() = self.headers;
        request
    }
}

fn is_idempotent(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS, Method::PUT, Method::DELETE].contains(method)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: RetryRules = RetryRules { attempts: 1, budget_percent: 20, per_second_min: 3 };
    const S: u64 = 1_000_000;

    fn taken(budget: &Budget, now_us: u64, rules: &RetryRules) -> usize {
        (0..10_000).take_while(|_| budget.take(now_us, rules)).count()
    }

    #[test]
    fn a_share_of_the_requests_and_a_few_more() {
        let budget = Budget::default();
        (0..1_000).for_each(|n| budget.request(n * 1_000));
        assert_eq!(taken(&budget, S, &RULES), 200 + 30);
        assert_eq!(taken(&budget, 2 * S, &RULES), 0, "the same ten seconds");
        let none = RetryRules { budget_percent: 0, per_second_min: 0, ..RULES };
        assert_eq!(taken(&Budget::default(), 0, &none), 0);
    }

    #[test]
    fn what_was_long_ago_counts_no_more() {
        let budget = Budget::default();
        (0..1_000).for_each(|_| budget.request(0));
        assert_eq!(taken(&budget, 9 * S, &RULES), 230);
        assert_eq!(taken(&budget, 10 * S, &RULES), 0, "the retries count, the requests do not");
        assert_eq!(taken(&budget, 19 * S, &RULES), 30);
        (0..100).for_each(|_| budget.request(40 * S));
        assert_eq!(taken(&budget, 40 * S, &RULES), 50);
    }

    #[test]
    fn a_refused_retry_is_not_counted() {
        let budget = Budget::default();
        assert_eq!(taken(&budget, 0, &RULES), 30);
        (0..100).for_each(|_| assert!(!budget.take(0, &RULES)));
        (0..5).for_each(|_| budget.request(0));
        assert_eq!(taken(&budget, 0, &RULES), 1);
    }

    #[test]
    fn workers_share_it_to_the_last_one() {
        let budget = Budget::default();
        (0..1_000).for_each(|_| budget.request(0));
        let each = || taken(&budget, 0, &RULES);
        let sum: usize = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4).map(|_| scope.spawn(each)).collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).sum()
        });
        assert!(sum <= 230, "{sum}");
        assert_eq!(sum + taken(&budget, 0, &RULES), 230);
    }

    #[test]
    fn only_what_does_the_same_twice_is_kept() {
        let of = |method: &str| {
            let request = Request::builder().method(method).header("a", "b");
            Spare::of(&request.body(Upload::Empty).unwrap())
        };
        for method in ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"] {
            let again = of(method).expect(method).request();
            assert_eq!(
                (again.method().as_str(), &again.headers()["a"]),
                (method, &"b".parse().unwrap())
            );
        }
        for method in ["POST", "PATCH", "PURGE"] {
            assert!(of(method).is_none(), "{method}");
        }
    }
}
