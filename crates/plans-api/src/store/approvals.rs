//! Moves that another person has to accept: asked for here, and done in the transaction that
//! accepts them, on the very state that they were asked for. Unanswered ones end by themselves.

use daemon::sql::{Row, Transaction, Value};
use serde_json::json;
use wire::client::plans::{Approval, ApprovalState, Page, Whom};
use wire::rollout::Phase;

use super::rollouts::{self, Basis, Step};
use super::writing::{Told, Writing};
use super::{Expect, PlanStore, Stamp, StoreError, json_of, page, text_of};

/// How long a request waits for its answer.
pub(crate) const ANSWER_MS: u64 = 15 * 60_000;
/// Most requests that wait; beyond it new ones are refused.
const OPEN_MAX: u64 = 100;

macro_rules! columns {
    () => {
        "select id, command, kind, subject, subject_revision, evidence, reason, token_id, requested_by, \
         requested_at, expires_at, state, decided_by, decided_at from approval"
    };
}
const ONE: &str = concat!(columns!(), " where id = $1");
const PAGE: &str = concat!(columns!(), " where id > $1 order by id limit $2");

/// Enforcing everybody against what the evidence says.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) rollout: &'a str,
    /// The rollout that the evidence is about.
    pub(crate) revision: u64,
    pub(crate) evidence: serde_json::Value,
    pub(crate) token_id: &'a str,
}

/// Who answers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answering<'a> {
    pub(crate) token_id: &'a str,
    pub(crate) name: &'a str,
}

/// Why an answer does not count.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// Nobody accepts what they asked for themselves.
    Own,
    Store(StoreError),
}

impl From<StoreError> for Unanswered {
    fn from(error: StoreError) -> Unanswered {
        Unanswered::Store(error)
    }
}

/// An approval with what only the store needs.
struct Stored {
    shown: Approval,
    subject_revision: u64,
    token_id: String,
}

impl PlanStore {
    /// Asks for another person's word.
    pub(crate) async fn ask_for(
        &self,
        wanted: &Wanted<'_>,
        stamp: &Stamp,
    ) -> Result<Approval, StoreError> {
        let mut writing = self.begin(stamp).await?;
        let now = writing.now();
        let open = "select count(*) as open from approval where state = 'open' and expires_at > $1";
        let open = writing.tx.row(open, [now.into()]).await?;
        if open.map_or(Ok(0), |row| row.count("open"))? >= OPEN_MAX {
            let detail = format!("{OPEN_MAX} requests wait for an answer already");
            return Err(StoreError::InUse(detail));
        }
        let approval = Approval {
            id: uuid::Uuid::now_v7().simple().to_string(),
            command: "set all enforce".to_owned(),
            kind: "rollout".to_owned(),
            subject: wanted.rollout.to_owned(),
            reason: stamp.reason.clone(),
            evidence: wanted.evidence.clone(),
            requested_by: stamp.actor.clone(),
            requested_at: now,
            expires_at: now + ANSWER_MS,
            state: ApprovalState::Open,
            decided_by: None,
            decided_at: None,
        };
        writing.tx.run(INSERT, row_of(&approval, wanted)).await?;
        audit(&mut writing, "approval ask", None, &approval).await?;
        writing.commit().await?;
        Ok(approval)
    }

    /// One approval.
    pub(crate) async fn approval(&self, id: &str) -> Result<Approval, StoreError> {
        let mut tx = self.database.read().await?;
        Ok(find(&mut tx, id, self.now()).await?.shown)
    }

    /// A page of approvals, the oldest first.
    pub(crate) async fn approvals(
        &self,
        after: &str,
        limit: u32,
    ) -> Result<Page<Approval>, StoreError> {
        let now = self.now();
        let mut tx = self.database.read().await?;
        let rows = tx.rows(PAGE, [after.into(), (limit + 1).into()]).await?;
        let approvals = rows.iter().map(|row| Ok(stored_of(row, now)?.shown));
        let approvals = approvals.collect::<Result<Vec<_>, StoreError>>()?;
        Ok(page(approvals, limit, |approval: &Approval| approval.id.clone()))
    }

    /// Does what was asked for, if it was somebody else and nothing has changed since.
    pub(crate) async fn accept(
        &self,
        id: &str,
        by: Answering<'_>,
        stamp: &Stamp,
    ) -> Result<Approval, Unanswered> {
        let mut writing = self.begin(stamp).await?;
        let now = writing.now();
        let stored = find(&mut writing.tx, id, now).await?;
        if stored.is_own(by) {
            return Err(Unanswered::Own);
        }
        refuse_closed(&stored.shown)?;
        let command = format!("{} (override)", stored.shown.command);
        let step = Step {
            name: &stored.shown.subject,
            whom: &Whom::All,
            phase: Phase::Enforce,
            command: &command,
            basis: Basis::Evidence(stored.subject_revision),
            expect: Expect::Any,
        };
        rollouts::move_in(&mut writing, &step).await?;
        let approval = decide(&mut writing, &stored.shown, ApprovalState::Accepted, stamp).await?;
        writing.commit().await?;
        Ok(approval)
    }

