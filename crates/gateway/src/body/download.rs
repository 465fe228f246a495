//! A service's body on its way to the caller: ends when the service is silent for too long, and
//! gives its connection back once it is read to the end.
//!
//! The engine asks for no piece while the caller takes none. So the bound on a whole exchange is
//! kept by somebody else: when its time is over, body, connection and place are let go of, however
//! little the caller has read.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::task::AbortHandle;
use tokio::time::{Instant, Sleep};

use super::{BodyError, Incoming, clean};
use crate::upstream::InFlight;
use crate::upstream::connections::Lease;

/// A body over a leased connection.
#[derive(Debug)]
pub(crate) struct Download {
    holder: Holder,
    idle: Duration,
    end: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
    waiting: bool,
}

/// What an answer holds of its service.
#[derive(Debug)]
struct Held {
    body: Incoming,
    lease: Option<Lease>,
    _out: InFlight,
}

impl Held {
    fn give_back(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.give_back();
        }
    }
}

/// Who holds it.
#[derive(Debug)]
enum Holder {
    /// The answer alone.
    Here(Held),
    /// Also a task that lets go of it when the time is over.
    Timed(Arc<Mutex<Option<Held>>>, AbortHandle),
    /// Nobody any more.
    Nobody,
}

impl Holder {
    fn of<T>(&self, what: impl FnOnce(&Held) -> T) -> Option<T> {
        match self {
            Holder::Here(held) => Some(what(held)),
            Holder::Timed(held, _) => lock(held).as_ref().map(what),
            Holder::Nobody => None,
        }
    }

    fn with<T>(&mut self, what: impl FnOnce(&mut Held) -> T) -> Option<T> {
        match self {
            Holder::Here(held) => Some(what(held)),
            Holder::Timed(held, _) => lock(held).as_mut().map(what),
            Holder::Nobody => None,
        }
    }

    fn until(self, end: Instant) -> Holder {
        let Holder::Here(held) = self else { return self };
        let held = Arc::new(Mutex::new(Some(held)));
        let also = Arc::clone(&held);
        let over = daemon::tasks::spawn("end of an answer", async move {
            tokio::time::sleep_until(end).await;
            let held = lock(&also).take();
            drop(held);
        });
        Holder::Timed(held, over.abort_handle())
    }
}

fn lock(held: &Mutex<Option<Held>>) -> MutexGuard<'_, Option<Held>> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Download {
    /// To be read by `end`, with no pause longer than `idle`.
    pub(crate) fn new(
        body: Incoming,
        idle: Duration,
        end: Option<Instant>,
        lease: Lease,
        out: InFlight,
    ) -> Download {
        let holder = Holder::Here(Held { body, lease: Some(lease), _out: out });
        Download { holder, idle, end, timer: None, waiting: false }
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.holder.of(|held| held.body.is_end_stream()).unwrap_or_default()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        self.holder.of(|held| held.body.size_hint()).unwrap_or_default()
    }

    fn is_late(&self) -> bool {
        self.end.is_some_and(|end| end <= Instant::now())
    }

    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.is_late() {
            return Poll::Ready(Some(Err(BodyError::Late)));
        }
        match self.holder.with(|held| Pin::new(&mut held.body).poll_frame(cx)) {
            None => Poll::Ready(Some(Err(BodyError::Late))),
            Some(Poll::Ready(None)) => {
                self.holder.with(Held::give_back);
                Poll::Ready(None)
            }
            Some(Poll::Ready(Some(piece))) => {
                self.waiting = false;
                self.bound();
                Poll::Ready(Some(piece.map(clean).map_err(BodyError::Broken)))
            }
            Some(Poll::Pending) => {
                ready!(self.poll_idle(cx));
                let error =
                    if self.is_late() { BodyError::Late } else { BodyError::Stalled(self.idle) };
                Poll::Ready(Some(Err(error)))
            }
        }
    }

    /// Has somebody look at the clock, if there is a rest for which the caller may never ask.
    fn bound(&mut self) {
        if let Some(end) = self.end
            && matches!(self.holder, Holder::Here(_))
            && !self.is_end_stream()
        {
            self.holder = std::mem::replace(&mut self.holder, Holder::Nobody).until(end);
        }
    }

    /// The timer exists only once a body made us wait, and is then used again.
    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let idle = self.idle;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(idle)));
        if !self.waiting {
            self.waiting = true;
            let until = Instant::now() + idle;
            timer.as_mut().reset(self.end.map_or(until, |end| end.min(until)));
        }
        timer.as_mut().poll(cx)
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        // The engine stops polling after the last byte of a body whose length it knows.
        if self.is_end_stream() {
            self.holder.with(Held::give_back);
        }
        if let Holder::Timed(held, over) = &self.holder {
            over.abort();
            drop(lock(held).take());
        }
    }
}
