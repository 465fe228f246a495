//! The lease protocol, counted out: two gateways, one small bucket, and every order in which calls,
//! replies, losses, crashes and the passing of time can meet.
//!
//! The store is the real arithmetic ([`limiter_core::bucket::apply`]); the gateways are the
//! protocol's freedom. What random histories hardly find (an idle lease, a settlement at the wrong
//! moment, a witness after a loss) is found here because nothing is left out. Only for tests.

mod world; // what there is
mod step; // what may happen
mod protocol; // and what it does
mod promise; // what must hold
pub mod explore; // everything, breadth first

pub use protocol::Protocol;
pub use step::{Aim, Step, Which};
pub use world::{Answer, Ask, Budget, Gateway, Kept, Lane, Loss, Scale, Testimony, Tick, World};
