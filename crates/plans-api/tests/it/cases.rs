//! Faults that others met, by their number, on both back ends; the list is in `tests/CASES.md`.

use serde_json::{Value, json};
use wire::client::Call;
use wire::client::plans::{AppliedAction, ApplyMode};
use wire::policy::Object;

use crate::api::{Api, feed_request, refusal, told};

pub(crate) async fn c08_zero_and_negative_numbers_never_mean_unlimited(api: &Api) {
    let body = |capacity: i64, refill: &str| json!({ "burst": { "capacity": capacity, "refill": refill } });
    for (capacity, refill) in [(0, "0"), (0, "1/s"), (5, "-1/s"), (5, "0/s"), (-5, "1/s")] {
        let answer = api.operator.put_plan("p", &body(capacity, refill), "test", None).await;
        assert_eq!(refusal(answer).status, 422, "({capacity}, {refill})");
    }
    assert_eq!(told(api.viewer.plan("p").await), (404, "not_found"));
    // (5, 0) is a plan: five requests, and never one more. It is not unlimited.
    api.operator.put_plan("five", &body(5, "0"), "test", None).await.unwrap();
    let five = api.gateway.snapshot().await.unwrap().plans.pop().unwrap();
    assert_eq!((five.unlimited, five.burst.unwrap().tokens), (false, 0));
    // Unlimited is a flag, never a number, and never beside limits.
    let both = json!({ "unlimited": true, "burst": { "capacity": 5, "refill": "1/s" } });
    let answer = api.operator.put_plan("p", &both, "test", None).await;
    assert_eq!(told(answer), (422, "unlimited_with_limits"));

    // By hand in the database: the second door.
    let database = api.by_hand().await;
    for wrong in [
        "burst_capacity = 0, burst_tokens = 0, burst_per_us = 0",
        "burst_capacity = 5, burst_tokens = 0, burst_per_us = 0",
        "burst_capacity = 0, burst_tokens = 1, burst_per_us = 1000000",
        "burst_capacity = 5, burst_tokens = -1, burst_per_us = 1000000",
        "burst_capacity = null, burst_tokens = null, burst_per_us = null",
        "burst_capacity = null",
        "burst_tokens = 2000000000, burst_per_us = 1000000",
        "burst_tokens = 1, burst_per_us = 2678400000001",
        "burst_capacity = 1000000000000, burst_tokens = 1, burst_per_us = 2678400000000",
        "burst_capacity = 1000000000001",
        "unlimited = 1",
        "unlimited = 2",
        "failure = 'often'",
        "failure = '101'",
        "scope = 'everybody'",
        "sustained_capacity = 0, sustained_tokens = 1, sustained_per_us = 1",
    ] {
        let mut tx = database.write().await.unwrap();
        let refused = tx.run_text(&format!("update plan set {wrong} where name = 'five'")).await;
        let refused = refused.unwrap_err();
        assert!(matches!(refused, daemon::sql::SqlError::Constraint(..)), "{wrong}: {refused:?}");
    }
    let mut tx = database.write().await.unwrap();
    let fine = "update plan set burst_capacity = 6, failure = '0.25' where name = 'five'";
    tx.run_text(fine).await.expect("the checks let right values through");
    tx.commit().await.unwrap();
    database.close().await;
}

pub(crate) async fn c02_rates_above_one_per_millisecond_are_plans_like_others(api: &Api) {
    let body = json!({ "burst": { "capacity": 20, "refill": "1500/s" } });
    api.operator.put_plan("fast", &body, "test", None).await.unwrap();
    let told = api.gateway.snapshot().await.unwrap().plans.pop().unwrap().burst.unwrap();
    let per_s = u128::from(told.tokens) * 1_000_000 / u128::from(told.per_us);
    assert_eq!((told.capacity, per_s), (20, 1_500), "{told:?}");
}

