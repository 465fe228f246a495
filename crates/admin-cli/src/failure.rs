//! How a command ends: the table of exit codes, and a failure that knows its own.
//!
//! Scripts branch on the code, so a code never changes its meaning. What people read goes to
//! standard error; with `-o json` the same failure is also the one document on standard output.

use std::fmt;
use std::process::ExitCode;

use serde_json::{Value, json};
use wire::error::{ErrorBody, ErrorCode, FieldError};
use wire::gate::GateVerdict;

/// Exit codes. `tests/it` holds every one of them to its word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done; a gate passes.
    Done = 0,
    /// Failed for a reason without an own code.
    Failed = 1,
    /// `diff`: it differs.
    Differs = 2,
    /// The gate fails: at or above the line.
    GateFail = 3,
    /// The gate has too few pairs.
    GateInsufficient = 4,
    /// Changed, but not applied on all live gateways in time.
    NotApplied = 7,
    /// There is no such object.
    NotFound = 9,
    /// Not authenticated, or the role is too small.
    Denied = 10,
    /// Changed by somebody else, in use, or not the next step.
    Conflict = 11,
    /// Unreachable, or not able to answer now.
    Unreachable = 12,
    /// Refused as invalid.
    Invalid = 13,
    /// `doctor` or `limit verify` found a fault.
    Fault = 14,
    /// Wrong usage, or a confirmation is missing.
    Usage = 64,
    /// Interrupted.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}

impl Exit {
    /// The number.
    pub(crate) const fn code(self) -> u8 {
        self as u8
    }

    /// The code for a gate's verdict.
    pub(crate) const fn of_verdict(verdict: GateVerdict) -> Exit {
        match verdict {
            GateVerdict::Pass => Exit::Done,
            GateVerdict::Fail => Exit::GateFail,
            GateVerdict::Insufficient => Exit::GateInsufficient,
        }
    }

    /// The code for a refusal by plans-api.
    pub(crate) fn of_refusal(code: ErrorCode) -> Exit {
        match (code, code.status()) {
            (_, 404) => Exit::NotFound,
            (_, 401 | 403) => Exit::Denied,
            (_, 409 | 410 | 412 | 428) => Exit::Conflict,
            (_, 400 | 413 | 414 | 422 | 431) => Exit::Invalid,
            (_, 502..=504) => Exit::Unreachable,
            _ => Exit::Failed,
        }
    }
}

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Its exit code.
    pub(crate) exit: Exit,
    /// The stable name of the reason.
    pub(crate) code: &'static str,
    /// Lines for people: what happened, then every mistake, then what to do.
    pub(crate) lines: Vec<String>,
    /// Mistakes by field.
    pub(crate) errors: Vec<FieldError>,
    /// More for programs; an object or null.
    pub(crate) detail: Value,
}

impl Failure {
    /// A failure with one line.
    pub(crate) fn new(exit: Exit, code: &'static str, line: impl Into<String>) -> Failure {
        let (errors, detail) = (Vec::new(), Value::Null);
        Failure { exit, code, lines: vec![line.into()], errors, detail }
    }

    /// Wrong usage.
    pub(crate) fn usage(line: impl Into<String>) -> Failure {
        Failure::new(Exit::Usage, "usage", line)
    }

    /// Mistakes found here, before anybody was asked.
    pub(crate) fn invalid(errors: Vec<FieldError>) -> Failure {
        let code = errors.first().map_or(ErrorCode::InvalidValue, |error| error.code);
        let lines = errors.iter().map(ToString::to_string).collect();
        Failure { exit: Exit::Invalid, code: code.name(), lines, errors, detail: Value::Null }
    }

    /// plans-api refused.
    pub(crate) fn refused(body: ErrorBody) -> Failure {
        let mut lines = vec![body.title.clone()];
        if body.errors.is_empty() {
            lines.push(body.detail);
        } else {
            lines.extend(body.errors.iter().map(ToString::to_string));
        }
        lines.extend(body.hint.map(|hint| format!("hint: {hint}")));
        lines.extend(body.request_id.map(|id| format!("request id: {id}")));
        lines.dedup();
        let (exit, code) = (Exit::of_refusal(body.code), body.code.name());
        Failure { exit, code, lines, errors: body.errors, detail: Value::Null }
    }

    /// Adds a line for people.
    #[must_use]
    pub(crate) fn and(mut self, line: impl Into<String>) -> Failure {
        self.lines.push(line.into());
        self
    }

    /// The document for programs.
    pub(crate) fn document(&self) -> Value {
        let mut error = json!({ "code": self.code, "detail": self.lines.join("; ") });
        if let Some(error) = error.as_object_mut() {
            if !self.errors.is_empty() {
                error.insert("errors".to_owned(), json!(self.errors));
            }
            if !self.detail.is_null() {
                error.insert("more".to_owned(), self.detail.clone());
            }
        }
        json!({ "ok": false, "exit": self.exit.code(), "error": error })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        Failure::new(Exit::Failed, "failed", format!("{error:#}"))
    }
}
