//! One bucket, two gateways and what is on its way between them, small enough to be counted out.
//!
//! A tick is the time of half a token, so that levels have a fraction. Tokens of the ledgers are
//! counted in halves for the same reason.

use limiter_core::bucket::State;
use limiter_core::{
    Capacity, GENERATION_US, Level, Levels, Limit, LimitError, Limits, PlanNumbers, PlanVersion,
    RefillRate, Timestamp,
};

/// Gateways.
pub(crate) const GATEWAYS: usize = 2;
/// Start of a generation, far from 1970.
const BASE_US: u64 = 1_800_000_000_000_000;
/// What a dead stamp is counted as.
pub(crate) const DEAD: i8 = -3;

/// A moment, in ticks since the world began.
pub type Tick = u16;

/// The bucket's numbers, and at which moments of a generation things happen.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// The plan.
    pub plan: PlanNumbers,
    /// Microseconds of half a token.
    pub tick_us: u64,
    /// Ticks of a generation.
    pub generation: Tick,
}

impl Scale {
    /// A bucket of `capacity` tokens that fills in 100 ms: the smallest that lends `capacity / 4`.
    pub fn new(capacity: u64) -> Result<Scale, LimitError> {
        let limit = Limit::new(Capacity::new(capacity)?, RefillRate::per_second(10 * capacity)?)?;
        let plan = PlanNumbers { version: PlanVersion(2), limits: Limits::burst_only(limit) };
        let tick_us = 50_000 / capacity;
        let generation = Tick::try_from(GENERATION_US / tick_us).unwrap_or(Tick::MAX);
        Ok(Scale { plan, tick_us, generation })
    }

    /// The capacity.
    pub fn capacity(&self) -> i16 {
        i16::try_from(self.plan.limits.burst.capacity().get()).unwrap_or(i16::MAX)
    }

    /// Store time of a tick.
    pub fn time(&self, tick: Tick) -> Timestamp {
        Timestamp::from_us(BASE_US + u64::from(tick) * self.tick_us)
    }

    /// The tick of a store time.
    pub fn tick(&self, time: Timestamp) -> Tick {
        Tick::try_from(time.us().saturating_sub(BASE_US) / self.tick_us).unwrap_or(Tick::MAX)
    }

    /// Generation of the world's own count: 0 for the first.
    pub fn stamp(&self, tick: Tick) -> i8 {
        i8::try_from(tick / self.generation).unwrap_or(i8::MAX)
    }

    /// A stamp as the store spells it.
    pub fn generation_of(&self, stamp: i8) -> u64 {
        (BASE_US / GENERATION_US).saturating_add_signed(i64::from(stamp))
    }

    /// The store's spelling as a stamp.
    pub fn stamp_of(&self, generation: u64) -> i8 {
        let since = generation.cast_signed() - (BASE_US / GENERATION_US).cast_signed();
        i8::try_from(since).unwrap_or(DEAD)
    }
}

/// What the store keeps, in small numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Kept {
    pub(crate) at: Tick,
    pub(crate) level: i8,
    /// Whether half a token is earned beyond the level.
    pub(crate) half: bool,
    pub(crate) lent_now: u8,
    pub(crate) lent_before: u8,
    pub(crate) granted: u16,
    /// Since the world began; what was created then has 0.
    pub(crate) incarnation: u32,
}

impl Kept {
    /// As the arithmetic wants it.
    pub(crate) fn state(&self, scale: &Scale) -> State {
        let remainder = if self.half { scale.tick_us } else { 0 };
        let burst = Level { tokens: i64::from(self.level), remainder };
        State {
            at: scale.time(self.at),
            levels: Levels { burst, sustained: Level::default() },
            generation: scale.generation_of(scale.stamp(self.at)),
            lent_now: u64::from(self.lent_now),
            lent_before: u64::from(self.lent_before),
            granted_total: u64::from(self.granted),
            incarnation: BASE_US + u64::from(self.incarnation),
            plan: scale.plan,
        }
    }