pub(crate) async fn c03_numbers_too_large_to_count_are_refused_by_name(api: &Api) {
    let largest = ["1000000000000", "1000000000"];
    for (capacity, refill) in [
        (1_000_000_000_000_000_u64, "1000000000000000/s"),
        (123_456_789_012_345, "1000000000000/s"),
    ] {
        let body = json!({ "burst": { "capacity": capacity, "refill": refill } });
        let refused = refusal(api.operator.put_plan("p", &body, "test", None).await);
        assert_eq!(refused.status, 422);
        let fields = ["burst.capacity", "burst.refill"];
        for (error, (field, most)) in refused.errors.iter().zip(fields.into_iter().zip(largest)) {
            assert_eq!(error.field, field);
            assert!(error.detail.contains(most), "names the largest: {}", error.detail);
        }
        assert_eq!(refused.errors.len(), 2);
    }
    let costs = json!([{ "route": "orders", "cost": 0.5 }]);
    let body = json!({ "burst": { "capacity": 5, "refill": "1/s" }, "costs": costs });
    let refused = refusal(api.operator.put_plan("p", &body, "test", None).await);
    assert_eq!(refused.status, 422, "half a token: {refused:?}");
    assert!(refused.errors[0].field.starts_with("costs"), "{refused:?}");

    let body = json!({ "burst": { "capacity": 1_000_000_000_000_u64, "refill": "1000000000/s" } });
    api.operator.put_plan("p", &body, "test", None).await.unwrap();
    let told = api.gateway.snapshot().await.unwrap().plans.pop().unwrap().burst.unwrap();
    assert_eq!(told.capacity, 1_000_000_000_000, "the largest passes the database exactly");
    assert_eq!(told.tokens, told.per_us * 1_000);
}

pub(crate) async fn c08_a_change_that_cannot_be_read_holds_up_no_gateway(api: &Api) {
    api.plan("good").await;
    let database = api.by_hand().await;
    for (kind, value) in [
        (
            "plan",
            r#"{"name":"bad","burst":{"capacity":5,"tokens":-1,"per_us":1000000},"sustained":null,"failure":"open","revision":1}"#,
        ),
        (
            "plan",
            r#"{"name":"good","burst":null,"sustained":null,"costs":[],"scope":"client","failure":"open","unlimited":true,"revision":1}"#,
        ),
        ("plan", "0"),
        ("client", "{}"),
        ("key", "not JSON"),
        ("rollout", "[]"),
    ] {
        let start = api.gateway.snapshot().await.unwrap();
        let bad = start.revision + 1;
        let mut tx = database.write().await.unwrap();
        tx.run("update head set revision = $1", [bad.into()]).await.unwrap();
        let insert =
            "insert into change (revision, at, kind, id, value) values ($1, 0, $2, 'bad', $3)";
        tx.run(insert, [bad.into(), kind.into(), value.into()]).await.unwrap();
        tx.commit().await.unwrap();
        let fed = api.gateway.feed(&feed_request("gw", &start.history, start.revision, 0)).await;
        let [change] = &fed.unwrap().changes[..] else { panic!("one change: {kind} {value}") };
        let unreadable = matches!(&change.object, Object::Unreadable { .. });
        assert!(unreadable && change.object.name() == (kind, "bad"), "{change:?}");
        // It is in nobody's way.
        let past = api.gateway.snapshot().await.unwrap();
        assert_eq!(past.revision, bad);
        assert!(past.plans.iter().all(|plan| plan.check().is_ok()), "no plan is invented");
        let body = json!({ "burst": { "capacity": bad, "refill": "1/s" } });
        api.operator.put_plan("good", &body, "test", None).await.unwrap();
        let fed = api.gateway.feed(&feed_request("gw", &past.history, past.revision, 0)).await;
        assert_eq!(fed.unwrap().changes.len(), 1);
    }
    database.close().await;
}

/// A notification holds eight thousand bytes: it must not carry the plan.
pub(crate) async fn the_largest_plan_is_saved_and_told(api: &Api) {
    let route = |number: u32| format!("{number:02}{}", "r".repeat(62));
    let costs: Vec<Value> = (0..64)
        .map(|n| json!({ "route": route(n), "method": "DELETE", "cost": 100_000 }))
        .collect();
    let body = json!({
        "burst": { "capacity": 1_000_000, "refill": "1/s" },
        "costs": costs,
        "note": "n".repeat(1_024),
    });
    assert!(body.to_string().len() > 8_000);
    let start = api.gateway.snapshot().await.unwrap();
    api.operator.put_plan("large", &body, "test", None).await.unwrap();
    let fed = api.gateway.feed(&feed_request("gw", &start.history, start.revision, 0)).await;
    let [change] = &fed.unwrap().changes[..] else { panic!("one change") };
    let Object::Plan { value: Some(plan), .. } = &change.object else { panic!("{change:?}") };
    assert_eq!(plan.costs.len(), 64);
}

