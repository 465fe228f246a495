//! Where listening sockets come from: a predecessor or the service manager hands them over, and
//! what is missing is bound.
//!
//! Each worker accepts from sockets of its own. If there are more than workers, some workers have
//! several, since one that is closed would reset what waits in it. If there are fewer, further ones
//! are bound beside them; where that cannot be, workers accept from the same one.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use daemon::{Lent, Sockets};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::ServeError;

/// Connections that wait in the kernel for a worker.
const BACKLOG: i32 = 4_096;
/// The name of the operations port's socket.
const OPERATIONS: &str = "operations";

/// The socket of the operations port.
pub(crate) fn operations(
    address: SocketAddr,
    sockets: &Sockets,
) -> Result<(SocketAddr, Arc<Lent>), ServeError> {
    let of_one_worker = || -> io::Result<_> {
        let socket = match inherited(OPERATIONS, address, sockets)?.into_iter().next() {
            Some(socket) => socket,
            None => bound(address, Shares::Alone)?,
        };
        Ok((socket.local_addr()?, sockets.lend(OPERATIONS, socket)))
    };
    of_one_worker().map_err(|error| ServeError::Bind(address, error))
}

/// The sockets of the listener `name`, those of each worker together, and where they are.
pub(super) fn of_workers(
    name: &str,
    address: SocketAddr,
    workers: usize,
    sockets: &Sockets,
) -> io::Result<(SocketAddr, Vec<Vec<Arc<Lent>>>)> {
    let mut all = inherited(name, address, sockets)?;
    if all.is_empty() && address.port() != 0 {
        // Sockets that share a port also share it with another gateway, unseen: ask alone first.
        bound(address, Shares::Alone)?;
    }
    let mut at = all.first().map_or(Ok(address), TcpListener::local_addr)?;
    for number in 0..workers.saturating_sub(all.len()) {
        let further = match all.get(number) {
            Some(socket) => beside(socket)?,
            None => bound(at, Shares::WithWorkers)?,
        };
        at = further.local_addr()?;
        all.push(further);
    }
    let mut of_workers: Vec<Vec<Arc<Lent>>> = (0..workers).map(|_| Vec::new()).collect();
    for (number, socket) in all.into_iter().enumerate() {
        if let Some(own) = of_workers.get_mut(number % workers) {
            own.push(sockets.lend(name, socket));
        }
    }
    Ok((at, of_workers))
}

/// A further socket beside one that is there; the same once more if its port is not shared, or not
/// with this user.
fn beside(socket: &TcpListener) -> io::Result<TcpListener> {
    let own = match SockRef::from(socket).reuse_port()? {
        true => bound(socket.local_addr()?, Shares::WithWorkers).ok(),
        false => None,
    };
    own.map_or_else(|| socket.try_clone(), Ok)
}

fn inherited(name: &str, address: SocketAddr, sockets: &Sockets) -> io::Result<Vec<TcpListener>> {
    let all = sockets.take(name, address);
    for socket in &all {
        if !SockRef::from(socket).is_listener()? {
            return Err(io::Error::other("the socket that was given does not listen"));
        }
        socket.set_nonblocking(true)?;
    }
    if !all.is_empty() {
        tracing::info!(listener = name, sockets = all.len(), "taken over");
    }
    Ok(all)
}

/// Whether other sockets may have the same port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shares {
    Alone,
    WithWorkers,
}

fn bound(address: SocketAddr, shares: Shares) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shares == Shares::WithWorkers)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn anywhere() -> SocketAddr {
        "127.0.0.1:0".parse().unwrap()
    }

    #[test]
    fn each_worker_has_a_socket_of_its_own_at_one_address() {
        let (at, workers) = of_workers("main", anywhere(), 3, &Sockets::default()).unwrap();
        assert_eq!(workers.len(), 3);
        let addresses: BTreeSet<_> =
            workers.iter().flatten().map(|lent| lent.address().unwrap()).collect();
        assert_eq!(addresses.into_iter().collect::<Vec<_>>(), [at]);
        assert!(workers.iter().all(|own| own.len() == 1));
        let taken = of_workers("main", at, 1, &Sockets::default()).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse, "another gateway is told");
    }

    #[test]
    fn beside_a_port_that_is_not_shared_workers_share_the_socket() {
        let alone = bound(anywhere(), Shares::Alone).unwrap();
        let shared = bound(anywhere(), Shares::WithWorkers).unwrap();
        for (socket, same) in [(&alone, true), (&shared, false)] {
            let further = beside(socket).unwrap();
            assert_eq!(further.local_addr().unwrap(), socket.local_addr().unwrap());
            // The flag lies in what descriptors share, so it tells whether they do.
            further.set_nonblocking(false).unwrap();
            let nonblocking = SockRef::from(socket).nonblocking().unwrap();
            assert_eq!(nonblocking, !same);
        }
    }
}
