//! Writes to the log what the operator must know of the shared store: why it cannot be dialled, and
//! that its settings may lose buckets. Each is told when it begins and when it ends, both
//! at one level: who reads of a loss must not wait for its end in vain.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use daemon::Drain;
use edge::limiter::store::redis::RedisStore;
use tokio::time::sleep;

/// How often the store is looked at.
const EVERY: Duration = Duration::from_secs(1);

/// Watches until the drain begins.
pub(crate) async fn run(store: Arc<RedisStore>, drain: Drain) {
    let watching = async {
        let mut told = Told::default();
        loop {
            told.tell(store.trouble(), store.counters().may_evict.load(Ordering::Relaxed));
            sleep(EVERY).await;
        }
    };
    tokio::select! {
        () = watching => {}
        () = drain.started() => {}
    }
}

#[derive(Debug, Default)]
struct Told {
    trouble: Option<Arc<String>>,
    may_evict: bool,
}

impl Told {
    fn tell(&mut self, trouble: Option<Arc<String>>, may_evict: bool) {
        match &trouble {
            Some(reason) if Some(reason) != self.trouble.as_ref() => {
                tracing::warn!(%reason, "the store cannot be reached; failure policies rule");
            }
            None if self.trouble.is_some() => tracing::warn!("the store is reached again"),
            Some(_) | None => {}
        }
        if may_evict && !self.may_evict {
            tracing::warn!(
                "the store may drop live buckets when its memory is full: \
                 set its maxmemory-policy to noeviction"
            );
        } else if self.may_evict && !may_evict {
            tracing::warn!("the store no longer drops live buckets");
        }
        (self.trouble, self.may_evict) = (trouble, may_evict);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_trouble_is_told_at_the_level_of_its_beginning() {
        let kept = tempfile::NamedTempFile::new().unwrap();
        let logging = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN);
        let logging = logging.with_writer(Arc::new(kept.reopen().unwrap())).finish();
        tracing::subscriber::with_default(logging, || {
            let mut told = Told::default();
            told.tell(Some(Arc::new("refused".to_owned())), true);
            told.tell(None, false);
        });
        let text = std::fs::read_to_string(kept.path()).unwrap();
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(text.contains("reached again") && text.contains("no longer drops"), "{text}");
    }
}
