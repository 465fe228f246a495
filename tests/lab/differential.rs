//! The Redis script against the model it must equal, in a real Redis, a million steps; and whether
//! the comparison would notice: faults are planted in the script one by one, and each must be
//! found. `--sabotage NAME` plants one of them in the run that is judged.

use anyhow::{Context as _, anyhow};
use limiter_core::testkit::differential::{self, FAULTS, Fault, Script, Tally, Until};
use serde_json::{Map, Value, json};
use system_tests::process::Launcher;
use system_tests::redis::Redis;

/// Planted faults that `planted_found` counts: the first of the list.
const PLANTED: usize = 10;
/// Steps within which a planted fault must be found.
const PLANTED_STEPS: u64 = 100_000;

/// What to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Steps of the comparison.
    pub steps: u64,
    /// Where its random numbers start.
    pub seed: u64,
    /// A fault to plant in the script that is judged.
    pub sabotage: Option<String>,
}

/// Runs the comparison, then the planted faults.
pub async fn run(options: Options) -> anyhow::Result<Map<String, Value>> {
    let judged = match &options.sabotage {
        None => Script::as_shipped(),
        Some(name) => Script::with_fault(fault(name)?),
    };
    let folder = tempfile::tempdir()?;
    let launcher = Launcher::new(std::env::current_exe()?, folder.path());
    let redis = Redis::start(&launcher).await?;
    let client = redis_client(&redis)?;
    // Dropping this future ends Redis, and with it the thread that talks to it.
    let finished = tokio::task::spawn_blocking(move || compare(&client, &judged, &options));
    let fields = finished.await.context("the comparison panicked")??;
    drop(redis);
    Ok(fields)
}

fn fault(name: &str) -> anyhow::Result<&'static Fault> {
    let names = || FAULTS.iter().map(|fault| fault.name).collect::<Vec<_>>().join(", ");
    Fault::named(name).ok_or_else(|| anyhow!("no sabotage `{name}`; there are: {}", names()))
}

fn redis_client(redis: &Redis) -> anyhow::Result<redis::Client> {
    Ok(redis::Client::open(redis.url())?)
}

fn compare(
    client: &redis::Client,
    judged: &Script,
    options: &Options,
) -> anyhow::Result<Map<String, Value>> {
    let mut connection = client.get_connection()?;
    let Options { steps, seed, .. } = *options;
    let tally = differential::run(&mut connection, judged, seed, steps, Until::Done)?;
    let mut missed = Vec::new();
    let mut found_after = Map::new();
    for fault in &FAULTS {
        let script = Script::with_fault(fault);
        let until = Until::FirstDifference;
        let planted = differential::run(&mut connection, &script, seed, PLANTED_STEPS, until)?;
        if planted.differences == 0 {
            missed.push(fault.name);
        }
        found_after.insert(fault.name.to_owned(), json!(planted.steps));
    }
    Ok(fields(&tally, &missed, found_after))
}

fn fields(tally: &Tally, missed: &[&str], found_after: Map<String, Value>) -> Map<String, Value> {
    let (branch, visits) = tally.least_visited();
    let first_ten = FAULTS.iter().take(PLANTED);
    let found = first_ten.filter(|fault| !missed.contains(&fault.name)).count();
    let mut fields = Map::new();
    fields.insert("samples".to_owned(), json!(tally.steps));
    fields.insert("differences".to_owned(), json!(tally.differences));
    fields.insert("branches_min".to_owned(), json!(visits));
    fields.insert("branch_least_visited".to_owned(), json!(branch));
    fields.insert("branches".to_owned(), json!(tally.branches));
    fields.insert("denied_share".to_owned(), json!(share(tally.denied, tally.asked)));
    fields.insert("planted_found".to_owned(), json!(found));
    fields.insert("planted_missed".to_owned(), json!(missed));
    fields.insert("planted_steps".to_owned(), Value::Object(found_after));
    if let Some(difference) = &tally.first_difference {
        fields.insert("notes".to_owned(), json!(format!("first difference: {difference}")));
    }
    fields
}

#[expect(clippy::cast_precision_loss, reason = "a share for people, of counts far below 2^53")]
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
