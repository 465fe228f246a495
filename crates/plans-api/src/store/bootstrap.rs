//! Every key that may open, by hash: for a file that gateways start with where nobody answers.

use wire::key::KeyHash;
use wire::policy::{FoundKey, KeyState};

use super::{PlanStore, StoreError};

/// Keys of one page.
const PAGE: u32 = 1_000;

impl PlanStore {
    /// Keys whose hash comes after `after`, and the last hash that was looked at if there may be
    /// more.
    pub(crate) async fn keys_by_hash(
        &self,
        after: Option<KeyHash>,
    ) -> Result<(Vec<FoundKey>, Option<KeyHash>), StoreError> {
        let mut tx = self.database.read().await?;
        let after = after.map_or_else(Vec::new, |hash| hash.bytes().to_vec());
        let sql = "select hash, key_id from api_key_secret where hash > $1 order by hash limit $2";
        let rows = tx.rows(sql, [after.into(), PAGE.into()]).await?;
        drop(tx);
        let mut hashes = Vec::with_capacity(rows.len());
        for row in &rows {
            let bytes: [u8; 32] =
                row.bytes("hash")?.try_into().map_err(|_not_32| StoreError::Damaged {
                    kind: "key",
                    id: row.text("key_id").unwrap_or_default(),
                    reason: "a hash is not 32 bytes long".to_owned(),
                })?;
            hashes.push(KeyHash::from_bytes(bytes));
        }
        let full = hashes.len() >= usize::try_from(PAGE).unwrap_or(usize::MAX);
        let next = hashes.last().copied().filter(|_| full);
        let mut found = self.lookup(&hashes).await?.found;
        found.retain(|found| found.key.state == KeyState::Active);
        Ok((found, next))
    }
}
