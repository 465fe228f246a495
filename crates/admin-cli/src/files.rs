//! Files of plans and clients: TOML, one or many, the form that `weir export` writes.
//!
//! Every mistake of every file is found in one go, with file, line and field. The judges are the
//! same as behind the API (`wire::plan`), so what passes here passes there; only what needs the
//! database (is there such a plan?) is left to plans-api. A standalone `gateway.toml` is read too:
//! its plans and clients are taken, the rest is named.

mod write; // the same form again

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use toml::de::{DeTable, DeValue};
use wire::error::{ErrorCode, FieldError};
use wire::name::Name;
use wire::plan::{PlanSpec, parse_labels};
use wire::strict::{Fields, Problems};

pub(crate) use self::write::to_toml;
use crate::failure::{Exit, Failure};

/// Largest file, in bytes. A larger one is refused unread: plans-api takes no larger body.
const FILE_BYTES_MAX: u64 = 2 << 20;

const STATES: [&str; 2] = ["active", "suspended"];
/// A file with one of these tables is a gateway's.
const GATEWAY_TABLES: [&str; 5] = ["route", "listen", "upstream", "standalone", "operations"];

/// A client as files name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClientSpec {
    pub(crate) plan: String,
    pub(crate) name: Option<String>,
    /// `active` or `suspended`; a file that does not say leaves it.
    pub(crate) state: Option<String>,
    pub(crate) labels: BTreeMap<String, String>,
}

impl ClientSpec {
    /// The body that plans-api takes.
    pub(crate) fn to_json(&self) -> Value {
        let mut object = Map::new();
        object.insert("plan".to_owned(), json!(self.plan));
        if let Some(name) = &self.name {
            object.insert("name".to_owned(), json!(name));
        }
        if let Some(state) = &self.state {
            object.insert("state".to_owned(), json!(state));
        }
        if !self.labels.is_empty() {
            object.insert("labels".to_owned(), json!(self.labels));
        }
        Value::Object(object)
    }
}

/// What files ask for.
#[derive(Debug, Default)]
pub(crate) struct Desired {
    pub(crate) plans: BTreeMap<String, PlanSpec>,
    pub(crate) clients: BTreeMap<String, ClientSpec>,
    /// Parts of a gateway's file that nobody here looks at, as `file: [part]`.
    pub(crate) left_out: Vec<String>,
}

impl Desired {
    /// The body of `POST /v1/apply`.
    pub(crate) fn to_json(&self) -> Value {
        let plans: Map<String, Value> =
            self.plans.iter().map(|(name, plan)| (name.clone(), plan.to_json())).collect();
        let clients: Map<String, Value> =
            self.clients.iter().map(|(id, client)| (id.clone(), client.to_json())).collect();
        json!({ "plan": plans, "client": clients })
    }
}

/// Reads files and folders of files; all mistakes at once.
pub(crate) fn read(paths: &[PathBuf]) -> Result<Desired, Failure> {
    let mut desired = Desired::default();
    let mut mistakes = Vec::new();
    for path in spread(paths)? {
        let text = text_of(&path)?;
        mistakes.extend(read_one(&path.display().to_string(), &text, &mut desired));
    }
    if mistakes.is_empty() { Ok(desired) } else { Err(Failure::invalid(mistakes)) }
}

/// Files stay as they are; folders become their `.toml` files in order.
fn spread(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let entries = std::fs::read_dir(path).map_err(|error| unreadable(path, &error))?;
        let mut inside: Vec<PathBuf> = entries
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .filter(|path| path.extension().is_some_and(|ext| ext == "toml"))
            .collect();
        if inside.is_empty() {
            return Err(Failure::usage(format!("{}: no .toml file in it", path.display())));
        }
        inside.sort();
        files.append(&mut inside);
    }
    Ok(files)
}

fn text_of(path: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    let read = if path == Path::new("-") {
        std::io::stdin().lock().take(FILE_BYTES_MAX + 1).read_to_string(&mut text)
    } else {
        std::fs::File::open(path)
            .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text))
    };
    match read {
        Ok(bytes) if bytes as u64 > FILE_BYTES_MAX => Err(Failure::new(
            Exit::Invalid,
            "body_too_large",
            format!("{}: larger than {FILE_BYTES_MAX} bytes", path.display()),
        )),
        Ok(_) => Ok(text),
        Err(error) => Err(unreadable(path, &error)),
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::usage(format!("{}: {error}", path.display()))
}

/// Reads one file into `desired`; its mistakes carry `file:line`.
fn read_one(file: &str, text: &str, desired: &mut Desired) -> Vec<FieldError> {
    let table = match DeTable::parse(text) {
        Ok(table) => table.into_inner(),
        Err(error) => {
            let field = place(file, error.span().map(|span| line_of(text, span.start)), "");
            let detail = error.message().to_owned();
            return vec![FieldError { field, code: ErrorCode::InvalidValue, detail }];
        }
    };
    let mut problems = Problems::new();
    let mut left = Vec::new();
    let gateway = GATEWAY_TABLES.iter().any(|name| table.contains_key(*name));
    for (key, value) in &table {
        let key: &str = key.get_ref();
        match key {
            "plan" => each(value.get_ref(), "plan", &mut problems, |name, value, problems| {
                let path = format!("plan.{name}");
                let plan = PlanSpec::parse(name, value, &path, problems);
                insert(&mut desired.plans, name, plan, &path, problems);
            }),
            "client" => each(value.get_ref(), "client", &mut problems, |id, value, problems| {
                let path = format!("client.{id}");
                let client = parse_client(id, value, &path, problems);
                insert(&mut desired.clients, id, client, &path, problems);
            }),
            other if gateway => left.push(format!("{file}: [{other}]")),
            other => {
                let detail = "is not a known table; known are plan and client";
                problems.add(other, ErrorCode::UnknownField, detail);
            }
        }
    }
    desired.left_out.append(&mut left);
    let located = problems.into_vec().into_iter().map(|mistake| {
        let line = offset_of(&table, &mistake.field).map(|offset| line_of(text, offset));
        FieldError { field: place(file, line, &mistake.field), ..mistake }
    });
    located.collect()
}

