//! The schema, the readers and the pages say the same.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::*;
use crate::config::parse;

/// Asked for in order to be refused with a word of their own.
const REFUSED: [&str; 2] = ["key[].key", "key[].secret"];

fn repository() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every table by its place, as `upstream.NAME.retry` or `route[]`, with its keys.
fn tables(place: &str, kind: Kind, found: &mut BTreeMap<String, &'static [Key]>) {
    match kind {
        Kind::Table(keys) => {
            found.insert(place.to_owned(), keys);
            for key in keys {
                let dot = if place.is_empty() { "" } else { "." };
                tables(&format!("{place}{dot}{}", key.name), key.kind, found);
            }
        }
        Kind::Named(keys) => tables(&format!("{place}.NAME"), Kind::Table(keys), found),
        Kind::List(kind) => tables(&format!("{place}[]"), *kind, found),
        Kind::Either(kinds) => kinds.iter().for_each(|kind| tables(place, *kind, found)),
        Kind::Flag
        | Kind::Text
        | Kind::Spelled(_)
        | Kind::OneOf(_)
        | Kind::Time
        | Kind::File
        | Kind::Whole(..)
        | Kind::Share { .. }
        | Kind::Labels => {}
    }
}

fn all_tables() -> BTreeMap<String, &'static [Key]> {
    let mut found = BTreeMap::new();
    tables("", Kind::Table(FILE), &mut found);
    found
}

/// A value of this kind whose tables all have one more key; `None` if it has no table.
fn with_unknown(kind: Kind) -> Option<Value> {
    match kind {
        Kind::Table(keys) => {
            let mut table = Map::new();
            table.insert("zz_unknown".to_owned(), json!(1));
            for key in keys {
                if let Some(value) = with_unknown(key.kind) {
                    table.insert(key.name.to_owned(), value);
                }
            }
            Some(Value::Object(table))
        }
        Kind::Named(keys) => Some(json!({ "some": with_unknown(Kind::Table(keys))? })),
        Kind::List(kind) => Some(json!([with_unknown(*kind)?])),
        Kind::Either(kinds) => kinds.iter().find_map(|kind| with_unknown(*kind)),
        Kind::Flag
        | Kind::Text
        | Kind::Spelled(_)
        | Kind::OneOf(_)
        | Kind::Time
        | Kind::File
        | Kind::Whole(..)
        | Kind::Share { .. }
        | Kind::Labels => None,
    }
}

/// What the readers know at each place, by what they say of a key that they do not.
fn known(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let errors = parse(text, Path::new(".")).expect_err("unknown keys are mistakes");
    let mut known = BTreeMap::new();
    for error in errors {
        let Some(place) = error.field.strip_suffix("zz_unknown") else { continue };
        let place = place.trim_end_matches('.').replace(".some", ".NAME").replace("[0]", "[]");
        let (_, names) = error.detail.split_once("known are ").expect("it names what is known");
        known.insert(place, names.split(", ").map(str::to_owned).collect());
    }
    known
}

#[test]
fn the_readers_ask_for_exactly_the_keys_of_the_schema() {
    let Some(Value::Object(mut file)) = with_unknown(Kind::Table(FILE)) else { panic!("a table") };
    if let Some(Value::Object(store)) = file.get_mut("store") {
        // One in memory has nothing to be told.
        store.insert("url".to_owned(), json!("redis://h"));
    }
    let toml = |file: &Map<String, Value>| {
        toml::to_string(&Value::Object(file.clone())).expect("it can be written as TOML")
    };
    // A file has a control plane or a policy of its own.
    let mut asked = known(&toml(&file));
    let control = file.remove("control").expect("the schema has it");
    asked.extend(known(&toml(&file)));
    assert!(control.is_object());
    for (place, keys) in all_tables() {
        if place == "listen.NAME.tls[]" {
            continue; // read as one that stands alone
        }
        let asked =
            asked.get(&place).unwrap_or_else(|| panic!("nobody reads `{place}`: {asked:#?}"));
        let at = |name: &str| format!("{place}{}{name}", if place.is_empty() { "" } else { "." });
        let told: BTreeSet<&str> = keys.iter().map(|key| key.name).collect();
        for name in asked {
            let known = told.contains(name.as_str()) || REFUSED.contains(&at(name).as_str());
            assert!(known, "`{}` is read, and missing in config/schema", at(name));
        }
        for name in told {
            assert!(
                asked.contains(name),
                "`{}` stands in config/schema, and nobody reads it",
                at(name)
            );
        }
    }
}

