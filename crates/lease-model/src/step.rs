//! The names of what may happen.

/// Which of a gateway's two calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// The one that settles the lease.
    Main,
    /// The one beside it.
    Beside,
}

/// What a call is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aim {
    /// One token for a request that waits.
    Need,
    /// The same, and a lease.
    NeedAndLease,
    /// A lease.
    Lease,
    /// To give everything back.
    Return,
}

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Time goes on to the next moment.
    Wait,
    /// A gateway pays so many requests from its lease, and calls.
    Call(usize, Which, Aim, u8),
    /// The call reaches the store.
    Arrive(usize, Which),
    /// The reply reaches the gateway, and the request still wants its token.
    Deliver(usize, Which),
    /// The reply reaches the gateway, and the request has gone.
    DeliverToNobody(usize, Which),
    /// The call or its reply is lost, and the gateway learns so.
    Lose(usize, Which),
    /// The gateway no longer waits; its request still travels.
    Abandon(usize),
    /// Such a request reaches the store.
    ArriveStray,
    /// A gateway stops for ever, and another starts in its place.
    Crash(usize),
    /// The store executes a call that will arrive once more.
    Duplicate(usize, Which),
    /// Somebody takes all there is.
    Burst,
    /// The store's state now is what it may return to.
    Save,
    /// It returns to it.
    RollBack,
    /// It loses everything.
    Flush,
}
