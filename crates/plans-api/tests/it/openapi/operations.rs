//! What each route takes and gives. The compiler holds answers to the types of `wire`.

use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Value, json};
use wire::audit::AuditWalked;
use wire::batch::{Explanation, TopClient};
use wire::client::plans::{
    Applied, AuditRow, ClientObject, Gate, GatewayObject, KeyObject, Moved, NewKey, NewToken,
    PlanObject, Restored, RolloutObject, TokenObject,
};
use wire::policy::{FeedAnswer, LookupAnswer, SafetyLimits, Snapshot};

use super::bodies::{self, NAME, TEXT};

/// One thing that can be asked.
pub(super) struct Operation {
    /// Method and path in the table.
    pub(super) route: (&'static str, &'static str),
    /// The path with its verb.
    pub(super) path: &'static str,
    pub(super) name: &'static str,
    pub(super) summary: &'static str,
    pub(super) params: Vec<Param>,
    pub(super) body: Option<Body>,
    pub(super) answer: Answer,
    /// The answer has the object's revision as its tag.
    pub(super) tagged: bool,
}

pub(super) enum Answer {
    Json(Box<dyn Fn(&mut SchemaGenerator) -> Value>),
    Lines,
}

pub(super) struct Body {
    pub(super) media: &'static str,
    pub(super) schema: Value,
    pub(super) required: bool,
}

pub(super) struct Param {
    place: &'static str,
    name: &'static str,
    schema: Value,
}

impl Param {
    pub(super) fn described(&self) -> Value {
        json!({
            "in": self.place, "name": self.name, "required": self.place == "path",
            "schema": self.schema,
        })
    }
}

fn query(name: &'static str, schema: Value) -> Param {
    Param { place: "query", name, schema }
}

fn in_path(name: &'static str, pattern: &str) -> Param {
    Param { place: "path", name, schema: json!({ "type": "string", "pattern": pattern }) }
}

fn text(bytes: u64) -> Value {
    json!({ "type": "string", "maxLength": bytes, "pattern": TEXT })
}

const ID: &str = "^[0-9A-Za-z]{10}$";

impl Operation {
    fn new(route: (&'static str, &'static str), name: &'static str, summary: &'static str) -> Self {
        let mut params = Vec::new();
        for (place, pattern) in [("{name}", NAME), ("{id}", NAME)] {
            if route.1.contains(place) {
                params.push(in_path(place.trim_matches(['{', '}']), pattern));
            }
        }
        let answer = Answer::Lines;
        Operation { route, path: route.1, name, summary, params, body: None, answer, tagged: false }
    }

    /// A verb behind the id.
    fn at(mut self, path: &'static str) -> Self {
        self.path = path;
        self
    }

    /// Ids of keys and tokens.
    fn by_id(mut self, pattern: &str) -> Self {
        self.params.retain(|param| param.place != "path");
        self.params.push(in_path("id", pattern));
        self
    }

    fn param(mut self, name: &'static str, schema: Value) -> Self {
        self.params.push(query(name, schema));
        self
    }

    fn paged(self) -> Self {
        self.param("limit", json!({ "type": "integer", "minimum": 1, "maximum": 500 }))
            .param("cursor", text(1_024))
    }

    fn reason(self) -> Self {
        self.param("reason", text(1_024))
    }

    /// A change of one version of an object.
    fn changes(mut self) -> Self {
        let tag = json!({ "type": "string", "pattern": "^(\\*|\"[0-9]{1,18}\")$" });
        self.params.push(Param { place: "header", name: "If-Match", schema: tag });
        self.reason()
    }

    /// A change that may ask for a new object.
    fn makes(mut self) -> Self {
        let tag = json!({ "type": "string", "enum": ["*"] });
        self.params.push(Param { place: "header", name: "If-None-Match", schema: tag });
        self.changes()
    }

    fn body(mut self, schema: Value, required: bool) -> Self {
        self.body = Some(Body { media: "application/json", schema, required });
        self
    }

