//! Rules and scripts as JSON, for the control port and for files.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;

use crate::proxy::FaultProxy;
use crate::rules::{Direction, Keys, Moment, Rule, Rules, Toxic};
use crate::strict::{Fields, Mistakes, Tree};

/// Rules in force at a time.
const RULES_MAX: usize = 100;
const STEPS_MAX: usize = 1_000;
const COMMANDS_MAX: usize = 100;
/// Longest delay or pause.
const MS_MAX: f64 = 600_000.0;
/// Latest step: a day.
const AT_MS_MAX: u64 = 86_400_000;
const ERROR_MAX: usize = 512;
const TOXICS: &str = "delay, cut, reset, blackhole, slice, garble, swap, repeat, swallow, inject, \
                      huge_header, push";

/// What a proxy is to do over time.
#[derive(Debug, Clone, PartialEq)]
pub struct Script {
    /// In the order of their times.
    pub steps: Vec<Step>,
}

/// One act at its time.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// After the start of the script.
    pub at: Duration,
    /// What is done.
    pub act: Act,
}

/// What can be done to a proxy.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    /// [`FaultProxy::set`]
    Set(Rules),
    /// [`FaultProxy::clear`]
    Clear,
    /// [`FaultProxy::close_all`]
    CloseAll,
    /// [`FaultProxy::retarget`]
    Target(SocketAddr),
}

impl Act {
    /// Does it.
    pub fn perform(self, proxy: &FaultProxy) {
        match self {
            Act::Set(rules) => proxy.set(rules),
            Act::Clear => proxy.clear(),
            Act::CloseAll => proxy.close_all(),
            Act::Target(address) => proxy.retarget(address),
        }
    }
}

impl Rules {
    /// From `{"seed": 7, "rules": [{"toxic": "delay", "ms": 3}]}`; every mistake is told.
    pub fn from_json(text: &str) -> Result<Rules, Mistakes> {
        let mut mistakes = Mistakes::default();
        let mut rules = Rules::default();
        if let Some(mut fields) = Fields::of(Tree::parse(text)?, "", &mut mistakes) {
            rules.seed = fields.whole("seed", 0, u64::MAX).unwrap_or(0);
            match rule_list(&mut fields) {
                Some(list) => rules.list = list,
                None => fields.wrong("", "`rules` is missing or wrong"),
            }
            fields.end();
        }
        mistakes.none_or_err(rules)
    }
}

impl Script {
    /// From `{"steps": [{"at_ms": 0, "rules": [..]}, {"at_ms": 5000, "do": "clear"}]}`; every
    /// mistake is told.
    pub fn from_json(text: &str) -> Result<Script, Mistakes> {
        let mut mistakes = Mistakes::default();
        let mut steps = Vec::new();
        if let Some(mut fields) = Fields::of(Tree::parse(text)?, "", &mut mistakes) {
            match fields.items("steps") {
                Some((items, mistakes)) if items.len() <= STEPS_MAX => {
                    steps.extend(
                        items
                            .into_iter()
                            .filter_map(|(place, item)| step(Fields::of(item, place, mistakes)?)),
                    );
                }
                Some(_) => fields.wrong("steps", format_args!("at most {STEPS_MAX}")),
                None => fields.wrong("", "`steps` is missing or wrong"),
            }
            fields.end();
        }
        steps.sort_by_key(|step: &Step| step.at);
        mistakes.none_or_err(Script { steps })
    }
}

/// The address in `{"address": "127.0.0.1:6379"}`.
#[cfg(feature = "program")]
pub(crate) fn target_from_json(text: &str) -> Result<SocketAddr, Mistakes> {
    let mut mistakes = Mistakes::default();
    let mut found = None;
    if let Some(mut fields) = Fields::of(Tree::parse(text)?, "", &mut mistakes) {
        found = address(&mut fields, "address");
        fields.end();
    }
    match found {
        Some(address) => mistakes.none_or_err(address),
        None => {
            mistakes.add("", "`address` is missing or wrong");
            Err(mistakes)
        }
    }
}

fn step(mut fields: Fields<'_>) -> Option<Step> {
    let at = fields.whole("at_ms", 0, AT_MS_MAX);
    if at.is_none() {
        fields.wrong("at_ms", "every step has its time");
    }
    let seed = fields.whole("seed", 0, u64::MAX).unwrap_or(0);
    let kinds = ["rules", "do", "target"].into_iter().filter(|name| fields.has(name)).count();
    if kinds != 1 {
        fields.wrong("", "a step has one of `rules`, `do` and `target`");
    }
    let set = rule_list(&mut fields).map(|list| Act::Set(Rules { seed, list }));
    let target = address(&mut fields, "target").map(Act::Target);
    let done = match fields.text("do").as_deref() {
        Some("clear") => Some(Act::Clear),
        Some("close_all") => Some(Act::CloseAll),
        Some(_) => {
            fields.wrong("do", "must be clear or close_all");
            None
        }
        None => None,
    };
    fields.end();
    Some(Step { at: Duration::from_millis(at?), act: set.or(target).or(done)? })
}

