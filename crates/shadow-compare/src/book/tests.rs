//! Any order, repetition and loss of batches, with minute writes and restarts anywhere between,
//! gives what a single process would have counted.

use proptest::prelude::*;
use wire::rollout::{Phase, RolloutRule, RolloutValue, RuleSubject};

use super::*;
use crate::boot::SILENT_MS;
use crate::gate::{Count, Rules};
use crate::testing::{MINUTE, batch, shadow_cell};

const START_MS: u64 = MINUTE * MINUTE_MS;

/// How one batch is made and how often it comes.
#[derive(Debug, Clone)]
struct BatchPlan {
    cells: Vec<(u8, u64, u64)>,
    records: u64,
    deliveries: usize,
}

/// How a process ends: with a goodbye that arrives, or killed with batches that nobody saw.
#[derive(Debug, Clone)]
struct BootPlan {
    batches: Vec<BatchPlan>,
    killed: bool,
    unsent: Vec<u64>,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Deliver(usize, usize),
    MinuteWrite,
    Restart,
}

fn batch_plan() -> impl Strategy<Value = BatchPlan> {
    let cells = prop::collection::vec((0..3_u8, 0..50_u64, 0..5_u64), 0..4);
    (cells, 0..3_u64, 0..3_usize).prop_map(|(cells, records, deliveries)| BatchPlan {
        cells,
        records,
        deliveries,
    })
}

fn boot_plan() -> impl Strategy<Value = BootPlan> {
    let batches = prop::collection::vec(batch_plan(), 1..12);
    (batches, any::<bool>(), prop::collection::vec(0..200_u64, 0..3))
        .prop_map(|(batches, killed, unsent)| BootPlan { batches, killed, unsent })
}

/// Processes, and what happens in which order.
fn world() -> impl Strategy<Value = (Vec<BootPlan>, Vec<Event>)> {
    prop::collection::vec(boot_plan(), 1..4).prop_flat_map(|mut boots| {
        let mut events =
            vec![Event::MinuteWrite, Event::MinuteWrite, Event::Restart, Event::Restart];
        for (boot, plan) in boots.iter_mut().enumerate() {
            // The newest batch comes at least once: after a goodbye, gateways resend until it does;
            // of a killed one it is the newest that came.
            if let Some(newest) = plan.batches.last_mut() {
                newest.deliveries = newest.deliveries.max(1);
            }
            for (index, batch) in plan.batches.iter().enumerate() {
                events.extend((0..batch.deliveries).map(|_| Event::Deliver(boot, index)));
            }
        }
        (Just(boots), Just(events).prop_shuffle())
    })
}

/// All batches of a process, in the order in which they were made.
fn batches_of(boot: usize, plan: &BootPlan) -> Vec<Batch> {
    let (mut decisions, mut records) = (0, 0);
    let count = plan.batches.len();
    let make = |(index, plan_of_batch): (usize, &BatchPlan)| {
        let seq = u64::try_from(index).unwrap() + 1;
        let mut made = batch("g", &format!("boot-{boot}"), seq, 0);
        made.cells = plan_of_batch
            .cells
            .iter()
            .map(|(client, agreeing, stricter)| {
                let mut cell = shadow_cell(&format!("c{client}"), *agreeing, *stricter);
                cell.minute += seq;
                cell
            })
            .collect();
        decisions += amount(&made).decisions;
        records += plan_of_batch.records; // all of them dropped before they were sent
        made.cum_decisions = decisions;
        made.cum_records = records;
        made.last = !plan.killed && index + 1 == count;
        made
    };
    plan.batches.iter().enumerate().map(make).collect()
}

/// The database, as far as the book needs one.
#[derive(Default)]
struct Disk {
    cells: Vec<TallyCell>,
    boots: BTreeMap<BootId, String>,
    checkpoint: Checkpoint,
    batches: Vec<(u64, Batch, u64)>,
}

impl Disk {
    fn minute_write(&mut self, book: &mut Book) {
        assert!(self.checkpoint.number <= book.committed());
        let write = book.minute_write();
        self.cells.extend(write.cells);
        for (id, boot) in write.boots {
            self.boots.insert(id, serde_json::to_string(&boot).unwrap());
        }
        self.checkpoint = write.checkpoint;
        self.batches.clear();
        book.written(write.checkpoint);
    }