    /// From what the arithmetic has made.
    pub(crate) fn of(state: &State, scale: &Scale) -> Result<Kept, String> {
        let Level { tokens, remainder } = state.levels.burst;
        if remainder != 0 && remainder != scale.tick_us {
            return Err(format!("a remainder of {remainder} cannot be: time goes in half tokens"));
        }
        let narrow = |_out_of_range| format!("beyond a small world: {state:?}");
        Ok(Kept {
            at: scale.tick(state.at),
            level: i8::try_from(tokens).map_err(narrow)?,
            half: remainder > 0,
            lent_now: u8::try_from(state.lent_now).map_err(narrow)?,
            lent_before: u8::try_from(state.lent_before).map_err(narrow)?,
            granted: u16::try_from(state.granted_total).map_err(narrow)?,
            incarnation: u32::try_from(state.incarnation.saturating_sub(BASE_US))
                .map_err(narrow)?,
        })
    }
}

/// A call on its way to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ask {
    pub(crate) sent: Tick,
    pub(crate) need: u8,
    pub(crate) wants_lease: bool,
    /// Stamp, counted, held, returned.
    pub(crate) lease: Option<(i8, u8, u8, u8)>,
    pub(crate) unused: u8,
    pub(crate) witness: Option<Testimony>,
}

/// A reply on its way back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Answer {
    pub(crate) granted: u8,
    pub(crate) lent: u8,
    pub(crate) counted: u8,
    pub(crate) stamp: i8,
    /// Until when the gateway may spend what it holds then.
    pub(crate) deadline: Tick,
    pub(crate) lease_dead: bool,
    pub(crate) saw: Option<Testimony>,
}

/// What a gateway remembers of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Testimony {
    pub(crate) at: Tick,
    pub(crate) level: i8,
    pub(crate) granted: u16,
    pub(crate) incarnation: u32,
}

/// One of the two calls that a gateway may have out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Lane {
    /// Nothing is out.
    #[default]
    Idle,
    /// The request travels.
    Asked(Ask),
    /// The store has acted; the reply travels.
    Answered(Answer),
}

/// A gateway: what it holds, what it believes that the store counts as its own, and its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Gateway {
    pub(crate) held: u8,
    pub(crate) deadline: Tick,
    pub(crate) counted: u8,
    pub(crate) stamp: i8,
    /// Tokens granted to requests that had gone: to be given back, never to be spent.
    pub(crate) unused: u8,
    pub(crate) main: Lane,
    pub(crate) beside: Lane,
    pub(crate) witness: Option<Testimony>,
}

/// What may still happen, and how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Calls of the gateways.
    pub calls: u8,
    /// Steps of time.
    pub waits: u8,
    /// Others taking all there is.
    pub bursts: u8,
    /// Lost calls and crashed gateways.
    pub faults: u8,
    /// Copies of a call that the store executes as well.
    pub duplicates: u8,
    /// The store returning to an earlier state, or to none.
    pub losses: u8,
}

/// After a loss of data: what must hold once the witnesses have spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Loss {
    /// What each gateway remembered then.
    pub(crate) memories: [Memory; GATEWAYS],
    /// Tokens given back since.
    pub(crate) given_back: u8,
}

/// What a gateway knew of the store before the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Memory {
    pub(crate) seen: Option<Testimony>,
    /// Whether it has called since.
    pub(crate) heard: bool,
}

/// Everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct World {
    pub(crate) now: Tick,
    pub(crate) store: Option<Kept>,
    pub(crate) gateways: [Gateway; GATEWAYS],
    /// A request whose sender no longer waits for the answer.
    pub(crate) stray: Option<Ask>,
    /// An exact bucket, debited when need is granted and when a lease is spent. Half tokens.
    pub(crate) exact: i16,
    /// An exact bucket, debited when requests are really admitted. Half tokens.
    pub(crate) admitted: i16,
    /// By how much the store may have forgotten what was taken. Half tokens.
    pub(crate) forgotten: i16,
    pub(crate) saved: Option<Kept>,
    pub(crate) loss: Option<Loss>,
    pub(crate) left: Budget,
}
