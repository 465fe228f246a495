//! Which rules follow from a move, and since when each subject is in its phase.
//!
//! A rule for all replaces every rule for a single client. `since_revision` is the revision at
//! which the subject entered its present phase; saying the same phase again does not restart it,
//! so evidence gathered since then stays valid. Nothing here asks whether a move is allowed: only
//! enforcing everybody needs the number, and [`needs_gate`] says so.

use serde_json::Value;
use wire::client::plans::Whom;
use wire::error::ErrorCode;
use wire::name::Name;
use wire::rollout::{Phase, RolloutRule, RolloutValue, RuleSubject};
use wire::strict::{Fields, Problems, shown};

/// Most clients in one move.
const CLIENTS_MAX: usize = 1_000;
/// Everybody is recorded in full.
pub(crate) const SHARE_ALL: u32 = 10_000;

/// A checked body of `:set`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) whom: Whom,
    pub(crate) phase: Phase,
    /// Enforce everybody although the gate refuses, if another person accepts.
    pub(crate) override_gate: bool,
    pub(crate) reason: Option<String>,
}

impl Move {
    /// `{"clients": […]}` or `{"all": true}`, `"phase"`, `"override"?`, `"reason"?`.
    pub(crate) fn parse(value: &Value, problems: &mut Problems) -> Option<Move> {
        let mut fields = Fields::of(value, "", problems);
        let all = fields.flag("all", problems);
        let clients = fields.get("clients").map(|clients| names(clients, problems));
        let phase = phase(&mut fields, "phase", problems);
        if phase.is_none() && fields.get("phase").is_none() {
            fields.missing("phase", problems);
        }
        let override_gate = fields.flag("override", problems);
        let reason = fields.text("reason", problems).map(ToOwned::to_owned);
        fields.finish(problems);
        let whom = match (all, clients) {
            (true, None) => Some(Whom::All),
            (false, Some(clients)) => Some(Whom::Clients(clients)),
            (true, Some(_)) | (false, None) => {
                let detail = "say either \"all\": true or \"clients\": […]";
                problems.add("all", ErrorCode::InvalidValue, detail);
                None
            }
        };
        Some(Move { whom: whom?, phase: phase?, override_gate, reason })
    }

    /// As the history shows it.
    pub(crate) fn command(&self) -> String {
        match &self.whom {
            Whom::All => format!("set all {}", self.phase.name()),
            Whom::Clients(clients) => format!("set {} {}", clients.join(" "), self.phase.name()),
        }
    }
}

/// Reads a phase.
pub(crate) fn phase(
    fields: &mut Fields<'_>,
    name: &'static str,
    problems: &mut Problems,
) -> Option<Phase> {
    let text = fields.text(name, problems)?;
    let phase = Phase::named(text);
    if phase.is_none() {
        let detail = format!("must be off, shadow or enforce, not `{text}`");
        problems.add(fields.path(name), ErrorCode::InvalidValue, detail);
    }
    phase
}

fn names(clients: &Value, problems: &mut Problems) -> Vec<String> {
    let Some(list) = clients.as_array().filter(|l| (1..=CLIENTS_MAX).contains(&l.len())) else {
        let detail =
            format!("must be a list of 1 to {CLIENTS_MAX} clients, not {}", shown(clients));
        problems.add("clients", ErrorCode::InvalidValue, detail);
        return Vec::new();
    };
    let mut names = Vec::with_capacity(list.len());
    for (index, client) in list.iter().enumerate() {
        match client.as_str().map(Name::new) {
            Some(Ok(name)) => names.push(name.to_string()),
            Some(Err(error)) => {
                let place = format!("clients[{index}]");
                problems.add(place, ErrorCode::InvalidValue, error.to_string());
            }
            None => {
                let detail = format!("must be a client's id, not {}", shown(client));
                problems.add(format!("clients[{index}]"), ErrorCode::InvalidValue, detail);
            }
        }
    }
    names.sort_unstable();
    names.dedup();
    names
}

/// Whether this step needs the number: enforcing everybody, unless that is so already.
pub(crate) fn needs_gate(current: Option<&RolloutValue>, whom: &Whom, phase: Phase) -> bool {
    if *whom != Whom::All || phase != Phase::Enforce {
        return false;
    }
    let so_already = |value: &RolloutValue| {
        value.rules.iter().all(|rule| rule.phase == Phase::Enforce) && !value.rules.is_empty()
    };
    !current.is_some_and(so_already)
}