fn each(
    table: &DeValue<'_>,
    kind: &str,
    problems: &mut Problems,
    mut take: impl FnMut(&str, &Value, &mut Problems),
) {
    let DeValue::Table(table) = table else {
        let detail = format!("must be tables like [{kind}.name]");
        return problems.add(kind, ErrorCode::InvalidValue, detail);
    };
    for (name, value) in table {
        take(name.get_ref(), &to_json(value.get_ref()), problems);
    }
}

fn insert<T>(
    into: &mut BTreeMap<String, T>,
    name: &str,
    value: Option<T>,
    path: &str,
    problems: &mut Problems,
) {
    if into.contains_key(name) {
        problems.add(path, ErrorCode::InvalidValue, "stands in two files");
    } else if let Some(value) = value {
        into.insert(name.to_owned(), value);
    }
}

/// Reads a client as files and flags name it.
pub(crate) fn parse_client(
    id: &str,
    value: &Value,
    path: &str,
    problems: &mut Problems,
) -> Option<ClientSpec> {
    let mut check = |field: String, text: &str| {
        if let Err(error) = Name::new(text) {
            problems.add(field, ErrorCode::InvalidValue, error.to_string());
        }
    };
    check(path.to_owned(), id);
    if let Some(plan) = value.get("plan").and_then(Value::as_str) {
        check(format!("{path}.plan"), plan);
    }
    let mut fields = Fields::of(value, path, problems);
    let plan = fields.text("plan", problems).map(ToOwned::to_owned);
    if fields.get("plan").is_none() {
        fields.missing("plan", problems);
    }
    let name = fields.text("name", problems).map(ToOwned::to_owned);
    let state = fields.text("state", problems).map(ToOwned::to_owned);
    if let Some(state) = state.as_deref().filter(|state| !STATES.contains(state)) {
        let detail = format!("must be active or suspended, not `{state}`");
        problems.add(fields.path("state"), ErrorCode::InvalidValue, detail);
    }
    let labels = parse_labels(&mut fields, problems);
    fields.finish(problems);
    Some(ClientSpec { plan: plan?, name, state, labels })
}

/// TOML as JSON. What JSON has no word for becomes a text, which no number is read from.
fn to_json(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => json!(text.as_ref()),
        DeValue::Boolean(flag) => json!(flag),
        DeValue::Integer(number) => {
            let parsed = i64::from_str_radix(number.as_str(), number.radix());
            match (number.radix(), parsed) {
                (10, Ok(number)) => json!(number),
                (10, Err(_)) => json!(number.as_str()),
                (_, Ok(_) | Err(_)) => json!(number.to_string()),
            }
        }
        DeValue::Float(number) => {
            let text = number.as_str();
            text.parse::<f64>()
                .ok()
                .and_then(serde_json::Number::from_f64)
                .map_or_else(|| json!(text), Value::Number)
        }
        DeValue::Datetime(time) => json!(time.to_string()),
        DeValue::Array(items) => items.iter().map(|item| to_json(item.get_ref())).collect(),
        DeValue::Table(table) => {
            let fields = table
                .iter()
                .map(|(key, value)| (key.get_ref().to_string(), to_json(value.get_ref())));
            Value::Object(fields.collect())
        }
    }
}

/// Where `path` stands, or the nearest part of it that does.
fn offset_of(table: &DeTable<'_>, path: &str) -> Option<usize> {
    let mut rest = path;
    let mut offset = None;
    let mut here = table;
    while !rest.is_empty() {
        // names may have dots in them, so the longest key that fits is the one that is meant
        let fits = |key: &&str| {
            rest.strip_prefix(*key).is_some_and(|after| {
                after.is_empty() || after.starts_with('.') || after.starts_with('[')
            })
        };
        let keys = here.iter().map(|(key, _)| key.get_ref().as_ref());
        let key: &str = keys.filter(fits).max_by_key(|key| key.len())?;
        let (name, value) = here.iter().find(|(name, _)| name.get_ref().as_ref() == key)?;
        offset = Some(name.span().start);
        rest = rest.strip_prefix(key)?.trim_start_matches('.');
        let mut inner = value;
        while let Some((index, after)) = rest.strip_prefix('[').and_then(|at| at.split_once(']')) {
            let DeValue::Array(items) = inner.get_ref() else { return offset };
            inner = match index.parse::<usize>().ok().and_then(|index| items.get(index)) {
                Some(item) => item,
                None => return offset,
            };
            offset = Some(inner.span().start);
            rest = after.trim_start_matches('.');
        }
        match inner.get_ref() {
            DeValue::Table(table) => here = table,
            DeValue::String(_)
            | DeValue::Integer(_)
            | DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_)
            | DeValue::Array(_) => return offset,
        }
        if !here.iter().any(|(key, _)| rest.starts_with(key.get_ref().as_ref())) {
            return offset;
        }
    }
    offset
}

fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}

fn place(file: &str, line: Option<usize>, field: &str) -> String {
    let line = line.map(|line| format!(":{line}")).unwrap_or_default();
    let field = if field.is_empty() { String::new() } else { format!(": {field}") };
    format!("{file}{line}{field}")
}

#[cfg(test)]
mod tests;
