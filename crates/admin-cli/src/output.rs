//! What is written, and where: data to standard output, everything said to people to standard
//! error. The only place that prints, and the only one that knows the table crate.
//!
//! A command hands over a [`Report`]; the format decides what becomes of it. A pipe that closes
//! early (`weir plan list | head -1`) is not a failure.

use std::io::{self, BufRead, IsTerminal, Write};

use comfy_table::{ContentArrangement, Table, presets};
use serde_json::{Map, Value, json};

use crate::args::{Format, Globals};
use crate::failure::{Exit, Failure};

/// Stands in every document, so that programs can tell a later form apart.
pub(crate) const API_VERSION: &str = "weir/v1";

/// What a command found or did.
#[derive(Debug)]
pub(crate) struct Report {
    /// For programs; an object.
    pub(crate) json: Value,
    /// For people.
    pub(crate) shown: Shown,
    /// For people with wide screens, where that is more.
    pub(crate) wide: Option<Shown>,
    /// One name per object.
    pub(crate) names: Vec<String>,
    /// Said to people on the way.
    pub(crate) notes: Vec<String>,
    /// What went wrong although something was done; said even with `--quiet`.
    pub(crate) warnings: Vec<String>,
    /// How the command ends.
    pub(crate) exit: Exit,
}

/// How a report looks to people.
#[derive(Debug)]
pub(crate) enum Shown {
    /// Rows under headings.
    Rows(&'static [&'static str], Vec<Vec<String>>),
    /// Pairs of a name and a text.
    Fields(Vec<(&'static str, String)>),
    /// Text as it is: a script, a file, a sentence of data.
    Text(String),
    /// Nothing: what happened was said in the notes.
    Nothing,
}

impl Report {
    /// A report that is an object.
    pub(crate) fn new(json: Value, shown: Shown) -> Report {
        let (names, notes, warnings) = (Vec::new(), Vec::new(), Vec::new());
        Report { json, shown, wide: None, names, notes, warnings, exit: Exit::Done }
    }

    /// A list: whole objects for programs, `row` of each for people, `name` of each for pipes.
    pub(crate) fn list(
        items: &[Value],
        headings: &'static [&'static str],
        name: &str,
        row: impl Fn(&Value) -> Vec<String>,
    ) -> Report {
        let rows = items.iter().map(row).collect();
        let names = items.iter().map(|item| text(item, name)).collect();
        let report = Report::new(json!({ "items": items }), Shown::Rows(headings, rows));
        Report { names, ..report }
    }

    /// The same list with more columns for wide screens.
    #[must_use]
    pub(crate) fn wide(
        mut self,
        items: &[Value],
        headings: &'static [&'static str],
        row: impl Fn(&Value) -> Vec<String>,
    ) -> Report {
        self.wide = Some(Shown::Rows(headings, items.iter().map(row).collect()));
        self
    }

    /// Sets the names.
    #[must_use]
    pub(crate) fn named(mut self, name: impl Into<String>) -> Report {
        self.names.push(name.into());
        self
    }

    /// Says something to people.
    #[must_use]
    pub(crate) fn note(mut self, line: impl Into<String>) -> Report {
        self.notes.push(line.into());
        self
    }
}

/// A field as a table shows it: texts bare, nothing as `–`.
pub(crate) fn text(object: &Value, pointer: &str) -> String {
    let value = match pointer.starts_with('/') {
        true => object.pointer(pointer),
        false => object.get(pointer),
    };
    match value {
        None | Some(Value::Null) => "–".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other @ (Value::Bool(_) | Value::Number(_))) => other.to_string(),
        Some(other @ (Value::Array(_) | Value::Object(_))) => other.to_string(),
    }
}

/// Where things are said.
#[derive(Debug)]
pub(crate) struct Output {
    format: Format,
    quiet: bool,
    no_input: bool,
    color: bool,
}

impl Output {
    /// As the flags want it.
    pub(crate) fn new(globals: &Globals) -> Output {
        let color = globals.no_color.as_deref().unwrap_or_default().is_empty()
            && io::stderr().is_terminal();
        let Globals { output: format, quiet, no_input, .. } = *globals;
        Output { format, quiet, no_input, color }
    }

    /// Tells people; not with `--quiet`.
    pub(crate) fn say(&self, line: &str) {
        if !self.quiet {
            to_stderr(line);
        }
    }

