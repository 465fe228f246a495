//! The evidence for enforcing everybody: fetched from shadow-compare, judged here.
//!
//! No evidence means no: without shadow-compare, or with an answer that does not read, the step is
//! refused as unavailable, not allowed.

use std::time::Duration;

use daemon::Failure;
use serde::Serialize;
use serde_json::Value;
use wire::client::{Call, Client, ClientError};
use wire::error::{ErrorBody, ErrorCode};
use wire::gate::{GateReport, GateVerdict, LINE_ONE_IN, PAIRS_MIN};
use wire::rollout::RolloutValue;

use crate::config::ShadowCompare;

/// Longest wait for shadow-compare: our own callers must still be there for the answer.
const ANSWER_MAX: Duration = Duration::from_secs(4);

/// Talks to shadow-compare.
#[derive(Debug)]
pub(crate) struct Evidence {
    http: Client,
}

#[derive(Serialize)]
struct Question<'a> {
    rollout: &'a RolloutValue,
}

impl Evidence {
    pub(crate) fn new(settings: &ShadowCompare) -> Result<Evidence, Failure> {
        let http = Client::new(&settings.url, Some(&settings.control_token))
            .map_err(|error| Failure::Settings(vec![format!("--shadow-compare: {error}")]))?;
        Ok(Evidence { http })
    }

    /// The number of a rollout.
    pub(crate) async fn report(&self, rollout: &RolloutValue) -> Result<GateReport, ErrorBody> {
        let call = Call::post("/v1/gate", &Question { rollout }).deadline(ANSWER_MAX);
        self.http.send(call).await.map_err(unavailable)
    }

    /// A read, passed on.
    pub(crate) async fn read(&self, call: Call) -> Result<Value, ErrorBody> {
        self.http.send(call.deadline(ANSWER_MAX)).await.map_err(|error| match error {
            ClientError::Refused(body) if (400..500).contains(&body.status) => *body,
            other @ (ClientError::Refused(_)
            | ClientError::Unreachable { .. }
            | ClientError::Malformed { .. }) => unavailable(other),
        })
    }
}

/// Nobody to ask is the same as no answer.
pub(crate) fn nobody() -> ErrorBody {
    ErrorBody::new(ErrorCode::EvidenceUnavailable, "plans-api was started without shadow-compare")
        .with_hint("start it with --shadow-compare URL and --control-token-file PATH")
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that map_err wants")]
fn unavailable(error: ClientError) -> ErrorBody {
    ErrorBody::new(ErrorCode::EvidenceUnavailable, format!("shadow-compare: {error}"))
        .with_hint("is shadow-compare running, and do both know the same control token?")
}

/// Whether enforcing everybody may go on.
pub(crate) fn judge(report: GateReport) -> Result<(), Box<ErrorBody>> {
    let (differing, all) = report.number();
    let (verdict, detail) = match report.verdict() {
        GateVerdict::Pass => return Ok(()),
        GateVerdict::Insufficient => {
            let have = report.pairs;
            (GateVerdict::Insufficient, format!("{have} pairs so far, {PAIRS_MIN} are needed"))
        }
        GateVerdict::Fail => (
            GateVerdict::Fail,
            format!(
                "{differing} of {all} disagree or were lost ({} and {}); fewer than 1 in \
                 {LINE_ONE_IN} may",
                report.disagreements, report.lost
            ),
        ),
    };
    let hint = match verdict {
        GateVerdict::Fail => "look at `weir shadow top --by disagree`, or enforce single clients",
        GateVerdict::Insufficient | GateVerdict::Pass => {
            "leave clients in shadow for longer, or enforce single clients"
        }
    };
    let body = ErrorBody::new(ErrorCode::GateRefused, detail).with_hint(hint);
    Err(Box::new(ErrorBody { verdict: Some(verdict), report: Some(report), ..body }))
}
