//! What a feature costs a request: the gateway with it (or without, where it is on by default)
//! beside the gateway as shipped.

use std::path::Path;

use serde_json::{Map, Value, json};
use system_tests::growth::Protocol;

use super::load::{Extent as LoadExtent, Load, Who};
use super::meter::SUBJECT_CORE;
use super::slices::{Slice, rounded};
use super::subjects::{Arm, Subjects, WARM_UP};
use super::{Extent, play};
use crate::plain::{Added, Setting, Subject};
use crate::report::Report;
use crate::standalone::Folder;
use crate::store::quartiles;

/// Routes that come before the one that is asked, in the feature of many routes.
const ROUTES: usize = 200;

struct Feature {
    name: &'static str,
    added: Added,
}

/// The gateway with a feature, its slice of the turn, and one ratio of each turn.
struct Measured {
    name: &'static str,
    subject: Subject,
    slice: Option<Slice>,
    ratios: Vec<f64>,
}

/// What the others are compared with.
const BASE: &str = "as_shipped";

fn feature(name: &'static str, added: Added) -> Feature {
    Feature { name, added }
}

fn tables(text: &str) -> Added {
    Added { tables: text.to_owned(), ..Added::default() }
}

fn route(text: &str) -> Added {
    Added { route: text.to_owned(), ..Added::default() }
}

fn upstream(text: &str) -> Added {
    Added { upstream: text.to_owned(), ..Added::default() }
}

/// The first two add nothing: what differs between them is the method's own noise.
fn all(folder: &Path) -> Vec<Feature> {
    let log = |name: &str, more: &str| {
        tables(&format!("[access_log]\nto = {:?}\n{more}\n", folder.join(name)))
    };
    let routes: String = (0..ROUTES)
        .map(|n| format!("[[route]]\nname = \"r{n}\"\npath = \"/r{n}\"\nupstream = \"service\"\n"))
        .collect();
    vec![
        feature(BASE, Added::default()),
        feature("as_shipped_again", Added::default()),
        feature("access_log_json", log("json.log", "")),
        feature("access_log_text", log("text.log", "format = \"text\"")),
        feature("access_log_of_1_percent", log("some.log", "sample = 0.01")),
        feature("x_ratelimit_always", tables("[limits]\nx_ratelimit = \"always\"\n")),
        feature("without_shedding", tables("[overload]\nshed = false\n")),
        feature("many_routes", tables(&routes)),
        feature("route_by_method", route("methods = [\"GET\"]")),
        feature("rewrite", route("rewrite = \"/\"")),
        feature("cors", route("cors = { origins = [\"https://app.example.com\"] }")),
        feature("body_cap", route("body_bytes = 1048576")),
        feature("total_timeout", upstream("total_timeout = \"10s\"")),
        feature("hash_by_key", upstream("balance = { hash = \"key\" }")),
        feature("active_health", upstream("health = { path = \"/item\" }")),
        feature("without_ejection", upstream("ejection = { consecutive = 0 }")),
        feature("without_retries", upstream("retry = { attempts = 0 }")),
        feature("pairing", upstream("pairing = { deny_header = { name = \"x-weir-decision\" } }")),
    ]
}

/// Turns of one slice for each, in random order, and the ratios to the gateway as shipped.
pub async fn compare(
    folder: &Folder,
    subjects: &Subjects,
    extent: Extent,
    seed: u64,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut measured = Vec::new();
    for feature in all(folder.launcher.dir()) {
        let subject = start(folder, subjects, &feature).await?;
        measured.push(Measured { name: feature.name, subject, slice: None, ratios: Vec::new() });
    }
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..extent.pairs {
        random.shuffle(&mut measured);
        for one in &mut measured {
            let load = load_of(subjects, &one.subject, Who::Crowd, random.u64(..));
            let slice = play(subjects, &one.subject, Arm::Limits, load, extent).await?;
            let answers = &slice.answers;
            anyhow::ensure!(slice.unexpected() == 0, "{}: {answers:?}", one.name);
            one.slice = Some(slice).filter(Slice::is_clean);
        }
        let base = measured.iter().find(|one| one.name == BASE);
        let Some(base) = base.and_then(|one| one.slice.as_ref()) else { continue };
        let base = base.us_per_request();
        for one in &mut measured {
            let slice = one.slice.take();
            one.ratios.extend(slice.map(|slice| slice.us_per_request() / base));
        }
    }
    let mut told = Map::new();
    for one in measured.iter().filter(|one| one.name != BASE) {
        let (low, middle, high) = quartiles(&one.ratios);
        let value = json!({ "over_as_shipped": rounded(middle),
                            "quartiles": [rounded(low), rounded(high)],
                            "pairs": one.ratios.len() });
        told.insert(one.name.to_owned(), value);
    }
    report.field("features", Value::Object(told));
    Ok(())
}

async fn start(folder: &Folder, subjects: &Subjects, feature: &Feature) -> anyhow::Result<Subject> {
    let name = format!("with_{}", feature.name);
    let setting = Setting { added: feature.added.clone(), ..Setting::shipped(&name) };
    let args = vec![SUBJECT_CORE.to_string().into(), "gateway".into()];
    let gateway = subjects.plain.gateway(&folder.launcher, setting, "pinned", args).await?;
    let warm_up = load_of(subjects, &gateway, Who::InTurn, 0);
    let (answers, (), ()) = warm_up.play(LoadExtent::Requests(WARM_UP), || Ok(())).await?;
    anyhow::ensure!(answers.strange == 0, "warm-up of {name}: {answers:?}");
    Ok(gateway)
}

fn load_of(subjects: &Subjects, subject: &Subject, who: Who, seed: u64) -> Load {
    let keys = subjects.keys(Arm::Limits).to_vec();
    Load { target: subject.at, protocol: Protocol::Http1, keys, who, seed }
}
