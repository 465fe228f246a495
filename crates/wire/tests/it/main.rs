//! Bodies keep their JSON, readers take what newer writers add, and what is wrong is named.

use serde_json::{Value, json};
use wire::batch::{Side, TallyCell};
use wire::decision_header::ServiceDecision;
use wire::error::{ErrorBody, ErrorCode};
use wire::gate::{GateReport, GateVerdict};
use wire::key::{ApiKey, KeyEnv, KeyHash, KeyShape, Pepper, shape};
use wire::name::Name;
use wire::plan::{LimitValue, PlanSpec, PlanValue};
use wire::policy::{Change, Object};
use wire::rollout::{Phase, RolloutRule, RolloutValue, RuleSubject};
use wire::strict::{self, Problems};

fn plan(body: &Value) -> Result<PlanSpec, Vec<(String, ErrorCode)>> {
    let mut problems = Problems::new();
    let spec = PlanSpec::parse("pro", body, "plan.pro", &mut problems);
    problems.none_or(spec).map_err(|errors| errors.into_iter().map(|e| (e.field, e.code)).collect())
}

#[test]
fn a_plan_reads_back_as_it_was_written() {
    let body = json!({
        "burst": { "capacity": 100, "refill": "50/s" },
        "sustained": { "capacity": 2_000_000, "refill": "2000000/d" },
        "failure": "local",
        "scope": "key",
        "costs": [{ "route": "reports", "cost": 5 }],
        "labels": { "team": "x" },
        "note": "for partners",
    });
    let spec = plan(&body).unwrap();
    assert_eq!(plan(&spec.to_json()).unwrap(), spec);
    let value = spec.to_value(7);
    let checked = value.check().unwrap();
    assert_eq!(
        (checked.limits, checked.failure, checked.scope),
        (spec.limits, spec.failure, spec.scope)
    );
}

#[test]
fn every_mistake_of_a_plan_is_named_with_its_place() {
    let body = json!({
        "burst": { "capacity": 0, "refill": "10/mn" },
        "sustained": { "capacity": "0x10", "refill": 5, "colour": 1 },
        "failure": "maybe",
        "scope": "galaxy",
        "typo": true,
    });
    let mut found = plan(&body).unwrap_err();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    let expected = [
        ("plan.pro.burst.capacity", ErrorCode::CapacityOutOfRange),
        ("plan.pro.burst.refill", ErrorCode::RefillOutOfRange),
        ("plan.pro.failure", ErrorCode::FailureOutOfRange),
        ("plan.pro.scope", ErrorCode::InvalidValue),
        ("plan.pro.sustained.capacity", ErrorCode::CapacityOutOfRange),
        ("plan.pro.sustained.colour", ErrorCode::UnknownField),
        ("plan.pro.sustained.refill", ErrorCode::RefillOutOfRange),
    ];
    let known = |place: &str, code| found.contains(&(place.to_owned(), code));
    for (place, code) in expected {
        assert!(known(place, code), "{place} {code:?} is missing in {found:?}");
    }
    assert!(known("plan.pro.typo", ErrorCode::UnknownField));
    assert_eq!(found.len(), expected.len() + 1);
}

#[test]
fn no_number_means_unlimited() {
    let burst = json!({ "capacity": 5, "refill": "1/s" });
    for (body, code) in [
        (json!({}), ErrorCode::InvalidValue),
        (json!({ "burst": null }), ErrorCode::InvalidValue),
        (json!({ "unlimited": true, "burst": burst }), ErrorCode::UnlimitedWithLimits),
        (json!({ "burst": { "capacity": 0, "refill": "0" } }), ErrorCode::CapacityOutOfRange),
        (json!({ "burst": { "capacity": 5, "refill": "-1/s" } }), ErrorCode::RefillOutOfRange),
        (
            json!({ "burst": burst, "costs": [{"route": "r", "cost": 6}] }),
            ErrorCode::CostOutOfRange,
        ),
    ] {
        let found = plan(&body).unwrap_err();
        assert!(found.iter().any(|(_, found)| *found == code), "{body}: {found:?}");
    }
    assert!(plan(&json!({ "unlimited": true })).is_ok());
    assert!(plan(&json!({ "burst": { "capacity": 5, "refill": "0" } })).is_ok());
}

