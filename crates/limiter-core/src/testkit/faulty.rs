//! A store that fails on command: each call takes the next fault of a script.
//!
//! What a fault says about tokens is true here: the inner store is called exactly where the fault
//! says that the call was executed.

use std::collections::VecDeque;
use std::future::pending;
use std::time::Duration;

use parking_lot::Mutex;

use crate::call::{Reply, Request};
use crate::key::BucketKey;
use crate::store::{BucketStore, StoreError};

/// What becomes of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It is answered.
    None,
    /// It is executed at once and answered after this long.
    Delay(Duration),
    /// It is executed and never answered.
    Hang,
    /// It is not sent: the breaker is open.
    Tripped {
        /// Until the next probe.
        probe_in: Duration,
    },
    /// It is not sent: there is no connection.
    Unreachable,
    /// It is answered with an error, and not executed.
    Refused(&'static str),
    /// It was executed, but the answer was lost.
    LostAfter,
    /// The request was lost, so it was never executed; the caller cannot know.
    LostBefore,
}

/// A store in front of another one.
#[derive(Debug)]
pub struct FaultyStore<S> {
    inner: S,
    script: Mutex<Script>,
}

#[derive(Debug)]
struct Script {
    next: VecDeque<Fault>,
    otherwise: Fault,
    calls: Vec<(BucketKey, Request)>,
}

impl<S: BucketStore> FaultyStore<S> {
    /// A store without faults, until told otherwise.
    pub fn new(inner: S) -> FaultyStore<S> {
        let script = Script { next: VecDeque::new(), otherwise: Fault::None, calls: Vec::new() };
        FaultyStore { inner, script: Mutex::new(script) }
    }

    /// The next calls meet these, one each, after what was said before.
    pub fn then(&self, faults: impl IntoIterator<Item = Fault>) {
        self.script.lock().next.extend(faults);
    }

    /// Every call for which nothing else was said meets this.
    pub fn always(&self, fault: Fault) {
        self.script.lock().otherwise = fault;
    }

    /// The calls so far.
    pub fn calls(&self) -> Vec<(BucketKey, Request)> {
        self.script.lock().calls.clone()
    }

    /// The store behind it.
    pub const fn inner(&self) -> &S {
        &self.inner
    }
}

impl<S: BucketStore> BucketStore for FaultyStore<S> {
    async fn call(&self, key: &BucketKey, request: &Request) -> Result<Reply, StoreError> {
        let fault = {
            let mut script = self.script.lock();
            script.calls.push((*key, *request));
            script.next.pop_front().unwrap_or_else(|| script.otherwise.clone())
        };
        match fault {
            Fault::None => self.inner.call(key, request).await,
            Fault::Delay(by) => {
                let reply = self.inner.call(key, request).await;
                tokio::time::sleep(by).await;
                reply
            }
            Fault::Hang => {
                let _unseen = self.inner.call(key, request).await;
                pending().await
            }
            Fault::Tripped { probe_in } => Err(StoreError::Tripped { probe_in }),
            Fault::Unreachable => Err(StoreError::Unreachable("told to be".into())),
            Fault::Refused(code) => Err(StoreError::Refused { code: code.to_owned() }),
            Fault::LostAfter => {
                let _unseen = self.inner.call(key, request).await;
                Err(StoreError::Lost("told to be".into()))
            }
            Fault::LostBefore => Err(StoreError::Lost("told to be".into())),
        }
    }

    fn sweep(&self) {
        self.inner.sweep();
    }
}
