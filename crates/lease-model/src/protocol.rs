//! What may happen to a lease, as steps between worlds, each with the real arithmetic at the
//! store. The gateway is written from the protocol, not from the limiter's code: what it does here
//! is what any gateway may do, in any order and with any delay.

use limiter_core::testkit::mutants::Apply;
use limiter_core::{Found, LeaseReport, Reply, Request, Witness};

use crate::explore::Model;
use crate::promise;
use crate::step::{Aim, Step, Which};
use crate::world::{
    Answer, Ask, Budget, DEAD, GATEWAYS, Gateway, Kept, Lane, Loss, Memory, Scale, Testimony, Tick,
    World,
};

/// The protocol, and which part of it is explored.
#[derive(Debug, Clone, Copy)]
pub struct Protocol {
    /// The bucket.
    pub scale: Scale,
    /// Moments of a generation, in ticks from its start.
    pub moments: &'static [Tick],
    /// Whether gateways have a second call, and give back what nobody took.
    pub beside: bool,
    /// Whether a request may travel on when its sender has given it up.
    pub strays: bool,
    /// Whether gateways testify.
    pub witnesses: bool,
    /// What may happen how often.
    pub budget: Budget,
    /// What a copied call may cost, in half tokens for each copy.
    pub duplicate_costs: i16,
    /// The arithmetic.
    pub apply: Apply,
}

impl Model for Protocol {
    type State = World;
    type Action = Step;

    fn start(&self) -> World {
        let full = 2 * self.scale.capacity();
        World {
            now: 0,
            store: None,
            gateways: [Gateway::default(); GATEWAYS],
            stray: None,
            exact: full,
            admitted: full,
            forgotten: 0,
            saved: None,
            loss: None,
            left: self.budget,
        }
    }

    fn actions(&self, world: &World, into: &mut Vec<Step>) {
        let left = world.left;
        if left.waits > 0 {
            into.push(Step::Wait);
        }
        for (at, gateway) in world.gateways.iter().enumerate() {
            self.gateway_actions(world, at, gateway, into);
        }
        if world.stray.is_some() {
            into.push(Step::ArriveStray);
        }
        if left.bursts > 0 {
            into.push(Step::Burst);
        }
        if left.losses > 0 && world.store.is_some() {
            into.push(Step::Flush);
            if world.saved.is_none() {
                into.push(Step::Save);
            } else if world.saved != world.store {
                into.push(Step::RollBack);
            }
        }
    }

    /// The fuller an exact bucket, the farther from a broken promise.
    fn ranked(&self, world: &World) -> (World, i16) {
        let admitted = if self.beside { world.admitted - world.exact } else { 0 };
        (World { exact: 0, admitted, ..*world }, world.exact)
    }

    fn next(&self, world: &World, step: Step) -> Result<World, String> {
        let mut next = *world;
        self.act(&mut next, step)?;
        self.tidy(&mut next);
        promise::check(self, &next)?;
        Ok(next)
    }
}

impl Protocol {
    /// Steps that change nothing but their own gateway are put off until they matter: a lease is
    /// spent, and a reply heard, when the gateway calls next. An exact bucket that is debited later
    /// is never fuller, and what a reply brings counts as spendable before it is heard.
    fn gateway_actions(&self, world: &World, at: usize, gateway: &Gateway, into: &mut Vec<Step>) {
        let left = world.left;
        if left.calls > 0 && gateway.main == Lane::Idle {
            let spendable = if world.now < gateway.deadline { gateway.held } else { 0 };
            for spent in 0..=spendable {
                into.push(Step::Call(at, Which::Main, Aim::NeedAndLease, spent));
                into.push(Step::Call(at, Which::Main, Aim::Lease, spent));
                if gateway.held > 0 || gateway.counted > 0 {
                    into.push(Step::Call(at, Which::Main, Aim::Return, spent));
                }
            }
        }
        if self.beside && gateway.beside == Lane::Idle && left.calls > 0 {
            if gateway.main != Lane::Idle {
                into.push(Step::Call(at, Which::Beside, Aim::Need, 0));
            }
            if gateway.unused > 0 {
                into.push(Step::Call(at, Which::Beside, Aim::Return, 0));
            }
        }
        for (which, lane) in [(Which::Main, gateway.main), (Which::Beside, gateway.beside)] {
            match lane {
                Lane::Idle => continue,
                Lane::Asked(_) => {
                    into.push(Step::Arrive(at, which));
                    if left.duplicates > 0 {
                        into.push(Step::Duplicate(at, which));
                    }
                    let may_stray = self.strays && which == Which::Main && world.stray.is_none();
                    // A request that travels on may also never arrive.
                    if left.faults > 0 && may_stray {
                        into.push(Step::Abandon(at));
                    }
                }
                Lane::Answered(answer) => {
                    if left.calls > 0 || self.beside {
                        into.push(Step::Deliver(at, which));
                    }
                    if answer.granted > 0 && self.beside {
                        into.push(Step::DeliverToNobody(at, which));
                    }
                    if left.faults > 0 {
                        into.push(Step::Lose(at, which));
                    }
                }
            }
        }
        if left.faults > 0 && *gateway != Gateway::default() {
            into.push(Step::Crash(at));
        }
    }

