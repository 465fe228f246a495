//! What is to be broken: toxics, and rules that say for which commands, how often and how likely.
//!
//! Chance comes from the seed of the rules, so the same commands in the same order meet the same
//! faults again.

use std::time::Duration;

/// One way to break an exchange.
#[derive(Debug, Clone, PartialEq)]
pub enum Toxic {
    /// The reply comes later; replies of a connection keep their order.
    Delay {
        /// By this much.
        by: Duration,
        /// And by up to this much more, evenly spread.
        jitter: Duration,
    },
    /// The reply ends after so many bytes, and with it the connection (FIN).
    Cut {
        /// Bytes that still come.
        after: usize,
    },
    /// Both sides of the connection are reset (RST).
    Reset(Moment),
    /// From this command on the connection delivers nothing more in this direction, ever.
    Blackhole(Direction),
    /// The reply comes in pieces.
    Slice {
        /// Of so many bytes.
        bytes: usize,
        /// With such pauses.
        pause: Duration,
    },
    /// Bytes of the reply are changed.
    Garble {
        /// So many, anywhere in it.
        bytes: usize,
    },
    /// The reply comes after the next one instead of before it.
    Swap,
    /// The reply comes twice.
    Repeat,
    /// The command is executed, its reply never comes; those after it do.
    Swallow,
    /// The command is not passed on; it is answered with this error, such as `OOM no memory`.
    Inject {
        /// First word in capitals, as servers write it; no line breaks.
        error: String,
    },
    /// Before the reply comes the header of a bulk of 512 MB.
    HugeHeader,
    /// Before the reply comes a push that nobody asked for.
    Push,
}

/// When a connection is reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The server sees nothing of the command.
    Before,
    /// The server sees half of the command.
    During,
    /// The server has executed the command; its reply is lost.
    After,
}

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Commands.
    ToServer,
    /// Replies: commands are executed.
    ToClient,
}

impl Toxic {
    /// Its name in counters and in JSON.
    pub const fn name(&self) -> &'static str {
        match self {
            Toxic::Delay { .. } => "delay",
            Toxic::Cut { .. } => "cut",
            Toxic::Reset(_) => "reset",
            Toxic::Blackhole(_) => "blackhole",
            Toxic::Slice { .. } => "slice",
            Toxic::Garble { .. } => "garble",
            Toxic::Swap => "swap",
            Toxic::Repeat => "repeat",
            Toxic::Swallow => "swallow",
            Toxic::Inject { .. } => "inject",
            Toxic::HugeHeader => "huge_header",
            Toxic::Push => "push",
        }
    }

    /// Every reply later by `by`.
    pub const fn delay(by: Duration) -> Toxic {
        Toxic::Delay { by, jitter: Duration::ZERO }
    }

    /// Every command answered with this error.
    pub fn inject(error: impl Into<String>) -> Toxic {
        Toxic::Inject { error: error.into() }
    }

    fn drawn(&self, random: &mut fastrand::Rng) -> Toxic {
        if let Toxic::Delay { by, jitter } = self {
            return Toxic::delay(*by + jitter.mul_f64(random.f64()));
        }
        self.clone()
    }
}

/// Which keys a rule is for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Keys {
    /// Any, or none at all.
    #[default]
    Any,
    /// Only this one.
    Exactly(Vec<u8>),
    /// Those that begin like this.
    Prefix(Vec<u8>),
}

impl Keys {
    fn include(&self, key: Option<&[u8]>) -> bool {
        match self {
            Keys::Any => true,
            Keys::Exactly(wanted) => key == Some(wanted),
            Keys::Prefix(start) => key.is_some_and(|key| key.starts_with(start)),
        }
    }
}

/// A toxic, and the commands that it is for.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// What happens.
    pub toxic: Toxic,
    /// To commands of these names, in any case; none: to all.
    pub commands: Vec<String>,
    /// To commands whose first key is one of these.
    pub keys: Keys,
    /// To this share of them, 0 to 1.
    pub share: f64,
    /// To no more than so many, if there is a number.
    pub count: Option<u64>,
}

impl Rule {
    /// For every command, always.
    pub const fn new(toxic: Toxic) -> Rule {
        Rule { toxic, commands: Vec::new(), keys: Keys::Any, share: 1.0, count: None }
    }

    /// Only for commands of this name, and of those named before.
    #[must_use]
    pub fn on(mut self, command: &str) -> Rule {
        self.commands.push(command.to_owned());
        self
    }

    /// Only for this key.
    #[must_use]
    pub fn key(mut self, key: impl Into<Vec<u8>>) -> Rule {
        self.keys = Keys::Exactly(key.into());
        self
    }

