//! `x-weir-decision: v1;d=deny;rem=0;lim=20;cost=1;client=c_81`: a service's own decision, written
//! by services, read and always stripped by the gateway.

use std::fmt;

use crate::batch::Side;

/// Name of the header.
pub const NAME: &str = "x-weir-decision";
/// Longest value that is read, in bytes.
const BYTES_MAX: usize = 256;

/// What a service says it decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceDecision {
    /// Allow or deny.
    pub outcome: Side,
    /// Whole tokens left.
    pub remaining: Option<u64>,
    /// Capacity of the service's own bucket.
    pub limit: Option<u64>,
    /// Tokens that it charged.
    pub cost: Option<u64>,
    /// The client that it charged.
    pub client: Option<String>,
}

impl ServiceDecision {
    /// Reads a header value; `None` if it is none of this version.
    pub fn parse(value: &str) -> Option<ServiceDecision> {
        if value.len() > BYTES_MAX {
            return None;
        }
        let mut parts = value.split(';').map(str::trim);
        if parts.next() != Some("v1") {
            return None;
        }
        let mut outcome = None;
        let mut decision = ServiceDecision {
            outcome: Side::Allow,
            remaining: None,
            limit: None,
            cost: None,
            client: None,
        };
        for part in parts {
            let (name, text) = part.split_once('=')?;
            match name {
                "d" => {
                    outcome = match text {
                        "allow" => Some(Side::Allow),
                        "deny" => Some(Side::Deny),
                        _ => return None,
                    }
                }
                "rem" => decision.remaining = text.parse().ok(),
                "lim" => decision.limit = text.parse().ok(),
                "cost" => decision.cost = text.parse().ok(),
                "client" => decision.client = Some(text.to_owned()),
                _ => {}
            }
        }
        Some(ServiceDecision { outcome: outcome?, ..decision })
    }
}

impl fmt::Display for ServiceDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = match self.outcome {
            Side::Allow => "allow",
            Side::Deny => "deny",
        };
        write!(f, "v1;d={outcome}")?;
        if let Some(remaining) = self.remaining {
            write!(f, ";rem={remaining}")?;
        }
        if let Some(limit) = self.limit {
            write!(f, ";lim={limit}")?;
        }
        if let Some(cost) = self.cost {
            write!(f, ";cost={cost}")?;
        }
        if let Some(client) = &self.client {
            write!(f, ";client={client}")?;
        }
        Ok(())
    }
}