/// Whether `value` is valid under the part of JSON Schema that is used here.
fn fits(schema: &Value, value: &Value) -> bool {
    let bound = |name: &str| schema.get(name).and_then(Value::as_f64);
    let number = value.as_f64();
    let of_type = match schema.get("type").and_then(Value::as_str) {
        None => true,
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_u64() || value.is_i64(),
        Some("number") => value.is_number(),
        Some(other) => panic!("the type {other} is not used"),
    };
    let choice = |name: &str| schema.get(name).and_then(Value::as_array);
    let in_object = || {
        let Some(object) = value.as_object() else { return true };
        let properties = schema.get("properties").and_then(Value::as_object);
        let needed = choice("required").into_iter().flatten().filter_map(Value::as_str);
        needed.into_iter().all(|name| object.contains_key(name))
            && object.iter().all(|(name, value)| {
                match properties.and_then(|properties| properties.get(name)) {
                    Some(schema) => fits(schema, value),
                    None => match schema.get("additionalProperties") {
                        Some(Value::Bool(allowed)) => *allowed,
                        Some(schema) => fits(schema, value),
                        None => true,
                    },
                }
            })
    };
    of_type
        && choice("enum").is_none_or(|values| values.contains(value))
        && choice("anyOf").is_none_or(|schemas| schemas.iter().any(|schema| fits(schema, value)))
        && number.is_none_or(|number| bound("minimum").is_none_or(|least| least <= number))
        && number.is_none_or(|number| bound("maximum").is_none_or(|most| number <= most))
        && number.is_none_or(|number| bound("exclusiveMinimum").is_none_or(|least| least < number))
        && match (schema.get("items"), value.as_array()) {
            (Some(schema), Some(items)) => items.iter().all(|item| fits(schema, item)),
            _ => true,
        }
        && in_object()
}

fn document(text: &str) -> Value {
    let table: toml::Table = text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"));
    Value::Object(crate::config::read::object_of(table))
}

#[test]
fn the_example_is_the_one_that_ships_and_both_judges_take_it() {
    let ships = repository().join("deploy/config/gateway.toml");
    let text = example();
    let shipped = std::fs::read_to_string(&ships).unwrap();
    assert!(
        shipped == text,
        "deploy/config/gateway.toml is not what is generated: \
         cargo run -p gateway -- example > deploy/config/gateway.toml\n{text}"
    );
    let read = parse(&text, Path::new("."));
    assert!(read.is_ok(), "{read:#?}");
    assert!(fits(&schema(), &document(&text)));
}

/// The smallest file with `key` of the table at `place` set to `value`.
fn file_with(place: &str, name: &str, value: &Value) -> Option<String> {
    let rest = "[[route]]\nupstream = \"some\"\n";
    let value = toml::Value::try_from(value.clone()).ok()?;
    let mut line = format!("{name} = {value}\n");
    if place == "listen.NAME" && name != "trusted_proxies" {
        // Without them nobody can speak the PROXY protocol.
        line += "trusted_proxies = [\"10.0.0.0/8\"]\n";
    }
    if place == "store" && !["url", "deadline", "zz"].contains(&name) {
        line += "url = \"redis://h\"\n"; // one in memory has nothing more to be told
    }
    let anonymous = "[anonymous]\nplan = \"p\"\n[plan.p]\nunlimited = true\n";
    Some(match place {
        "" if name != "workers" => return None, // a table
        "" => format!("{line}{rest}[upstream.some]\nendpoints = [\"127.0.0.1:1\"]\n"),
        "route[]" if name == "upstream" => return None,
        "route[]" => {
            format!("{rest}{line}{anonymous}[upstream.some]\nendpoints = [\"127.0.0.1:1\"]\n")
        }
        "upstream.NAME" if name == "endpoints" => format!("{rest}[upstream.some]\n{line}"),
        "upstream.NAME" => {
            format!("{rest}[upstream.some]\nendpoints = [\"127.0.0.1:1\"]\n{line}")
        }
        "upstream.NAME.retry" | "upstream.NAME.health" | "upstream.NAME.ejection" => {
            let place = place.replace("NAME", "some");
            format!("{rest}[upstream.some]\nendpoints = [\"127.0.0.1:1\"]\n[{place}]\n{line}")
        }
        "limits" | "drain" | "standalone" | "listen.NAME" | "store" | "operations" => {
            let table = place.replace("NAME", "some");
            format!("[{table}]\n{line}{rest}[upstream.some]\nendpoints = [\"127.0.0.1:1\"]\n")
        }
        _ => return None,
    })
}

