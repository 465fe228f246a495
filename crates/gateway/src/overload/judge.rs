//! From waits to a bound (pure): when a worker has too much, and how many requests it may have
//! under way then.
//!
//! Overload is a wait above the target at every look of a whole interval. The first bound is the
//! part of what is under way that would have met the target; after that a tenth less while one of
//! the last looks was late and a tenth more while none was, so that the wait settles at the target and the
//! worker is never without work. It ends when nothing had to be refused for an interval.
//!
//! Refusing takes time too. Where refusals alone make a worker late, a smaller bound would only
//! turn what could be served into more refusals: beyond a part of the worker's time they count as
//! what they are, and the bound grows instead.

use std::time::Duration;

use tokio::time::Instant;

use crate::config::OverloadRules;

/// Fewest late looks in a row: a pause of the whole process is one look, however long, and what it
/// left behind another one or two.
const LATE_LOOKS_MIN: u32 = 4;
/// Fewest in which the worker was at work most of the time: no pause looks like that. At many times
/// the capacity each turn is many times as long as the last, so that a third would be too late.
const BUSY_LOOKS_MIN: u32 = 2;
/// A request passes its worker about so often, and those that came together go on together: its
/// waits differ, and the longest of so many looks counts.
const PASSES: usize = 4;
/// So many may always be under way: where fewer wait, it is not their number that makes them wait.
const ROOM_MIN: usize = 8;
/// The bound moves by a part of itself.
const STEP: usize = 10;
/// About what a refusal takes; only its order of magnitude matters.
const REFUSAL: Duration = Duration::from_micros(10);
/// The part of its time that a worker may spend on refusals.
const REFUSING_MAX: u32 = 4;

/// One look.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// When.
    pub now: Instant,
    /// How long a turn took to come.
    pub delay: Duration,
    /// For how much of it the worker was on a processor.
    pub worked: Duration,
    /// Requests under way.
    pub under_way: usize,
    /// Requests refused so far.
    pub shed: u64,
}

/// Remembers earlier looks.
#[derive(Debug)]
pub(super) struct Judge {
    rules: OverloadRules,
    late_since: Option<Instant>,
    late_looks: u32,
    /// Those of them in which the worker was at work.
    busy_looks: u32,
    /// The last waits, in no order.
    waits: [Duration; PASSES],
    looks: usize,
    shedding: Option<Shedding>,
}

#[derive(Debug, Clone, Copy)]
struct Shedding {
    room: usize,
    looked: Instant,
    shed: u64,
    last_shed: Instant,
    /// What refusals took of the time that passed, both fading away.
    refusing: Duration,
    passed: Duration,
}

impl Judge {
    /// Who has seen nothing yet.
    pub(super) fn new(rules: OverloadRules) -> Judge {
        let waits = [Duration::ZERO; PASSES];
        Judge {
            rules,
            late_since: None,
            late_looks: 0,
            busy_looks: 0,
            waits,
            looks: 0,
            shedding: None,
        }
    }

    /// Most requests under way from now on; `None` if there is no overload.
    pub(super) fn look(&mut self, seen: &Seen) -> Option<usize> {
        let late = self.rules.target < seen.delay;
        if late {
            let busy = seen.delay < seen.worked.saturating_mul(2);
            self.late_looks = self.late_looks.saturating_add(1);
            self.busy_looks = self.busy_looks.saturating_add(u32::from(busy));
            self.late_since.get_or_insert(seen.now);
        } else {
            (self.late_looks, self.busy_looks, self.late_since) = (0, 0, None);
        }
        if let Some(wait) = self.waits.get_mut(self.looks % PASSES) {
            *wait = seen.delay;
        }
        self.looks = self.looks.wrapping_add(1);
        let late = self.waits.iter().any(|wait| self.rules.target < *wait);
        self.shedding = match self.shedding {
            None => self.begun(seen),
            Some(shedding) => self.moved(shedding, seen, late),
        };
        self.shedding.map(|shedding| shedding.room)
    }

