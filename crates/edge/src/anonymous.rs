//! Room ③ for callers without a key: an address, or the network that a customer has of IPv6.
//!
//! All of them are counted as one client; each has a bucket of its own, which no client's key
//! could ever name.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use limiter_core::{BucketKey, ScopeId, VersionSource};
use wire::policy::{ClientState, ClientValue};

use crate::call::{Presented, Refusal};
use crate::key_cache::Known;

/// Bits of an IPv6 address that name a customer's network.
const IPV6_NETWORK_BITS: u32 = 64;

/// The client that anonymous callers under a plan are counted as.
pub fn anonymous_client(plan: &str) -> String {
    format!("anonymous.{plan}")
}

/// What is one customer's: an address, in IPv4 also where it is written as IPv6; of IPv6 its /64,
/// because every customer has so many addresses.
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let host_bits = u128::BITS - IPV6_NETWORK_BITS;
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> host_bits << host_bits))
        }
    }
}

/// What shares a bucket with an address: its [network](network_of), as text.
pub fn prefix_of(address: IpAddr) -> String {
    match network_of(address) {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(network) => format!("{network}/{IPV6_NETWORK_BITS}"),
    }
}

/// The callers of a gateway that are known by their address alone.
#[derive(Debug)]
pub(crate) struct Anonymous {
    client: Arc<ClientValue>,
    versions: VersionSource,
}

impl Anonymous {
    pub(crate) fn new(plan: String, versions: VersionSource) -> Anonymous {
        let client = Arc::new(ClientValue {
            id: anonymous_client(&plan),
            plan,
            state: ClientState::Active,
            overridden: None,
            reset_revision: 0,
            revision: 0,
        });
        Anonymous { client, versions }
    }

    fn at(&self, address: IpAddr) -> Known {
        let (plan, prefix) = (self.client.plan.as_str(), prefix_of(address));
        let bucket = BucketKey::new(self.versions, ScopeId::Address { plan, prefix: &prefix });
        Known::anonymous(Arc::clone(&self.client), bucket)
    }
}

/// Who calls from an address, where a plan for such callers is set.
pub(crate) fn caller(
    anonymous: Option<&Anonymous>,
    presented: Presented<'_>,
) -> Result<Arc<Known>, Refusal> {
    match (anonymous, presented) {
        (Some(anonymous), Presented::Address(address)) => Ok(Arc::new(anonymous.at(address))),
        (None, Presented::Address(_)) => Err(Refusal::PlanInvalid),
        (_, Presented::Key(_) | Presented::Nothing) => Err(Refusal::KeyMissing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_shares_with_what_is_the_same_customers() {
        for (address, expected) in [
            ("198.51.100.7", "198.51.100.7"),
            ("::ffff:198.51.100.7", "198.51.100.7"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
            ("2001:db8:1:2::", "2001:db8:1:2::/64"),
            ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
            ("::1", "::/64"),
        ] {
            assert_eq!(prefix_of(address.parse().unwrap()), expected);
        }
    }

    #[test]
    fn no_client_and_no_key_has_an_addresss_bucket() {
        let source = VersionSource::File;
        let anonymous = Anonymous::new("free".to_owned(), source);
        let known = anonymous.at("198.51.100.7".parse().unwrap());
        let address = known.bucket(wire::plan::Scope::Client);
        assert_eq!(address, known.bucket(wire::plan::Scope::Key));
        for client in ["198.51.100.7", "anonymous.free", "free"] {
            assert_ne!(address, BucketKey::new(source, ScopeId::Client(client)));
            let key = "198.51.100.7";
            assert_ne!(address, BucketKey::new(source, ScopeId::ApiKey { client, key }));
        }
        assert_eq!(known.key_id(), None);
    }
}