#[test]
fn the_last_door_refuses_what_the_first_would() {
    let good = PlanValue {
        name: "pro".to_owned(),
        burst: Some(LimitValue { capacity: 5, tokens: 1, per_us: 1_000_000 }),
        sustained: None,
        costs: Vec::new(),
        scope: wire::plan::Scope::Client,
        failure: "open".to_owned(),
        unlimited: false,
        revision: 1,
    };
    assert!(good.check().is_ok());
    let burst = |capacity, tokens, per_us| Some(LimitValue { capacity, tokens, per_us });
    for bad in [
        PlanValue { burst: None, ..good.clone() },
        PlanValue { burst: burst(0, 1, 1), ..good.clone() },
        PlanValue { burst: burst(5, 1, 0), ..good.clone() },
        PlanValue { burst: burst(u64::MAX, 1, 1), ..good.clone() },
        PlanValue { burst: burst(5, u64::MAX, 1), ..good.clone() },
        PlanValue { sustained: burst(0, 0, 1), ..good.clone() },
        PlanValue { unlimited: true, ..good.clone() },
        PlanValue { failure: String::new(), ..good.clone() },
        PlanValue { name: "No Name".to_owned(), ..good.clone() },
    ] {
        assert!(bad.check().is_err(), "{bad:?}");
    }
}

