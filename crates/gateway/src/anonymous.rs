//! Which address a request without a key counts for (pure).
//!
//! A caller may write what it likes into `X-Forwarded-For`, so only what trusted proxies appended
//! counts: from the right, the first address that is not one of theirs. Whoever is not a trusted
//! proxy itself is taken for where it is.

use std::net::{IpAddr, SocketAddr};

use http::HeaderMap;

use crate::headers::FORWARDED_FOR;
use crate::peer::{Peer, is_among};

/// The address of the caller behind `peer`.
pub(crate) fn address(peer: &Peer, headers: &HeaderMap) -> IpAddr {
    let Some(proxies) = &peer.proxies else { return peer.address };
    let mut nearest = peer.address;
    for value in headers.get_all(FORWARDED_FOR).iter().rev() {
        for entry in value.as_bytes().rsplit(|byte| *byte == b',') {
            // What a trusted proxy did not write as an address says nothing about those before.
            let Some(address) = parsed(entry) else { return nearest };
            nearest = address;
            if !is_among(proxies, address) {
                return address;
            }
        }
    }
    nearest
}

/// An address, perhaps with a port.
fn parsed(entry: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(entry).ok()?.trim();
    let bracketed = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let address = bracketed.unwrap_or(text).parse::<IpAddr>().ok();
    let address = address.or_else(|| text.parse::<SocketAddr>().ok().map(|with| with.ip()));
    address.map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::HeaderValue;

    use super::*;
    use crate::headers::ForwardedBy;

    fn found(peer: &str, lines: &[&str]) -> String {
        let proxies = ["10.0.0.0/8", "2001:db8:1::/48"].map(|text| text.parse().unwrap());
        let peer: IpAddr = peer.parse().unwrap();
        let peer = Peer::new(peer, ForwardedBy::new(peer), &Arc::from(proxies), Arc::new(()));
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(FORWARDED_FOR, HeaderValue::from_str(line).unwrap());
        }
        address(&peer, &headers).to_string()
    }

    #[test]
    fn the_right_most_address_that_is_no_proxy_counts() {
        for (lines, expected) in [
            (&["203.0.113.1, 198.51.100.7"][..], "198.51.100.7"),
            (&["203.0.113.1", "198.51.100.7"], "198.51.100.7"),
            (&["203.0.113.1, 198.51.100.7, 10.9.9.9"], "198.51.100.7"),
            (&["198.51.100.7:4711,10.9.9.9"], "198.51.100.7"),
            (&["::ffff:198.51.100.7"], "198.51.100.7"),
            (&["[2001:db8:2::1]:443, 2001:db8:1::9"], "2001:db8:2::1"),
            (&["[2001:db8:2::1]"], "2001:db8:2::1"),
            (&["10.1.1.1, 10.2.2.2"], "10.1.1.1"),
            (&["198.51.100.7, unknown, 10.2.2.2"], "10.2.2.2"),
            (&["198.51.100.7, "], "10.0.0.1"),
            (&["nonsense"], "10.0.0.1"),
            (&[], "10.0.0.1"),
        ] {
            assert_eq!(found("10.0.0.1", lines), expected, "{lines:?}");
            assert_eq!(found("::ffff:10.0.0.1", lines), expected, "{lines:?}");
        }
    }

    #[test]
    fn a_peer_that_is_no_proxy_is_taken_for_where_it_is() {
        assert_eq!(found("192.0.2.50", &["198.51.100.7"]), "192.0.2.50");
        assert_eq!(found("192.0.2.50", &["198.51.100.7, 10.0.0.1"]), "192.0.2.50");
    }
}