    fn act(&self, world: &mut World, step: Step) -> Result<(), String> {
        match step {
            Step::Wait => self.wait(world),
            Step::Call(at, which, aim, spent) => {
                spend(&mut world.left.calls);
                let now = world.now;
                gateway(world, at).held -= spent;
                world.exact -= 2 * i16::from(spent);
                world.admitted -= 2 * i16::from(spent);
                let ask = self.ask(gateway(world, at), which, aim, now);
                *lane(gateway(world, at), which) = Lane::Asked(ask);
            }
            Step::Arrive(at, which) => {
                if let Lane::Asked(ask) = *lane(gateway(world, at), which) {
                    let answer = self.arrive(world, &ask, Some(at))?;
                    *lane(gateway(world, at), which) = Lane::Answered(answer);
                }
            }
            Step::Duplicate(at, which) => {
                spend(&mut world.left.duplicates);
                if let Lane::Asked(ask) = *lane(gateway(world, at), which) {
                    let _to_nobody = self.arrive(world, &ask, Some(at))?;
                    world.forgotten += self.duplicate_costs;
                }
            }
            Step::Deliver(at, which) => deliver(world, at, which, true),
            Step::DeliverToNobody(at, which) => deliver(world, at, which, false),
            Step::Lose(at, which) => {
                spend(&mut world.left.faults);
                give_up(gateway(world, at), which);
            }
            Step::Abandon(at) => {
                spend(&mut world.left.faults);
                if let Lane::Asked(ask) = gateway(world, at).main {
                    world.stray = Some(ask);
                }
                give_up(gateway(world, at), Which::Main);
            }
            Step::ArriveStray => {
                if let Some(ask) = world.stray.take() {
                    let _to_nobody = self.arrive(world, &ask, None)?;
                }
            }
            Step::Crash(at) => {
                spend(&mut world.left.faults);
                *gateway(world, at) = Gateway::default();
                if let Some(memory) = world.loss.as_mut().and_then(|loss| loss.memories.get_mut(at))
                {
                    memory.seen = None;
                }
            }
            Step::Burst => {
                spend(&mut world.left.bursts);
                self.burst(world)?;
            }
            Step::Save => world.saved = world.store,
            Step::RollBack => {
                let saved = world.saved.take();
                self.lose_data(world, saved)?;
            }
            Step::Flush => self.lose_data(world, None)?,
        }
        Ok(())
    }

    fn wait(&self, world: &mut World) {
        spend(&mut world.left.waits);
        let generation = self.scale.generation;
        let phase = world.now % generation;
        let start = world.now - phase;
        let next = self.moments.iter().find(|moment| **moment > phase);
        let next = next.map_or(generation, |moment| *moment);
        let passed = i16::try_from(start + next - world.now).unwrap_or(i16::MAX);
        world.now = start + next;
        let full = 2 * self.scale.capacity();
        world.exact = full.min(world.exact.saturating_add(passed));
        world.admitted = full.min(world.admitted.saturating_add(passed));
    }

    fn ask(&self, gateway: &mut Gateway, which: Which, aim: Aim, now: Tick) -> Ask {
        let unused = std::mem::take(&mut gateway.unused);
        let need = u8::from(matches!(aim, Aim::Need | Aim::NeedAndLease));
        let wants_lease = matches!(aim, Aim::NeedAndLease | Aim::Lease);
        let mut lease = None;
        if which == Which::Main {
            if now >= gateway.deadline {
                gateway.held = 0;
            }
            let held = gateway.held;
            let returned = if aim == Aim::Return { std::mem::take(&mut gateway.held) } else { 0 };
            if gateway.counted > 0 || held > 0 {
                lease = Some((gateway.stamp, gateway.counted, held - returned, returned));
            }
        }
        let witness = gateway.witness.filter(|_| self.witnesses);
        Ask { sent: now, need, wants_lease, lease, unused, witness }
    }