fn rule_list(fields: &mut Fields<'_>) -> Option<Vec<Rule>> {
    let (items, mistakes) = fields.items("rules")?;
    if items.len() > RULES_MAX {
        fields.wrong("rules", format_args!("at most {RULES_MAX}"));
        return None;
    }
    let rule_of = |(place, item)| rule(Fields::of(item, place, mistakes)?);
    Some(items.into_iter().filter_map(rule_of).collect())
}

fn rule(mut fields: Fields<'_>) -> Option<Rule> {
    let toxic = toxic(&mut fields);
    let mut commands = Vec::new();
    if let Some((items, mistakes)) = fields.items("commands") {
        if items.len() > COMMANDS_MAX {
            mistakes.add("commands", format_args!("at most {COMMANDS_MAX}"));
        }
        for (place, item) in items {
            match item {
                Tree::Leaf(Value::String(name)) if !name.is_empty() => commands.push(name),
                Tree::Leaf(_) | Tree::Fields(_) | Tree::Items(_) => {
                    mistakes.add(&place, "must be the name of a command");
                }
            }
        }
    }
    let keys = match (fields.text("key"), fields.text("key_prefix")) {
        (Some(_), Some(_)) => {
            fields.wrong("", "`key` or `key_prefix`, not both");
            Keys::Any
        }
        (Some(key), None) => Keys::Exactly(key.into_bytes()),
        (None, Some(start)) => Keys::Prefix(start.into_bytes()),
        (None, None) => Keys::Any,
    };
    let share = fields.number("share", 1.0).unwrap_or(1.0);
    let count = fields.whole("count", 1, u64::MAX);
    fields.end();
    Some(Rule { toxic: toxic?, commands, keys, share, count })
}

fn toxic(fields: &mut Fields<'_>) -> Option<Toxic> {
    let Some(name) = fields.text("toxic") else {
        fields.wrong("toxic", format_args!("is missing; there are {TOXICS}"));
        return None;
    };
    match name.as_str() {
        "delay" => Some(Toxic::Delay {
            by: needed(fields, "ms", duration)?,
            jitter: duration(fields, "jitter_ms").unwrap_or_default(),
        }),
        "cut" => Some(Toxic::Cut { after: needed(fields, "after", |f, n| size(f, n, 0))? }),
        "reset" => needed(fields, "when", |fields, name| match fields.text(name)?.as_str() {
            "before" => Some(Toxic::Reset(Moment::Before)),
            "during" => Some(Toxic::Reset(Moment::During)),
            "after" => Some(Toxic::Reset(Moment::After)),
            _ => None,
        }),
        "blackhole" => {
            needed(fields, "direction", |fields, name| match fields.text(name)?.as_str() {
                "to_server" => Some(Toxic::Blackhole(Direction::ToServer)),
                "to_client" => Some(Toxic::Blackhole(Direction::ToClient)),
                _ => None,
            })
        }
        "slice" => Some(Toxic::Slice {
            bytes: needed(fields, "bytes", |f, n| size(f, n, 1))?,
            pause: duration(fields, "pause_ms").unwrap_or_default(),
        }),
        "garble" => Some(Toxic::Garble { bytes: needed(fields, "bytes", |f, n| size(f, n, 1))? }),
        "swap" => Some(Toxic::Swap),
        "repeat" => Some(Toxic::Repeat),
        "swallow" => Some(Toxic::Swallow),
        "inject" => needed(fields, "error", |fields, name| {
            let error = fields.text(name)?;
            let plain = !error.is_empty() && error.len() <= ERROR_MAX;
            (plain && !error.contains(['\r', '\n'])).then_some(Toxic::Inject { error })
        }),
        "huge_header" => Some(Toxic::HugeHeader),
        "push" => Some(Toxic::Push),
        other => {
            fields.wrong("toxic", format_args!("`{other}` is none; there are {TOXICS}"));
            None
        }
    }
}

