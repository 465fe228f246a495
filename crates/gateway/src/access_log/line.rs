//! A note in words. Whatever a caller can choose stands in quotes, and of it nothing but visible
//! ASCII and spaces: no byte can end a line, move a cursor or look like another field.

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use super::{Decided, End, Finished};
use crate::config::LineFormat;

/// Longest path or query, in bytes; the rest is cut off.
const TEXT_BYTES_MAX: usize = 2_048;

/// A field's value.
#[derive(Clone, Copy)]
enum Value<'a> {
    /// One of a closed set, or digits: as it is.
    Word(&'a str),
    /// Chosen by somebody.
    Text(&'a str),
    Number(u64),
    Ms(Duration),
}

/// Adds the line and its end.
pub(super) fn write(to: &mut String, finished: &Finished, format: LineFormat, query: bool) {
    let mut first = true;
    let mut field = |name: &str, value: Value<'_>| {
        let between = match (format, first) {
            (LineFormat::Json, true) => "{",
            (LineFormat::Json, false) => ",",
            (LineFormat::Text, true) => "",
            (LineFormat::Text, false) => " ",
        };
        first = false;
        to.push_str(between);
        match format {
            LineFormat::Json => push(to, format_args!("\"{name}\":")),
            LineFormat::Text => push(to, format_args!("{name}=")),
        }
        match value {
            Value::Word(word) if format == LineFormat::Text => to.push_str(word),
            Value::Word(text) | Value::Text(text) => quoted(to, text),
            Value::Number(number) => push(to, format_args!("{number}")),
            Value::Ms(time) => {
                let us = time.as_micros();
                push(to, format_args!("{}.{:03}", us / 1_000, us % 1_000));
            }
        }
    };
    fields(finished, query, &mut field);
    to.push_str(match format {
        LineFormat::Json => "}\n",
        LineFormat::Text => "\n",
    });
}

/// All fields in their order; what is not known is left out.
fn fields(finished: &Finished, query: bool, field: &mut dyn FnMut(&str, Value<'_>)) {
    let (note, learnt) = (&finished.note, finished.note.learnt());
    let time = UNIX_EPOCH + Duration::from_micros(note.came.us());
    field("time", Value::Word(&humantime::format_rfc3339_millis(time).to_string()));
    field("id", Value::Word(note.id.to_str().unwrap_or_default()));
    if let Some(client) = &learnt.client {
        field("client", Value::Text(client));
    }
    if let Some(route) = &learnt.route {
        field("route", Value::Text(&route.name));
    }
    field("method", Value::Word(note.method));
    if let Some(target) = &note.target {
        field("path", Value::Text(learnt.path.as_deref().unwrap_or(target.path())));
        if let Some(text) = target.query().filter(|_| query) {
            field("query", Value::Text(text));
        }
    }
    if let Some(status) = learnt.status {
        field("status", Value::Number(u64::from(status)));
        field("by", Value::Word(if learnt.answered.is_some() { "upstream" } else { "edge" }));
    }
    if let Some(code) = learnt.code {
        field("code", Value::Word(code));
    }
    if let Some((endpoint, took)) = learnt.answered {
        field("endpoint", Value::Word(&endpoint.to_string()));
        field("upstream_ms", Value::Ms(took));
    }
    field("ms", Value::Ms(finished.took));
    let load = std::sync::atomic::Ordering::Relaxed;
    field("bytes_in", Value::Number(note.bytes_in.load(load)));
    field("bytes_out", Value::Number(finished.bytes_out));
    if let Some(decided) = learnt.decided {
        field("decision", Value::Word(word(decided)));
    }
    let retries = note.retries.load(load);
    if retries > 0 {
        field("retries", Value::Number(u64::from(retries)));
    }
    if let Some(trace) = note.trace.as_ref().and_then(|id| std::str::from_utf8(id).ok()) {
        field("trace", Value::Word(trace));
    }
    match finished.end {
        End::Whole => {}
        End::Broken => field("end", Value::Word("broken")),
        End::CallerGone => field("end", Value::Word("caller_gone")),
    }
}

const fn word(decided: Decided) -> &'static str {
    match decided {
        Decided::Admitted => "admitted",
        Decided::Denied => "denied",
        Decided::AdmittedByPolicy => "admitted_by_policy",
        Decided::DeniedByPolicy => "denied_by_policy",
    }
}

/// In quotes, as JSON escapes, and everything that is not plainly visible escaped too.
fn quoted(to: &mut String, text: &str) {
    to.push('"');
    let cut = text.floor_char_boundary(TEXT_BYTES_MAX);
    for c in text.get(..cut).unwrap_or_default().chars() {
        match c {
            '"' => to.push_str("\\\""),
            '\\' => to.push_str("\\\\"),
            ' '..='~' => to.push(c),
            _ => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    push(to, format_args!("\\u{unit:04x}"));
                }
            }
        }
    }
    to.push_str(if cut < text.len() { "...\"" } else { "\"" });
}

fn push(to: &mut String, what: std::fmt::Arguments<'_>) {
    to.write_fmt(what).expect("a String takes everything");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(text: &str) -> String {
        let mut to = String::new();
        quoted(&mut to, text);
        to
    }

    proptest! {
        #[test]
        fn any_text_is_read_back_and_is_plain_on_the_way(text in any::<String>()) {
            let shown = shown(&text);
            prop_assert!(shown.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
            prop_assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), text);
        }
    }

    #[test]
    fn what_terminals_obey_is_escaped() {
        assert_eq!(
            shown("a\u{1b}[2J\u{9b}1m\r\n\"\\\u{7f}"),
            "\"a\\u001b[2J\\u009b1m\\u000d\\u000a\\\"\\\\\\u007f\""
        );
        assert_eq!(shown("\u{202e}\u{1f600}"), "\"\\u202e\\ud83d\\ude00\"");
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let long = "é".repeat(TEXT_BYTES_MAX);
        let read: String = serde_json::from_str(&shown(&long)).unwrap();
        assert_eq!(read, format!("{}...", "é".repeat(TEXT_BYTES_MAX / 2)));
        let odd = format!("x{long}");
        let read: String = serde_json::from_str(&shown(&odd)).unwrap();
        assert_eq!(read.chars().count(), TEXT_BYTES_MAX / 2 + 3);
    }
}