#[test]
fn a_key_given_twice_is_an_error() {
    assert!(strict::json(br#"{"a":1,"b":{"a":2}}"#).is_ok());
    for text in [r#"{"a":1,"a":2}"#, r#"{"b":{"c":1,"c":1}}"#, r#"[{"x":1,"x":1}]"#, "{} {}", ""] {
        assert!(strict::json(text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn a_key_tells_ours_from_invented_without_a_look_up() {
    let pepper = Pepper::generate().unwrap();
    let key = ApiKey::generate(KeyEnv::Live, &pepper).unwrap();
    assert_eq!(key.text.len(), "weir_live_".len() + 10 + 1 + 27 + 7);
    assert_eq!(shape(&key.text, &pepper), KeyShape::Ours);
    assert_eq!(shape(&key.text, &Pepper::generate().unwrap()), KeyShape::Forged);
    for at in 0..key.text.len() {
        let mut text = key.text.clone().into_bytes();
        text[at] = if text[at] == b'x' { b'y' } else { b'x' };
        assert_ne!(shape(std::str::from_utf8(&text).unwrap(), &pepper), KeyShape::Ours);
    }
    assert_eq!(shape("weir_live_", &pepper), KeyShape::Forged);
    assert_eq!(shape("sk_1234", &pepper), KeyShape::Foreign);
    assert_eq!(KeyHash::from_hex(&key.hash.to_hex()), Some(key.hash));
    let shown = format!("{key:?} {:?} {pepper:?}", key.hash);
    assert!(!shown.contains(&key.text) && !shown.contains(&key.hash.to_hex()));
}

#[test]
fn a_decision_header_reads_back_and_nothing_else_is_one() {
    let decision = ServiceDecision {
        outcome: Side::Deny,
        remaining: Some(0),
        limit: Some(20),
        cost: Some(1),
        client: Some("c_81".to_owned()),
    };
    assert_eq!(decision.to_string(), "v1;d=deny;rem=0;lim=20;cost=1;client=c_81");
    assert_eq!(ServiceDecision::parse(&decision.to_string()), Some(decision));
    assert!(ServiceDecision::parse("v1;d=allow;new=1").is_some());
    for text in ["", "v2;d=deny", "v1", "v1;d=maybe", "v1;rem=0", "d=deny", &"v1;".repeat(200)] {
        assert_eq!(ServiceDecision::parse(text), None, "{text}");
    }
}

#[test]
fn the_most_specific_rule_gives_the_phase() {
    let rule = |subject, phase| RolloutRule { subject, phase, since_revision: 1 };
    let client = |client: &str| RuleSubject::Client { client: client.to_owned() };
    let mut rollout = RolloutValue {
        name: "edge".to_owned(),
        rules: vec![rule(RuleSubject::All, Phase::Shadow), rule(client("loud"), Phase::Enforce)],
        share_bp: 10_000,
        revision: 3,
    };
    assert_eq!(rollout.phase_of("loud"), Phase::Enforce);
    assert_eq!(rollout.phase_of("other"), Phase::Shadow);
    rollout.rules.remove(0);
    assert_eq!(rollout.phase_of("other"), Phase::Enforce);
}

#[test]
fn a_larger_sample_keeps_those_who_were_in() {
    let with = |share_bp| RolloutValue {
        name: "edge".to_owned(),
        rules: Vec::new(),
        share_bp,
        revision: 1,
    };
    let clients: Vec<String> = (0..10_000).map(|n| format!("client-{n}")).collect();
    let inside = |share| clients.iter().filter(|c| with(share).samples(c)).collect::<Vec<_>>();
    let (small, large) = (inside(2_000), inside(5_000));
    assert!((1_880..=2_120).contains(&small.len()), "{}", small.len());
    assert!(small.iter().all(|client| large.contains(client)));
    assert_eq!(inside(0).len(), 0);
    assert_eq!(inside(10_000).len(), clients.len());
}

#[test]
fn the_number_passes_only_below_the_line_and_with_enough_pairs() {
    let report = |pairs, disagreements, lost| GateReport {
        pairs,
        disagreements,
        lost,
        ..GateReport::default()
    };
    for (pairs, disagreements, lost, verdict) in [
        (0, 0, 0, GateVerdict::Insufficient),
        (2_999, 0, 0, GateVerdict::Insufficient),
        (3_000, 0, 0, GateVerdict::Pass),
        (3_000, 2, 0, GateVerdict::Pass),
        (3_000, 3, 0, GateVerdict::Fail),
        (3_000, 2, 2, GateVerdict::Fail),
        (1_000_000, 999, 0, GateVerdict::Pass),
        (1_000_000, 1_000, 0, GateVerdict::Fail),
    ] {
        let report = report(pairs, disagreements, lost);
        assert_eq!(report.verdict(), verdict, "{report:?}");
    }
}

#[test]
fn a_problem_has_its_registered_type_and_a_newer_code_reads_as_internal() {
    let body = ErrorBody::new(ErrorCode::QuotaExceeded, "burst is empty");
    let json = serde_json::to_value(&body).unwrap();
    assert_eq!(json["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!((&json["status"], &json["code"]), (&json!(429), &json!("quota_exceeded")));
    assert_eq!(ErrorCode::KeyInvalid.problem_type(), "urn:weir:problem:key_invalid");
    let newer =
        json!({"type": "x", "title": "x", "status": 499, "code": "tea", "detail": "", "more": 1});
    assert_eq!(serde_json::from_value::<ErrorBody>(newer).unwrap().code, ErrorCode::Internal);
    for code in ErrorCode::ALL {
        assert_eq!(ErrorCode::named(code.name()), Some(*code));
    }
}

#[test]
fn readers_of_feeds_take_what_newer_writers_add() {
    let change = json!({
        "revision": 7, "later": true,
        "object": { "kind": "client", "id": "acme", "extra": 1,
            "value": { "id": "acme", "plan": "pro", "state": "active", "revision": 7, "new": [] } },
    });
    let change: Change = serde_json::from_value(change).unwrap();
    assert_eq!(change.object.name(), ("client", "acme"));
    let deleted =
        Change { revision: 8, object: Object::Plan { id: "pro".to_owned(), value: None } };
    let text = serde_json::to_string(&deleted).unwrap();
    assert_eq!(text, r#"{"revision":8,"object":{"kind":"plan","id":"pro","value":null}}"#);
    let cell: TallyCell = serde_json::from_value(json!({"client": "acme", "requests": 3})).unwrap();
    assert_eq!((cell.requests, cell.pairs()), (3, 0));
}

#[test]
fn names_are_plain() {
    for name in ["a", "0", "acme.eu-1_x", &"a".repeat(64)] {
        assert!(Name::new(name).is_ok(), "{name}");
    }
    for name in ["", "A", "-a", ".a", "a b", "a/b", "ä", &"a".repeat(65)] {
        assert!(Name::new(name).is_err(), "{name}");
    }
}

#[test]
fn a_text_that_no_store_or_terminal_should_get_is_a_mistake_with_its_place() {
    for (text, fine) in [
        ("two lines\n\tÜnï 名前", true),
        ("", true),
        ("a\0", false),
        ("\x1b[31mred", false),
        ("\u{9b}31m", false),
        ("\u{7f}", false),
        ("a\rb", false),
    ] {
        let value = serde_json::json!({ "note": text });
        let mut problems = Problems::new();
        let mut fields = strict::Fields::of(&value, "plan.p", &mut problems);
        fields.text("note", &mut problems);
        let places: Vec<_> = problems.into_vec().into_iter().map(|error| error.field).collect();
        let expected: &[&str] = if fine { &[] } else { &["plan.p.note"] };
        assert_eq!(places, expected, "{text:?}");
    }
}
