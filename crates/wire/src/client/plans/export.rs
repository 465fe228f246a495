//! What a bootstrap file is made of, page by page.

use serde::{Deserialize, Serialize};

use super::PlansClient;
use crate::client::{Call, ClientError};
use crate::policy::{FoundKey, Snapshot};

/// `GET /v1/bootstrap`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BootstrapPage {
    /// The whole policy; in the first page only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Snapshot>,
    /// Keys that may open, as of the policy's revision or later.
    pub keys: Vec<FoundKey>,
    /// Where the next page begins; none after the last one.
    pub next: Option<String>,
}

impl PlansClient {
    /// The policy and every key that may open, by hash: for a file that gateways start with.
    pub async fn bootstrap(&self) -> Result<(Option<Snapshot>, Vec<FoundKey>), ClientError> {
        let (mut policy, mut keys) = (None, Vec::new());
        let mut cursor: Option<String> = None;
        loop {
            let call = Call::get("/v1/bootstrap").maybe("cursor", cursor);
            let mut page: BootstrapPage = self.http.send(call).await?;
            policy = policy.or(page.policy);
            keys.append(&mut page.keys);
            cursor = page.next;
            if cursor.is_none() {
                return Ok((policy, keys));
            }
        }
    }
}