/// The outer values of a kind, and values of other kinds.
fn probes(kind: Kind) -> Vec<Value> {
    let mut values = vec![json!(true), json!("zz?"), json!(-1), json!([[1]]), json!({ "zz": 1 })];
    match kind {
        Kind::Whole(least, most) => {
            values.extend([json!(least), json!(most), json!(most.saturating_add(1)), json!(0.5)]);
            values.extend(least.checked_sub(1).map(|below| json!(below)));
        }
        Kind::Time => values.extend(["1ms", "10s", "2m", "5x", "1 day"].map(|text| json!(text))),
        Kind::Share { .. } => values.extend([json!(0), json!(0.25), json!(1), json!(1.01)]),
        Kind::OneOf(texts) => values.extend(texts.iter().map(|text| json!(text))),
        Kind::Either(kinds) => values.extend(kinds.iter().flat_map(|kind| probes(*kind))),
        Kind::Flag => values.push(json!(false)),
        Kind::Text
        | Kind::Spelled(_)
        | Kind::File
        | Kind::List(_)
        | Kind::Table(_)
        | Kind::Named(_)
        | Kind::Labels => {}
    }
    values
}

/// Spellings are checked by the readers alone here: the test has no regular expressions.
fn is_spelled(kind: Kind) -> bool {
    match kind {
        Kind::Spelled(_) | Kind::Time | Kind::Text | Kind::File => true,
        Kind::Either(kinds) => kinds.iter().any(|kind| is_spelled(*kind)),
        Kind::List(kind) => is_spelled(*kind),
        Kind::Flag
        | Kind::OneOf(_)
        | Kind::Whole(..)
        | Kind::Share { .. }
        | Kind::Table(_)
        | Kind::Named(_)
        | Kind::Labels => false,
    }
}

#[test]
fn readers_and_schema_judge_values_alike_and_defaults_are_valid() {
    let (mut judged, mut defaults) = (0, 0);
    for (place, keys) in all_tables() {
        for key in keys {
            let schema = Value::Object(of_kind(key.kind));
            for probe in probes(key.kind) {
                let Some(text) = file_with(&place, key.name, &probe) else { continue };
                let errors = parse(&text, Path::new(".")).err().unwrap_or_default();
                let here = format!("{}.{}", place.replace("NAME", "some"), key.name);
                let here = here.replace("[]", "[0]");
                let here = here.trim_start_matches('.');
                let taken = !errors.iter().any(|error| error.field.starts_with(here));
                let fits = fits(&schema, &probe);
                let agree = taken == fits || (is_spelled(key.kind) && probe.is_string());
                assert!(agree, "{here} = {probe}: the schema says {fits}, the readers {errors:#?}");
                judged += 1;
            }
            let Some(default) = key.default else { continue };
            let default = value(default).expect("a default is TOML");
            assert!(fits(&schema, &default), "{place} {} = {default}", key.name);
            let said = file_with(&place, key.name, &default);
            let unsaid =
                file_with(&place, "zz", &json!(1)).map(|text| text.replace("zz = 1\n", ""));
            let (Some(said), Some(unsaid)) = (said, unsaid) else { continue };
            assert_eq!(shown(&said), shown(&unsaid), "{place} {} = {default}", key.name);
            defaults += 1;
        }
    }
    assert!(judged > 300 && defaults > 35, "{judged} values and {defaults} defaults were judged");
}