    fn gives(mut self, answer: impl Fn(&mut SchemaGenerator) -> Value + 'static) -> Self {
        self.answer = Answer::Json(Box::new(answer));
        self
    }

    fn tagged(mut self) -> Self {
        self.tagged = true;
        self
    }

    fn gives_one<T: JsonSchema + 'static>(self) -> Self {
        self.gives(|generator| json!(generator.subschema_for::<T>()))
    }

    fn gives_page<T: JsonSchema + 'static>(self) -> Self {
        self.paged().gives(|generator| {
            json!({
                "type": "object", "required": ["items", "next"],
                "properties": {
                    "items": { "type": "array", "items": generator.subschema_for::<T>() },
                    "next": { "type": ["string", "null"] },
                },
            })
        })
    }

    fn gives_changed<T: JsonSchema + 'static>(self) -> Self {
        self.gives(|generator| {
            json!({
                "type": "object", "required": ["revision", "object"],
                "properties": {
                    "revision": { "type": "integer", "minimum": 0 },
                    "object": {
                        "anyOf": [generator.subschema_for::<T>(), { "type": "null" }],
                    },
                },
            })
        })
    }
}

/// An object of which the description says no more.
fn any_object(_: &mut SchemaGenerator) -> Value {
    json!({ "type": "object" })
}

fn list_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    json!({
        "type": "object", "required": ["items"],
        "properties": { "items": { "type": "array", "items": generator.subschema_for::<T>() } },
    })
}

/// All operations, by resource.
pub(super) fn operations() -> Vec<Operation> {
    [plans(), clients(), keys(), rollouts(), shadow(), gateways(), keeping()]
        .into_iter()
        .flatten()
        .collect()
}

fn plans() -> Vec<Operation> {
    const ALL: &str = "/v1/plans";
    const ONE: &str = "/v1/plans/{name}";
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
        Operation::new(("POST", "/v1/apply"), "apply", "Make plans and clients so, all or nothing")
            .reason()
            .param("dry_run", json!({ "enum": ["true", "false"] }))
            .body(bodies::apply(), true)
            .gives_one::<Applied>(),
    ]
}

fn clients() -> Vec<Operation> {
    const ALL: &str = "/v1/clients";
    const ONE: &str = "/v1/clients/{id}";
    let moved = |path, name, summary| {
        Operation::new(("POST", ONE), name, summary)
            .at(path)
            .changes()
            .body(bodies::reason(), false)
            .gives_changed::<ClientObject>()
            .tagged()
    };
    vec![
        Operation::new(("GET", ALL), "listClients", "All clients").gives_page::<ClientObject>(),
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
        Operation::new(
            ("GET", "/v1/clients/{id}/limit"),
            "inspectLimit",
            "How a client's bucket stands, as a live gateway reads it",
        )
        .param("key", text(1_024))
        .gives(any_object),
        Operation::new(
            ("POST", "/v1/clients/{id}/limit:reset"),
            "resetLimit",
            "Fill a client's bucket",
        )
        .changes()
        .body(bodies::reason(), false)
        .gives_changed::<ClientObject>()
        .tagged(),
    ]
}

fn keys() -> Vec<Operation> {
    const ALL: &str = "/v1/keys";
    const ONE: &str = "/v1/keys/{id}";
    let moved = |path, name, summary| {
        Operation::new(("POST", ONE), name, summary)
            .by_id(ID)
            .at(path)
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
            .reason()
            .body(bodies::key(), true)
            .gives_one::<NewKey>()
            .tagged(),
        Operation::new(("GET", ONE), "getKey", "One key, never its secret")
            .by_id(ID)
            .gives_one::<KeyObject>()
            .tagged(),
        moved("/v1/keys/{id}:revoke", "revokeKey", "End a key for good"),
        moved("/v1/keys/{id}:disable", "disableKey", "End a key until it is enabled"),
        moved("/v1/keys/{id}:enable", "enableKey", "Let a disabled key open again"),
        Operation::new(("POST", "/v1/keys:lookup"), "lookUpKeys", "Who shows these keys?")
            .body(bodies::lookup(), true)
            .gives_one::<LookupAnswer>(),
    ]
}

