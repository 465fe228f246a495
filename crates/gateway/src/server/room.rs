//! Places for a worker's connections; how many there are may change meanwhile.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Places that are taken.
#[derive(Debug, Default)]
pub(crate) struct Room {
    taken: AtomicUsize,
    freed: Notify,
}

impl Room {
    /// Waits until fewer than `most()` are taken, and takes one. For one that waits at a time.
    pub(crate) async fn enter(self: &Arc<Self>, most: impl Fn() -> usize) -> Taken {
        while !self.has_room(&most) {
            let mut freed = pin!(self.freed.notified());
            // Listens before it looks, so that no end is missed in between.
            freed.as_mut().enable();
            if self.has_room(&most) {
                break;
            }
            freed.await;
        }
        self.taken.fetch_add(1, Ordering::SeqCst);
        Taken(Arc::clone(self))
    }

    /// Says that there may be more places than before.
    pub(crate) fn look_again(&self) {
        self.freed.notify_one();
    }

    fn has_room(&self, most: impl Fn() -> usize) -> bool {
        self.taken.load(Ordering::SeqCst) < most()
    }
}

/// A place; free again when dropped.
#[derive(Debug)]
pub(crate) struct Taken(Arc<Room>);

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::SeqCst);
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_waits_enters_when_a_place_is_left_or_there_are_more() {
        let (room, most) = (Arc::new(Room::default()), AtomicUsize::new(1));
        let enter = async || {
            let entered = room.enter(|| most.load(Ordering::SeqCst));
            tokio::time::timeout(Duration::from_secs(1), entered).await.ok()
        };
        let first = enter().await.expect("there is a place");
        assert!(enter().await.is_none(), "there is one place only");
        let (second, ()) = tokio::join!(enter(), async { drop(first) });
        assert!(second.is_some(), "it was left");
        let (third, ()) = tokio::join!(enter(), async {
            most.store(2, Ordering::SeqCst);
            room.look_again();
        });
        assert!(third.is_some(), "there are more now");
        most.store(1, Ordering::SeqCst);
        drop(third);
        assert!(enter().await.is_none(), "there are fewer again, and one is taken");
    }
}
