//! What is missing, after each way in which batches can come.

use super::*;

/// Batch `seq` of a process that decides `seq` times in its batch `seq`.
fn stamp(seq: u64) -> Stamp {
    let decisions = seq * (seq + 1) / 2;
    Stamp {
        seq,
        last: false,
        revision: 100 + seq,
        since_boot: Amount { decisions, records: decisions },
        own: Amount { decisions: seq, records: seq },
        arrived_ms: seq * 1_000,
    }
}

fn boot_of(seqs: &[u64]) -> Boot {
    let mut boot = Boot::new();
    for seq in seqs {
        assert_eq!(boot.judge(&stamp(*seq)), Ok(Fit::New), "batch {seq}");
        boot.take(&stamp(*seq));
    }
    boot
}

/// Lost decisions by revision, read while the process is alive.
fn gaps(boot: &Boot) -> Vec<(u64, u64)> {
    boot.losses(boot.heard_ms()).map(|loss| (loss.revision, loss.decisions)).collect()
}

#[test]
fn batches_in_order_lose_nothing() {
    assert_eq!(gaps(&boot_of(&[1, 2, 3, 4])), []);
}

#[test]
fn a_gap_is_known_exactly_and_charged_to_the_batch_that_ends_it() {
    assert_eq!(gaps(&boot_of(&[1, 5])), [(105, 2 + 3 + 4)]);
    assert_eq!(gaps(&boot_of(&[3])), [(103, 1 + 2)]);
}

#[test]
fn a_late_batch_takes_its_loss_back_wherever_it_lands() {
    assert_eq!(gaps(&boot_of(&[1, 5, 3])), [(103, 2), (105, 4)]);
    assert_eq!(gaps(&boot_of(&[1, 5, 2])), [(105, 3 + 4)]);
    assert_eq!(gaps(&boot_of(&[1, 5, 4])), [(104, 2 + 3)]);
    assert_eq!(gaps(&boot_of(&[1, 5, 4, 2, 3])), []);
    assert_eq!(boot_of(&[5, 3, 4, 1, 2]).runs.len(), 1);
}

#[test]
fn a_batch_is_known_again() {
    let boot = boot_of(&[1, 2, 5]);
    for seq in [1, 2, 5] {
        assert_eq!(boot.judge(&stamp(seq)), Ok(Fit::Known));
    }
    assert_eq!(boot.judge(&stamp(4)), Ok(Fit::New));
}

#[test]
fn decisions_that_no_batch_ever_held_are_missing_too() {
    let mut boot = boot_of(&[1]);
    let mut next = stamp(2);
    next.since_boot.decisions += 10;
    boot.take(&next);
    assert_eq!(gaps(&boot), [(102, 10)]);
}

#[test]
fn counters_that_run_back_are_refused() {
    let boot = boot_of(&[3, 6]);
    let mut low = stamp(4);
    low.since_boot.decisions = 4;
    assert_eq!(boot.judge(&low), Err(Contradiction::Counters(4, 3)));
    let mut high = stamp(5);
    high.since_boot.decisions += 1;
    assert_eq!(boot.judge(&high), Err(Contradiction::Counters(5, 6)));
}

#[test]
fn nothing_comes_after_the_last_batch() {
    let mut boot = boot_of(&[1, 2]);
    let last = |seq| Stamp { last: true, ..stamp(seq) };
    boot.take(&last(4));
    assert_eq!(boot.judge(&stamp(5)), Err(Contradiction::AfterLast(5, 4)));
    assert_eq!(boot.judge(&stamp(3)), Ok(Fit::New));
    assert_eq!(boot_of(&[1, 5]).judge(&last(4)), Err(Contradiction::AfterLast(5, 4)));
}

#[test]
fn a_process_that_falls_silent_is_charged_twice_its_peak_until_it_speaks_again() {
    let mut boot = boot_of(&[1, 2, 3]);
    let late = 3_000 + SILENT_MS + 1;
    let lost = |boot: &Boot, now| boot.losses(now).map(|loss| loss.decisions).sum::<u64>();
    assert_eq!(lost(&boot, late - 1), 0);
    assert_eq!(lost(&boot, late), 2 * 3);
    boot.take(&Stamp { arrived_ms: late, ..stamp(4) });
    assert_eq!(lost(&boot, late), 0);
    boot.take(&Stamp { last: true, ..stamp(5) });
    assert_eq!(lost(&boot, late * 10), 0);
}

#[test]
fn the_peak_is_that_of_the_last_minute_and_sees_lost_batches() {
    let mut boot = Boot::new();
    let mut since_boot = Amount::default();
    for seq in 1..=100 {
        let own = Amount { decisions: if seq == 30 { 1_000 } else { 5 }, records: 0 };
        since_boot.decisions += own.decisions;
        boot.take(&Stamp { since_boot, own, ..stamp(seq) });
    }
    assert_eq!(boot.peak(), 5);
    since_boot.decisions += 80 + 5; // batches 101 and 102 are lost, 103 comes
    boot.take(&Stamp { since_boot, own: Amount { decisions: 5, records: 0 }, ..stamp(103) });
    assert_eq!(boot.peak(), 41);
}

#[test]
fn too_many_gaps_stay_charged() {
    let odd = || (1..=2 * u64::try_from(RUNS_MAX).unwrap() + 99).step_by(2);
    let boot = boot_of(&odd().collect::<Vec<_>>());
    assert_eq!(boot.runs.len(), RUNS_MAX);
    let lost: u64 = gaps(&boot).iter().map(|(_, decisions)| decisions).sum();
    assert_eq!(lost, odd().skip(1).map(|seq| seq - 1).sum::<u64>());
    assert_eq!(boot.judge(&stamp(2)), Ok(Fit::Known), "it can heal no more");
}

#[test]
fn old_gaps_are_forgotten_and_new_ones_kept() {
    let mut boot = boot_of(&[2, 4, 6]);
    assert!(boot.forget(4_001));
    assert_eq!(gaps(&boot), [(106, 5)]);
    assert!(!boot.forget(4_001));
}

#[test]
fn a_written_process_reads_as_it_was() {
    let boot = boot_of(&[2, 4, 6]);
    let text = serde_json::to_string(&boot).unwrap();
    assert_eq!(serde_json::from_str::<Boot>(&text).unwrap(), boot);
}
