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
/// the need of one that is out. They are there only while somebody waits: most keys have none.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    next_id: u64,
    lines: Option<Box<Lines>>,
}

#[derive(Debug, Default)]
struct Lines {
    queue: VecDeque<Waiter>,
    sent: VecDeque<Waiter>,
}

impl Waiters {
    pub(crate) fn enqueue(&mut self, cost: u64) -> Waiting {
        let id = self.next_id;
        self.next_id += 1;
        let (sender, answer) = oneshot::channel();
        let waiter = Waiter { id, cost, claim: Claim::Waiting(sender) };
        self.lines().queue.push_back(waiter);
        Waiting { id, cost, answer }
    }

    pub(crate) fn queued(&self) -> usize {
        self.lines.as_ref().map_or(0, |lines| lines.queue.len())
    }

    /// Whether a request that still wants its answer is in either line.
    pub(crate) fn any_waiting(&self) -> bool {
        self.lines.as_ref().is_some_and(|lines| lines.waiting().next().is_some())
    }

    /// Moves the queue behind those that are out already; returns the sum and the least of the
    /// costs moved. Who has gone is left out.
    pub(crate) fn send(&mut self) -> (u64, u64) {
        let (mut sum, mut least) = (0, u64::MAX);
        let Some(lines) = &mut self.lines else { return (0, 0) };
        for waiter in lines.queue.drain(..).filter(Waiter::is_waiting) {
            sum += waiter.cost;
            least = least.min(waiter.cost);
            insert(&mut lines.sent, waiter);
        }
        (sum, if sum == 0 { 0 } else { least })
    }

    /// Sum and least of the costs of all who still wait, in either line.
    pub(crate) fn wanted(&self) -> (u64, u64) {
        let Some(lines) = &self.lines else { return (0, 0) };
        let least = lines.waiting().map(|waiter| waiter.cost).min().unwrap_or(0);
        (lines.waiting().map(|waiter| waiter.cost).sum(), least)
    }

    /// Everybody who was covered by a call.
    pub(crate) fn take_sent(&mut self) -> VecDeque<Waiter> {
        self.lines.as_mut().map_or_else(VecDeque::new, |lines| std::mem::take(&mut lines.sent))
    }

    /// Everybody who waits for the next call.
    pub(crate) fn take_queue(&mut self) -> VecDeque<Waiter> {
        self.lines.as_mut().map_or_else(VecDeque::new, |lines| std::mem::take(&mut lines.queue))
    }

    /// This one needs another call.
    pub(crate) fn put_back(&mut self, waiter: Waiter) {
        insert(&mut self.lines().queue, waiter);
    }

    /// This one waits on for the other call that covers it.
    pub(crate) fn stay(&mut self, waiter: Waiter) {
        insert(&mut self.lines().sent, waiter);
    }

    /// Its request gave up before any call: the waiter goes. Otherwise its claim is returned, to
    /// be changed; no walk along a long line.
    pub(crate) fn give_up(&mut self, waiting: &Waiting) -> Option<&mut Waiter> {
        let lines = self.lines.as_mut()?;
        if let Ok(place) = lines.queue.binary_search_by_key(&waiting.id, |waiter| waiter.id) {
            drop(lines.queue.remove(place));
            return None;
        }
        let place = lines.sent.binary_search_by_key(&waiting.id, |waiter| waiter.id).ok()?;
        lines.sent.get_mut(place)
    }

    /// Nobody waits and no call is out any more: the lines go.
    pub(crate) fn rest(&mut self) {
        if self.lines.as_ref().is_some_and(|lines| lines.queue.is_empty() && lines.sent.is_empty())
        {
            self.lines = None;
        }
    }

    /// Nobody will answer: the senders are dropped.
    pub(crate) fn clear(&mut self) {
        self.lines = None;
    }

    fn lines(&mut self) -> &mut Lines {
        self.lines.get_or_insert_default()
    }
}

impl Lines {
    fn waiting(&self) -> impl Iterator<Item = &Waiter> {
        self.queue.iter().chain(&self.sent).filter(|waiter| waiter.is_waiting())
    }
}

/// Nearly always at the end.
fn insert(line: &mut VecDeque<Waiter>, waiter: Waiter) {
    let place = line.partition_point(|other| other.id < waiter.id);
    line.insert(place, waiter);
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
