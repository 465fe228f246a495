//! What no gateway could take is refused at the first door, by name, and nothing of it is stored.

use serde_json::{Value, json};
use wire::client::{Call, Method};

use crate::api::{Api, put, refusal};

/// A plan with one part of it replaced.
fn with(part: &str, value: &Value) -> Value {
    let mut plan = json!({ "burst": { "capacity": 5, "refill": "1/s" } });
    match part.split_once('.') {
        Some((table, field)) => plan[table][field] = value.clone(),
        None => plan[part] = value.clone(),
    }
    plan
}

/// Which part, what it says, and the field that is named.
fn poison() -> Vec<(&'static str, Value, &'static str)> {
    let mut all = Vec::new();
    for refill in [
        json!("-1/s"),
        json!("nan/s"),
        json!("inf"),
        json!("1e308/s"),
        json!("0x10/s"),
        json!("10/mn"),
        json!("1/0s"),
        json!("/s"),
        json!(""),
        json!("1000000001/s"),
        json!("5.5/s"),
        json!(5),
        Value::Null,
        json!(["1/s"]),
    ] {
        all.push(("burst.refill", refill, "burst.refill"));
    }
    for capacity in [
        json!(0),
        json!(-1),
        json!(1.5),
        json!(1e308),
        json!("5"),
        json!(1_000_000_000_001_u64),
        json!(true),
        Value::Null,
        json!({}),
    ] {
        all.push(("burst.capacity", capacity, "burst.capacity"));
    }
    for cost in [json!(6), json!(-1), json!(0.5), json!("1"), Value::Null] {
        all.push(("costs", json!([{ "route": "orders", "cost": cost }]), "costs[0].cost"));
    }
    let rule = json!({ "route": "orders", "cost": 1 });
    all.push(("costs", json!([{ "cost": 1 }]), "costs[0].route"));
    all.push(("costs", json!("orders"), "costs"));
    all.push(("costs", Value::Array(vec![rule; 65]), "costs"));
    for failure in [json!("openn"), json!("0"), json!("101"), json!("-1"), json!("nan"), json!(5)] {
        all.push(("failure", failure, "failure"));
    }
    all.push(("scope", json!("fleet"), "scope"));
    all.push(("unlimited", json!(true), "unlimited"));
    all.push(("unlimited", json!("yes"), "unlimited"));
    all.push(("brust", json!({}), "brust"));
    all.push(("burst.window", json!("1s"), "burst.window"));
    all.push(("note", json!("n".repeat(1_025)), "note"));
    all.push(("labels", json!(["a"]), "labels"));
    all
}

pub(crate) async fn f33_no_poisoned_plan_comes_in_by_the_api(api: &Api) {
    api.plan("good").await;
    let before = api.gateway.snapshot().await.unwrap();
    let table = poison();
    assert!(table.len() >= 40, "{}", table.len());
    for (part, value, field) in table {
        let case = format!("{part} = {value}");
        let body = with(part, &value);
        let answer = api.operator.http().send::<Value>(put("/v1/plans/bad", &body)).await;
        assert!(answer.is_err(), "{case} was taken: {answer:?}");
        let refused = refusal(answer);
        assert_eq!(refused.status, 422, "{case}: {refused:?}");
        let named: Vec<&str> = refused.errors.iter().map(|error| error.field.as_str()).collect();
        assert!(named.contains(&field), "{case}: {named:?}");
        assert!(refused.errors.iter().all(|error| !error.detail.is_empty()), "{case}");
    }
    let raw = async |path: &str, body: String| {
        let call = Call::new(Method::PUT, path.to_owned()).if_absent().bytes(body.into_bytes());
        refusal(api.operator.http().send::<Value>(call).await).status
    };
    let twice = r#"{"burst":{"capacity":5,"capacity":6,"refill":"1/s"}}"#.to_owned();
    assert_eq!(raw("/v1/plans/bad", twice).await, 400, "a key that comes twice");
    let cut = r#"{"burst":{"capacity":5"#.to_owned();
    assert_eq!(raw("/v1/plans/bad", cut).await, 400, "half a body");
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(raw("/v1/plans/bad", deep).await, 400, "a tower of brackets");
    let large = format!("{{\"note\":\"{}\"}}", "n".repeat(10 << 20));
    assert_eq!(raw("/v1/plans/bad", large).await, 413, "ten megabytes");
    let name = format!("/v1/plans/{}", "n".repeat(65));
    let plain = with("scope", &json!("client")).to_string();
    assert!([400, 422].contains(&raw(&name, plain.clone()).await), "a long name");
    assert!([400, 422].contains(&raw("/v1/plans/Bad!", plain).await), "no name");

    let after = api.gateway.snapshot().await.unwrap();
    assert_eq!((after.revision, after.plans), (before.revision, before.plans), "nothing is stored");
}