    fn restart(&self) -> Book {
        let boots =
            self.boots.iter().map(|(id, state)| (id.clone(), serde_json::from_str(state).unwrap()));
        let mut book = Book::restored(self.checkpoint, boots.collect());
        for (number, batch, arrived_ms) in &self.batches {
            book.apply(*number, batch, *arrived_ms);
        }
        book
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_order_repetition_and_loss_equals_a_recount((plans, events) in world()) {
        let made: Vec<Vec<Batch>> =
            plans.iter().enumerate().map(|(boot, plan)| batches_of(boot, plan)).collect();
        let (mut book, mut disk, mut now_ms) = (Book::default(), Disk::default(), START_MS);
        let mut came = std::collections::BTreeSet::new();
        for event in &events {
            now_ms += 100;
            match *event {
                Event::MinuteWrite => disk.minute_write(&mut book),
                Event::Restart => book = disk.restart(),
                Event::Deliver(boot, index) => {
                    let batch = &made[boot][index];
                    let fit = book.judge(batch, now_ms);
                    prop_assert_eq!(fit, Ok(if came.insert((boot, index)) { Fit::New } else { Fit::Known }));
                    if fit == Ok(Fit::New) {
                        let number = book.committed() + 1;
                        disk.batches.push((number, batch.clone(), now_ms));
                        book.apply(number, batch, now_ms);
                    }
                }
            }
        }

        let report = report(&book, &disk, now_ms + SILENT_MS + 1);
        let sum = |of: &dyn Fn(&Batch) -> u64, seen: bool| -> u64 {
            made.iter().enumerate().flat_map(|(boot, batches)| {
                batches.iter().enumerate().map(move |(index, batch)| ((boot, index), batch))
            }).filter(|(id, _)| came.contains(id) == seen).map(|(_, batch)| of(batch)).sum()
        };
        let pairs = |batch: &Batch| batch.cells.iter().map(TallyCell::pairs).sum();
        let disagreements = |batch: &Batch| batch.cells.iter().map(TallyCell::disagreements).sum();
        prop_assert_eq!(report.pairs, sum(&pairs, true));
        prop_assert_eq!(report.disagreements, sum(&disagreements, true));

        let lost = sum(&|batch| amount(batch).decisions, false);
        let unsent: u64 = plans.iter().zip(&made).enumerate()
            .filter(|(_, (plan, _))| plan.killed)
            .map(|(boot, (plan, batches))| true_unsent(plan, batches, |index| came.contains(&(boot, index))))
            .sum();
        if plans.iter().any(|plan| plan.killed) {
            prop_assert!(lost + unsent <= report.lost, "{} + {unsent} > {}", lost, report.lost);
        } else {
            prop_assert_eq!(report.lost, lost);
        }
        let dropped: u64 = made.iter().filter_map(|batches| batches.last()).map(|b| b.cum_records).sum();
        let records: u64 = book.losses(now_ms).map(|loss| loss.records).sum();
        prop_assert_eq!(records, dropped);
    }
}

/// What a killed process had not sent: up to two batches, no busier than its busiest that came.
fn true_unsent(plan: &BootPlan, batches: &[Batch], came: impl Fn(usize) -> bool) -> u64 {
    let seen = batches.iter().enumerate().filter(|(index, _)| came(*index));
    let busiest = seen.map(|(_, batch)| amount(batch).decisions).max().unwrap_or(0);
    plan.unsent.iter().map(|decisions| busiest.min(*decisions)).sum()
}

fn report(book: &Book, disk: &Disk, now_ms: u64) -> wire::gate::GateReport {
    let rule = RolloutRule { subject: RuleSubject::All, phase: Phase::Shadow, since_revision: 7 };
    let rollout =
        RolloutValue { name: "edge".into(), rules: vec![rule], share_bp: 10_000, revision: 7 };
    let rules = Rules::of(&rollout);
    let mut count = Count::default();
    disk.cells.iter().chain(book.tally().cells()).for_each(|cell| count.cell(&rules, cell));
    book.losses(now_ms).for_each(|loss| count.loss(&rules, &loss));
    count.report(None)
}

#[test]
fn what_is_two_weeks_old_is_forgotten_with_its_losses() {
    let mut book = Book::default();
    for (number, seq) in [(1, 1), (2, 5)] {
        book.apply(number, &batch("g", "old", seq, seq * 10), START_MS);
    }
    assert_eq!(book.losses(START_MS).map(|loss| loss.decisions).sum::<u64>(), 50);
    book.forget(START_MS + EVIDENCE_KEPT_MS);
    assert_eq!(book.losses(START_MS).map(|loss| loss.decisions).sum::<u64>(), 50);
    book.forget(START_MS + EVIDENCE_KEPT_MS + 1);
    assert_eq!(book.losses(START_MS).count(), 1, "only what other processes left behind");
    assert_eq!(book.minute_write().gone.len(), 1);
}

#[test]
fn too_many_processes_keep_their_losses() {
    let mut book = Book::default();
    for boot in 0..=u64::try_from(BOOTS_MAX).unwrap() {
        let mut lost_five = batch("g", &format!("b{boot}"), 2, 5);
        lost_five.last = true;
        book.apply(boot + 1, &lost_five, START_MS + boot);
    }
    assert_eq!(book.boots.len(), BOOTS_MAX);
    let lost: u64 = book.losses(START_MS).map(|loss| loss.decisions).sum();
    assert_eq!(lost, 5 * (u64::try_from(BOOTS_MAX).unwrap() + 1));
}
