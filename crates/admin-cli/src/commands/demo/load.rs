//! Sends what the script says and sorts what came back.

use std::sync::Arc;
use std::time::Duration;

use demo::incident::Script;
use limiter_core::{Clock, SystemClock};
use wire::client::{Call, Client, ClientError};
use wire::error::ErrorCode;

/// The same script in every run.
const SEED: u64 = 20_260_701;

/// What became of some requests.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Counts {
    pub(super) allowed: u64,
    pub(super) refused_by_edge: u64,
    pub(super) refused_by_service: u64,
    pub(super) failed: u64,
}

impl Counts {
    pub(super) const fn sent(&self) -> u64 {
        self.allowed + self.refused_by_edge + self.refused_by_service + self.failed
    }
}

/// What a phase looked like from outside.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) noisy: Counts,
    pub(super) others: Counts,
    pub(super) others_p99: Duration,
    /// From the begin to the last request.
    pub(super) sent: Duration,
    /// From the begin to the first answer.
    pub(super) first_answer: Duration,
    /// From the begin to the last answer.
    pub(super) answered: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Allowed,
    RefusedByEdge,
    RefusedByService,
    Failed,
}

/// One request. The edge refuses with its own problem; a replica of the demo with plain text.
pub(super) async fn send(caller: &Client, service: &str) -> Answer {
    match caller.send_raw(Call::get(format!("/{service}/work"))).await {
        Ok(_) => Answer::Allowed,
        Err(ClientError::Refused(body)) if body.code == ErrorCode::QuotaExceeded => {
            Answer::RefusedByEdge
        }
        Err(ClientError::Malformed { status: 429, .. }) => Answer::RefusedByService,
        Err(_) => Answer::Failed,
    }
}

/// Sends the whole script; `callers` stand in the order of its offers.
pub(super) async fn run(script: &Script, callers: &[Client], length: Duration) -> Seen {
    let clock = SystemClock::new();
    let start = tokio::time::Instant::now();
    let began = clock.now();
    let mut sent = Vec::new();
    for shot in script.shots(length, SEED) {
        let Some(caller) = callers.get(shot.client).cloned() else { continue };
        let service = demo::SERVICES.get(shot.service).copied().unwrap_or("orders");
        tokio::time::sleep_until(start + shot.at).await;
        let noisy = shot.client == 0;
        sent.push(daemon::tasks::spawn("demo-caller", async move {
            let begun = clock.now();
            let answer = send(&caller, service).await;
            let ended = clock.now();
            (noisy, answer, ended.since(begun), ended.since(began))
        }));
    }
    let last = clock.now().since(began);
    let mut seen = Seen {
        noisy: Counts::default(),
        others: Counts::default(),
        others_p99: Duration::ZERO,
        sent: last,
        first_answer: last,
        answered: last,
    };
    let mut waits = Vec::new();
    for one in sent {
        let broken = (true, Answer::Failed, Duration::ZERO, last);
        let (noisy, answer, wait, ended) = one.await.unwrap_or(broken);
        seen.first_answer = seen.first_answer.min(ended);
        seen.answered = seen.answered.max(ended);
        let counts = if noisy { &mut seen.noisy } else { &mut seen.others };
        match answer {
            Answer::Allowed => counts.allowed += 1,
            Answer::RefusedByEdge => counts.refused_by_edge += 1,
            Answer::RefusedByService => counts.refused_by_service += 1,
            Answer::Failed => counts.failed += 1,
        }
        if !noisy {
            waits.push(wait);
        }
    }
    waits.sort_unstable();
    let at = (waits.len() * 99 / 100).min(waits.len().saturating_sub(1));
    seen.others_p99 = waits.get(at).copied().unwrap_or_default();
    seen
}

/// A caller per client.
pub(super) fn callers(gateway: &str, keys: &[String]) -> Result<Arc<[Client]>, ClientError> {
    keys.iter().map(|key| Client::new(gateway, Some(key))).collect()
}
