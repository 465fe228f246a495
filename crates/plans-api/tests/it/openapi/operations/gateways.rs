//! What gateways and services ask, what people ask about gateways, and shadow's numbers.

use wire::batch::{Explanation, TopClient};
use wire::client::plans::{BootstrapPage, GatewayObject};
use wire::policy::{FeedAnswer, SafetyLimits, Snapshot};

use super::*;

pub(super) fn shadow() -> Vec<Operation> {
    let number = |most: u64| json!({ "type": "integer", "minimum": 1, "maximum": most });
    vec![
        Operation::new(("GET", "/v1/shadow/clients/top"), "topClients", "The clients hit most")
            .param("by", json!({ "enum": ["would_deny", "disagree", "requests"] }))
            .param("n", number(500))
            .param("window_minutes", number(1_440))
            .gives(list_of::<TopClient>),
        Operation::new(
            ("GET", "/v1/shadow/requests/{id}"),
            "explainRequest",
            "Both decisions about one request",
        )
        .by_id("^[0-9A-Za-z-]{1,128}$")
        .gives_one::<Explanation>(),
        Operation::new(("GET", "/v1/shadow/usage"), "usage", "Exact minutes of a client")
            .param("client", text(1_024))
            .param("window_minutes", number(1_440))
            .gives(any_object),
    ]
}

pub(super) fn gateways() -> Vec<Operation> {
    vec![
        Operation::new(("GET", "/v1/gateways"), "listGateways", "All gateways that ever polled")
            .gives_page::<GatewayObject>(),
        Operation::new(
            ("POST", "/v1/gateways/{id}:forget"),
            "forgetGateway",
            "Take a gateway that is gone for good off the list",
        )
        .writes()
        .body(bodies::reason(), false)
        .gives_changed::<GatewayObject>(),
        Operation::new(("POST", "/v1/feed"), "feed", "Wait for changes")
            .body(bodies::feed(), true)
            .gives_one::<FeedAnswer>(),
        Operation::new(("GET", "/v1/snapshot"), "snapshot", "The whole policy")
            .gives_one::<Snapshot>(),
        Operation::new(
            ("GET", "/v1/bootstrap"),
            "bootstrap",
            "The policy and all keys by hash, for a file that gateways start with",
        )
        .param("cursor", json!({ "type": "string", "pattern": bodies::KEY_HASH }))
        .gives_one::<BootstrapPage>(),
        Operation::new(("GET", "/v1/safety-limits"), "safetyLimits", "What services keep")
            .gives_one::<SafetyLimits>(),
    ]
}
