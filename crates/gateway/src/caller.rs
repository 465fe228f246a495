//! What is known of the other end of a connection, once for all of its requests.

use std::any::Any;
use std::net::IpAddr;
use std::sync::Arc;

use crate::headers::ForwardedBy;

/// A connection's place among all connections; free again when its last holder lets go.
pub(crate) type Place = Arc<dyn Any + Send + Sync>;

/// The other end of a connection.
#[derive(Debug)]
pub(crate) struct Caller {
    /// Where it is.
    pub address: IpAddr,
    /// What services are told about it.
    pub forwarded: ForwardedBy,
    /// Held as long as the connection is open, whatever protocol it speaks by then.
    pub place: Place,
}