    fn begun(&self, seen: &Seen) -> Option<Shedding> {
        let late_for = seen.now.duration_since(self.late_since?);
        let few = seen.under_way <= ROOM_MIN;
        let seldom = self.late_looks < LATE_LOOKS_MIN && self.busy_looks < BUSY_LOOKS_MIN;
        if few || seldom || late_for < self.rules.interval {
            return None;
        }
        let room = part(seen.under_way, self.rules.target, seen.delay).max(ROOM_MIN);
        tracing::warn!(delay_ms = millis(seen.delay), room, "overload: the worker sheds requests");
        Some(Shedding {
            room,
            looked: seen.now,
            shed: seen.shed,
            last_shed: seen.now,
            refusing: Duration::ZERO,
            passed: Duration::ZERO,
        })
    }

    fn moved(&self, before: Shedding, seen: &Seen, late: bool) -> Option<Shedding> {
        let refused = seen.shed.saturating_sub(before.shed);
        let last_shed = if refused > 0 { seen.now } else { before.last_shed };
        if !late && self.rules.interval <= seen.now.duration_since(last_shed) {
            tracing::info!("the worker keeps up again and sheds no more");
            return None;
        }
        // Those that came during a long turn are refused in the next one: only a few looks together
        // tell the share.
        let fading = |time: Duration| time * 3 / 4;
        let refusing = fading(before.refusing)
            + REFUSAL.saturating_mul(u32::try_from(refused).unwrap_or(u32::MAX));
        let passed = fading(before.passed) + seen.now.duration_since(before.looked);
        let helps = refusing.saturating_mul(REFUSING_MAX) <= passed;
        let room = if late && helps {
            let room = before.room.min(seen.under_way);
            room.saturating_sub(room.div_ceil(STEP)).max(ROOM_MIN)
        } else {
            // Those that wait for a slow service use no time of the worker: they take no room.
            let room = before.room.max(seen.under_way);
            room.saturating_add(room.div_ceil(STEP))
        };
        Some(Shedding { room, looked: seen.now, shed: seen.shed, last_shed, refusing, passed })
    }
}

