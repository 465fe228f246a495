//! Who asks: under each failure policy a flood far above its plan, a client well within its plan,
//! and many who come seldom.

use limiter_core::{
    BucketKey, Capacity, Contract, FailurePolicy, Limit, Limits, PlanNumbers, PlanVersion, ScopeId,
    VersionSource,
};
use system_tests::oracle;

use super::Sabotage;

/// The policies under test, in the order of all figures.
pub const POLICIES: [(&str, FailurePolicy); 4] = [
    ("closed", FailurePolicy::CLOSED),
    ("local", FailurePolicy::LOCAL),
    ("coarse", FailurePolicy::COARSE),
    ("open", FailurePolicy::Open),
];
/// Clients of each policy who come seldom.
const SELDOM: usize = 20;

/// What a client does with its plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Thirty times its plan.
    Flood,
    /// Two fifths of its plan.
    Within,
    /// A quarter of its plan, a few requests a second.
    Seldom,
}

struct Line {
    role: Role,
    capacity: u32,
    per_s: u32,
    offers_per_s: u32,
}

const LINES: [Line; 3] = [
    Line { role: Role::Flood, capacity: 10, per_s: 10, offers_per_s: 300 },
    Line { role: Role::Within, capacity: 200, per_s: 900, offers_per_s: 350 },
    Line { role: Role::Seldom, capacity: 20, per_s: 20, offers_per_s: 5 },
];

/// One client.
#[derive(Debug, Clone, Copy)]
pub struct Client {
    /// Place in [`POLICIES`].
    pub policy: usize,
    /// What it does.
    pub role: Role,
    /// What limiters are asked.
    pub contract: Contract,
    /// The same for the oracle.
    pub promised: oracle::Contract,
    /// Requests a second.
    pub offers_per_s: f64,
}

/// All clients of a round; `round` makes their keys new.
pub fn all(round: &str, sabotage: Option<Sabotage>) -> anyhow::Result<Vec<Client>> {
    let mut clients = Vec::new();
    for (policy, (name, failure)) in POLICIES.iter().enumerate() {
        for line in &LINES {
            let many = if line.role == Role::Seldom { SELDOM } else { 1 };
            for number in 0..many {
                let text = format!("{round}/{name}/{:?}/{number}", line.role);
                clients.push(client(line, policy, *failure, &text, sabotage)?);
            }
        }
    }
    Ok(clients)
}

fn client(
    line: &Line,
    policy: usize,
    failure: FailurePolicy,
    name: &str,
    sabotage: Option<Sabotage>,
) -> anyhow::Result<Client> {
    let refill = format!("{}/s", line.per_s).parse()?;
    let limit = Limit::new(Capacity::new(u64::from(line.capacity))?, refill)?;
    let plan = PlanNumbers { version: PlanVersion(2), limits: Limits::burst_only(limit) };
    let opened = sabotage == Some(Sabotage::FailsOpen) && failure.is_closed();
    let failure = if opened { FailurePolicy::Open } else { failure };
    let key = BucketKey::new(VersionSource::File, ScopeId::Client(name));
    Ok(Client {
        policy,
        role: line.role,
        contract: Contract { key, plan, reset: PlanVersion(0), failure },
        promised: oracle::Contract {
            capacity: f64::from(line.capacity),
            per_s: f64::from(line.per_s),
        },
        offers_per_s: f64::from(line.offers_per_s),
    })
}
