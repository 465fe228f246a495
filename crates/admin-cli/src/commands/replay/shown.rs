//! The outcome of a replay as people and programs read it.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};

use super::Unread;
use super::book::{Account, CLIENTS_MAX, Counts, Plans, Tally};
use crate::output::{Report, Shown};
use crate::session::counted;

const HEADINGS: &[&str] =
    &["CLIENT", "PLAN", "REQUESTS", "REFUSED", "FIRST", "WORST MINUTE", "LIMIT"];
const MINUTE_US: u64 = 60_000_000;

/// A share between two counts, with so many decimals of a per cent: `1.2–1.3 %`, or one number
/// where both look the same. What is refused at all is never shown as nothing.
pub(crate) fn share((least, most): (u64, u64), of: u64, decimals: u32) -> String {
    let (least, most) = (per_cent(least, of, decimals), per_cent(most, of, decimals));
    if least == most { format!("{least} %") } else { format!("{least}–{most} %") }
}

fn per_cent(part: u64, whole: u64, decimals: u32) -> String {
    let unit = 10_u128.pow(decimals);
    let whole = u128::from(whole.max(1));
    let rounded = (u128::from(part) * 100 * unit + whole / 2) / whole;
    let shown = if part > 0 { rounded.max(1) } else { 0 };
    match decimals {
        0 => shown.to_string(),
        _ => {
            let width = decimals as usize;
            format!("{}.{:0width$}", shown / unit, shown % unit)
        }
    }
}

/// `481 200`
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

fn time(us: u64) -> String {
    let at = UNIX_EPOCH.checked_add(Duration::from_micros(us)).unwrap_or(UNIX_EPOCH);
    humantime::format_rfc3339_seconds(at).to_string()
}

/// `09:14:02`, or `09:14`; with its day where the log has several.
fn clock(us: u64, seconds: bool, days: bool) -> String {
    let text = time(us);
    let clock = text.get(11..if seconds { 19 } else { 16 }).unwrap_or_default();
    match days {
        true => format!("{} {clock}", text.get(5..10).unwrap_or_default()),
        false => clock.to_owned(),
    }
}

/// `2026-11-28 00:00 … 24:00`
fn span(counts: &Counts) -> String {
    let Some((from, to)) = counts.span else { return "no time".to_owned() };
    let (first, last) = (time(from), time(to));
    let (day, end) = (first.get(..10).unwrap_or_default(), last.get(..10).unwrap_or_default());
    let until = if day == end { String::new() } else { format!("{end} ") };
    format!("{day} {} … {until}{}", clock(from, false, false), clock(to, false, false))
}

pub(super) fn report(
    (accounts, counts, plans): (Vec<Account>, Counts, Plans),
    unread: &Unread,
    all: bool,
) -> (String, Report) {
    let clients = accounts.len();
    let hit = accounts.iter().filter(|account| account.tally.is_hit()).count();
    let sum = |part: fn(&Account) -> u64| accounts.iter().map(part).sum::<u64>();
    let least = sum(|account| account.tally.refused().0);
    let most = sum(|account| account.tally.refused().1);
    let replayed = sum(|account| account.tally.requests);
    let days = counts.span.is_some_and(|(from, to)| time(from).get(..10) != time(to).get(..10));
    let shown: Vec<&Account> =
        accounts.iter().filter(|account| all || account.tally.is_hit()).collect();
    let json = json!({
        "requests": counts.requests,
        "replayed": replayed,
        "clients": clients,
        "clients_hit": hit,
        "from": counts.span.map(|(from, _)| time(from)),
        "to": counts.span.map(|(_, to)| time(to)),
        "refused": { "least": least, "most": most },
        "lines_broken": unread.count,
        "without_client": counts.anonymous,
        "without_plan": counts.without_plan,
        "beyond_clients": counts.crowded,
        "late": counts.late,
        "whole_seconds": counts.whole_seconds,
        "items": shown.iter().map(|account| item(account)).collect::<Vec<Value>>(),
    });
    let summary = format!(
        "{} requests, {}, {}; refused {}, {} hit",
        grouped(counts.requests),
        counted(clients, "client"),
        span(&counts),
        share((least, most), replayed, 2),
        counted(hit, "client"),
    );
    let rows = shown.iter().map(|account| row(account, days)).collect();
    let mut report = Report::new(json, Shown::Rows(HEADINGS, rows));
    report.names = shown.iter().map(|account| account.name.clone()).collect();
    report.notes.extend(notes(&counts, &plans));
    report.warnings.extend(warnings(&counts, unread));
    (summary, report)
}

