//! What files may say, and how mistakes are told.

use super::*;

fn mistakes(text: &str) -> Vec<String> {
    read_one("p.toml", text, &mut Desired::default()).iter().map(ToString::to_string).collect()
}

#[test]
fn every_mistake_has_its_line_and_field() {
    let text = "\
[plan.a]
burst = { capacity = 10, refill = \"5/s\" }

[plan.b]
burst = { capacity = 10, refill = \"-5/s\" }
failur = \"open\"

[plan.c]
burst = { capacity = 0x10, refill = \"1/s\" }
costs = [{ route = \"r\", cost = 1 }, { route = \"r\", cost = 99 }]

[client.acme]
";
    let found = mistakes(text);
    let starts = [
        "p.toml:5: plan.b.burst.refill",
        "p.toml:6: plan.b.failur",
        "p.toml:9: plan.c.burst.capacity",
        "p.toml:12: client.acme",
    ];
    for start in starts {
        assert!(found.iter().any(|line| line.starts_with(start)), "{start} is not in {found:#?}");
    }
}

#[test]
fn what_is_no_toml_has_a_line_too() {
    let found = mistakes("[plan.a]\nburst = {\n");
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("p.toml:"), "{found:?}");
}

#[test]
fn nothing_that_is_no_plain_number_becomes_one() {
    for capacity in ["0x10", "0b11", "nan", "inf", "1e3", "1.5", "-1", "\"10\"", "1e400", "true"] {
        let text = format!("[plan.a]\nburst = {{ capacity = {capacity}, refill = \"1/s\" }}\n");
        let found = mistakes(&text);
        assert!(found.iter().any(|line| line.contains("capacity")), "{capacity}: {found:?}");
    }
}

#[test]
fn a_gateways_file_gives_its_plans_and_says_what_it_left() {
    let mut desired = Desired::default();
    let text = "[listen]\naddress = \"x\"\n[plan.a]\nburst = { capacity = 1, refill = \"1/s\" }\n";
    assert!(read_one("gateway.toml", text, &mut desired).is_empty());
    assert_eq!(desired.plans.len(), 1);
    assert_eq!(desired.left_out, ["gateway.toml: [listen]"]);
    assert!(!mistakes("[listen2]\nx = 1\n").is_empty(), "elsewhere it is a mistake");
}

#[test]
fn a_name_in_two_files_is_a_mistake() {
    let mut desired = Desired::default();
    let text = "[client.a]\nplan = \"p\"\n";
    assert!(read_one("one.toml", text, &mut desired).is_empty());
    let found = read_one("two.toml", text, &mut desired);
    assert!(found[0].to_string().contains("two files"), "{found:?}");
}
