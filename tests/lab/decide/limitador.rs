//! `limitador` in this process, as its documentation shows it: a limit for each value of a
//! variable, counters in memory.

use std::collections::HashMap;

use anyhow::{anyhow, ensure};
use limitador::RateLimiter;
use limitador::limit::{Context, Limit, Namespace};

use super::subject::Subject;

/// Counters that it keeps; those it has no room for, it drops.
const COUNTERS_MAX: u64 = 2_000_000;
const VARIABLE: &str = "client";

/// The peer.
pub struct Limitador {
    limiter: RateLimiter,
    namespace: Namespace,
}

impl Limitador {
    /// With one limit that nobody reaches.
    pub fn new() -> anyhow::Result<Limitador> {
        let limiter = RateLimiter::new(COUNTERS_MAX);
        let variable = VARIABLE.try_into().map_err(|error| anyhow!("{error:?}"))?;
        limiter.add_limit(Limit::new("decide", u64::MAX, 3_600, Vec::new(), vec![variable]));
        Ok(Limitador { limiter, namespace: "decide".into() })
    }
}

impl Subject for Limitador {
    fn name(&self) -> &'static str {
        "limitador"
    }

    fn decide(&self, order: &mut dyn Iterator<Item = u32>, count: u32) -> anyhow::Result<()> {
        for client in order.take(count as usize) {
            let values = HashMap::from([(VARIABLE.to_owned(), client.to_string())]);
            let context = Context::from(values);
            let answer = self.limiter.check_rate_limited_and_update(&self.namespace, &context, 1);
            let answer = answer.map_err(|error| anyhow!("{error}"))?;
            ensure!(!answer.limited, "limitador refuses");
        }
        Ok(())
    }

    /// It takes microseconds.
    fn decisions(&self, usual: u32) -> u32 {
        usual / 50
    }
}
