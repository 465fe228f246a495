//! Requests that wait for a reply, first come first served, and what becomes of their tokens.

use std::collections::VecDeque;

use tokio::sync::oneshot;

use crate::decision::{Decision, DegradedReason};

/// Answer to a waiting request: decided, or to be decided by policy.
pub(crate) type Answer = Result<Decision, DegradedReason>;

/// A request that waits, as its key sees it.
#[derive(Debug)]
pub(crate) struct Waiter {
    id: u64,
    pub(crate) cost: u64,
    pub(crate) claim: Claim,
}

/// What becomes of a waiter's tokens when they come.
#[derive(Debug)]
pub(crate) enum Claim {
    /// The request still waits for them.
    Waiting(oneshot::Sender<Answer>),
    /// The policy let it pass: the tokens pay for it.
    Passed,
    /// The policy refused it: the tokens go back.
    Left,
}

/// A request's side of a [`Waiter`].
#[derive(Debug)]
pub(crate) struct Waiting {
    id: u64,
    pub(crate) cost: u64,
    pub(crate) answer: oneshot::Receiver<Answer>,
}

/// Two lines, both in the order of their ids: who waits for the next call, and who is covered by
/// the need of one that is out.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    next_id: u64,
    queue: VecDeque<Waiter>,
    sent: VecDeque<Waiter>,
}

impl Waiters {
    pub(crate) fn enqueue(&mut self, cost: u64) -> Waiting {
        let id = self.next_id;
        self.next_id += 1;
        let (sender, answer) = oneshot::channel();
        self.queue.push_back(Waiter { id, cost, claim: Claim::Waiting(sender) });
        Waiting { id, cost, answer }
    }

    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Whether a request that still wants its answer is in either line.
    pub(crate) fn any_waiting(&self) -> bool {
        self.queue.iter().chain(&self.sent).any(Waiter::is_waiting)
    }

    /// Moves the queue behind those that are out already; returns the sum and the least of the
    /// costs moved. Who has gone is left out.
    pub(crate) fn send(&mut self) -> (u64, u64) {
        let (mut sum, mut least) = (0, u64::MAX);
        for waiter in self.queue.drain(..).filter(Waiter::is_waiting) {
            sum += waiter.cost;
            least = least.min(waiter.cost);
            let place = self.sent.partition_point(|other| other.id < waiter.id);
            self.sent.insert(place, waiter);
        }
        (sum, if sum == 0 { 0 } else { least })
    }

    /// Sum and least of the costs of all who still wait, in either line.
    pub(crate) fn wanted(&self) -> (u64, u64) {
        let waiting = || self.queue.iter().chain(&self.sent).filter(|waiter| waiter.is_waiting());
        let least = waiting().map(|waiter| waiter.cost).min().unwrap_or(0);
        (waiting().map(|waiter| waiter.cost).sum(), least)
    }

    /// Everybody who was covered by a call.
    pub(crate) fn take_sent(&mut self) -> VecDeque<Waiter> {
        std::mem::take(&mut self.sent)
    }

    /// Everybody who waits for the next call.
    pub(crate) fn take_queue(&mut self) -> VecDeque<Waiter> {
        std::mem::take(&mut self.queue)
    }

    /// This one needs another call.
    pub(crate) fn put_back(&mut self, waiter: Waiter) {
        let place = self.queue.partition_point(|other| other.id < waiter.id);
        self.queue.insert(place, waiter);
    }

    /// This one waits on for the other call that covers it.
    pub(crate) fn stay(&mut self, waiter: Waiter) {
        self.sent.push_back(waiter);
    }

    /// Its request gave up before any call: the waiter goes. Otherwise its claim is returned, to
    /// be changed; no walk along a long line.
    pub(crate) fn give_up(&mut self, waiting: &Waiting) -> Option<&mut Waiter> {
        if let Ok(place) = self.queue.binary_search_by_key(&waiting.id, |waiter| waiter.id) {
            drop(self.queue.remove(place));
            return None;
        }
        let place = self.sent.binary_search_by_key(&waiting.id, |waiter| waiter.id).ok()?;
        self.sent.get_mut(place)
    }

    /// Nobody will answer: the senders are dropped.
    pub(crate) fn clear(&mut self) {
        self.queue.clear();
        self.sent.clear();
    }
}

impl Waiter {
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(&self.claim, Claim::Waiting(sender) if !sender.is_closed())
    }

    /// Answers it, if it still waits; false if nobody heard.
    pub(crate) fn answer(self, answer: Answer) -> bool {
        match self.claim {
            Claim::Waiting(sender) => sender.send(answer).is_ok(),
            Claim::Passed | Claim::Left => false,
        }
    }
}
