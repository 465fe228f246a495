//! Reads the service's own decision from its response, so that one record carries both (pure).
//!
//! A response that does not tell is unpaired, with the reason. Unpaired is never agreement: a
//! service that began to refuse in a way we do not know would otherwise look as if it agreed.

use edge::Seen;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use wire::batch::{PairSource, Side};
use wire::decision_header::ServiceDecision;

/// How one upstream tells its decisions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pairing {
    /// Status of a denial.
    pub deny_status: StatusCode,
    /// Header (and its value, if one is asked for) that marks a denial of the limiter.
    pub deny_header: Option<(HeaderName, Option<HeaderValue>)>,
    /// Header that carries the whole decision.
    pub decision_header: Option<HeaderName>,
}

/// What the response says about the service's decision.
pub(crate) fn seen(pairing: Option<&Pairing>, status: StatusCode, headers: &HeaderMap) -> Seen {
    let Some(pairing) = pairing else { return Seen::NotConfigured };
    if let Some(decision) = told(pairing, headers) {
        return Seen::Decision {
            outcome: decision.outcome,
            source: PairSource::Header,
            remaining: decision.remaining,
            limit: decision.limit,
            client: decision.client,
        };
    }
    if status != pairing.deny_status {
        return bare(Side::Allow, PairSource::Status);
    }
    match &pairing.deny_header {
        Some((name, value)) if !marked(headers, name, value.as_ref()) => Seen::Ambiguous,
        Some(_) | None => bare(Side::Deny, PairSource::Marker),
    }
}

fn told(pairing: &Pairing, headers: &HeaderMap) -> Option<ServiceDecision> {
    let name = pairing.decision_header.as_ref()?;
    ServiceDecision::parse(headers.get(name)?.to_str().ok()?)
}

fn marked(headers: &HeaderMap, name: &HeaderName, value: Option<&HeaderValue>) -> bool {
    headers.get_all(name).iter().any(|found| value.is_none_or(|wanted| wanted == found))
}

fn bare(outcome: Side, source: PairSource) -> Seen {
    Seen::Decision { outcome, source, remaining: None, limit: None, client: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairing() -> Pairing {
        Pairing {
            deny_status: StatusCode::TOO_MANY_REQUESTS,
            deny_header: Some((
                HeaderName::from_static("x-limited-by"),
                Some(HeaderValue::from_static("orders")),
            )),
            decision_header: Some(HeaderName::from_static("x-weir-decision")),
        }
    }

    fn check(status: u16, headers: &[(&'static str, &'static str)], expected: &str) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let seen = seen(Some(&pairing()), StatusCode::from_u16(status).unwrap(), &map);
        let seen = match seen {
            Seen::Decision { outcome, source, remaining, .. } => {
                format!("{outcome:?} by {source:?} {remaining:?}")
            }
            Seen::Ambiguous => "ambiguous".to_owned(),
            Seen::NoReply | Seen::CallerGone | Seen::NotConfigured | Seen::Refused => {
                "other".to_owned()
            }
        };
        assert_eq!(seen, expected, "{status} {headers:?}");
    }

    #[test]
    fn header_then_marker_then_status() {
        check(200, &[], "Allow by Status None");
        check(500, &[], "Allow by Status None");
        check(429, &[("x-limited-by", "orders")], "Deny by Marker None");
        check(429, &[], "ambiguous");
        check(429, &[("x-limited-by", "waf")], "ambiguous");
        check(200, &[("x-weir-decision", "v1;d=deny;rem=0")], "Deny by Header Some(0)");
        check(429, &[("x-weir-decision", "v1;d=allow;rem=3")], "Allow by Header Some(3)");
        check(429, &[("x-weir-decision", "nonsense")], "ambiguous");
    }

    #[test]
    fn nothing_is_concluded_without_a_configured_pairing() {
        let seen = seen(None, StatusCode::TOO_MANY_REQUESTS, &HeaderMap::new());
        assert!(matches!(seen, Seen::NotConfigured));
    }
}
