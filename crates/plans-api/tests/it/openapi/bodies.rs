//! What the API reads, as schemas. Readers are written by hand (all mistakes at once), so these are
//! too; a fuzzer holds both together: what a schema forbids has to be refused.

#![expect(clippy::needless_pass_by_value, reason = "a schema becomes part of another one")]

use serde_json::{Value, json};

/// Names of plans, clients, routes, rollouts.
pub(super) const NAME: &str = "^[a-z0-9][a-z0-9._-]{0,63}$";
/// 32 bytes of a key's stored form.
pub(super) const KEY_HASH: &str = "^[0-9A-Fa-f]{64}$";
/// Text without control characters but line ends and tabs.
pub(super) const TEXT: &str = "^[^\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f]*$";

fn object(required: &[&str], properties: Value) -> Value {
    json!({
        "type": "object", "additionalProperties": false,
        "required": required, "properties": properties,
    })
}

fn text(bytes: u64) -> Value {
    json!({ "type": ["string", "null"], "maxLength": bytes, "pattern": TEXT })
}

fn name() -> Value {
    json!({ "type": "string", "pattern": NAME })
}

fn whole(least: u64, most: u64) -> Value {
    json!({ "type": "integer", "minimum": least, "maximum": most })
}

fn maybe_whole(least: u64, most: u64) -> Value {
    json!({ "type": ["integer", "null"], "minimum": least, "maximum": most })
}

/// A whole number as the database counts.
const COUNT_MAX: u64 = i64::MAX as u64;

fn labels() -> Value {
    json!({
        "type": ["object", "null"], "propertyNames": { "pattern": NAME },
        "additionalProperties": { "type": "string", "maxLength": 64, "pattern": TEXT },
    })
}

fn limit() -> Value {
    object(
        &["capacity", "refill"],
        json!({
            "capacity": whole(1, 1_000_000_000_000),
            "refill": {
                "type": "string", "pattern": "^(0|[0-9]+/[0-9]*(s|m|h|d))$",
                "examples": ["50/s", "30/10s", "2000000/d", "0"],
            },
        }),
    )
}

fn or_null(schema: Value) -> Value {
    json!({ "anyOf": [schema, { "type": "null" }] })
}

/// What happens while the bucket store does not answer.
fn failure() -> Value {
    json!({
        "type": ["string", "null"],
        "pattern": "^(closed|local|coarse|open|[0-9]{1,3}(\\.[0-9]{1,4})?)$",
    })
}

/// A plan.
pub(super) fn plan() -> Value {
    let cost = object(
        &["route", "cost"],
        json!({
            "route": name(), "method": text(64), "cost": whole(0, 1_000_000_000_000),
        }),
    );
    let mut plan = object(
        &[],
        json!({
            "unlimited": { "type": ["boolean", "null"] },
            "burst": or_null(limit()),
            "sustained": or_null(limit()),
            "failure": failure(),
            "scope": { "enum": ["client", "key", null] },
            "costs": { "type": ["array", "null"], "maxItems": 64, "items": cost },
            "labels": labels(),
            "note": text(1_024),
        }),
    );
    // Limits, or the word that there are none.
    let unlimited =
        json!({ "required": ["unlimited"], "properties": { "unlimited": { "const": true } } });
    plan["anyOf"] = json!([{ "required": ["burst"] }, unlimited]);
    plan
}

/// A client.
pub(super) fn client() -> Value {
    object(&["plan"], json!({ "plan": name(), "name": text(256), "labels": labels() }))
}

/// A client in a file that is applied: it may say whether the client is suspended.
fn applied_client() -> Value {
    let mut client = client();
    client["properties"]["state"] = json!({ "enum": ["active", "suspended"] });
    client
}

/// A client's own limits: any of three, and until when.
pub(super) fn overriding() -> Value {
    let mut own = object(
        &["expires_at"],
        json!({
            "burst": or_null(limit()), "sustained": or_null(limit()), "failure": failure(),
            "expires_at": {
                "type": "integer", "minimum": 1, "maximum": COUNT_MAX,
                "description": "in the future, within a year",
            },
            "reason": text(1_024),
        }),
    );
    let says = |name: &str, kind: &str| json!({ "required": [name], "properties": { name: { "type": kind } } });
    own["anyOf"] =
        json!([says("burst", "object"), says("sustained", "object"), says("failure", "string")]);
    own
}

/// A new key.
pub(super) fn key() -> Value {
    object(
        &["client"],
        json!({
            "client": name(), "env": { "enum": ["live", "test", null] },
            "expires_at": maybe_whole(1, COUNT_MAX), "reason": text(1_024),
        }),
    )
}

/// Keys that were made elsewhere.
pub(super) fn import() -> Value {
    let key = object(
        &["sha256", "client"],
        json!({
            "sha256": key_hash(), "client": name(), "env": { "enum": ["live", "test", null] },
            "expires_at": maybe_whole(1, COUNT_MAX),
        }),
    );
    object(
        &["keys"],
        json!({
            "keys": { "type": "array", "minItems": 1, "maxItems": 1_000, "items": key },
            "reason": text(1_024),
        }),
    )
}

