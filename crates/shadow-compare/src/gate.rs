//! The raw number of a rollout: which cells and which losses it rests on.
//!
//! Counted is a cell in phase shadow whose client is in shadow by the rollout's rules, if the cell
//! was made after the client entered that phase. A phase that begins in the future is a lie, and would
//! count for every rollout to come. Cells without a client (from a full table) belong
//! to nobody in particular, so they count whenever they can belong to somebody.
//!
//! Losses count whole, as disagreements: every decision lost since the earliest revision at which
//! a shadow rule began, whoever made it and in whatever phase. Nobody can know, so it is the worst
//! case. Undecided and unpaired requests are neither; they have lines of their own.

use std::collections::BTreeMap;

use wire::batch::TallyCell;
use wire::gate::GateReport;
use wire::rollout::{Phase, RolloutRule, RolloutValue, RuleSubject};

use crate::boot::Loss;

/// A rollout's rules, found quickly.
#[derive(Debug)]
pub(crate) struct Rules<'a> {
    own: BTreeMap<&'a str, &'a RolloutRule>,
    all: Option<&'a RolloutRule>,
    earliest: Option<u64>,
    /// Newest revision of the rollout: none of its phases began later.
    newest: u64,
}

impl<'a> Rules<'a> {
    /// Of a rollout.
    pub(crate) fn of(rollout: &'a RolloutValue) -> Rules<'a> {
        let newest = rollout.revision;
        let mut rules = Rules { own: BTreeMap::new(), all: None, earliest: None, newest };
        for rule in &rollout.rules {
            // As in `RolloutValue::rule_for`, the first of two rules for one subject decides.
            match &rule.subject {
                RuleSubject::Client { client } => {
                    rules.own.entry(client).or_insert(rule);
                }
                RuleSubject::All => {
                    rules.all.get_or_insert(rule);
                }
            }
        }
        let shadow = rules.own.values().copied().chain(rules.all).filter(is_shadow);
        rules.earliest = shadow.map(|rule| rule.since_revision).min();
        rules
    }

    /// The earliest revision at which one of its shadow rules began; none without shadow rules.
    pub(crate) fn earliest(&self) -> Option<u64> {
        self.earliest
    }

    fn counts(&self, cell: &TallyCell) -> bool {
        let since = if cell.client.is_empty() {
            self.earliest
        } else {
            let rule = self.own.get(cell.client.as_str()).copied().or(self.all);
            rule.filter(is_shadow).map(|rule| rule.since_revision)
        };
        let believable = |since| (since..=self.newest).contains(&cell.since_revision);
        cell.phase == Phase::Shadow && since.is_some_and(believable)
    }
}

fn is_shadow(rule: &&RolloutRule) -> bool {
    rule.phase == Phase::Shadow
}

/// Adds up a report; the time of the newest batch is the caller's to fill in.
#[derive(Debug, Default)]
pub(crate) struct Count {
    report: GateReport,
}

impl Count {
    /// Adds a cell, if it counts.
    pub(crate) fn cell(&mut self, rules: &Rules<'_>, cell: &TallyCell) {
        if !rules.counts(cell) {
            return;
        }
        self.report.pairs += cell.pairs();
        self.report.disagreements += cell.disagreements();
        self.report.stricter += cell.stricter;
        self.report.looser += cell.looser;
        self.report.undecided += cell.undecided;
        self.report.unpaired +=
            cell.ambiguous + cell.no_reply + cell.caller_gone + cell.not_configured;
    }

    /// Adds a loss, if it counts.
    pub(crate) fn loss(&mut self, rules: &Rules<'_>, loss: &Loss) {
        if rules.earliest.is_some_and(|earliest| earliest <= loss.revision) {
            self.report.lost += loss.decisions;
        }
    }