fn rollouts() -> Vec<Operation> {
    const ALL: &str = "/v1/rollouts";
    const ONE: &str = "/v1/rollouts/{name}";
    let moved = |path, name, summary, body, required| {
        Operation::new(("POST", ONE), name, summary)
            .at(path)
            .changes()
            .body(body, required)
            .gives_one::<Moved>()
            .tagged()
    };
    vec![
        Operation::new(("GET", ALL), "listRollouts", "All rollouts").gives_page::<RolloutObject>(),
        Operation::new(("GET", ONE), "getRollout", "One rollout with its history")
            .gives_one::<RolloutObject>()
            .tagged(),
        moved(
            "/v1/rollouts/{name}:set",
            "setPhase",
            "Move clients to a phase",
            bodies::set(),
            true,
        ),
        moved(
            "/v1/rollouts/{name}:rollback",
            "rollBack",
            "Move everybody back, without a gate",
            bodies::rollback(),
            false,
        ),
        Operation::new(("GET", "/v1/gates/{name}"), "getGate", "The number, and what it allows")
            .gives_one::<Gate>(),
    ]
}

fn shadow() -> Vec<Operation> {
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
            .gives(any_object),
    ]
}

fn gateways() -> Vec<Operation> {
    vec![
        Operation::new(("GET", "/v1/gateways"), "listGateways", "All gateways that ever polled")
            .gives_page::<GatewayObject>(),
        Operation::new(("POST", "/v1/feed"), "feed", "Wait for changes")
            .body(bodies::feed(), true)
            .gives_one::<FeedAnswer>(),
        Operation::new(("GET", "/v1/snapshot"), "snapshot", "The whole policy")
            .gives_one::<Snapshot>(),
        Operation::new(("GET", "/v1/safety-limits"), "safetyLimits", "What services keep")
            .gives_one::<SafetyLimits>(),
    ]
}

fn keeping() -> Vec<Operation> {
    const TOKENS: &str = "/v1/tokens";
    let mut restore = Operation::new(
        ("POST", "/v1/backup:restore"),
        "restoreBackup",
        "Replace the whole catalog by that of a backup",
    )
    .reason()
    .gives_one::<Restored>();
    restore.body = Some(Body {
        media: "application/octet-stream",
        schema: json!({ "type": "string", "format": "binary" }),
        required: true,
    });
    vec![
        Operation::new(("GET", TOKENS), "listTokens", "All operator tokens, never their secrets")
            .gives_page::<TokenObject>(),
        Operation::new(("POST", TOKENS), "createToken", "Make a token; it is shown once")
            .reason()
            .body(bodies::token(), true)
            .gives_one::<NewToken>(),
        Operation::new(("POST", "/v1/tokens/{id}"), "revokeToken", "End a token for good")
            .by_id(ID)
            .at("/v1/tokens/{id}:revoke")
            .reason()
            .body(bodies::reason(), false)
            .gives_changed::<TokenObject>(),
        Operation::new(("GET", "/v1/audit"), "listAudit", "Who changed what, newest first")
            .param("actor", text(1_024))
            .param("kind", text(1_024))
            .param("id", text(1_024))
            .param("since", json!({ "type": "integer", "minimum": 0, "maximum": i64::MAX }))
            .gives_page::<AuditRow>(),
        Operation::new(
            ("POST", "/v1/audit:verify"),
            "verifyAudit",
            "Walk a part of the audit's chain",
        )
        .body(bodies::walk(), false)
        .gives_one::<AuditWalked>(),
        Operation::new(("GET", "/v1/backup"), "createBackup", "The whole catalog as a file"),
        restore,
    ]
}