    /// Writes a report and says its notes.
    pub(crate) fn report(&self, report: Report) -> Exit {
        let Report { json, shown, wide, names, notes, warnings, exit } = report;
        let written = match self.format {
            Format::Json => to_stdout(&document(json)),
            Format::Ndjson => lines(json).iter().try_for_each(|line| to_stdout(line)),
            Format::Wide => {
                shown_text(wide.unwrap_or(shown)).map_or(Ok(()), |text| to_stdout(&text))
            }
            Format::Name => names.iter().try_for_each(|name| to_stdout(name)),
            Format::Table => shown_text(shown).map_or(Ok(()), |text| to_stdout(&text)),
        };
        notes.iter().for_each(|note| self.say(note));
        warnings.iter().for_each(|line| to_stderr(&format!("weir: {line}")));
        match written {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                to_stderr(&format!("weir: cannot write to standard output: {error}"));
                Exit::Failed
            }
            Ok(()) | Err(_) => exit,
        }
    }

    /// Writes a failure: always to people, with `-o json` also to programs.
    pub(crate) fn failure(&self, failure: &Failure) -> Exit {
        for (index, line) in failure.lines.iter().enumerate() {
            to_stderr(&if index == 0 { format!("weir: {line}") } else { format!("  {line}") });
        }
        let written = match self.format {
            Format::Json => to_stdout(&document(failure.document())),
            Format::Ndjson => to_stdout(&compact(failure.document())),
            Format::Table | Format::Wide | Format::Name => Ok(()),
        };
        if written.is_err() { Exit::Failed } else { failure.exit }
    }

    /// Whether somebody can be asked.
    pub(crate) fn can_ask(&self) -> bool {
        !self.no_input && io::stdin().is_terminal() && io::stderr().is_terminal()
    }

    /// Whether what was said on the way stands on the same screen as the table of it would.
    #[cfg(feature = "dev")]
    pub(crate) fn was_read_along(&self) -> bool {
        self.says_and_shows(io::stdout().is_terminal(), io::stderr().is_terminal())
    }

    #[cfg(feature = "dev")]
    fn says_and_shows(&self, data_on_screen: bool, said_on_screen: bool) -> bool {
        self.format == Format::Table && !self.quiet && data_on_screen && said_on_screen
    }

    /// Reads a line from standard input, after a question if somebody is there to see it.
    pub(crate) fn hear(&self, question: &str) -> io::Result<String> {
        if self.can_ask() {
            return self.ask(question, false);
        }
        let mut line = String::new();
        io::stdin().lock().read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    /// Asks on standard error and reads a line.
    pub(crate) fn ask(&self, question: &str, production: bool) -> io::Result<String> {
        let (before, after) = match (self.color, production) {
            (true, true) => ("\x1b[1;31m", "\x1b[0m"),
            (true, false) | (false, _) => ("", ""),
        };
        let place = if production { "PRODUCTION: " } else { "" };
        let mut stderr = io::stderr().lock();
        write!(stderr, "{before}{place}{question}{after} ")?;
        stderr.flush()?;
        let mut line = String::new();
        io::stdin().lock().read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}

/// Help, versions and mistakes of usage, before there is a format.
pub(crate) fn plain(text: &str, exit: Exit) -> Exit {
    let text = text.trim_end();
    if exit != Exit::Done {
        to_stderr(text);
        return exit;
    }
    match to_stdout(text) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Exit::Failed,
        Ok(()) | Err(_) => Exit::Done,
    }
}

fn document(json: Value) -> String {
    format!("{:#}", versioned(json))
}

fn compact(json: Value) -> String {
    versioned(json).to_string()
}

/// Each item of a list, or the whole, in a line of its own.
fn lines(mut json: Value) -> Vec<String> {
    match json.get_mut("items").and_then(Value::as_array_mut).map(std::mem::take) {
        Some(items) => items.into_iter().map(compact).collect(),
        None => vec![compact(json)],
    }
}

fn versioned(mut json: Value) -> Value {
    if let Some(object) = json.as_object_mut() {
        let mut whole = Map::new();
        whole.insert("apiVersion".to_owned(), json!(API_VERSION));
        whole.append(object);
        return Value::Object(whole);
    }
    json
}

fn shown_text(shown: Shown) -> Option<String> {
    match shown {
        Shown::Rows(headings, rows) => Some(table(std::iter::once(cells(headings)).chain(rows))),
        Shown::Fields(fields) => {
            Some(table(fields.into_iter().map(|(name, text)| vec![name.to_owned(), text])))
        }
        Shown::Text(text) => Some(text.trim_end().to_owned()),
        Shown::Nothing => None,
    }
}

fn cells(headings: &[&str]) -> Vec<String> {
    headings.iter().map(|heading| (*heading).to_owned()).collect()
}

fn table(rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    rows.for_each(|row| {
        table.add_row(row);
    });
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt()
}

fn to_stdout(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{text}")?;
    stdout.flush()
}

/// Standard error that is gone is no reason to fail.
fn to_stderr(line: &str) {
    let gone = writeln!(io::stderr().lock(), "{line}");
    drop(gone);
}

#[cfg(all(test, feature = "dev"))]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_left_out_only_where_its_lines_were_read_already() {
        let output = |format, quiet| Output { format, quiet, no_input: true, color: false };
        assert!(output(Format::Table, false).says_and_shows(true, true));
        assert!(!output(Format::Table, false).says_and_shows(false, true), "into a file");
        assert!(!output(Format::Table, false).says_and_shows(true, false), "lines in a log");
        assert!(!output(Format::Table, true).says_and_shows(true, true), "nothing was said");
        assert!(!output(Format::Json, false).says_and_shows(true, true), "for programs");
    }
}
