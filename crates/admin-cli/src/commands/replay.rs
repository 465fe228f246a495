//! `weir replay`: what would these plans have done to yesterday's traffic? Needs a log and a file
//! of plans, and nobody to ask.
//!
//! The log is read once, line by line, in bounded memory. The arithmetic is limiter-core's, as at
//! the edge; this only knows how logs are written.

mod book; // what became of every client
mod lines; // one line of a log
mod shown; // the outcome
mod stamp; // when

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use self::book::{Book, Plans};
use self::lines::{Asked, Next, Shape, format_of, next_line};
pub(super) use self::shown::{grouped, share};
use crate::args::{LogFormat, Replay};
use crate::failure::{Exit, Failure};
use crate::files;
use crate::output::{Output, Report};

/// Bytes that are read from a log at once.
const READ_BYTES: usize = 256 << 10;
/// How a compressed file begins.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Broken lines that are told with their number.
const TOLD_MAX: usize = 3;

/// Lines that cannot be read.
#[derive(Debug, Default)]
struct Unread {
    count: u64,
    first: Vec<String>,
}

impl Unread {
    fn add(&mut self, log: &Path, number: u64, why: &str) {
        self.count += 1;
        if self.first.len() < TOLD_MAX {
            self.first.push(format!("{}:{number}: {why}", log.display()));
        }
    }
}

/// A log on its way into the book.
struct Reading {
    format: Option<LogFormat>,
    asked: Asked,
    shape: Option<Shape>,
    book: Book,
    unread: Unread,
}

pub(crate) fn run(flags: Replay, output: &Output) -> Result<Report, Failure> {
    let Replay { logs, plans, format, key_field, time_field, route_field, default_plan, all } =
        flags;
    let desired = files::read(&plans)?;
    for left in &desired.left_out {
        output.say(&format!("left out: {left}"));
    }
    let plans = Plans::new(desired, default_plan.as_deref())?;
    let asked = Asked { client: key_field, time: time_field, route: route_field };
    let mut reading =
        Reading { format, asked, shape: None, book: Book::new(plans), unread: Unread::default() };
    for log in &logs {
        reading.log(log)?;
    }
    let Reading { book, unread, .. } = reading;
    if book.counts.requests == 0 {
        let told = if unread.count == 0 { "the log is empty" } else { "no line can be read" };
        let failure = Failure::new(Exit::Invalid, "unreadable", told);
        return Err(unread.first.iter().fold(failure, Failure::and));
    }
    let (summary, report) = shown::report(book.close(), &unread, all);
    output.say(&summary);
    Ok(report)
}

impl Reading {
    fn log(&mut self, log: &Path) -> Result<(), Failure> {
        if log == Path::new("-") {
            return self.lines(log, &mut std::io::stdin().lock());
        }
        let failed = |error: std::io::Error| Failure::usage(format!("{}: {error}", log.display()));
        let mut file = BufReader::with_capacity(READ_BYTES, File::open(log).map_err(failed)?);
        if file.fill_buf().map_err(failed)?.starts_with(&GZIP) {
            let log = log.display();
            return Err(Failure::usage(format!(
                "{log} is compressed: zcat {log} | weir replay - …"
            )));
        }
        self.lines(log, &mut file)
    }

    fn lines(&mut self, log: &Path, from: &mut impl BufRead) -> Result<(), Failure> {
        let mut buffer = Vec::new();
        let mut number = 0;
        loop {
            number += 1;
            let next = next_line(from, &mut buffer)
                .map_err(|error| Failure::usage(format!("{}: {error}", log.display())))?;
            match next {
                Next::End => return Ok(()),
                Next::TooLong => self.unread.add(log, number, "is longer than a line may be"),
                Next::Line if buffer.iter().all(u8::is_ascii_whitespace) => {}
                Next::Line => self.line(log, number, &buffer)?,
            }
        }
    }

    fn line(&mut self, log: &Path, number: u64, line: &[u8]) -> Result<(), Failure> {
        let shape = match &mut self.shape {
            Some(shape) => shape,
            unknown @ None => {
                let format = self.format.unwrap_or_else(|| format_of(line));
                unknown.insert(Shape::new(format, &self.asked)?)
            }
        };
        match shape.read(line) {
            Ok(line) => self.book.add(&line),
            Err(why) => self.unread.add(log, number, why),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
