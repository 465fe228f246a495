//! A network that loses an answer on command: the fault proxy under the two names that the tests
//! of the Redis store use.

use std::future::{Ready, ready};
use std::net::{Ipv4Addr, SocketAddr};

use fault_proxy::{Direction, FaultProxy, Rule, Toxic};

/// What happens to answers after the next call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Its answer goes missing; those after it come.
    One,
    /// Nothing comes any more on that connection.
    All,
}

/// A running proxy; ends when dropped.
pub(crate) struct Proxy(FaultProxy);

impl Proxy {
    pub(crate) fn before(server_port: u16) -> Ready<Proxy> {
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, server_port));
        ready(Proxy(FaultProxy::start(server).unwrap()))
    }

    pub(crate) fn url(&self) -> String {
        self.0.url()
    }

    /// The next script call is delivered; its answer is not.
    pub(crate) fn lose_next_answer(&self, loss: Loss) {
        let toxic = match loss {
            Loss::One => Toxic::Swallow,
            Loss::All => Toxic::Blackhole(Direction::ToClient),
        };
        self.0.set(Rule::new(toxic).on("EVALSHA").times(1));
    }

    pub(crate) fn bytes_to_server(&self) -> u64 {
        self.0.counters().bytes_to_server
    }

    pub(crate) fn connections(&self) -> u64 {
        self.0.counters().connections
    }
}