fn item(account: &Account) -> Value {
    let tally = &account.tally;
    let (least, most) = tally.refused();
    let worst = tally.is_hit().then(|| {
        json!({ "at": time(tally.worst.at * MINUTE_US), "requests": tally.worst.requests,
                "refused": tally.worst.refused })
    });
    json!({
        "client": account.name,
        "plan": account.plan,
        "requests": tally.requests,
        "refused": { "least": least, "most": most },
        "first_refused": tally.first.map(|first| time(first.us())),
        "worst_minute": worst,
        "limit": tally.is_hit().then(|| tally.limit().name()),
    })
}

fn row(account: &Account, days: bool) -> Vec<String> {
    let tally = &account.tally;
    let mut row = vec![account.name.clone(), account.plan.clone(), grouped(tally.requests)];
    let nothing = || "–".to_owned();
    if !tally.is_hit() {
        row.extend([share((0, 0), 1, 1), nothing(), nothing(), nothing()]);
        return row;
    }
    let Tally { worst, first, .. } = tally;
    let share_of_it = share((worst.refused, worst.refused), worst.requests, 0);
    row.extend([
        share(tally.refused(), tally.requests, 1),
        first.map_or_else(nothing, |first| clock(first.us(), true, days)),
        match worst.requests {
            0 => nothing(),
            _ => format!("{}, {share_of_it}", clock(worst.at * MINUTE_US, false, days)),
        },
        tally.limit().name().to_owned(),
    ]);
    row
}

fn notes(counts: &Counts, plans: &Plans) -> Vec<String> {
    let mut notes = Vec::new();
    if counts.whole_seconds > 0 {
        notes.push(
            "times are whole seconds: the first figure is for requests that came evenly spread \
             over their second, the second one for all at its peak"
                .to_owned(),
        );
    }
    if counts.without_route > 0 {
        notes.push(format!(
            "{} requests cost 1 each, although their plan has costs by route: say --route-field",
            grouped(counts.without_route)
        ));
    }
    let by_key = plans.names(|plan| plan.scope == wire::plan::Scope::Key);
    if !by_key.is_empty() {
        notes.push(format!(
            "{}: each key has a bucket of its own there; here all of a client's requests share one",
            by_key.join(", ")
        ));
    }
    notes
}

fn warnings(counts: &Counts, unread: &Unread) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut not_replayed = |count: u64, why: &str| {
        if count > 0 {
            warnings.push(format!("{} requests are not replayed: {why}", grouped(count)));
        }
    };
    not_replayed(counts.anonymous, "they name no client");
    not_replayed(
        counts.without_plan,
        "their clients stand in no file (--default-plan gives them a plan)",
    );
    not_replayed(counts.crowded, &format!("they are of more than {CLIENTS_MAX} clients"));
    if counts.late > 0 {
        warnings.push(format!(
            "{} lines are far out of order; they count at the time of the lines before them",
            grouped(counts.late)
        ));
    }
    if unread.count > 0 {
        warnings.push(format!("{} lines cannot be read:", grouped(unread.count)));
        warnings.extend(unread.first.iter().map(|told| format!("  {told}")));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_ranges_and_a_refusal_is_never_nothing() {
        assert_eq!(share((12, 13), 1_000, 1), "1.2–1.3 %");
        assert_eq!(share((170, 170), 1_000, 1), "17.0 %");
        assert_eq!(share((0, 1), 1_000_000, 2), "0.00–0.01 %");
        assert_eq!(share((0, 0), 0, 1), "0.0 %");
        assert_eq!(share((44, 44), 100, 0), "44 %");
        assert_eq!(share((u64::MAX, u64::MAX), u64::MAX, 2), "100.00 %");
    }

    #[test]
    fn numbers_are_grouped_in_threes() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1 000"), (481_200, "481 200")] {
            assert_eq!(grouped(number), text);
        }
    }
}
