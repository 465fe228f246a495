//! Counts open connections by the address of their peer, over all workers; those of IPv6 by
//! network, like buckets: whoever has one address of it has all of them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Open connections by address. Bounded by the connections themselves.
#[derive(Debug, Clone)]
pub(crate) struct PerAddress {
    most: Arc<AtomicUsize>,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl PerAddress {
    /// At most `most` of one address.
    pub(crate) fn new(most: usize) -> PerAddress {
        PerAddress { most: Arc::new(AtomicUsize::new(most)), open: Arc::default() }
    }

    /// From now on at most `most`; those that are open stay.
    pub(crate) fn set_most(&self, most: usize) {
        self.most.store(most, Ordering::Relaxed);
    }

    /// Counts one in, unless there are as many as there may be.
    pub(crate) fn enter(&self, address: IpAddr) -> Option<Entered> {
        let address = edge::network_of(address);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(address).or_default();
        if self.most.load(Ordering::Relaxed) <= *count {
            return None;
        }
        *count += 1;
        drop(open);
        Some(Entered { counts: self.clone(), address })
    }
}

/// Counts its connection out when dropped.
#[derive(Debug)]
pub(crate) struct Entered {
    counts: PerAddress,
    address: IpAddr,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut open = self.counts.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_has_so_many_and_leaves_no_trace() {
        let counts = PerAddress::new(2);
        let one: IpAddr = "192.0.2.1".parse().unwrap();
        let mapped: IpAddr = "::ffff:192.0.2.1".parse().unwrap();
        let first = counts.enter(one).unwrap();
        let second = counts.enter(mapped).unwrap();
        assert!(counts.enter(one).is_none());
        assert!(counts.enter("192.0.2.2".parse().unwrap()).is_some());
        drop(first);
        assert!(counts.enter(one).is_some());
        drop(second);
        assert!(counts.open.lock().unwrap().is_empty());
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_address() {
        let counts = PerAddress::new(2);
        let enter = |text: &str| counts.enter(text.parse().unwrap());
        let all = [enter("2001:db8:1:2::1"), enter("2001:db8:1:2:9::")];
        assert!(all.iter().all(Option::is_some));
        assert!(enter("2001:db8:1:2::3").is_none(), "another address of the same customer");
        assert!(enter("2001:db8:1:3::1").is_some());
    }
}
