//! What is known of the other end of a connection, once for all of its requests.

use std::any::Any;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::headers::ForwardedBy;
use crate::server::Activity;

/// A connection's place among all connections; free again when its last holder lets go.
pub(crate) type Place = Arc<dyn Any + Send + Sync>;

/// Proxies whose word about callers is believed.
pub(crate) type Proxies = Arc<[IpNet]>;

/// The other end of a connection.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Where it is, in canonical form.
    pub address: IpAddr,
    /// What services are told about it.
    pub forwarded: ForwardedBy,
    /// All proxies that are believed, if this is one of them.
    pub proxies: Option<Proxies>,
    /// Held as long as the connection is open, whatever protocol it speaks by then.
    pub place: Place,
    /// What happens on the connection.
    pub activity: Arc<Activity>,
}

impl Peer {
    /// The one at `address`, on a listener that believes `proxies`.
    pub(crate) fn new(
        address: IpAddr,
        forwarded: ForwardedBy,
        proxies: &Proxies,
        place: Place,
    ) -> Peer {
        let address = address.to_canonical();
        let proxies = is_among(proxies, address).then(|| Arc::clone(proxies));
        Peer { address, forwarded, proxies, place, activity: Arc::default() }
    }
}

/// Whether an address is one of these proxies.
pub(crate) fn is_among(proxies: &[IpNet], address: IpAddr) -> bool {
    proxies.iter().any(|network| network.contains(&address))
}