fn needed<T>(
    fields: &mut Fields<'_>,
    name: &str,
    read: impl FnOnce(&mut Fields<'_>, &str) -> Option<T>,
) -> Option<T> {
    let missing = !fields.has(name);
    let found = read(fields, name);
    if found.is_none() {
        fields.wrong(name, if missing { "is missing" } else { "cannot be used" });
    }
    found
}

fn duration(fields: &mut Fields<'_>, name: &str) -> Option<Duration> {
    Some(Duration::from_secs_f64(fields.number(name, MS_MAX)? / 1_000.0))
}

fn size(fields: &mut Fields<'_>, name: &str, least: u64) -> Option<usize> {
    let most = u64::try_from(crate::FRAME_MAX).unwrap_or(u64::MAX);
    usize::try_from(fields.whole(name, least, most)?).ok()
}

fn address(fields: &mut Fields<'_>, name: &str) -> Option<SocketAddr> {
    let text = fields.text(name)?;
    let found = text.parse().ok();
    if found.is_none() {
        fields.wrong(name, "must be an address with a port, such as 127.0.0.1:6379");
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_toxic_can_be_written() {
        let rules = Rules::from_json(
            r#"{"seed": 7, "rules": [
                {"toxic": "delay", "ms": 0.5, "jitter_ms": 2, "share": 0.1, "count": 3},
                {"toxic": "cut", "after": 0, "commands": ["GET", "SET"]},
                {"toxic": "reset", "when": "during", "key": "a"},
                {"toxic": "blackhole", "direction": "to_client", "key_prefix": "wrl"},
                {"toxic": "slice", "bytes": 1}, {"toxic": "garble", "bytes": 2},
                {"toxic": "swap"}, {"toxic": "repeat"}, {"toxic": "swallow"},
                {"toxic": "inject", "error": "OOM no"}, {"toxic": "huge_header"},
                {"toxic": "push"}]}"#,
        )
        .unwrap();
        assert_eq!(rules.seed, 7);
        let names: Vec<_> = rules.list.iter().map(|rule| rule.toxic.name()).collect();
        assert_eq!(names.join(", "), TOXICS);
        let delay =
            Toxic::Delay { by: Duration::from_micros(500), jitter: Duration::from_millis(2) };
        assert_eq!(rules.list[0], Rule::new(delay).share(0.1).times(3));
        let cut = Rule::new(Toxic::Cut { after: 0 }).on("GET").on("SET");
        assert_eq!(rules.list[1], cut);
        assert_eq!(rules.list[2], Rule::new(Toxic::Reset(Moment::During)).key("a"));
        let black = Toxic::Blackhole(Direction::ToClient);
        assert_eq!(rules.list[3], Rule::new(black).key_prefix("wrl"));
    }

    #[test]
    fn all_mistakes_are_told_at_once_with_their_places() {
        let mistakes = Rules::from_json(
            r#"{"sed": 1, "rules": [
                {"toxic": "delay"},
                {"toxic": "cut", "after": -1, "share": 2},
                {"toxic": "slow", "count": 0},
                {"toxic": "inject", "error": "two\r\nlines", "key": "a", "key_prefix": "b"},
                {"toxic": "swap", "toxic": "push", "ms": 1},
                7]}"#,
        )
        .unwrap_err();
        let told = mistakes.to_string();
        for part in [
            "`sed` is unknown",
            "rules[0].ms: is missing",
            "rules[1].after: must be a whole number",
            "rules[1].share: must be a number from 0 to 1",
            "rules[2].toxic: `slow` is none; there are delay",
            "rules[2].count: must be a whole number from 1",
            "rules[3].error: cannot be used",
            "rules[3].: `key` or `key_prefix`",
            "rules[4]: `toxic` stands here twice",
            "rules[4]: `ms` is unknown here",
            "rules[5]: must be an object",
        ] {
            assert!(told.contains(part), "{part} is not in\n{told}");
        }
        assert!(Rules::from_json("{").unwrap_err().to_string().starts_with("not JSON"));
        assert!(Rules::from_json("{}").is_err());
    }

    #[test]
    fn a_script_is_sorted_by_time_and_a_step_does_one_thing() {
        let script = Script::from_json(
            r#"{"steps": [{"at_ms": 20, "do": "clear"},
                {"at_ms": 10, "rules": [{"toxic": "push"}], "seed": 3},
                {"at_ms": 30, "target": "127.0.0.1:7000"}, {"at_ms": 40, "do": "close_all"}]}"#,
        )
        .unwrap();
        let acts: Vec<_> = script.steps.into_iter().map(|step| step.act).collect();
        let rules = Rules { seed: 3, list: vec![Rule::new(Toxic::Push)] };
        let target = Act::Target("127.0.0.1:7000".parse().unwrap());
        assert_eq!(acts, [Act::Set(rules), Act::Clear, target, Act::CloseAll]);
        let wrong = r#"{"steps": [{"do": "clear"}, {"at_ms": 1, "do": "x"}, {"at_ms": 2},
            {"at_ms": 3, "target": "nowhere"}, {"at_ms": 1, "do": "clear", "rules": []}]}"#;
        let told = Script::from_json(wrong).unwrap_err().to_string();
        for part in ["steps[0].at_ms", "steps[1].do", "steps[2]", "steps[3].target", "steps[4]"] {
            assert!(told.contains(part), "{part} is not in\n{told}");
        }
    }
}