pub(crate) async fn c28_one_bad_object_of_three_and_nothing_is_applied(api: &Api) {
    let good = json!({ "burst": { "capacity": 10, "refill": "1/s" } });
    let bad = json!({ "burst": { "capacity": 0, "refill": "-1/s" }, "fialure": "open" });
    let body = json!({
        "plan": { "a": good, "b": bad, "c": good },
        "client": { "acme": { "plan": "nowhere" }, "zeta": { "plan": "b" } },
    });
    let before = api.gateway.snapshot().await.unwrap().revision;
    let refused = refusal(api.operator.apply(&body, "test", ApplyMode::Apply).await);
    assert_eq!(refused.status, 422);
    let fields: Vec<&str> = refused.errors.iter().map(|error| error.field.as_str()).collect();
    for place in
        ["plan.b.burst.capacity", "plan.b.burst.refill", "plan.b.fialure", "client.acme.plan"]
    {
        assert!(fields.contains(&place), "{place} is missing in {fields:?}");
    }
    assert_eq!(fields.len(), 4, "one line for each mistake: {fields:?}");
    let after = api.gateway.snapshot().await.unwrap();
    assert_eq!((after.revision, after.plans.len()), (before, 0), "nothing is half applied");

    // Mended, first as a question, then for real, then again.
    let body = json!({ "plan": { "a": good, "c": good }, "client": { "acme": { "plan": "a" } } });
    let asked = api.operator.apply(&body, "test", ApplyMode::DryRun).await.unwrap();
    assert!(asked.dry_run && asked.changes.iter().all(|c| c.action == AppliedAction::Create));
    assert_eq!(
        api.gateway.snapshot().await.unwrap().revision,
        before,
        "a question changes nothing"
    );
    let done = api.operator.apply(&body, "test", ApplyMode::Apply).await.unwrap();
    assert_eq!(done.revision, before + 3, "one revision for each object");
    let again = api.operator.apply(&body, "test", ApplyMode::Apply).await.unwrap();
    assert_eq!(again.revision, done.revision, "the same again is no change");
    let more = json!({ "plan": { "a": { "burst": { "capacity": 10, "refill": "2/s" } } } });
    let more = api.operator.apply(&more, "test", ApplyMode::DryRun).await.unwrap();
    assert_eq!(more.changes[0].fields, ["burst.refill: 1/s → 2/s"]);
}

pub(crate) async fn c29_numbers_that_do_not_read_are_named_with_their_value(api: &Api) {
    for value in ["10/mn", "5x", "-5s", "", "0x10", "nan", "inf", "1e400", "10/0s", "٣/s"] {
        let body = json!({ "burst": { "capacity": 5, "refill": value } });
        let refused = refusal(api.operator.put_plan("p", &body, "test", None).await);
        assert_eq!(refused.status, 422, "{value}");
        assert_eq!(refused.errors[0].field, "burst.refill", "{value}");
        assert!(refused.errors[0].detail.contains(value), "{value}: {}", refused.errors[0].detail);
        let body = json!({ "burst": { "capacity": value, "refill": "1/s" } });
        let refused = refusal(api.operator.put_plan("p", &body, "test", None).await);
        assert_eq!((refused.status, refused.errors[0].field.as_str()), (422, "burst.capacity"));
        assert!(refused.errors[0].detail.contains(value), "{value}: {}", refused.errors[0].detail);
        let body = json!({ "burst": { "capacity": 5, "refill": "1/s" }, "failure": value });
        let refused = refusal(api.operator.put_plan("p", &body, "test", None).await);
        assert_eq!((refused.status, refused.errors[0].field.as_str()), (422, "failure"));
    }
    // Numbers that JSON itself does not have, and fractions where whole tokens are counted.
    let operator = api.operator.http();
    for (capacity, status) in
        [("1e400", 400), ("NaN", 400), ("0x10", 400), ("1.5", 422), ("-0.0", 422), ("1e3", 422)]
    {
        let text = format!(r#"{{"burst":{{"capacity":{capacity},"refill":"1/s"}}}}"#);
        let call = Call::new(wire::client::Method::PUT, "/v1/plans/p").bytes(text.into_bytes());
        let call = call.if_match_or_insist(None);
        let refused = refusal(operator.send::<Value>(call).await);
        assert_eq!(refused.status, status, "{capacity}: {}", refused.detail);
    }
    assert_eq!(told(api.viewer.plan("p").await), (404, "not_found"), "no default was put in");
}