    /// The report.
    pub(crate) fn report(self, last_batch_seconds: Option<u64>) -> GateReport {
        GateReport { last_batch_seconds, ..self.report }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::shadow_cell;

    fn rule(client: Option<&str>, phase: Phase, since_revision: u64) -> RolloutRule {
        let subject = client
            .map_or(RuleSubject::All, |client| RuleSubject::Client { client: client.to_owned() });
        RolloutRule { subject, phase, since_revision }
    }

    fn rollout(rules: Vec<RolloutRule>) -> RolloutValue {
        RolloutValue { name: "edge".to_owned(), rules, share_bp: 10_000, revision: 20 }
    }

    fn count(rollout: &RolloutValue, cells: &[TallyCell], losses: &[(u64, u64)]) -> GateReport {
        let rules = Rules::of(rollout);
        let mut count = Count::default();
        cells.iter().for_each(|cell| count.cell(&rules, cell));
        for (revision, decisions) in losses {
            let loss = Loss { revision: *revision, decisions: *decisions, ..Loss::default() };
            count.loss(&rules, &loss);
        }
        count.report(None)
    }

    fn since(since_revision: u64, cell: TallyCell) -> TallyCell {
        TallyCell { since_revision, ..cell }
    }

    #[test]
    fn only_clients_in_shadow_count_and_only_since_they_entered_it() {
        let rules = rollout(vec![
            rule(None, Phase::Shadow, 10),
            rule(Some("canary"), Phase::Enforce, 12),
            rule(Some("late"), Phase::Shadow, 15),
        ]);
        let cells = [
            since(10, shadow_cell("anybody", 10, 1)),
            since(9, shadow_cell("anybody", 100, 100)), // an earlier time in shadow
            since(10, shadow_cell("canary", 100, 100)),
            since(14, shadow_cell("late", 100, 100)),
            since(15, shadow_cell("late", 20, 2)),
            TallyCell { phase: Phase::Enforce, ..since(10, shadow_cell("anybody", 100, 100)) },
        ];
        let report = count(&rules, &cells, &[]);
        assert_eq!((report.pairs, report.disagreements), (33, 3));
    }

    #[test]
    fn evidence_from_a_phase_that_has_not_begun_counts_for_nothing() {
        let rules = rollout(vec![rule(None, Phase::Shadow, 10)]);
        let cells = [20, 21, u64::MAX].map(|revision| since(revision, shadow_cell("c", 5_000, 0)));
        assert_eq!(count(&rules, &cells, &[]).pairs, 5_000, "the rollout is at revision 20");
    }

    #[test]
    fn cells_without_a_client_count_when_they_may_be_anybodys() {
        let rules =
            rollout(vec![rule(Some("a"), Phase::Shadow, 12), rule(Some("b"), Phase::Shadow, 15)]);
        let cells = [since(12, shadow_cell("", 10, 1)), since(11, shadow_cell("", 100, 100))];
        assert_eq!(count(&rules, &cells, &[]).pairs, 11);
        let nobody = rollout(vec![rule(None, Phase::Enforce, 1)]);
        assert_eq!(count(&nobody, &cells, &[(99, 5)]), GateReport::default());
    }

    #[test]
    fn losses_since_the_earliest_shadow_rule_count_whole() {
        let rules = rollout(vec![
            rule(Some("a"), Phase::Shadow, 12),
            rule(Some("b"), Phase::Shadow, 15),
            rule(Some("c"), Phase::Enforce, 3),
        ]);
        assert_eq!(count(&rules, &[], &[(11, 100), (12, 1), (30, 2)]).lost, 3);
    }

    #[test]
    fn undecided_and_unpaired_are_neither_pairs_nor_disagreements() {
        let rules = rollout(vec![rule(None, Phase::Shadow, 7)]);
        let cell = TallyCell {
            requests: 15,
            undecided: 5,
            ambiguous: 4,
            no_reply: 3,
            caller_gone: 2,
            not_configured: 1,
            ..shadow_cell("c", 0, 0)
        };
        let report = count(&rules, &[cell], &[]);
        assert_eq!((report.pairs, report.disagreements), (0, 0));
        assert_eq!((report.undecided, report.unpaired), (5, 10));
    }
}
