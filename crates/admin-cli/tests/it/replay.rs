//! `weir replay`: a log against plans, with nobody to ask.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use limiter_core::store::memory::MemoryStore;
use limiter_core::testkit::ManualClock;
use limiter_core::{
    BucketKey, Capacity, Clock, Contract, Cost, FailurePolicy, Limit, Limiter, LimiterSettings,
    Limits, PlanNumbers, PlanVersion, ScopeId, VersionSource,
};
use serde_json::Value;

use crate::run::{Ran, alone, command};

const PLANS: &str = "\
[plan.pro]
burst     = { capacity = 100, refill = \"50/s\" }
sustained = { capacity = 2000, refill = \"2000/h\" }
costs     = [{ route = \"reports\", method = \"POST\", cost = 5 }]
[plan.free]
burst     = { capacity = 5, refill = \"2/s\" }
[plan.inside]
unlimited = true
[client.acme]
plan = \"pro\"
[client.zeta]
plan = \"free\"
[client.own]
plan = \"inside\"
";

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        let folder = Folder(tempfile::tempdir().unwrap());
        folder.file("plans.toml", PLANS);
        folder
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn replay(&self, log: &Path, more: &[&str]) -> Ran {
        let plans = self.0.path().join("plans.toml");
        let args = ["replay", log.to_str().unwrap(), "--plans", plans.to_str().unwrap()];
        alone(&[&args[..], more].concat())
    }
}

fn of<'a>(document: &'a Value, client: &str) -> &'a Value {
    let items = document["items"].as_array().unwrap();
    items.iter().find(|item| item["client"] == client).unwrap_or(&Value::Null)
}

/// A limiter as gateways have it, over the embedded store, at a time that the test says.
struct Live {
    clock: Arc<ManualClock>,
    limiter: Limiter<MemoryStore>,
}

impl Live {
    fn new() -> Live {
        let clock = Arc::new(ManualClock::default());
        let shared: Arc<dyn Clock> = clock.clone();
        let store = Arc::new(MemoryStore::new(Arc::clone(&shared)));
        let settings = LimiterSettings { leases: false, ..LimiterSettings::default() };
        Live { limiter: Limiter::new(store, shared, settings), clock }
    }
}

fn limit(capacity: u64, refill: &str) -> Limit {
    Limit::new(Capacity::new(capacity).unwrap(), refill.parse().unwrap()).unwrap()
}

fn contract(client: &str) -> Contract {
    let limits = match client {
        "acme" => Limits { burst: limit(100, "50/s"), sustained: Some(limit(2_000, "2000/h")) },
        _ => Limits::burst_only(limit(5, "2/s")),
    };
    Contract {
        key: BucketKey::new(VersionSource::File, ScopeId::Client(client)),
        plan: PlanNumbers { version: PlanVersion(2), limits },
        reset: PlanVersion(0),
        failure: FailurePolicy::CLOSED,
    }
}

#[test]
fn with_exact_stamps_it_equals_what_a_live_limiter_decided() {
    let (folder, live, mut log) = (Folder::new(), Live::new(), String::new());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut refused: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    let mut random = fastrand::Rng::with_seed(27);
    for number in 0..12_000_u64 {
        // quiet stretches, so that buckets fill again, and crowds, so that they are used up
        let pause = if number % 3_000 == 0 { 90_000_000 } else { random.u64(0..16_000) };
        live.clock.advance(Duration::from_micros(pause));
        let client = if random.u8(0..8) == 0 { "zeta" } else { "acme" };
        let report = random.u8(0..10) == 0;
        let cost = if report && client == "acme" { 5 } else { 1 };
        let (route, method) = if report { ("reports", "POST") } else { ("all", "GET") };
        let cost = Cost::new(cost).unwrap();
        let decision = runtime.block_on(live.limiter.decide(&contract(client), cost));
        let us = live.clock.now().us();
        if !decision.is_allowed() {
            refused.entry(client).or_default().push(us);
        }
        log.push_str(&format!(
            "{{\"time\":{}.{:06},\"client\":\"{client}\",\"route\":\"{route}\",\
             \"method\":\"{method}\"}}\n",
            us / 1_000_000,
            us % 1_000_000
        ));
    }
    let log = folder.file("live.json", &log);
    let document = folder.replay(&log, &["-o", "json"]).ends(0).json();
    for (client, refused) in &refused {
        let item = of(&document, client);
        assert_eq!(item["refused"]["least"], refused.len(), "{client}: {document:#}");
        assert_eq!(item["refused"]["most"], refused.len(), "{client}: {document:#}");
        let at = std::time::UNIX_EPOCH + Duration::from_micros(refused[0]);
        let first = humantime::format_rfc3339_seconds(at).to_string();
        assert_eq!(item["first_refused"], first, "{client}");
        assert!(refused.len() > 50, "{client}: too few to tell: {}", refused.len());
    }
    assert_eq!(refused.len(), 2, "both were refused");
    assert_eq!(document["clients_hit"], 2);
}

fn nginx(clock: &str, client: &str) -> String {
    format!(
        "10.0.0.1 - - [28/Nov/2026:{clock} +0000] \"GET /a HTTP/1.1\" 200 12 \"-\" \"curl\" \
         \"{client}\"\n"
    )
}

#[test]
fn whole_seconds_give_a_range_in_all_three_formats() {
    let folder = Folder::new();
    let per_second = [("09:14:02", 8), ("09:14:03", 6), ("09:15:10", 5)];
    let (mut combined, mut envoy, mut json) = (String::new(), String::new(), String::new());
    for (clock, requests) in per_second {
        for _ in 0..requests {
            combined.push_str(&nginx(clock, "zeta"));
            let time = format!("2026-11-28T{clock}Z");
            envoy.push_str(&format!("{{\"start_time\":\"{time}\",\"x-client\":\"zeta\"}}\n"));
            json.push_str(&format!("{{\"client\":\"zeta\",\"time\":\"{time}\"}}\n"));
        }
    }
    let logs = [
        (folder.file("combined", &combined), vec!["--format", "nginx", "--key-field", "10"]),
        (folder.file("envoy", &envoy), vec!["--format", "envoy", "--key-field", "x-client"]),
        (folder.file("json", &json), vec!["--format", "json"]),
        (folder.file("found-out", &combined), vec![]),
    ];
    for (log, more) in &logs {
        let ran = folder.replay(log, &[&more[..], &["-o", "json"]].concat()).ends(0);
        let document = ran.json();
        let zeta = of(&document, "zeta");
        // 5 fit; at the peak 3 of 8 are refused, then 2 are there for 6, then the bucket is full
        assert_eq!(zeta["refused"]["most"], 7, "{log:?}: {document:#}");
        // spread over their seconds they meet what is earned meanwhile
        assert_eq!(zeta["refused"]["least"], 6, "{log:?}: {document:#}");
        assert_eq!(zeta["first_refused"], "2026-11-28T09:14:02Z");
        assert_eq!(zeta["worst_minute"]["at"], "2026-11-28T09:14:00Z");
        assert_eq!(zeta["worst_minute"]["refused"], 7);
        assert_eq!((&zeta["limit"], &document["requests"]), (&"burst".into(), &19.into()));
        assert!(ran.stderr.contains("whole seconds"), "{}", ran.stderr);
    }
}

#[test]
fn the_table_says_who_when_and_how_often() {
    let folder = Folder::new();
    let mut log = String::new();
    for second in 0..60 {
        for client in ["zeta", "zeta", "zeta", "acme", "own"] {
            log.push_str(&nginx(&format!("09:14:{second:02}"), client));
        }
    }
    let log = folder.file("access.log", &log);
    let ran = folder.replay(&log, &["--format", "nginx"]).ends(0);
    let mut lines = ran.stdout.lines();
    let heading = lines.next().unwrap();
    for word in ["CLIENT", "PLAN", "REQUESTS", "REFUSED", "FIRST", "WORST MINUTE", "LIMIT"] {
        assert!(heading.contains(word), "{heading}");
    }
    let zeta = lines.next().unwrap();
    assert!(zeta.starts_with("zeta    free  180"), "{zeta}");
    assert!(
        zeta.contains("09:14:0") && zeta.contains("09:14, 3") && zeta.ends_with("burst"),
        "{zeta}"
    );
    assert_eq!(lines.next(), None, "who is not refused is not listed");
    let summary = ran.stderr.lines().next().unwrap();
    assert!(summary.starts_with("300 requests, 3 clients, 2026-11-28 09:14 … 09:14; refused "));
    assert!(summary.ends_with(" %, 1 client hit"), "{summary}");
    let all = folder.replay(&log, &["--all", "-o", "name"]).ends(0).stdout;
    assert_eq!(all, "zeta\nacme\nown\n");
}

#[test]
fn what_cannot_be_replayed_is_counted_and_never_guessed() {
    let folder = Folder::new();
    let text = [
        nginx("09:14:02", "acme"),
        nginx("09:14:02", "-"),
        nginx("09:14:02", "stranger"),
        "half a li\n".to_owned(),
        nginx("25:14:02", "acme"),
        "\n".to_owned(),
    ]
    .concat();
    let log = folder.file("access.log", &text);
    let ran = folder.replay(&log, &["-o", "json"]).ends(0);
    let document = ran.json();
    let count = |name: &str| document[name].as_u64().unwrap();
    assert_eq!((count("requests"), count("replayed"), count("lines_broken")), (3, 1, 2));
    assert_eq!((count("without_client"), count("without_plan")), (1, 1));
    assert!(ran.stderr.contains("access.log:4: has no field for the time"), "{}", ran.stderr);
    assert!(ran.stderr.contains("access.log:5: has no time"), "{}", ran.stderr);
    assert!(ran.stderr.contains("--default-plan"), "{}", ran.stderr);
    let with = folder.replay(&log, &["--default-plan", "free", "-o", "json"]).ends(0).json();
    assert_eq!((&with["replayed"], &with["without_plan"]), (&2.into(), &0.into()));

    let broken = folder.file("broken.log", "nothing\nto read\n");
    assert!(folder.replay(&broken, &[]).ends(13).stderr.contains("broken.log:1"));
    let empty = folder.file("empty.log", "");
    assert!(folder.replay(&empty, &[]).ends(13).stderr.contains("the log is empty"));
    folder.replay(Path::new("/nowhere.log"), &[]).ends(64);
    let compressed = folder.0.path().join("access.log.gz");
    std::fs::write(&compressed, [0x1f, 0x8b, 8, 0]).unwrap();
    assert!(folder.replay(&compressed, &[]).ends(64).stderr.contains("zcat"));
    folder.replay(&log, &["--default-plan", "nobody"]).ends(64);
    folder.replay(&log, &["--key-field", "client"]).ends(64);
}

#[test]
fn lines_out_of_order_are_put_in_order_and_several_logs_are_one() {
    let folder = Folder::new();
    let seconds = ["09:14:04", "09:14:02", "09:14:08", "09:14:06"];
    let line = |clock: &str| (0..4).map(|_| nginx(clock, "zeta")).collect::<String>();
    let mixed: String = seconds.iter().map(|clock| line(clock)).collect();
    let mut sorted = seconds;
    sorted.sort_unstable();
    let sorted: String = sorted.iter().map(|clock| line(clock)).collect();
    let (first, second) = mixed.split_at(mixed.len() / 2);
    let mixed = folder.file("mixed.log", first);
    let rest = folder.file("rest.log", second);
    let sorted = folder.file("sorted.log", &sorted);
    let whole = folder.replay(&sorted, &["-o", "json"]).ends(0).json();
    let parts = folder.replay(&mixed, &[rest.to_str().unwrap(), "-o", "json"]).ends(0).json();
    assert_eq!(whole, parts);
    let plans = folder.0.path().join("plans.toml");
    let mut piped = command(&["replay", "-", "--plans", plans.to_str().unwrap(), "-o", "json"]);
    piped.stdin(std::fs::File::open(&sorted).unwrap());
    assert_eq!(crate::run::finish(piped).ends(0).json(), whole);
}
