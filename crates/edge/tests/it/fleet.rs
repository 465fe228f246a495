//! Several gateways, each with a disk of its own, while writers write, the control plane forgets,
//! goes away and is restored, and gateways are killed and started: each one's policy is always a
//! committed one, never older than what it acknowledged, and in the end the newest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use edge::PolicySource;
use proptest::prelude::*;
use tempfile::TempDir;
use tokio::time::Instant;

use super::feed::{Act, act, acts, check};
use super::plane::Plane;
use super::world::{Setting, World, until};

const GATEWAYS: usize = 3;

/// One gateway over its lives.
struct Gateway {
    id: String,
    folder: TempDir,
    world: Option<World>,
    /// In force in this life, by history.
    seen: BTreeMap<String, u64>,
}

impl Gateway {
    fn new(number: usize) -> Gateway {
        let folder = tempfile::tempdir().unwrap();
        let id = format!("gateway-{number}");
        Gateway { id, folder, world: None, seen: BTreeMap::new() }
    }

    /// As after a kill: nothing is finished.
    fn restart(&mut self, plane: &Arc<Plane>) {
        self.world = None;
        self.seen.clear();
        let setting = Setting {
            gateway: self.id.clone(),
            state_dir: Some(self.folder.path().join("state")),
            ..Setting::default()
        };
        self.world = Some(World::new(setting, PolicySource::ControlPlane(plane.clone())));
    }

    fn book(&self) -> Option<Arc<edge::PlanBook>> {
        self.world.as_ref().and_then(|world| world.edge.book())
    }

    fn acknowledged(&self, plane: &Plane, history: &str) -> u64 {
        let requests = plane.requests.lock();
        let own = requests.iter().filter(|r| r.gateway == self.id && r.history == history);
        own.map(|request| request.applied).max().unwrap_or(0)
    }

    fn look(&mut self, plane: &Plane) -> Result<(), TestCaseError> {
        let Some(book) = self.book() else { return Ok(()) };
        check(&book, plane)?;
        let (history, revision) = (book.history().to_owned(), book.revision());
        let acknowledged = self.acknowledged(plane, &history);
        prop_assert!(acknowledged <= revision, "{} went behind {acknowledged}", self.id);
        let before = self.seen.insert(history, revision).unwrap_or(0);
        prop_assert!(before <= revision, "{} went back from {before} to {revision}", self.id);
        Ok(())
    }
}

async fn follow(script: &[(usize, Act)]) -> Result<(), TestCaseError> {
    let plane = Plane::new();
    let mut fleet: Vec<Gateway> = (0..GATEWAYS).map(Gateway::new).collect();
    for gateway in &mut fleet {
        gateway.restart(&plane);
    }
    let mut histories = 0;
    for (who, step) in script {
        match step {
            Act::Restart => fleet[*who].restart(&plane),
            Act::Rest => tokio::time::sleep(Duration::from_millis(15)).await,
            other => act(&plane, other, &mut histories),
        }
        tokio::task::yield_now().await;
        for gateway in &mut fleet {
            gateway.look(&plane)?;
        }
    }
    plane.away.store(false, Ordering::SeqCst);
    plane.other_write();
    let (history, head) = plane.head();
    for gateway in &mut fleet {
        let newest = || gateway.acknowledged(&plane, &history) == head;
        until("the newest revision, acknowledged", newest).await;
        gateway.look(&plane)?;
        let book = gateway.book().unwrap();
        prop_assert_eq!((book.history(), book.revision()), (history.as_str(), head));
    }
    // And so does a start with nobody to ask.
    plane.away.store(true, Ordering::SeqCst);
    for gateway in &mut fleet {
        gateway.restart(&plane);
        until("what was acknowledged", || gateway.book().is_some()).await;
        gateway.look(&plane)?;
        prop_assert_eq!(gateway.book().unwrap().revision(), head);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_gateway_goes_behind_what_it_acknowledged_and_all_end_at_the_head(
        steps in acts(),
        who in prop::collection::vec(0..GATEWAYS, 40),
    ) {
        let script: Vec<(usize, Act)> = who.into_iter().zip(steps).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(follow(&script))?;
    }
}

/// A thousand changes a second for three seconds, while eight gateways start together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f32_a_storm_of_changes_costs_a_call_a_second_for_each_gateway() {
    let plane = Plane::new();
    let mut fleet = Vec::new();
    for _gateway in 0..8 {
        let source = PolicySource::ControlPlane(plane.clone());
        fleet.push(World::new(Setting::default(), source));
    }
    let started = Instant::now();
    let mut written = BTreeMap::new();
    let mut lags = Vec::new();
    for number in 0_u32..3_000 {
        let plan = format!("plan-{}", number % 100);
        written.insert(plane.put_plan(&plan, u64::from(number) + 1, "1/s"), Instant::now());
        let due = started + Duration::from_millis(u64::from(number));
        tokio::time::sleep_until(due).await;
        if number % 20 == 0 {
            // How long ago the oldest change was made that is not in force.
            let missed = |world: &World| written.range(world.edge.revision() + 1..).next();
            let waits = fleet.iter().filter_map(missed).map(|(_, at)| at.elapsed());
            lags.push(waits.max().unwrap_or_default());
        }
    }
    let seconds = usize::try_from(started.elapsed().as_secs()).unwrap() + 1;
    let calls = plane.requests.lock().len();
    // Up to twenty calls that bring a single change find out that it is a storm; one more may be
    // under way.
    let most = 8 * (seconds + 21);
    assert!(calls <= most, "{calls} calls in {seconds} s, at most {most}");
    assert_eq!(plane.snapshots.load(Ordering::SeqCst), 8, "one snapshot each");
    lags.sort_unstable();
    let p99 = lags[lags.len() * 99 / 100];
    assert!(p99 <= Duration::from_secs(5), "{p99:?}");
    let (_, head) = plane.head();
    until("the end of the storm", || fleet.iter().all(|w| w.edge.revision() == head)).await;
}
