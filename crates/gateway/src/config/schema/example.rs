//! The commented file: every key with its default, or with a sample behind a comment sign.

use super::policy::{ANONYMOUS, CLIENT, KEY, PLAN, STANDALONE};
use super::process::{ACCESS_LOG, CONTROL, DRAIN, LIMITS, LISTEN, OPERATIONS, OVERLOAD, STORE};
use super::routing::{PAIRING_KEYS, ROUTE, UPSTREAM};
use super::{FILE, Key, Kind};

const HEAD: &str = "\
# weir-gateway, with its defaults: `weir-gateway example` prints this. Judge a file without
# starting anything:
#   weir-gateway check --config gateway.toml
# Times are text with a unit. Unknown fields are mistakes. Paths stand beside this file. A changed
# file is taken while the gateway runs, whole or not at all.
# Logs and the ports file are process flags: weir-gateway --help.
";

/// Longer values stand out, so that comments stay near.
const VALUE_COLUMNS: usize = 28;

/// Which keys of a table are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    /// All; those without a default behind a comment sign.
    All,
    /// Those that are given, and no others.
    Given,
    /// All, and the whole table behind a comment sign.
    Off,
}

/// A table of the page.
struct Part {
    /// What begins here, if something does.
    heading: &'static str,
    /// As it stands in the file; empty for the file itself.
    table: &'static str,
    keys: &'static [Key],
    shown: Shown,
    /// Values that are neither default nor sample.
    given: &'static [(&'static str, &'static str)],
}

const fn part(table: &'static str, keys: &'static [Key], shown: Shown) -> Part {
    Part { heading: "", table, keys, shown, given: &[] }
}

impl Part {
    const fn under(self, heading: &'static str) -> Part {
        Part { heading, ..self }
    }

    const fn with(self, given: &'static [(&'static str, &'static str)]) -> Part {
        Part { given, ..self }
    }
}

const PAGE: &[Part] = &[
    part("", FILE, Shown::All),
    part("[listen.main]", LISTEN, Shown::All).under("where traffic comes in"),
    part("[operations]", OPERATIONS, Shown::All)
        .under("for operators: health, metrics, reload, what is in force"),
    part("[limits]", LIMITS, Shown::All).under("bounds"),
    part("[overload]", OVERLOAD, Shown::All),
    part("[access_log]", ACCESS_LOG, Shown::Off).under("a line for each answer"),
    part("[drain]", DRAIN, Shown::All),
    part("[store]", STORE, Shown::All).under("where buckets live"),
    part("[control]", CONTROL, Shown::Off).under("plans and keys from the control plane ..."),
    part("[standalone]", STANDALONE, Shown::All).under("... or from this file"),
    part("[plan.free]", PLAN, Shown::All).with(&[
        ("burst", "{ capacity = 20, refill = \"5/s\" }"),
        ("sustained", "{ capacity = 10000, refill = \"10000/d\" }"),
    ]),
    part("[plan.pro]", PLAN, Shown::Given).with(&[
        ("burst", "{ capacity = 100, refill = \"50/s\" }"),
        ("failure", "\"local\""),
        ("costs", "[{ route = \"reports\", method = \"POST\", cost = 5 }]"),
    ]),
    part("[client.acme]", CLIENT, Shown::All),
    part("[[key]]", KEY, Shown::All)
        .under("weir-gateway key --client acme makes such a table; this one opens nothing"),
    part("[anonymous]", ANONYMOUS, Shown::Off).under("routes with auth = \"anonymous\""),
    part("[[route]]", ROUTE, Shown::All)
        .with(&[("path", "\"/orders\"")])
        .under("most specific host, path, methods wins"),
    part("[[route]]", ROUTE, Shown::Given).with(&[
        ("name", "\"reports\""),
        ("host", "\"*.example.com\""),
        ("path", "\"/reports\""),
        ("methods", "[\"GET\", \"POST\"]"),
        ("upstream", "\"reports\""),
        ("cost", "2"),
        ("strip_prefix", "true"),
    ]),
    part("[upstream.orders]", UPSTREAM, Shown::All).under("services").with(&[
        ("retry", "{ attempts = 1, budget = 0.2, per_second_min = 3 }"),
        ("health", "{ path = \"/healthz\", every = \"5s\", timeout = \"1s\", fall = 3, rise = 2 }"),
        ("ejection", "{ consecutive = 5, for = \"10s\", max_share = 0.5 }"),
        ("pairing", ""),
    ]),
    part("[upstream.orders.pairing]", PAIRING_KEYS, Shown::All).with(&[
        ("deny_header", "{ name = \"x-limited-by\", value = \"orders\" }"),
        ("decision_header", "\"x-weir-decision\""),
    ]),
    part("[upstream.reports]", UPSTREAM, Shown::Given)
        .with(&[("endpoints", "[\"127.0.0.1:9003\"]")]),
];

/// The page.
pub(crate) fn example() -> String {
    PAGE.iter().fold(HEAD.to_owned(), |page, part| page + "\n" + &text(part))
}

fn text(part: &Part) -> String {
    let lines: Vec<(bool, &str, &str, &str)> =
        part.keys.iter().filter_map(|key| line(part, key)).collect();
    let names = lines.iter().map(|(off, name, ..)| 2 * usize::from(*off) + name.len());
    let names = names.max().unwrap_or(0);
    let values = lines.iter().map(|(_, _, value, _)| value.len());
    let values = values.filter(|length| *length <= VALUE_COLUMNS).max().unwrap_or(0);
    let mut text = String::new();
    if !part.heading.is_empty() {
        text += &format!("# {:-<64} {}\n", "", part.heading);
    }
    let sign = |off: bool| if off { "# " } else { "" };
    if !part.table.is_empty() {
        text += &format!("{}{}\n", sign(part.shown == Shown::Off), part.table);
    }
    for (off, name, value, about) in lines {
        let name = format!("{}{name}", sign(off));
        text += &format!("{name:names$} = {value:values$}  # {about}\n");
    }
    text
}

/// Whether a key stands behind a comment sign, its name, its value and what it is for.
fn line<'a>(part: &Part, key: &'a Key) -> Option<(bool, &'a str, &'a str, &'a str)> {
    if matches!(key.kind, Kind::Named(_)) || (part.table.is_empty() && key.sample.is_empty()) {
        return None;
    }
    let given = part.given.iter().find(|(name, _)| *name == key.name).map(|(_, value)| *value);
    if given.is_none() && part.shown == Shown::Given {
        return None;
    }
    let value = given.or(key.default).unwrap_or(key.sample);
    if value.is_empty() {
        return None; // it has a table of its own
    }
    let on = given.is_some() || key.default.is_some() || key.needed;
    Some((!on || part.shown == Shown::Off, key.name, value, key.about))
}