/// Another secret for a key, and how long the present one opens beside it.
pub(super) fn rotation() -> Value {
    const YEAR_MS: u64 = 366 * 86_400_000;
    object(&[], json!({ "overlap_ms": maybe_whole(0, YEAR_MS), "reason": text(1_024) }))
}

/// A new token.
pub(super) fn token() -> Value {
    object(
        &["name", "role"],
        json!({
            "name": { "type": "string", "minLength": 1, "maxLength": 128, "pattern": TEXT },
            "role": { "enum": [
                "viewer", "support", "operator", "admin", "approver", "gateway", "service",
            ] },
            "machine": { "type": ["boolean", "null"] },
            "expires_at": maybe_whole(1, COUNT_MAX), "reason": text(1_024),
        }),
    )
}

/// Nothing but a reason.
pub(super) fn reason() -> Value {
    object(&[], json!({ "reason": text(1_024) }))
}

/// Plans and clients by name.
pub(super) fn apply() -> Value {
    let by_name = |schema: Value| {
        json!({
            "type": ["object", "null"], "propertyNames": { "pattern": NAME },
            "additionalProperties": schema,
        })
    };
    object(
        &[],
        json!({ "plan": by_name(plan()), "client": by_name(applied_client()), "reason": text(1_024) }),
    )
}

/// A move of a rollout.
pub(super) fn set() -> Value {
    object(
        &["phase"],
        json!({
            "all": { "type": ["boolean", "null"] },
            "clients": { "type": ["array", "null"], "maxItems": 1_000, "items": name() },
            "phase": { "enum": ["off", "shadow", "enforce"] },
            "override": {
                "type": ["boolean", "null"],
                "description": "where the gate refuses, ask for another person's approval",
            },
            "reason": text(1_024),
        }),
    )
}

/// The way back.
pub(super) fn rollback() -> Value {
    object(&[], json!({ "to": { "enum": ["off", "shadow", null] }, "reason": text(1_024) }))
}

/// What a gateway has and wants. Readers of feeds ignore what they do not know.
pub(super) fn feed() -> Value {
    let text = |bytes: u64| json!({ "type": "string", "maxLength": bytes, "pattern": TEXT });
    json!({
        "type": "object",
        "required": ["gateway", "boot", "build", "history", "after", "wait_ms", "applied"],
        "properties": {
            "gateway": name(), "boot": text(256), "build": text(256),
            "ops_url": {
                "type": ["string", "null"], "maxLength": 256,
                "pattern": TEXT.replacen('^', "^https?://", 1),
            },
            "killswitch": {
                "type": ["string", "null"], "pattern": NAME,
                "description": "the id of a kill switch that was set at the gateway itself",
            },
            "routes": { "type": "array", "items": { "type": "string" } },
            "history": text(256), "after": whole(0, COUNT_MAX), "wait_ms": whole(0, COUNT_MAX),
            "applied": whole(0, COUNT_MAX),
            "rejected": { "type": "array", "items": {
                "type": "object", "required": ["kind", "id", "revision", "reason"],
                "properties": {
                    "kind": { "type": "string" }, "id": { "type": "string" },
                    "revision": whole(0, COUNT_MAX), "reason": { "type": "string" },
                },
            } },
        },
    })
}

fn hash() -> Value {
    json!({ "type": "string", "pattern": "^[0-9a-f]{64}$" })
}

/// Of a key: in either case.
fn key_hash() -> Value {
    json!({ "type": "string", "pattern": KEY_HASH })
}

/// Stored forms of presented keys.
pub(super) fn lookup() -> Value {
    json!({
        "type": "object", "required": ["hashes"],
        "properties": { "hashes": { "type": "array", "maxItems": 1_000, "items": key_hash() } },
    })
}

/// When secrets were last used. Unknown fields are ignored, as in feeds.
pub(super) fn usage() -> Value {
    json!({
        "type": "object", "required": ["gateway", "secrets"],
        "properties": {
            "gateway": { "type": "string" },
            "secrets": { "type": "array", "maxItems": 1_000, "items": {
                "type": "object", "required": ["hash", "last_used_at"],
                "properties": { "hash": key_hash(), "last_used_at": whole(0, COUNT_MAX) },
            } },
        },
    })
}

/// A kill switch under an id of the caller's choice, or of its own.
pub(super) fn killswitch() -> Value {
    let id = json!({ "type": ["string", "null"], "pattern": NAME });
    object(&[], json!({ "id": id, "reason": text(1_024) }))
}

/// The kill switch that ends.
pub(super) fn cleared() -> Value {
    object(&["id"], json!({ "id": name(), "reason": text(1_024) }))
}

/// A walk along the audit.
pub(super) fn walk() -> Value {
    let place = object(&["seq", "hash"], json!({ "seq": whole(0, COUNT_MAX), "hash": hash() }));
    let place = or_null(place);
    object(&[], json!({ "after": place, "kept": place }))
}
