//! What trusted proxies say about a request: how it reached them (pure).
//!
//! From anybody else such words end at the gateway, which then names its peer alone. A trusted
//! proxy's are kept, and the gateway adds its peer like every proxy before it. `Forwarded` is
//! always written anew from what is believed, because proxies that keep the one field up to date
//! often pass the other on as a caller wrote it.

use std::net::IpAddr;

use http::header::{FORWARDED, HeaderMap, HeaderName, HeaderValue};

use crate::anonymous;
use crate::headers::{FORWARDED_FOR, FORWARDED_HOST, FORWARDED_PROTO, only};
use crate::peer::Peer;
use crate::route::canonical_host;

/// The words of a trusted proxy.
#[derive(Debug)]
pub(crate) struct Heard {
    came_by: Option<String>,
    caller: IpAddr,
    proto: Option<&'static str>,
    host: Option<HeaderValue>,
}

impl Heard {
    /// What `peer` says; nothing if it is not trusted. Call it before everything that only the
    /// gateway may say is removed.
    pub(crate) fn of(peer: &Peer, headers: &HeaderMap) -> Option<Heard> {
        peer.proxies.as_ref()?;
        let lines = headers.get_all(FORWARDED_FOR).iter().map(|line| line.to_str().ok());
        let came_by = lines.collect::<Option<Vec<&str>>>().map(|lines| lines.join(", "));
        let came_by = came_by.filter(|addresses| !addresses.trim().is_empty());
        let proto = match only(headers, &FORWARDED_PROTO).map(HeaderValue::as_bytes) {
            Some(b"https") => Some("https"),
            Some(b"http") => Some("http"),
            Some(_) | None => None,
        };
        let named =
            |host: &&HeaderValue| host.to_str().is_ok_and(|host| canonical_host(host).is_ok());
        let host = only(headers, &FORWARDED_HOST).filter(named).cloned();
        Some(Heard { came_by, caller: anonymous::address(peer, headers), proto, host })
    }

    /// Writes it before the gateway's own words, which stand there already.
    pub(crate) fn write(self, headers: &mut HeaderMap) {
        if let Some(came_by) = self.came_by {
            prepend(headers, &FORWARDED_FOR, &came_by);
            prepend(headers, &FORWARDED, &element(self.caller, self.proto));
        }
        if let Some(proto) = self.proto {
            headers.insert(FORWARDED_PROTO, HeaderValue::from_static(proto));
        }
        if let Some(host) = self.host {
            headers.insert(FORWARDED_HOST, host);
        }
    }
}

fn element(caller: IpAddr, proto: Option<&str>) -> String {
    let caller = match caller {
        IpAddr::V4(caller) => caller.to_string(),
        IpAddr::V6(caller) => format!("\"[{caller}]\""),
    };
    proto.map_or_else(|| format!("for={caller}"), |proto| format!("for={caller};proto={proto}"))
}

fn prepend(headers: &mut HeaderMap, name: &HeaderName, before: &str) {
    let own = headers.get(name).and_then(|own| own.to_str().ok()).unwrap_or_default();
    if let Ok(both) = HeaderValue::try_from(format!("{before}, {own}")) {
        headers.insert(name, both);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::headers::ForwardedBy;

    const NAMES: [HeaderName; 4] = [FORWARDED_FOR, FORWARDED_PROTO, FORWARDED_HOST, FORWARDED];

    /// What a service is told when `peer` has said `words`.
    fn told(peer: &str, words: [&'static str; 4]) -> Option<Vec<String>> {
        let proxies = Arc::from(["10.0.0.0/8".parse().unwrap()]);
        let peer: IpAddr = peer.parse().unwrap();
        let peer = Peer::new(peer, ForwardedBy::new(peer), &proxies, Arc::new(()));
        let mut said = HeaderMap::new();
        for (name, word) in NAMES.iter().zip(words).filter(|(_, word)| !word.is_empty()) {
            said.append(name, HeaderValue::from_str(word).unwrap());
        }
        let heard = Heard::of(&peer, &said)?;
        let mut headers = HeaderMap::new();
        for (name, own) in NAMES.iter().zip(["10.0.0.1", "http", "own", "for=10.0.0.1"]) {
            headers.insert(name, HeaderValue::from_static(own));
        }
        heard.write(&mut headers);
        Some(NAMES.iter().map(|name| headers[name].to_str().unwrap().to_owned()).collect())
    }

    #[test]
    fn a_trusted_proxys_words_stand_before_ours() {
        let words = ["203.0.113.1, 198.51.100.7", "https", "api.example", "for=evil"];
        let expected = [
            "203.0.113.1, 198.51.100.7, 10.0.0.1",
            "https",
            "api.example",
            "for=198.51.100.7;proto=https, for=10.0.0.1",
        ];
        assert_eq!(told("10.0.0.1", words).unwrap(), expected);
        let words = ["2001:db8::7", "", "", ""];
        let expected =
            ["2001:db8::7, 10.0.0.1", "http", "own", "for=\"[2001:db8::7]\", for=10.0.0.1"];
        assert_eq!(told("10.0.0.1", words).unwrap(), expected);
    }

    #[test]
    fn words_that_make_no_sense_and_words_of_others_are_not_passed_on() {
        let own = ["10.0.0.1", "http", "own", "for=10.0.0.1"];
        assert_eq!(told("10.0.0.1", [" ", "gopher", "a b", "for=evil"]).unwrap(), own);
        assert_eq!(told("10.0.0.1", ["", "", "", ""]).unwrap(), own);
        assert_eq!(told("192.0.2.1", ["203.0.113.1", "https", "api.example", ""]), None);
    }
}
