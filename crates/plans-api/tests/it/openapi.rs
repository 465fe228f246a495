//! The description of the API: made of the route table, the bodies' types and the operations beside,
//! and committed as docs/openapi/plans-api.json.

mod operations; // what each route takes and gives
mod bodies; // what it reads

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use plans_api::ROUTES;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};
use wire::client::Call;
use wire::client::plans::Role;

use crate::api::Api;
use operations::{Operation, Param, operations};

/// How the committed file is made anew.
const RENEW: &str = "WEIR_RENEW=1 cargo test -p plans-api --test it openapi";

fn committed() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi/plans-api.json")
}

/// The whole document.
fn document() -> Value {
    let mut settings = SchemaSettings::draft2020_12().for_serialize();
    settings.definitions_path = "/components/schemas".into();
    settings.meta_schema = None;
    let mut generator = settings.into_generator();
    let mut paths: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
    for operation in operations() {
        let (method, described) = described(&operation, &mut generator);
        let path = paths.entry(operation.route.1.to_owned()).or_default();
        let route = operation.route;
        assert!(path.insert(method, described).is_none(), "{route:?} is described twice");
    }
    for (path, answer) in open_routes() {
        let get = json!({ "get": {
            "summary": answer.0, "security": [],
            "responses": { "200": { "description": "as said", "content": { answer.1: {} } } },
        } });
        paths.insert(path.to_owned(), get.as_object().unwrap().clone());
    }
    let problem = generator.subschema_for::<wire::error::ErrorBody>();
    let responses = json!({
        "Problem": {
            "description": "refused, or not possible now; `code` is what programs match on",
            "content": { "application/problem+json": { "schema": problem } },
        },
    });
    let schemas = generator.take_definitions(true);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "weir-plans-api",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The control plane of Weir: plans, clients, API keys, rollouts. \
                Times are milliseconds since 1970 UTC. Unknown fields and parameters are refused.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "http://127.0.0.1:8081" }],
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": responses,
            "securitySchemes": { "token": {
                "type": "http", "scheme": "bearer", "bearerFormat": "weiro_<id>_<secret>",
            } },
        },
    })
}

/// Routes of every process, which need no token.
fn open_routes() -> [(&'static str, (&'static str, &'static str)); 4] {
    [
        ("/livez", ("Whether the process runs", "text/plain")),
        ("/metrics", ("What is counted", "text/plain")),
        ("/buildz", ("What the process was built from", "application/json")),
        ("/openapi.json", ("This document", "application/json")),
    ]
}

fn described(operation: &Operation, generator: &mut SchemaGenerator) -> (String, Value) {
    let mut responses = Map::new();
    let content = match &operation.answer {
        operations::Answer::Json(schema) => {
            json!({ "application/json": { "schema": schema(generator) } })
        }
        operations::Answer::Lines => json!({ "application/x-ndjson": {} }),
    };
    let mut success = json!({ "description": "done", "content": content });
    if operation.tagged {
        success["headers"] = json!({ "ETag": {
            "description": "the object's revision, for If-Match",
            "schema": { "type": "string", "pattern": "^\"[0-9]+\"$" },
        } });
    }
    responses.insert("200".to_owned(), success);
    if let Some(schema) = &operation.asked {
        let content = json!({ "application/json": { "schema": schema(generator) } });
        let asked = json!({ "description": "another person is asked first", "content": content });
        responses.insert("202".to_owned(), asked);
    }
    let unconditional = if operation.conditional { &["428"][..] } else { &[] };
    for refused in [&["4XX", "503"], unconditional].concat() {
        let problem = json!({ "$ref": "#/components/responses/Problem" });
        responses.insert(refused.to_owned(), problem);
    }
    let route = ROUTES.iter().find(|route| (route.method, route.path) == operation.route);
    let route = route.unwrap_or_else(|| panic!("{:?} is no route", operation.route));
    let roles: Vec<&str> =
        Role::ALL.into_iter().filter(|role| route.needs.lets_in(*role)).map(Role::name).collect();
    let parameters: Vec<Value> = operation.params.iter().map(Param::described).collect();
    let mut described = json!({
        "operationId": operation.name,
        "summary": operation.summary,
        "x-weir-roles": roles,
        "responses": responses,
    });
    if !parameters.is_empty() {
        described["parameters"] = json!(parameters);
    }
    if let Some(body) = &operation.body {
        described["requestBody"] = json!({
            "required": body.required, "content": { body.media: { "schema": body.schema } },
        });
    }
    (operation.route.0.to_lowercase(), described)
}

#[test]
fn openapi_as_committed_is_what_the_routes_and_bodies_say() {
    let text = format!("{}\n", serde_json::to_string_pretty(&document()).unwrap());
    if std::env::var_os("WEIR_RENEW").is_some() {
        std::fs::write(committed(), &text).unwrap();
    }
    let there = std::fs::read_to_string(committed()).unwrap_or_default();
    let line = there.lines().zip(text.lines()).position(|(there, made)| there != made);
    assert!(
        there == text,
        "docs/openapi/plans-api.json is not what the API is now (first in line {}); \
         look at what changes for callers, then make it anew:\n  {RENEW}",
        line.map_or(there.lines().count().min(text.lines().count()), |line| line + 1)
    );
}

#[test]
fn openapi_has_every_route_and_no_other() {
    let routes: BTreeSet<_> = ROUTES.iter().map(|route| (route.method, route.path)).collect();
    let described: BTreeSet<_> = operations().iter().map(|operation| operation.route).collect();
    let missing: Vec<_> = routes.difference(&described).collect();
    assert!(missing.is_empty(), "say in openapi/operations.rs what these do: {missing:?}");
    let gone: Vec<_> = described.difference(&routes).collect();
    assert!(gone.is_empty(), "no such routes: {gone:?}");
}

/// Every reference leads somewhere.
fn references(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            if let Some(Value::String(to)) = object.get("$ref") {
                into.insert(to.clone());
            }
            object.values().for_each(|value| references(value, into));
        }
        Value::Array(items) => items.iter().for_each(|value| references(value, into)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn openapi_refers_to_nothing_that_is_not_there() {
    let (document, mut all) = (document(), BTreeSet::new());
    references(&document, &mut all);
    assert!(20 < all.len(), "only {all:?}");
    for reference in all {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
    }
}

#[tokio::test]
async fn openapi_is_told_to_whoever_asks() {
    let api = Api::sqlite().await;
    let told: Value = api.raw(None).send(Call::get("/openapi.json")).await.unwrap();
    let there: Value = serde_json::from_slice(&std::fs::read(committed()).unwrap()).unwrap();
    assert_eq!(told, there);
    api.stop().await;
}
