//! What flags come to.

use clap_free::set;

use super::*;

/// Flags as the grammar reads them, without naming the grammar's crate here.
mod clap_free {
    use crate::args::{Command, Parsed, PlanCommand, PlanSet, parse};

    pub(super) fn set(words: &[&str]) -> PlanSet {
        let words = ["weir", "plan", "set"].iter().chain(words);
        let Parsed::Run(cli) = parse(words.map(Into::into)) else { panic!("does not parse") };
        let Command::Plan(PlanCommand::Set(set)) = cli.command else { panic!("another command") };
        *set
    }
}

#[test]
fn flags_change_what_they_name_and_keep_the_rest() {
    let before = json!({
        "name": "pro", "revision": 7, "created_at": 1, "failure": "closed", "scope": "key",
        "burst": { "capacity": 10, "refill": "5/s" },
        "sustained": { "capacity": 100, "refill": "100/d" },
    });
    let body = from_flags(&set(&["pro", "--burst", "20@10/s"]), Some(&before)).unwrap();
    let wanted = json!({
        "burst": { "capacity": 20, "refill": "10/s" },
        "sustained": { "capacity": 100, "refill": "100/d" },
        "failure": "closed", "scope": "key",
    });
    assert_eq!(body, wanted);
    let body = from_flags(&set(&["pro", "--sustained", "none"]), Some(&before)).unwrap();
    assert_eq!(body.get("sustained"), None);
    let body = from_flags(&set(&["pro", "--unlimited"]), Some(&before)).unwrap();
    assert_eq!(body["unlimited"], json!(true));
}

#[test]
fn costs_may_name_a_method() {
    let flags = ["p", "--burst", "10@1/s", "--cost", "POST:reports=5", "--cost", "search=0"];
    let body = from_flags(&set(&flags), None).unwrap();
    let wanted = json!([
        { "route": "reports", "method": "POST", "cost": 5 }, { "route": "search", "cost": 0 },
    ]);
    assert_eq!(body["costs"], wanted);
}

#[test]
fn odd_plans_are_found() {
    let plan = |burst: &str, sustained: &str| {
        let body = from_flags(&set(&["p", "--burst", burst, "--sustained", sustained]), None);
        let mut problems = Problems::new();
        lint(&PlanSpec::parse("p", &body.unwrap(), "", &mut problems).unwrap()).len()
    };
    assert_eq!(plan("100@50/s", "2000000@2000000/d"), 0);
    assert_eq!(plan("100@50/s", "50@50/d"), 1);
    assert_eq!(plan("100@1/m", "200@1/s"), 1);
    assert_eq!(plan("100@0", "200@0"), 1);
}
