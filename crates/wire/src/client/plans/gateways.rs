//! The kill switch of all gateways, and what gateways report beside the feed.

use serde_json::json;

use super::{Call, ClientError, PlansClient};
use crate::killswitch::KillswitchState;
use crate::usage::UsageReport;

impl PlansClient {
    /// Whether it is set, and where by hand.
    pub async fn killswitch(&self) -> Result<KillswitchState, ClientError> {
        self.http.send(Call::get("/v1/killswitch")).await
    }

    /// Puts everybody into shadow, on every gateway. What is set already stays as it is.
    pub async fn set_killswitch(
        &self,
        id: Option<&str>,
        reason: &str,
    ) -> Result<KillswitchState, ClientError> {
        let body = id.map_or_else(|| json!({}), |id| json!({ "id": id }));
        self.http.send(Call::post("/v1/killswitch:set", &body).query("reason", reason)).await
    }

    /// Clears the one that was set under this id.
    pub async fn clear_killswitch(
        &self,
        id: &str,
        reason: &str,
    ) -> Result<KillswitchState, ClientError> {
        let call = Call::post("/v1/killswitch:clear", &json!({ "id": id }));
        self.http.send(call.query("reason", reason)).await
    }

    /// Reports when secrets were used.
    pub async fn report_usage(&self, report: &UsageReport) -> Result<(), ClientError> {
        self.http.send_raw(Call::post("/v1/usage", report)).await.map(drop)
    }
}