/// All of a configuration that can be seen.
fn shown(text: &str) -> String {
    let read = parse(text, Path::new("."));
    format!("{:#?}", read.unwrap_or_else(|errors| panic!("{errors:#?}\n{text}")))
}

/// Names in backquotes.
fn quoted(text: &str) -> BTreeSet<String> {
    let plain = |name: &&str| {
        !name.is_empty()
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    text.split('`').skip(1).step_by(2).filter(plain).map(str::to_owned).collect()
}

/// Words of what stands in backquotes.
fn words_of(text: &str) -> BTreeSet<String> {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.flat_map(|part| part.split(move |c| !is_word(c))).map(str::to_owned).collect()
}

#[test]
fn every_key_is_described_and_nothing_else_is() {
    let page = std::fs::read_to_string(repository().join("docs/configuration.md")).unwrap();
    let known: BTreeSet<&str> =
        all_tables().values().flat_map(|keys| keys.iter().map(|key| key.name)).collect();
    let mut section = String::new();
    let mut words: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut is_of_keys = true;
    for line in page.lines() {
        // Other tables say so in their first row.
        is_of_keys = line.starts_with('|') && is_of_keys || line.is_empty();
        is_of_keys &= !line.starts_with("| field |");
        if let Some(heading) = line.strip_prefix("## ") {
            section = heading.trim_matches(['[', ']']).to_owned();
        }
        words.entry(section.clone()).or_default().extend(words_of(line));
        let first = line.strip_prefix("| ").and_then(|row| row.split(" | ").next());
        let rows = first.filter(|_| is_of_keys && section != "Process settings");
        for name in rows.map(quoted).into_iter().flatten() {
            assert!(known.contains(name.as_str()), "`{name}` under {section} is no key");
        }
    }
    for (place, keys) in all_tables() {
        let section = match place.split(['.', '[']).next().unwrap_or_default() {
            "" => "Top level",
            "plan" | "client" | "key" | "standalone" => "A policy in the file",
            "upstream" if place.contains("pairing") => "upstream.NAME.pairing",
            "upstream" => "upstream.NAME",
            "listen" => "listen.NAME",
            other => other,
        };
        let told = words.get(section).unwrap_or_else(|| panic!("no section {section}"));
        for key in keys.iter().filter(|key| !key.sample.is_empty()) {
            assert!(
                told.contains(key.name),
                "`{}` of {place} is not described under {section}",
                key.name
            );
        }
    }
}

#[test]
fn what_is_in_force_is_shown_with_defaults_and_without_secrets() {
    let text = "[store]\nurl = \"redis://weir:hunter2@h:6379\"\n[plan.p]\nunlimited = true\n\
        [client.c]\nplan = \"p\"\n[[key]]\nid = \"k\"\nclient = \"c\"\nhash = \"ab\"\n\
        [[route]]\nupstream = \"up\"\n[upstream.up]\nendpoints = [\"h:1\"]\nretry = { attempts = 0 }\n";
    let shown = effective(&document(text));
    let whole = shown.to_string();
    for secret in ["hunter2", "\"ab\""] {
        assert!(!whole.contains(secret), "{secret} in {whole}");
    }
    for (place, expected) in [
        ("/store/url", json!("redis://…@h:6379")),
        ("/store/deadline", json!("5ms")),
        ("/limits/head_bytes", json!(16_384)),
        ("/drain/grace", json!("2s")),
        ("/route/0/path", json!("/")),
        ("/upstream/up/head_timeout", json!("30s")),
        ("/upstream/up/retry", json!({ "attempts": 0, "budget": 0.2, "per_second_min": 3 })),
        ("/upstream/up/ejection/consecutive", json!(5)),
        ("/client/c/state", json!("active")),
        ("/key/0/id", json!("k")),
    ] {
        assert_eq!(shown.pointer(place), Some(&expected), "{place}");
    }
    for absent in ["/upstream/up/health", "/control", "/anonymous", "/plan/p/burst"] {
        assert_eq!(shown.pointer(absent), None, "{absent}");
    }
}