    /// Only for keys that begin like this.
    #[must_use]
    pub fn key_prefix(mut self, start: impl Into<Vec<u8>>) -> Rule {
        self.keys = Keys::Prefix(start.into());
        self
    }

    /// Only for this share of the commands.
    #[must_use]
    pub const fn share(mut self, share: f64) -> Rule {
        self.share = share;
        self
    }

    /// Only for the next so many.
    #[must_use]
    pub const fn times(mut self, count: u64) -> Rule {
        self.count = Some(count);
        self
    }
}

impl From<Toxic> for Rule {
    fn from(toxic: Toxic) -> Rule {
        Rule::new(toxic)
    }
}

/// All rules in force, and where their chance begins. Every rule that fits a command applies.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rules {
    /// Seed of shares, jitter and garbling.
    pub seed: u64,
    /// The rules.
    pub list: Vec<Rule>,
}

impl<R: Into<Rule>> From<R> for Rules {
    fn from(rule: R) -> Rules {
        Rules { seed: 0, list: vec![rule.into()] }
    }
}

impl<const N: usize> From<[Rule; N]> for Rules {
    fn from(list: [Rule; N]) -> Rules {
        Rules { seed: 0, list: list.into() }
    }
}

/// Rules at work: their chance, and what is left of their counts.
#[derive(Debug)]
pub(crate) struct Active {
    list: Vec<Rule>,
    random: fastrand::Rng,
}

impl Active {
    pub(crate) fn new(rules: Rules) -> Active {
        Active { list: rules.list, random: fastrand::Rng::with_seed(rules.seed) }
    }

    /// What happens to this command.
    pub(crate) fn draw(&mut self, name: &[u8], key: Option<&[u8]>) -> Vec<Toxic> {
        let mut drawn = Vec::new();
        for rule in &mut self.list {
            let named =
                rule.commands.iter().any(|wanted| name.eq_ignore_ascii_case(wanted.as_bytes()));
            let fits = (named || rule.commands.is_empty()) && rule.keys.include(key);
            if !fits || rule.count == Some(0) || self.random.f64() >= rule.share {
                continue;
            }
            rule.count = rule.count.map(|left| left - 1);
            drawn.push(rule.toxic.drawn(&mut self.random));
        }
        drawn
    }

    /// Changes so many bytes, each to another one.
    pub(crate) fn garble(&mut self, bytes: &mut [u8], count: usize) {
        if bytes.is_empty() {
            return;
        }
        for _ in 0..count {
            let at = self.random.usize(..bytes.len());
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= self.random.u8(1..);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(rules: impl Into<Rules>, commands: &[(&str, &str)]) -> Vec<usize> {
        let mut active = Active::new(rules.into());
        let draw =
            |(name, key): &(&str, &str)| active.draw(name.as_bytes(), Some(key.as_bytes())).len();
        commands.iter().map(draw).collect()
    }

    #[test]
    fn a_rule_is_for_its_commands_and_keys_only() {
        let commands = [("get", "a"), ("SET", "a"), ("GET", "ab"), ("GET", "b")];
        assert_eq!(applied(Rule::new(Toxic::Swap).on("GET"), &commands), [1, 0, 1, 1]);
        assert_eq!(applied(Rule::new(Toxic::Swap).key("a"), &commands), [1, 1, 0, 0]);
        assert_eq!(applied(Rule::new(Toxic::Swap).key_prefix("a"), &commands), [1, 1, 1, 0]);
        let both = [Rule::new(Toxic::Swap).on("GET").key("b"), Rule::new(Toxic::Push).on("set")];
        assert_eq!(applied(both, &commands), [0, 1, 0, 1]);
        assert!(Active::new(Rule::new(Toxic::Swap).key("a").into()).draw(b"PING", None).is_empty());
    }

    #[test]
    fn a_count_runs_out() {
        let commands = [("GET", "a"); 4];
        assert_eq!(applied(Rule::new(Toxic::Swallow).times(2), &commands), [1, 1, 0, 0]);
    }

    #[test]
    fn a_share_is_met_and_the_same_seed_chooses_the_same_commands() {
        let commands = [("GET", "a"); 2_000];
        let run = |seed| {
            let list = vec![Rule::new(Toxic::Swallow).share(0.25)];
            applied(Rules { seed, list }, &commands)
        };
        let hit: usize = run(7).iter().sum();
        assert!((430..570).contains(&hit), "{hit} of 2000");
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }

    #[test]
    fn garbled_bytes_differ() {
        let mut active = Active::new(Rules::default());
        for _ in 0..100 {
            let mut bytes = *b"+OK\r\n";
            active.garble(&mut bytes, 1);
            assert_ne!(&bytes, b"+OK\r\n");
        }
        active.garble(&mut [], 1);
    }
}
