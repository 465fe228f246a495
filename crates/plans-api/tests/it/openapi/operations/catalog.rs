//! Plans, clients, keys.

use wire::client::plans::{
    Applied, ClientObject, Imported, KeyObject, KeyUsage, NewKey, PlanFinding, PlanObject,
};
use wire::policy::LookupAnswer;

use super::*;

pub(super) fn plans() -> Vec<Operation> {
    const ALL: &str = "/v1/plans";
    const ONE: &str = "/v1/plans/{name}";
    let label = format!("{}=[^\\x00-\\x1f\\x7f-\\x9f]+$", NAME.trim_end_matches('$'));
    vec![
        Operation::new(("GET", ALL), "listPlans", "All plans").gives_page::<PlanObject>(),
        Operation::new(("GET", ONE), "getPlan", "One plan").gives_one::<PlanObject>().tagged(),
        Operation::new(("PUT", ONE), "putPlan", "Make or change a plan")
            .makes()
            .body(bodies::plan(), true)
            .gives_changed::<PlanObject>()
            .tagged(),
        Operation::new(("DELETE", ONE), "deletePlan", "Delete a plan that no client has")
            .changes()
            .body(bodies::reason(), false)
            .gives_changed::<PlanObject>(),
        Operation::new(
            ("GET", "/v1/plans/{name}/lint"),
            "lintPlan",
            "What is valid in a plan and most likely not meant",
        )
        .gives(page_of::<PlanFinding>),
        Operation::new(("POST", "/v1/apply"), "apply", "Make plans and clients so, all or nothing")
            .writes()
            .param("prune", json!({ "type": "string", "maxLength": 1_024, "pattern": label }))
            .param("allow_deletes", json!({ "type": "integer", "minimum": 0, "maximum": i64::MAX }))
            .body(bodies::apply(), true)
            .gives_one::<Applied>(),
    ]
}

pub(super) fn clients() -> Vec<Operation> {
    const ALL: &str = "/v1/clients";
    const ONE: &str = "/v1/clients/{id}";
    const OWN: &str = "/v1/clients/{id}/override";
    let moved = |path, name, summary| {
        Operation::new(("POST", path), name, summary)
            .changes()
            .body(bodies::reason(), false)
            .gives_changed::<ClientObject>()
            .tagged()
    };
    vec![
        Operation::new(("GET", ALL), "listClients", "All clients, or those of a plan")
            .param("plan", text(1_024))
            .param("overridden", flag())
            .gives_page::<ClientObject>(),
        Operation::new(("GET", ONE), "getClient", "One client")
            .gives_one::<ClientObject>()
            .tagged(),
        Operation::new(("PUT", ONE), "putClient", "Make or change a client")
            .makes()
            .body(bodies::client(), true)
            .gives_changed::<ClientObject>()
            .tagged(),
        Operation::new(("DELETE", ONE), "deleteClient", "Delete a client without keys")
            .changes()
            .body(bodies::reason(), false)
            .gives_changed::<ClientObject>(),
        moved("/v1/clients/{id}:suspend", "suspendClient", "Refuse every request of a client"),
        moved("/v1/clients/{id}:resume", "resumeClient", "Let a suspended client call again"),
        Operation::new(("PUT", OWN), "putOverride", "Give a client limits of its own, for a time")
            .changes()
            .body(bodies::overriding(), true)
            .gives_changed::<ClientObject>()
            .tagged(),
        Operation::new(("DELETE", OWN), "deleteOverride", "Give a client its plan's limits again")
            .changes()
            .body(bodies::reason(), false)
            .gives_changed::<ClientObject>()
            .tagged(),
        Operation::new(
            ("GET", "/v1/clients/{id}/limit"),
            "inspectLimit",
            "How a client's bucket stands, as a live gateway reads it",
        )
        .param("key", text(1_024))
        .gives(any_object),
        moved("/v1/clients/{id}/limit:reset", "resetLimit", "Fill a client's bucket"),
    ]
}

pub(super) fn keys() -> Vec<Operation> {
    const ALL: &str = "/v1/keys";
    const ONE: &str = "/v1/keys/{id}";
    let moved = |path, name, summary| {
        Operation::new(("POST", path), name, summary)
            .by_id(ID)
            .changes()
            .body(bodies::reason(), false)
            .gives_changed::<KeyObject>()
            .tagged()
    };
    vec![
        Operation::new(("GET", ALL), "listKeys", "All keys, or those of a client")
            .param("client", text(1_024))
            .gives_page::<KeyObject>(),
        Operation::new(("POST", ALL), "createKey", "Make a key; it is shown in this answer alone")
            .writes()
            .body(bodies::key(), true)
            .gives_one::<NewKey>()
            .tagged(),
        Operation::new(("GET", ONE), "getKey", "One key, never its secret")
            .by_id(ID)
            .gives_one::<KeyObject>()
            .tagged(),
        Operation::new(("GET", "/v1/keys/{id}/usage"), "keyUsage", "When a key was last used")
            .by_id(ID)
            .gives_one::<KeyUsage>(),
        Operation::new(
            ("POST", "/v1/keys/{id}:rotate"),
            "rotateKey",
            "Another secret for a key; the present one opens beside it for a while",
        )
        .by_id(ID)
        .changes()
        .body(bodies::rotation(), false)
        .gives_one::<NewKey>()
        .tagged(),
        moved("/v1/keys/{id}:revoke", "revokeKey", "End a key for good"),
        moved("/v1/keys/{id}:disable", "disableKey", "End a key until it is enabled"),
        moved("/v1/keys/{id}:enable", "enableKey", "Let a disabled key open again"),
        Operation::new(
            ("POST", "/v1/keys:import"),
            "importKeys",
            "Take over keys that were made elsewhere, by their SHA-256; all or none",
        )
        .writes()
        .body(bodies::import(), true)
        .gives_one::<Imported>(),
        Operation::new(("POST", "/v1/keys:lookup"), "lookUpKeys", "Who shows these keys?")
            .body(bodies::lookup(), true)
            .gives_one::<LookupAnswer>(),
        Operation::new(("POST", "/v1/usage"), "reportUsage", "When a gateway last saw secrets")
            .body(bodies::usage(), true)
            .gives(any_object),
    ]
}
