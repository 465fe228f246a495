//! Reads answers in which one object may be bad, by somebody's hand or from a newer writer: the rest
//! is read all the same, and the bad one becomes something that no gateway takes.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::{Change, Object};
use crate::plan::{PlanValue, Scope};
use crate::rollout::RolloutValue;

/// Longest text taken over from something that does not read, in bytes.
const TEXT_BYTES_MAX: usize = 128;

/// A change as it may arrive.
#[derive(Deserialize)]
pub(super) struct AnyChange {
    revision: u64,
    object: Value,
}

impl From<AnyChange> for Change {
    fn from(change: AnyChange) -> Change {
        let object =
            Object::deserialize(&change.object).unwrap_or_else(|error| Object::Unreadable {
                of: text(&change.object, "kind"),
                id: text(&change.object, "id"),
                reason: cut(&error.to_string()),
            });
        Change { revision: change.revision, object }
    }
}

/// Plans; one that does not read has neither limits nor a failure policy, which is no valid plan.
pub(super) fn plans<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<PlanValue>, D::Error> {
    let plans = Vec::<Value>::deserialize(from)?;
    let read = |plan: &Value| PlanValue::deserialize(plan).unwrap_or_else(|_bad| no_plan(plan));
    Ok(plans.iter().map(read).collect())
}

/// The rollout; one that does not read is not the same as none.
pub(super) fn rollout<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<RolloutValue>, D::Error> {
    let rollout = Option::<Value>::deserialize(from)?;
    Ok(rollout.map(|rollout| {
        RolloutValue::deserialize(&rollout).unwrap_or_else(|_bad| no_rollout(&rollout))
    }))
}

fn no_plan(plan: &Value) -> PlanValue {
    PlanValue {
        name: text(plan, "name"),
        burst: None,
        sustained: None,
        costs: Vec::new(),
        scope: Scope::Client,
        failure: String::new(),
        unlimited: false,
        revision: number(plan, "revision"),
    }
}

fn no_rollout(rollout: &Value) -> RolloutValue {
    RolloutValue {
        name: text(rollout, "name"),
        rules: Vec::new(),
        share_bp: u32::MAX,
        revision: number(rollout, "revision"),
    }
}

fn text(object: &Value, field: &str) -> String {
    object.get(field).and_then(Value::as_str).map_or_else(|| "?".to_owned(), cut)
}

fn number(object: &Value, field: &str) -> u64 {
    object.get(field).and_then(Value::as_u64).unwrap_or_default()
}

fn cut(text: &str) -> String {
    text.get(..text.floor_char_boundary(TEXT_BYTES_MAX)).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{FeedAnswer, Snapshot};
    use serde_json::json;

    #[test]
    fn a_change_that_does_not_read_is_named_and_spoils_no_other() {
        let good = json!({ "revision": 9, "object": { "kind": "key", "id": "k", "value": null } });
        for (bad, of, id) in [
            (json!({ "kind": "plan", "id": "pro", "value": { "name": -1 } }), "plan", "pro"),
            (json!({ "kind": "plan", "id": "pro", "value": "text" }), "plan", "pro"),
            (json!({ "kind": "cloud", "id": "pro", "value": {} }), "cloud", "pro"),
            (json!({ "kind": 3, "id": ["x"] }), "?", "?"),
            (json!("nothing"), "?", "?"),
        ] {
            let answer = json!({
                "history": "h", "head": 9, "live_gateways": 1,
                "changes": [{ "revision": 8, "object": bad }, good],
            });
            let answer: FeedAnswer = serde_json::from_value(answer).unwrap();
            let [first, second] = &answer.changes[..] else { panic!("{answer:?}") };
            assert!(matches!(first.object, Object::Unreadable { .. }), "{first:?}");
            assert_eq!(first.object.name(), (of, id));
            assert_eq!(second.object, Object::Key { id: "k".to_owned(), value: None });
            let again = serde_json::to_value(first).unwrap();
            assert_eq!(serde_json::from_value::<Change>(again).unwrap(), *first);
        }
    }

    #[test]
    fn a_snapshot_with_plans_that_do_not_read_has_them_as_no_valid_plans() {
        let plans = json!([
            { "name": "bad", "burst": "5", "failure": "open", "revision": 3 },
            { "name": "good", "burst": null, "sustained": null, "failure": "open",
              "unlimited": true, "revision": 4 },
            7,
        ]);
        let snapshot = json!({
            "history": "h", "revision": 9, "pepper_id": "p", "live_gateways": 1,
            "plans": plans, "rollout": { "name": "edge", "rules": "all", "revision": 5 },
        });
        let snapshot: Snapshot = serde_json::from_value(snapshot).unwrap();
        let valid: Vec<bool> = snapshot.plans.iter().map(|plan| plan.check().is_ok()).collect();
        assert_eq!(valid, [false, true, false]);
        assert_eq!((snapshot.plans[0].name.as_str(), snapshot.plans[0].revision), ("bad", 3));
        assert!(snapshot.rollout.unwrap().check().is_err());
        assert_eq!(snapshot.killswitch, None);
    }
}