    /// The store acts.
    fn arrive(&self, world: &mut World, ask: &Ask, from: Option<usize>) -> Result<Answer, String> {
        let request = self.request(ask);
        let reply = self.call(world, &request)?;
        let returned = ask.lease.map_or(0, |(.., returned)| returned);
        world.exact -= 2 * small(reply.granted)?;
        // A token that is given back unspent was none.
        world.exact = (2 * self.scale.capacity()).min(world.exact + 2 * i16::from(ask.unused));
        if let Some(loss) = &mut world.loss {
            loss.given_back += ask.unused + returned;
            let memory = from.and_then(|at| loss.memories.get_mut(at));
            if let Some(memory) = memory.filter(|memory| !memory.heard && ask.witness.is_some()) {
                // A reply from before the loss may have come since.
                *memory = Memory { seen: memory.seen.and(ask.witness), heard: true };
            }
        }
        promise::check_witnesses(self, world)?;
        let valid = u64::try_from(reply.valid.as_micros()).unwrap_or(u64::MAX);
        let valid = Tick::try_from(valid / self.scale.tick_us).unwrap_or(Tick::MAX);
        Ok(Answer {
            granted: tiny(reply.granted)?,
            lent: tiny(reply.lent)?,
            counted: tiny(reply.counted)?,
            stamp: self.scale.stamp_of(reply.generation),
            deadline: ask.sent + valid,
            lease_dead: reply.lease_dead,
            saw: if self.witnesses { Some(self.testimony(&reply)?) } else { None },
        })
    }

    fn request(&self, ask: &Ask) -> Request {
        let lease = ask.lease.map(|(stamp, counted, held, returned)| LeaseReport {
            generation: self.scale.generation_of(stamp),
            counted: u64::from(counted),
            held: u64::from(held),
            returned: u64::from(returned),
        });
        let witness = ask.witness.map(|seen| Witness {
            at: self.scale.time(seen.at),
            burst: i64::from(seen.level),
            sustained: 0,
            granted_total: u64::from(seen.granted),
            incarnation: self.scale.time(0).us() + u64::from(seen.incarnation),
            version: self.scale.plan.version,
            force: false,
        });
        // Demand for two tokens at once where they are plenty, for one where they are scarce.
        let (demand_per_s, scarce_poll_us) = if ask.wants_lease { (2, 500_000) } else { (0, 0) };
        let need = u64::from(ask.need);
        Request {
            demand_per_s,
            scarce_poll_us,
            lease,
            witness,
            unused_need: u64::from(ask.unused),
            ..Request::take(self.scale.plan, need, need)
        }
    }

    fn testimony(&self, reply: &Reply) -> Result<Testimony, String> {
        let narrow = |_out_of_range| "beyond a small world".to_owned();
        let since = reply.incarnation.saturating_sub(self.scale.time(0).us());
        Ok(Testimony {
            at: self.scale.tick(reply.at),
            level: i8::try_from(reply.levels.burst.tokens).map_err(narrow)?,
            granted: u16::try_from(reply.granted_total).map_err(narrow)?,
            incarnation: u32::try_from(since).map_err(narrow)?,
        })
    }

    fn call(&self, world: &mut World, request: &Request) -> Result<Reply, String> {
        let found = if world.store.is_some() { Found::Known } else { Found::Nothing };
        let state = world.store.map(|kept| kept.state(&self.scale));
        let applied = (self.apply)(state, found, request, self.scale.time(world.now));
        if applied.keep_ms.is_some() {
            world.store = Some(Kept::of(&applied.state, &self.scale)?);
        }
        Ok(applied.reply)
    }

    fn burst(&self, world: &mut World) -> Result<(), String> {
        let all = self.scale.plan.limits.smallest_capacity();
        let reply = self.call(world, &Request::take(self.scale.plan, all, 1))?;
        let taken = 2 * small(reply.granted)?;
        world.exact -= taken;
        world.admitted -= taken;
        Ok(())
    }

