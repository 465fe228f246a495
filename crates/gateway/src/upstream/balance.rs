//! Which endpoint: the less loaded of two random ones among the usable (pure).
//!
//! Two random choices keep load even without comparing all, and do not send everybody to the one
//! that just came back. If none is usable all are used (panic): a health check that is wrong about
//! everything must not take a service down that still answers.

/// An endpoint as the balancer sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Load {
    /// Healthy and not ejected.
    pub usable: bool,
    /// Requests out now.
    pub in_flight: usize,
}

/// The choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Index of the endpoint.
    pub index: usize,
    /// No endpoint was usable, so all were candidates.
    pub panic: bool,
}

/// Chooses among `loads`, without `tried` if there is another. `random(n)` is below `n`.
pub(crate) fn choose(
    loads: impl Iterator<Item = Load> + Clone,
    tried: Option<usize>,
    mut random: impl FnMut(usize) -> usize,
) -> Option<Choice> {
    let any_usable = loads.clone().any(|load| load.usable);
    let candidates = loads
        .enumerate()
        .filter(|(index, load)| (load.usable || !any_usable) && Some(*index) != tried)
        .map(|(index, load)| (index, load.in_flight));
    let count = candidates.clone().count();
    let first = match count {
        0 => return None,
        1 => 0,
        _ => random(count),
    };
    let (index, in_flight) = candidates.clone().nth(first)?;
    let mut choice = Choice { index, panic: !any_usable };
    if count > 1 {
        let second = (first + 1 + random(count - 1)) % count;
        let (other, other_in_flight) = candidates.clone().nth(second)?;
        if other_in_flight < in_flight {
            choice.index = other;
        }
    }
    Some(choice)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up(in_flight: usize) -> Load {
        Load { usable: true, in_flight }
    }

    fn down(in_flight: usize) -> Load {
        Load { usable: false, in_flight }
    }

    fn tally(loads: &[Load], tried: Option<usize>) -> Vec<u32> {
        let mut random = fastrand::Rng::with_seed(7);
        let mut counts = vec![0; loads.len()];
        for _ in 0..3_000 {
            let choice =
                choose(loads.iter().copied(), tried, |n| random.usize(..n)).expect("there is one");
            counts[choice.index] += 1;
        }
        counts
    }

    #[test]
    fn equal_loads_share_evenly() {
        for count in tally(&[up(0), up(0), up(0)], None) {
            assert!((800..1_200).contains(&count), "{count}");
        }
    }

    #[test]
    fn of_two_the_less_loaded_is_taken_always() {
        assert_eq!(tally(&[up(3), up(2)], None), [0, 3_000]);
    }

    #[test]
    fn the_most_loaded_of_three_is_never_taken() {
        let counts = tally(&[up(9), up(1), up(1)], None);
        assert_eq!(counts[0], 0);
    }

    #[test]
    fn unusable_ones_are_left_out_until_none_is_usable() {
        assert_eq!(tally(&[down(0), up(5)], None), [0, 3_000]);
        let all_down = [down(0), down(0)];
        assert!(tally(&all_down, None).iter().all(|count| *count > 1_000));
        let choice = choose(all_down.iter().copied(), None, |_| 0).unwrap();
        assert!(choice.panic);
    }

    #[test]
    fn a_second_try_goes_elsewhere_or_nowhere() {
        assert_eq!(tally(&[up(0), up(9)], Some(0)), [0, 3_000]);
        assert_eq!(choose([up(0)].into_iter(), Some(0), |_| 0), None);
        assert_eq!(choose([].into_iter(), None, |_| 0), None);
    }
}