/// The rules after a move at `revision`, and how many rules for single clients it replaces.
pub(crate) fn moved(
    name: &str,
    current: Option<&RolloutValue>,
    whom: &Whom,
    phase: Phase,
    revision: u64,
) -> (RolloutValue, u64) {
    let mut next = current.cloned().unwrap_or_else(|| RolloutValue {
        name: name.to_owned(),
        rules: Vec::new(),
        share_bp: SHARE_ALL,
        revision,
    });
    let since = |subject: Option<&RolloutRule>| match subject {
        Some(rule) if rule.phase == phase => rule.since_revision,
        Some(_) | None => revision,
    };
    let mut replaced = 0;
    match whom {
        Whom::All => {
            let own = next.rules.iter().find(|rule| rule.subject == RuleSubject::All);
            let since_revision = since(own);
            let single = next.rules.iter().filter(|rule| rule.subject != RuleSubject::All).count();
            replaced = u64::try_from(single).unwrap_or(u64::MAX);
            next.rules = vec![RolloutRule { subject: RuleSubject::All, phase, since_revision }];
        }
        Whom::Clients(clients) => {
            for client in clients {
                let since_revision = since(next.rule_for(client));
                let subject = RuleSubject::Client { client: client.clone() };
                next.rules.retain(|rule| rule.subject != subject);
                next.rules.push(RolloutRule { subject, phase, since_revision });
            }
            next.rules.sort_by(|a, b| order(&a.subject).cmp(order(&b.subject)));
        }
    }
    next.revision = revision;
    (next, replaced)
}

/// Single clients by id, the rule for all last (no id sorts after `~`).
fn order(subject: &RuleSubject) -> &str {
    match subject {
        RuleSubject::Client { client } => client,
        RuleSubject::All => "~",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clients(names: &[&str]) -> Whom {
        Whom::Clients(names.iter().map(|name| (*name).to_owned()).collect())
    }

    fn rule(value: &RolloutValue, client: &str) -> (Phase, u64) {
        value.rule_for(client).map(|rule| (rule.phase, rule.since_revision)).unwrap()
    }

    #[test]
    fn the_same_phase_again_does_not_restart_the_evidence() {
        let (first, _) = moved("r", None, &Whom::All, Phase::Shadow, 5);
        let (again, _) = moved("r", Some(&first), &Whom::All, Phase::Shadow, 9);
        assert_eq!(rule(&again, "acme"), (Phase::Shadow, 5));
        let (own, _) = moved("r", Some(&again), &clients(&["acme"]), Phase::Shadow, 11);
        assert_eq!(rule(&own, "acme"), (Phase::Shadow, 5), "it was in shadow all along");
        let (back, _) = moved("r", Some(&own), &clients(&["acme"]), Phase::Enforce, 12);
        let (again, _) = moved("r", Some(&back), &clients(&["acme"]), Phase::Shadow, 13);
        assert_eq!(rule(&again, "acme"), (Phase::Shadow, 13), "it had left shadow");
        assert_eq!(rule(&again, "zeta"), (Phase::Shadow, 5), "nobody else is touched");
    }

    #[test]
    fn a_rule_for_all_replaces_the_single_ones_and_says_how_many() {
        let (first, _) = moved("r", None, &clients(&["b", "a"]), Phase::Enforce, 1);
        assert_eq!(first.phase_of("c"), Phase::Enforce, "no rule means enforce");
        let (all, replaced) = moved("r", Some(&first), &Whom::All, Phase::Shadow, 2);
        assert_eq!((replaced, all.rules.len()), (2, 1));
        assert_eq!(rule(&all, "a"), (Phase::Shadow, 2));
    }

    #[test]
    fn only_enforcing_everybody_needs_the_number() {
        let (shadow, _) = moved("r", None, &Whom::All, Phase::Shadow, 1);
        assert!(needs_gate(Some(&shadow), &Whom::All, Phase::Enforce));
        assert!(needs_gate(None, &Whom::All, Phase::Enforce), "no evidence is no evidence");
        assert!(!needs_gate(Some(&shadow), &clients(&["a"]), Phase::Enforce));
        assert!(!needs_gate(Some(&shadow), &Whom::All, Phase::Off));
        let (enforced, _) = moved("r", Some(&shadow), &Whom::All, Phase::Enforce, 2);
        assert!(!needs_gate(Some(&enforced), &Whom::All, Phase::Enforce), "it is so already");
    }
}