    /// Looks at the bucket as it would be now.
    pub(crate) fn look(&self, world: &World) -> Reply {
        let found = if world.store.is_some() { Found::Known } else { Found::Nothing };
        let state = world.store.map(|kept| kept.state(&self.scale));
        let peek = Request::peek(self.scale.plan);
        (self.apply)(state, found, &peek, self.scale.time(world.now)).reply
    }

    fn lose_data(&self, world: &mut World, remains: Option<Kept>) -> Result<(), String> {
        spend(&mut world.left.losses);
        let before = self.look(world);
        world.store = remains;
        let after = self.look(world);
        let unbooked = small(before.outstanding.saturating_sub(after.outstanding))?;
        let stray = world.stray.as_ref().map_or(0, given_back);
        let returning: u8 = stray + world.gateways.iter().map(returning).sum::<u8>();
        world.forgotten +=
            promise::gap(self, world).max(0) + 2 * unbooked + 2 * i16::from(returning);
        world.loss = Some(Loss {
            memories: world.gateways.map(|gateway| Memory { seen: gateway.witness, heard: false }),
            given_back: 0,
        });
        Ok(())
    }

    /// Forgets what can make no difference any more, so that equal worlds are equal.
    fn tidy(&self, world: &mut World) {
        let present = self.scale.stamp(world.now);
        for gateway in &mut world.gateways {
            if gateway.main != Lane::Idle {
                continue;
            }
            if gateway.held == 0 || world.now >= gateway.deadline {
                (gateway.held, gateway.deadline) = (0, 0);
            }
            if gateway.counted == 0 && gateway.held == 0 || gateway.stamp + 1 < present {
                (gateway.counted, gateway.stamp) = (0, DEAD);
            }
        }
        if self.witnesses {
            return;
        }
        // The gateways differ in nothing but what they hold, and nobody compares counts.
        world.gateways.sort_unstable();
        if let Some(kept) = &mut world.store {
            (kept.granted, kept.incarnation) = (0, 0);
        }
    }
}

/// Tokens that are on their way back, or will be.
fn returning(gateway: &Gateway) -> u8 {
    let on_its_way = |lane: Lane| match lane {
        Lane::Asked(ask) => given_back(&ask),
        Lane::Idle | Lane::Answered(_) => 0,
    };
    gateway.unused + on_its_way(gateway.main) + on_its_way(gateway.beside)
}

fn given_back(ask: &Ask) -> u8 {
    ask.unused + ask.lease.map_or(0, |(.., returned)| returned)
}

fn deliver(world: &mut World, at: usize, which: Which, wanted: bool) {
    let now = world.now;
    let gateway = gateway(world, at);
    let Lane::Answered(answer) = std::mem::take(lane(gateway, which)) else { return };
    if which == Which::Main {
        if answer.lease_dead {
            gateway.held = 0;
        }
        if now < answer.deadline {
            gateway.held += answer.lent;
            gateway.deadline = answer.deadline;
        } else {
            gateway.held = 0;
        }
        gateway.counted = answer.counted;
        gateway.stamp = answer.stamp;
    }
    let newer = |seen: &Testimony| (seen.incarnation, seen.granted);
    if answer.saw.as_ref().map(newer) > gateway.witness.as_ref().map(newer) {
        gateway.witness = answer.saw;
    }
    if wanted {
        world.admitted -= 2 * i16::from(answer.granted);
    } else {
        gateway.unused += answer.granted;
    }
}

/// What the call has done is not known, so nothing that it would have told is believed.
fn give_up(gateway: &mut Gateway, which: Which) {
    *lane(gateway, which) = Lane::Idle;
    if which == Which::Main {
        gateway.counted = 0;
    }
}

fn gateway(world: &mut World, at: usize) -> &mut Gateway {
    world.gateways.get_mut(at).expect("a step names a gateway that is there")
}

fn lane(gateway: &mut Gateway, which: Which) -> &mut Lane {
    match which {
        Which::Main => &mut gateway.main,
        Which::Beside => &mut gateway.beside,
    }
}

fn spend(budget: &mut u8) {
    *budget -= 1;
}

fn small(tokens: u64) -> Result<i16, String> {
    i16::try_from(tokens).map_err(|_out_of_range| format!("{tokens} tokens in a small world"))
}

fn tiny(tokens: u64) -> Result<u8, String> {
    u8::try_from(tokens).map_err(|_out_of_range| format!("{tokens} tokens in a small world"))
}
