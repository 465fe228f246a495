//! Phases, and the rules that give a client its phase.
//!
//! Without a rollout every client is in enforce. The most specific rule wins: a client's own rule
//! before the rule for all; no rule means enforce.

use serde::{Deserialize, Serialize};

/// What the gateway does with a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Not evaluated at all.
    Off,
    /// Evaluated and charged as if it counted; never rejects.
    Shadow,
    /// A denial is a refusal.
    #[default]
    Enforce,
}

impl Phase {
    /// Every phase.
    pub const ALL: [Phase; 3] = [Phase::Off, Phase::Shadow, Phase::Enforce];

    /// The phase that is written so.
    pub fn named(name: &str) -> Option<Phase> {
        Phase::ALL.into_iter().find(|phase| phase.name() == name)
    }

    /// As written in commands and bodies.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Off => "off",
            Phase::Shadow => "shadow",
            Phase::Enforce => "enforce",
        }
    }
}

/// Whom a rule names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "by", rename_all = "lowercase")]
pub enum RuleSubject {
    /// One client.
    Client {
        /// Its id.
        client: String,
    },
    /// Everybody whom no other rule names.
    All,
}

/// Gives a phase to its subject.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RolloutRule {
    /// Whom it names.
    pub subject: RuleSubject,
    /// The phase they are in.
    pub phase: Phase,
    /// Revision at which the subject entered that phase.
    pub since_revision: u64,
}

/// The active rollout as gateways are told it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RolloutValue {
    /// Its name.
    pub name: String,
    /// Its rules.
    pub rules: Vec<RolloutRule>,
    /// Share of clients with full decision records, in ten-thousandths.
    #[serde(default = "everybody")]
    pub share_bp: u32,
    /// Revision of its last change.
    pub revision: u64,
}

const fn everybody() -> u32 {
    10_000
}

impl RolloutValue {
    /// The rule that decides about `client`.
    pub fn rule_for(&self, client: &str) -> Option<&RolloutRule> {
        let own = self.rules.iter().find(|rule| match &rule.subject {
            RuleSubject::Client { client: named } => named == client,
            RuleSubject::All => false,
        });
        own.or_else(|| self.rules.iter().find(|rule| rule.subject == RuleSubject::All))
    }

    /// The phase of `client`; enforce where no rule says otherwise.
    pub fn phase_of(&self, client: &str) -> Phase {
        self.rule_for(client).map_or(Phase::Enforce, |rule| rule.phase)
    }

    /// Whether full records are kept for `client`: the same on every gateway, and growing the
    /// share keeps those who were in.
    pub fn samples(&self, client: &str) -> bool {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"sample").update(client.as_bytes());
        let mut first = [0; 8];
        first.iter_mut().zip(hasher.finalize().as_bytes()).for_each(|(to, from)| *to = *from);
        u64::from_le_bytes(first) % 10_000 < u64::from(self.share_bp)
    }
}
