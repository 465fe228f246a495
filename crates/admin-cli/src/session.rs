//! What a command is given: plans-api, a way to ask the operator, and the wait for the gateways.
//!
//! Answers become JSON values here: tables and documents are made of the same fields.

use std::time::Duration;

use limiter_core::{Clock, SystemClock};
use serde::Serialize;
use serde_json::{Value, json};
use wire::client::plans::PlansClient;
use wire::client::{Call, ClientError};

use crate::args::{ChangeFlags, Globals};
use crate::contexts::{self, Target};
use crate::failure::{Exit, Failure};
use crate::output::{Output, Report, Shown, text};

/// Between two looks at what the gateways have applied.
const WAIT_STEP: Duration = Duration::from_millis(50);
/// Most names in one message.
const NAMED_MAX: usize = 10;

/// One command's hold on plans-api.
pub(crate) struct Session<'a> {
    pub(crate) output: &'a Output,
    pub(crate) target: Target,
    pub(crate) api: PlansClient,
    /// Changes are tried, not made (`--dry-run`).
    pub(crate) trying: bool,
}

impl<'a> Session<'a> {
    /// Connects to nothing yet; reads the context.
    pub(crate) fn open(globals: &Globals, output: &'a Output) -> Result<Session<'a>, Failure> {
        let target = contexts::resolve(globals)?;
        with_scheme(&target.addr, &target.source)?;
        let api = PlansClient::new(&target.addr, target.token.as_deref())
            .map_err(|error| Failure::usage(format!("{error} ({})", target.source)))?;
        if let Some(ignored) = target.ignored {
            output.say(ignored);
        }
        let trying = globals.given.dry_run;
        let api = if trying { api.trying() } else { api };
        Ok(Session { output, target, api, trying })
    }

    /// Waits for an answer.
    pub(crate) async fn ask<T: Serialize>(
        &self,
        answer: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<Value, Failure> {
        let answer = answer.await.map_err(|error| self.failure(error))?;
        serde_json::to_value(answer)
            .map_err(|error| Failure::new(Exit::Failed, "malformed", error.to_string()))
    }

    /// Waits for an answer and keeps its type.
    pub(crate) async fn answer<T>(
        &self,
        answer: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, Failure> {
        answer.await.map_err(|error| self.failure(error))
    }

    /// Waits for an object that may not be there.
    pub(crate) async fn find<T: Serialize>(
        &self,
        answer: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<Option<Value>, Failure> {
        match self.ask(answer).await {
            Ok(value) => Ok(Some(value)),
            Err(failure) if failure.exit == Exit::NotFound => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Waits for a list.
    pub(crate) async fn items<T: Serialize>(
        &self,
        answer: impl Future<Output = Result<Vec<T>, ClientError>>,
    ) -> Result<Vec<Value>, Failure> {
        let mut answer = self.ask(answer).await?;
        Ok(answer.as_array_mut().map(std::mem::take).unwrap_or_default())
    }

    /// Sends a call that has no method of its own.
    pub(crate) async fn send(&self, call: Call) -> Result<Value, Failure> {
        self.ask(self.api.http().send::<Value>(call)).await
    }

    /// A whole list, page by page.
    pub(crate) async fn pages(&self, path: &str) -> Result<Vec<Value>, Failure> {
        let mut items = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let call = Call::get(path).query("limit", "500").maybe("cursor", cursor);
            let mut page = self.send(call).await?;
            items.append(
                page.get_mut("items").and_then(Value::as_array_mut).unwrap_or(&mut Vec::new()),
            );
            cursor = page.get("next").and_then(Value::as_str).map(ToOwned::to_owned);
            if cursor.is_none() {
                return Ok(items);
            }
        }
    }

    /// Why a change is made; production wants to know.
    pub(crate) fn reason<'c>(&self, change: &'c ChangeFlags) -> Result<&'c str, Failure> {
        let reason = change.reason.as_deref().unwrap_or_default();
        if self.target.production && reason.is_empty() && !self.trying {
            let source = &self.target.source;
            return Err(Failure::usage(format!("{source} is production: say why with --reason")));
        }
        Ok(reason)
    }

    /// Asks before a change that hurts when it is a slip. `danger` is what it would do (`delete …`) and to how many;
    /// `typed` wants that word instead of a yes.
    pub(crate) fn confirm(
        &self,
        change: &ChangeFlags,
        danger: &str,
        typed: Option<&str>,
    ) -> Result<(), Failure> {
        self.reason(change)?;
        if self.trying {
            self.output.say(&format!("would {danger}"));
            return Ok(());
        }
        if change.yes {
            return Ok(());
        }
        if !self.output.can_ask() {
            return Err(Failure::usage(format!(
                "would {danger}; nothing was done, confirm with --yes"
            )));
        }
        let question = match typed {
            Some(word) => format!("{danger}\ntype {word} to go on:"),
            None => format!("{danger}; go on? [y/N]"),
        };
        let answer = self
            .output
            .ask(&question, self.target.production)
            .map_err(|error| Failure::usage(format!("cannot ask: {error}")))?;
        let agreed = match typed {
            Some(word) => answer == word,
            None => matches!(answer.as_str(), "y" | "Y" | "yes"),
        };
        if agreed { Ok(()) } else { Err(Failure::usage("not confirmed; nothing was changed")) }
    }

    /// In production every change is confirmed, also those that are usually not.
    pub(crate) fn confirm_in_production(
        &self,
        change: &ChangeFlags,
        danger: &str,
    ) -> Result<(), Failure> {
        if self.target.production { self.confirm(change, danger, None) } else { Ok(()) }
    }

    /// Tells the revision of a change, and waits for the gateways if asked to. The report is kept
    /// whatever the wait comes to: it may hold a key that is shown once.
    pub(crate) async fn finish(&self, mut report: Report, change: &ChangeFlags) -> Report {
        if self.trying {
            if let Some(object) = report.json.as_object_mut() {
                object.insert("dry_run".to_owned(), json!(true));
                // a secret that was never kept opens nothing
                for secret in ["key", "token", "hash"] {
                    object.remove(secret);
                }
            }
            report.shown = Shown::Nothing;
            report.notes = vec!["nothing was changed (--dry-run)".to_owned()];
            return report;
        }
        let revision = report.json.get("revision").and_then(Value::as_u64).unwrap_or_default();
        let Some(patience) = change.wait else {
            return report.note(format!("revision {revision}"));
        };
        let waited = tokio::select! {
            biased;
            waited = self.until_applied(revision, patience) => waited,
            _ = tokio::signal::ctrl_c() => Waited {
                line: format!("interrupted: revision {revision} is made, its arrival was not awaited"),
                json: json!({ "all": false }),
                exit: Exit::Interrupted,
            },
        };
        with_wait(report, waited)
    }

    async fn until_applied(&self, revision: u64, patience: Duration) -> Waited {
        let clock = SystemClock::new();
        let start = clock.now();
        loop {
            let seen = self.items(self.api.gateways()).await;
            let after = clock.now().since(start);
            let waited = match seen {
                Ok(gateways) => waited(revision, &gateways, after),
                Err(failure) => Waited {
                    line: format!("revision {revision} is made, but {failure}"),
                    json: json!({ "all": false }),
                    exit: Exit::NotApplied,
                },
            };
            if waited.exit == Exit::Done || after >= patience {
                return waited;
            }
            tokio::time::sleep(WAIT_STEP).await;
        }
    }

    fn failure(&self, error: ClientError) -> Failure {
        match error {
            ClientError::Refused(body) => {
                let failure = Failure::refused(*body);
                match (failure.exit, &self.target.token) {
                    (Exit::Denied, None) => failure.and(
                        "no token was shown; set WEIR_TOKEN or a context (`weir context add`)",
                    ),
                    (Exit::Denied, Some(_)) => {
                        failure.and(format!("shown was the token of {}", self.target.source))
                    }
                    _ => failure,
                }
            }
            ClientError::Unreachable { .. } => {
                Failure::new(Exit::Unreachable, "unreachable", error.to_string())
                    .and(format!("that address comes from {}", self.target.source))
            }
            ClientError::Malformed { status, .. } => {
                let exit = if status >= 502 { Exit::Unreachable } else { Exit::Failed };
                Failure::new(exit, "malformed", error.to_string())
            }
        }
    }
}

/// What a wait for the gateways came to.
struct Waited {
    line: String,
    json: Value,
    exit: Exit,
}

fn waited(revision: u64, gateways: &[Value], after: Duration) -> Waited {
    let live: Vec<&Value> =
        gateways.iter().filter(|gateway| gateway.get("live") == Some(&json!(true))).collect();
    let behind = |gateway: &&&Value| {
        gateway.get("applied").and_then(Value::as_u64).unwrap_or_default() < revision
    };
    let missing: Vec<String> =
        live.iter().filter(behind).map(|gateway| text(gateway, "id")).collect();
    let (all, there) = (live.len(), live.len() - missing.len());
    let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
    let json = json!({
        "all": missing.is_empty(), "live": all, "applied": there, "missing": missing,
        "after_ms": after_ms,
    });
    let (line, exit) = if missing.is_empty() {
        let line =
            format!("revision {revision} in force on {there}/{all} gateways after {after_ms} ms");
        (line, Exit::Done)
    } else {
        let named = shortened(&missing);
        let line =
            format!("revision {revision} is made, but after {after_ms} ms not in force on {named}");
        (line, Exit::NotApplied)
    };
    Waited { line, json, exit }
}

fn with_wait(mut report: Report, waited: Waited) -> Report {
    if let Some(object) = report.json.as_object_mut() {
        object.insert("applied".to_owned(), waited.json);
    }
    if waited.exit == Exit::Done {
        return report.note(waited.line);
    }
    report.exit = waited.exit;
    report.warnings.push(waited.line);
    report
}

/// Refuses an address that is no URL of a kind that can be called.
pub(crate) fn with_scheme(addr: &str, source: &str) -> Result<(), Failure> {
    if addr.starts_with("http://") || addr.starts_with("https://") {
        return Ok(());
    }
    let line = format!("`{addr}` ({source}) lacks its `http://` or `https://`");
    let failure = Failure::usage(line);
    Err(if addr.contains("://") { failure } else { failure.and(format!("say http://{addr}")) })
}

/// `1 key`, `2 keys`.
pub(crate) fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// The first few names, and how many more.
pub(crate) fn shortened(names: &[String]) -> String {
    let first = names.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMED_MAX) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}
