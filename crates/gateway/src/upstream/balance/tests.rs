//! Every balancer keeps to weights, leaves out who is unwell or full, and panics as it says.

use super::*;

fn up(in_flight: u64) -> Load {
    Load { usable: true, has_room: true, in_flight, weight: 1, ramped: 100, id: in_flight }
}

fn down(in_flight: u64) -> Load {
    Load { usable: false, ..up(in_flight) }
}

fn heavy(weight: u64) -> Load {
    Load { weight, ramped: weight * 100, ..up(0) }
}

fn tally_by(loads: &[Load], tried: &[usize], pick: impl Fn(u64) -> Pick) -> Vec<u32> {
    let mut random = fastrand::Rng::with_seed(7);
    let mut counts = vec![0; loads.len()];
    for number in 0..3_000 {
        let loads = loads.iter().copied();
        let choice = choose(loads, 0, tried, pick(number), |n| random.u64(..n)).unwrap();
        counts[choice.index] += 1;
    }
    counts
}

fn tally(loads: &[Load], tried: &[usize]) -> Vec<u32> {
    tally_by(loads, tried, |_| Pick::Least)
}

#[test]
fn equal_loads_share_evenly() {
    for count in tally(&[up(0), up(0), up(0)], &[]) {
        assert!((800..1_200).contains(&count), "{count}");
    }
}

#[test]
fn of_two_the_less_loaded_is_taken_always() {
    assert_eq!(tally(&[up(3), up(2)], &[]), [0, 3_000]);
    // Three of weight three is less than two of weight one.
    assert_eq!(tally(&[Load { in_flight: 3, ..heavy(3) }, up(2)], &[]), [3_000, 0]);
}

#[test]
fn the_most_loaded_of_three_is_never_taken() {
    let counts = tally(&[up(9), up(1), up(1)], &[]);
    assert_eq!(counts[0], 0);
}

#[test]
fn idle_endpoints_are_taken_by_weight() {
    let counts = tally(&[heavy(3), heavy(1)], &[]);
    assert!(counts[0].abs_diff(2_250) < 150, "{counts:?}");
    let starting = Load { ramped: 10, ..up(0) };
    let counts = tally(&[up(0), starting], &[]);
    assert!(counts[1].abs_diff(3_000 / 11) < 80, "{counts:?}");
}

#[test]
fn in_turn_means_each_one_as_often_as_its_weight() {
    let order = |loads: &[Load], count: u64| -> Vec<usize> {
        let one = |turn| choose(loads.iter().copied(), 0, &[], Pick::Turn(turn), |_| 0).unwrap();
        (0..count).map(|turn| one(turn).index).collect()
    };
    let three = order(&[up(0), up(5), up(9)], 6);
    assert_eq!(three[..3], three[3..], "the same order again");
    let mut once = three[..3].to_vec();
    once.sort_unstable();
    assert_eq!(once, [0, 1, 2]);
    for weights in [&[1, 2][..], &[5, 1, 1], &[100, 1], &[7, 3, 2, 9]] {
        let loads: Vec<Load> = weights.iter().map(|weight| heavy(*weight)).collect();
        let places: u64 = weights.iter().sum();
        let order = order(&loads, 3 * places);
        for start in 0..usize::try_from(places).unwrap() {
            let window = &order[start..start + usize::try_from(places).unwrap()];
            for (index, weight) in weights.iter().enumerate() {
                let turns = window.iter().filter(|taken| **taken == index).count() as u64;
                assert_eq!(turns, *weight, "{weights:?} from {start}");
            }
        }
    }
    // The heavy one does not come five times in a row.
    assert!(order(&[heavy(2), heavy(2), heavy(1)], 5).windows(2).all(|pair| pair[0] != pair[1]));
}

#[test]
fn unusable_ones_are_left_out_until_none_is_usable() {
    for pick in [|_| Pick::Least, Pick::Turn, Pick::Key] {
        assert_eq!(tally_by(&[down(0), up(5)], &[], pick), [0, 3_000]);
    }
    let all_down = [down(0), Load { ramped: 10, ..down(0) }];
    assert!(tally(&all_down, &[]).iter().all(|count| *count > 1_000), "also who just came back");
    let choice = choose(all_down.iter().copied(), 0, &[], Pick::Least, |_| 0).unwrap();
    assert!(choice.panic);
}

#[test]
fn below_the_share_of_usable_ones_all_are_used() {
    let panics = |loads: &[Load], percent: usize| {
        choose(loads.iter().copied(), percent, &[], Pick::Least, |_| 0).unwrap().panic
    };
    let one_of_three = [up(0), down(0), down(0)];
    assert!(!panics(&one_of_three, 0) && !panics(&one_of_three, 33));
    assert!(panics(&one_of_three, 34) && panics(&one_of_three, 100));
    assert!(!panics(&[up(0), up(0)], 100));
}

#[test]
fn a_second_try_goes_elsewhere_or_nowhere() {
    assert_eq!(tally(&[up(0), up(9)], &[0]), [0, 3_000]);
    let none = |loads: &[Load]| choose(loads.iter().copied(), 0, &[0], Pick::Least, |_| 0);
    assert_eq!(none(&[up(0)]), Err(NoChoice::Nobody));
    assert_eq!(none(&[]), Err(NoChoice::Nobody));
}

#[test]
fn full_ones_are_passed_over_and_all_full_is_told() {
    let full = Load { has_room: false, ..up(0) };
    for pick in [|_| Pick::Least, Pick::Turn, Pick::Key] {
        assert_eq!(tally_by(&[full, up(7)], &[], pick), [0, 3_000]);
    }
    let all = [full, full];
    assert_eq!(choose(all.iter().copied(), 0, &[], Pick::Least, |_| 0), Err(NoChoice::Full));
    // Room at somebody who is down is no room.
    let well_is_full = [full, down(0)];
    let chosen = choose(well_is_full.iter().copied(), 0, &[], Pick::Least, |_| 0);
    assert_eq!(chosen, Err(NoChoice::Full));
}
