//! What each route takes and gives. The compiler holds answers to the types of `wire`.

mod catalog; // plans, clients, keys
mod moves; // rollouts, the kill switch, approvals
mod gateways; // what gateways and services ask, and shadow's numbers
mod keeping; // tokens, audit, backups

use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Value, json};

use super::bodies::{self, NAME, TEXT};

/// Makes the schema of an answer.
pub(super) type Schema = Box<dyn Fn(&mut SchemaGenerator) -> Value>;

/// One thing that can be asked.
pub(super) struct Operation {
    /// Method and path in the table.
    pub(super) route: (&'static str, &'static str),
    pub(super) name: &'static str,
    pub(super) summary: &'static str,
    pub(super) params: Vec<Param>,
    pub(super) body: Option<Body>,
    pub(super) answer: Answer,
    /// What a 202 tells, if somebody else has to agree first.
    pub(super) asked: Option<Schema>,
    /// The answer has the object's revision as its tag.
    pub(super) tagged: bool,
    /// It changes one version of an object, and the call has to say which.
    pub(super) conditional: bool,
}

pub(super) enum Answer {
    Json(Schema),
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
    required: bool,
    describes: &'static str,
    schema: Value,
}

impl Param {
    pub(super) fn described(&self) -> Value {
        let mut described = json!({
            "in": self.place, "name": self.name, "required": self.required, "schema": self.schema,
        });
        if !self.describes.is_empty() {
            described["description"] = json!(self.describes);
        }
        described
    }
}

fn query(name: &'static str, schema: Value) -> Param {
    Param { place: "query", name, required: false, describes: "", schema }
}

fn header(name: &'static str, describes: &'static str, schema: Value) -> Param {
    Param { place: "header", name, required: false, describes, schema }
}

fn in_path(name: &'static str, pattern: &str) -> Param {
    let schema = json!({ "type": "string", "pattern": pattern });
    Param { place: "path", name, required: true, describes: "", schema }
}

fn text(bytes: u64) -> Value {
    json!({ "type": "string", "maxLength": bytes, "pattern": TEXT })
}

/// True without a value too.
fn flag() -> Value {
    json!({ "enum": ["true", "false", ""] })
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
        Operation {
            route,
            name,
            summary,
            params,
            body: None,
            answer: Answer::Lines,
            asked: None,
            tagged: false,
            conditional: false,
        }
    }

    /// Ids that are not names.
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

    /// It changes something: why, whether in earnest, and, for a POST, under which name it may be
    /// sent again.
    fn writes(mut self) -> Self {
        if self.route.0 == "POST" {
            let key = json!({ "type": "string", "pattern": "^[!-~]{1,255}$" });
            let describes = "the call may be sent again with it for a day: the first one counts";
            self.params.push(header("Idempotency-Key", describes, key));
        }
        let mut dry = query("dry_run", flag());
        dry.describes = "answer what would be done, and do nothing";
        self.params.push(dry);
        self.param("reason", text(1_024))
    }

    /// It changes one version of an object.
    fn changes(mut self) -> Self {
        let tag = json!({ "type": "string", "pattern": "^(\\*|\"[0-9]{1,18}\")$" });
        let describes = "the ETag of the version that is meant; * for whatever there is";
        self.params.push(Param { required: true, ..header("If-Match", describes, tag) });
        self.conditional = true;
        self.writes()
    }

    /// It changes one version of an object, or makes a new one: one of both headers has to be there.
    fn makes(mut self) -> Self {
        let tag = json!({ "type": "string", "enum": ["*"] });
        self.params.push(header("If-None-Match", "in place of If-Match: a new name", tag));
        let mut made = self.changes();
        for param in made.params.iter_mut().filter(|param| param.name == "If-Match") {
            param.required = false;
        }
        made
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
        self.paged().gives(page_of::<T>)
    }

    /// What a 202 tells.
    fn may_ask<T: JsonSchema + 'static>(mut self) -> Self {
        self.asked = Some(Box::new(|generator| json!(generator.subschema_for::<T>())));
        self
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

fn page_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    json!({
        "type": "object", "required": ["items", "next"],
        "properties": {
            "items": { "type": "array", "items": generator.subschema_for::<T>() },
            "next": { "type": ["string", "null"] },
        },
    })
}

fn list_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    json!({
        "type": "object", "required": ["items"],
        "properties": { "items": { "type": "array", "items": generator.subschema_for::<T>() } },
    })
}

/// All operations, by resource.
pub(super) fn operations() -> Vec<Operation> {
    [
        catalog::plans(),
        catalog::clients(),
        catalog::keys(),
        moves::rollouts(),
        moves::killswitch(),
        moves::approvals(),
        gateways::shadow(),
        gateways::gateways(),
        keeping::tokens(),
        keeping::keeping(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