    /// Ends a request without doing it; whoever asked may take it back so.
    pub(crate) async fn refuse(&self, id: &str, stamp: &Stamp) -> Result<Approval, StoreError> {
        let mut writing = self.begin(stamp).await?;
        let now = writing.now();
        let stored = find(&mut writing.tx, id, now).await?;
        refuse_closed(&stored.shown)?;
        let approval = decide(&mut writing, &stored.shown, ApprovalState::Refused, stamp).await?;
        writing.commit().await?;
        Ok(approval)
    }
}

impl Stored {
    /// Whether the same token asked, or another one of the same person.
    fn is_own(&self, by: Answering<'_>) -> bool {
        let asked = self.shown.requested_by.rsplit_once(" (").map_or("", |(name, _id)| name);
        self.token_id == by.token_id || asked.eq_ignore_ascii_case(by.name)
    }
}

fn refuse_closed(approval: &Approval) -> Result<(), StoreError> {
    let how = match approval.state {
        ApprovalState::Open => return Ok(()),
        ApprovalState::Accepted => "was accepted already",
        ApprovalState::Refused => "was refused already",
        ApprovalState::Expired => "was not answered in time: ask again",
    };
    Err(StoreError::InUse(format!("the approval `{}` {how}", approval.id)))
}

async fn decide(
    writing: &mut Writing<'_>,
    before: &Approval,
    state: ApprovalState,
    stamp: &Stamp,
) -> Result<Approval, StoreError> {
    let (by, now) = (stamp.actor.clone(), writing.now());
    let (word, command) = match state {
        ApprovalState::Accepted => ("accepted", "approval accept"),
        ApprovalState::Refused | ApprovalState::Open | ApprovalState::Expired => {
            ("refused", "approval refuse")
        }
    };
    writing
        .tx
        .run(
            "update approval set state = $1, decided_by = $2, decided_at = $3 where id = $4",
            [word.into(), by.as_str().into(), now.into(), before.id.as_str().into()],
        )
        .await?;
    let after = Approval { state, decided_by: Some(by), decided_at: Some(now), ..before.clone() };
    audit(writing, command, Some(before), &after).await?;
    Ok(after)
}

async fn audit(
    writing: &mut Writing<'_>,
    command: &str,
    before: Option<&Approval>,
    after: &Approval,
) -> Result<(), StoreError> {
    let told = Told {
        command,
        kind: "approval",
        id: &after.id,
        before: before.map(|before| json!(before)),
        after: Some(json!(after)),
    };
    writing.audit(None, told).await
}

const INSERT: &str = "insert into approval (id, command, kind, subject, subject_revision, \
    evidence, reason, token_id, requested_by, requested_at, expires_at, state) \
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, 'open')";

fn row_of(approval: &Approval, wanted: &Wanted<'_>) -> [Value; 11] {
    [
        approval.id.as_str().into(),
        approval.command.as_str().into(),
        approval.kind.as_str().into(),
        approval.subject.as_str().into(),
        wanted.revision.into(),
        text_of(&approval.evidence).into(),
        approval.reason.as_str().into(),
        wanted.token_id.into(),
        approval.requested_by.as_str().into(),
        approval.requested_at.into(),
        approval.expires_at.into(),
    ]
}

async fn find(tx: &mut Transaction, id: &str, now: u64) -> Result<Stored, StoreError> {
    let row = tx.row(ONE, [id.into()]).await?;
    let row = row.ok_or_else(|| StoreError::NotFound { kind: "approval", id: id.to_owned() })?;
    stored_of(&row, now)
}

fn stored_of(row: &Row, now: u64) -> Result<Stored, StoreError> {
    let id = row.text("id")?;
    let expires_at = row.count("expires_at")?;
    let state = match row.text("state")?.as_str() {
        "accepted" => ApprovalState::Accepted,
        "refused" => ApprovalState::Refused,
        _ if expires_at <= now => ApprovalState::Expired,
        _ => ApprovalState::Open,
    };
    Ok(Stored {
        subject_revision: row.count("subject_revision")?,
        token_id: row.text("token_id")?,
        shown: Approval {
            command: row.text("command")?,
            kind: row.text("kind")?,
            subject: row.text("subject")?,
            reason: row.text("reason")?,
            evidence: json_of(row, "evidence", "approval", &id)?,
            requested_by: row.text("requested_by")?,
            requested_at: row.count("requested_at")?,
            expires_at,
            state,
            decided_by: row.text_or_null("decided_by")?,
            decided_at: row.count_or_null("decided_at")?,
            id,
        },
    })
}
