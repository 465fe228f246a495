//! A gateway that is gone for good is counted no more: its row goes. One that still calls stays.

use serde_json::json;
use wire::client::plans::{Changed, GatewayObject};

use super::feed::{LIVE_MS, gateway_of};
use super::writing::Told;
use super::{PlanStore, Stamp, StoreError};

impl PlanStore {
    /// Forgets a silent gateway; should it call again, it is known again.
    pub(crate) async fn forget_gateway(
        &self,
        id: &str,
        stamp: &Stamp,
    ) -> Result<Changed<GatewayObject>, StoreError> {
        let mut writing = self.begin(stamp).await?;
        let row = writing
            .tx
            .row("select * from gateway where id = $1", [id.into()])
            .await?
            .ok_or_else(|| StoreError::NotFound { kind: "gateway", id: id.to_owned() })?;
        let gateway = gateway_of(&row, writing.now().saturating_sub(LIVE_MS))?;
        if gateway.live {
            let detail = format!("the gateway `{id}` still calls: stop it first");
            return Err(StoreError::InUse(detail));
        }
        writing.tx.run("delete from gateway where id = $1", [id.into()]).await?;
        let told = Told {
            command: "gateway forget",
            kind: "gateway",
            id,
            before: Some(json!(gateway)),
            after: None,
        };
        writing.audit(None, told).await?;
        Ok(Changed { revision: writing.commit().await?, object: None })
    }
}
