//! Calls about what was: the audit, its chain, backups.

use std::fs::File;
use std::io;

use super::{AuditFilter, AuditRow, Page, PlansClient, Restored};
use crate::audit::{AuditPlace, AuditWalk, AuditWalked};
use crate::client::{Call, ClientError, Method};

impl PlansClient {
    /// The newest `limit` changes before `before`, newest first.
    pub async fn audit(
        &self,
        limit: u32,
        before: Option<&str>,
    ) -> Result<Page<AuditRow>, ClientError> {
        self.audit_of(&AuditFilter::default(), limit, before).await
    }

    /// The same of those that pass a filter.
    pub async fn audit_of(
        &self,
        filter: &AuditFilter,
        limit: u32,
        before: Option<&str>,
    ) -> Result<Page<AuditRow>, ClientError> {
        let call = Call::get("/v1/audit")
            .query("limit", limit.to_string())
            .maybe("cursor", before)
            .maybe("actor", filter.actor.as_deref())
            .maybe("kind", filter.kind.as_deref())
            .maybe("id", filter.id.as_deref())
            .maybe("since", filter.since.map(|at| at.to_string()));
        self.http().send(call).await
    }

    /// Walks one part of the audit's chain.
    pub async fn walk_audit(&self, walk: AuditWalk) -> Result<AuditWalked, ClientError> {
        self.http().send(Call::post("/v1/audit:verify", &walk)).await
    }

    /// Walks the whole chain, part by part; `checked` is then the number of all rows. It has to
    /// pass `kept`, if there is such a tip.
    pub async fn verify_audit(&self, kept: Option<AuditPlace>) -> Result<AuditWalked, ClientError> {
        let mut walk = AuditWalk { after: None, kept };
        let mut checked = 0;
        loop {
            let mut walked = self.walk_audit(walk).await?;
            checked += walked.checked;
            if walked.done {
                walked.checked = checked;
                return Ok(walked);
            }
            walk.after = Some(walked.place);
        }
    }

    /// The whole catalog as [`crate::backup`] writes it, piece by piece; only its last line says
    /// that it came whole.
    pub async fn backup(
        &self,
        sink: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), ClientError> {
        self.http().download(Call::get("/v1/backup"), sink).await
    }

    /// Replaces the whole catalog by that of a backup.
    pub async fn restore(&self, file: File, reason: &str) -> Result<Restored, ClientError> {
        let call = Call::new(Method::POST, "/v1/backup:restore").query("reason", reason);
        self.http().upload(call, file).await
    }
}
