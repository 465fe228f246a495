//! Test builds of the script: the time given, the branch marks live, a fault planted.
//!
//! Every change replaces text that must occur exactly once, so a script that was edited without
//! its tests fails here instead of being tested as something else.

use std::fmt::Write as _;

use super::faults::Fault;
use crate::store::redis::script;

/// Branch marks in the script, numbered from 1.
pub const BRANCHES: usize = 50;

const CLOCK_LINE: &str = "local time = redis.call('TIME') --=clock";
/// The time comes as names of keys, since arguments have their places: digits, then the bucket's
/// hash tag, so that a Cluster finds them in one slot.
const CLOCK_GIVEN: &str =
    "local time = { string.match(KEYS[2], '^%d+'), string.match(KEYS[3], '^%d+') }";
const END_LINE: &str = "return reply --=end";
const FIRST_LINE: &str = "local EXACT = 9007199254740992\n";

/// The script in the two forms that a run needs.
#[derive(Debug)]
pub struct Script {
    plain: String,
    counting: String,
}

impl Script {
    /// The script as it ships.
    ///
    /// # Panics
    /// If its marks are not where the tests expect them.
    pub fn as_shipped() -> Script {
        Script::from_text(script::TEXT)
    }

    /// The script with one fault planted.
    ///
    /// # Panics
    /// If the text that the fault replaces does not occur exactly once.
    pub fn with_fault(fault: &Fault) -> Script {
        let changed = fault
            .changes
            .iter()
            .fold(script::TEXT.to_owned(), |text, (from, to)| replace_once(&text, from, to));
        Script::from_text(&changed)
    }

    fn from_text(text: &str) -> Script {
        let plain = replace_once(text, CLOCK_LINE, CLOCK_GIVEN);
        let mut counting =
            replace_once(&plain, FIRST_LINE, &format!("local seen = {{}}\n{FIRST_LINE}"));
        for branch in 1..=BRANCHES {
            let mark = format!("--@{branch}\n");
            counting = replace_once(&counting, &mark, &format!("seen[{branch}] = 1\n"));
        }
        let mut end = String::from("local visited = 0\n");
        let _infallible = writeln!(end, "for i = 1, {BRANCHES} do");
        end.push_str("  if seen[i] then visited = visited + 2 ^ (i - 1) end\nend\n");
        end.push_str("return { reply, visited, keep }");
        let counting = replace_once(&counting, END_LINE, &end);
        assert!(!counting.contains("--@"), "BRANCHES is smaller than the number of marks");
        Script { plain, counting }
    }

    pub(super) fn plain(&self) -> &str {
        &self.plain
    }

    pub(super) fn counting(&self) -> &str {
        &self.counting
    }
}

fn replace_once(text: &str, from: &str, to: &str) -> String {
    let occurrences = text.matches(from).count();
    assert_eq!(occurrences, 1, "`{from}` must occur exactly once in the script");
    text.replace(from, to)
}