/// `whole × small ÷ large`.
fn part(whole: usize, small: Duration, large: Duration) -> usize {
    let (whole, small) = (u128::try_from(whole).unwrap_or(u128::MAX), small.as_micros());
    let part = whole.saturating_mul(small) / large.as_micros().max(1);
    usize::try_from(part).unwrap_or(usize::MAX)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const RULES: OverloadRules =
        OverloadRules { target: Duration::from_millis(5), interval: Duration::from_millis(100) };

    /// Looks one after the other, each as far from the last as its wait and the pause.
    struct Looks {
        judge: Judge,
        now: Instant,
        shed: u64,
        /// In each wait; all of it if not told.
        worked: Option<Duration>,
    }

    impl Looks {
        #[expect(clippy::disallowed_methods, reason = "any beginning will do")]
        fn new() -> Looks {
            let now = std::time::Instant::now().into();
            Looks { judge: Judge::new(RULES), now, shed: 0, worked: None }
        }

        fn look(&mut self, delay: Duration, under_way: usize, refused: u64) -> Option<usize> {
            self.now += delay + 5 * MS;
            self.shed += refused;
            let (now, shed, worked) = (self.now, self.shed, self.worked.unwrap_or(delay));
            self.judge.look(&Seen { now, delay, worked, under_way, shed })
        }

        fn overloaded(delay: Duration, under_way: usize) -> (Looks, usize) {
            let mut looks = Looks::new();
            let room = (0..1_000).find_map(|_| looks.look(delay, under_way, 0));
            (looks, room.expect("it is overload at last"))
        }
    }

    #[test]
    fn a_pause_of_the_machine_is_no_overload() {
        let mut looks = Looks::new();
        for _hour in 0..100 {
            looks.worked = Some(MS);
            assert_eq!(looks.look(3_000 * MS, 500, 0), None, "one late look");
            assert_eq!(looks.look(40 * MS, 500, 0), None, "another one");
            looks.worked = None;
            assert_eq!(looks.look(400 * MS, 500, 0), None, "and what they left behind");
            assert_eq!(looks.look(MS, 50, 0), None);
        }
    }

    #[test]
    fn a_second_long_turn_full_of_work_is_overload_and_a_machine_that_gives_no_time_is_at_last() {
        let begun = |worked| {
            let mut looks = Looks::new();
            looks.worked = worked;
            (1..100).find(|_| looks.look(150 * MS, 400, 0).is_some())
        };
        assert_eq!(begun(None), Some(2));
        assert_eq!(begun(Some(10 * MS)), Some(4));
    }

    #[test]
    fn one_short_wait_in_each_interval_is_enough() {
        let mut looks = Looks::new();
        for look in 0..1_000 {
            let delay = if look % 8 == 0 { 4 * MS } else { 8 * MS };
            assert_eq!(looks.look(delay, 100, 0), None, "look {look}");
        }
    }

    #[test]
    fn waits_that_are_never_short_are_overload_and_the_bound_keeps_what_meets_the_target() {
        let (_, room) = Looks::overloaded(20 * MS, 400);
        assert_eq!(room, 100);
        let (mut looks, room) = Looks::overloaded(20 * MS, 20);
        assert_eq!(room, ROOM_MIN, "some always pass");
        assert_eq!(looks.look(20 * MS, room, 5), Some(ROOM_MIN));
    }

    #[test]
    fn a_few_that_wait_long_are_no_overload() {
        let mut looks = Looks::new();
        for _ in 0..100 {
            assert_eq!(looks.look(50 * MS, ROOM_MIN, 0), None);
        }
    }

    #[test]
    fn the_bound_settles_where_the_wait_is_the_target() {
        // Each request under way makes others wait for a tenth of a millisecond.
        for begin in [60, 1_000, 20_000] {
            let (mut looks, mut room) = Looks::overloaded(MS * begin / 10, begin as usize);
            let mut rooms = Vec::new();
            for _ in 0..400 {
                let under_way = room.min(100_000);
                let delay = MS * u32::try_from(under_way).unwrap() / 10;
                room = looks.look(delay, under_way, 5).expect("there is still too much");
                rooms.push(room);
            }
            let settled = &rooms[200..];
            let (least, most) = (settled.iter().min().unwrap(), settled.iter().max().unwrap());
            assert!(30 <= *least && *most <= 60, "{least} to {most}, after {begin}");
        }
    }

    #[test]
    fn it_ends_when_nothing_had_to_be_refused_for_a_while() {
        let (mut looks, _) = Looks::overloaded(20 * MS, 400);
        assert!(looks.look(MS, 20, 3).is_some());
        let mut left = 0;
        while looks.look(MS, 20, 0).is_some() {
            left += 1;
            assert!(left < 100, "it does not end");
        }
        assert!(left >= 10, "it ended after {left} looks of 6 ms");
        assert_eq!(looks.look(20 * MS, 400, 0), None, "one late look does not begin it again");
    }

    #[test]
    fn those_that_wait_for_a_slow_service_do_not_shut_others_out() {
        let (mut looks, room) = Looks::overloaded(10 * MS, 5_000);
        assert_eq!(room, 2_500);
        for _ in 0..PASSES {
            looks.look(MS, 5_000, 50);
        }
        let room = looks.look(MS, 5_000, 50).expect("something was refused just now");
        assert!(5_000 < room, "{room}");
    }

    #[test]
    fn where_refusing_alone_makes_it_late_more_is_served_instead() {
        let (mut looks, room) = Looks::overloaded(20 * MS, 400);
        // 1,000 refusals of 10 µs in 25 ms.
        let more = looks.look(20 * MS, room, 1_000).unwrap();
        assert!(room < more, "{room}, then {more}");
        let last = (0..20).fold(more, |room, _| looks.look(20 * MS, room, 100).unwrap());
        assert!(last < more, "{more}, then {last}");
    }
}
