//! The incident and its cure on real parts: three gateways, three services with three replicas
//! each, Redis, Postgres, plans-api and shadow-compare; one client at ten times its contract and
//! fifty within theirs.
//!
//! Before (phase off, a bucket in each replica), shadow, enforce; then plan changes, a killed and
//! a frozen Redis under each failure policy, and the way back. What was admitted is read from the
//! services' arrival logs.

mod scene; // the world, its clients, one stretch of traffic
mod phases; // before, shadow, enforce
mod moves; // plan changes and the way back
mod outage; // Redis killed and frozen

use std::time::Duration;

use crate::report::Report;
use scene::Scene;

/// Fewest requests over the whole run.
const SAMPLES_MIN: u64 = 20_000;

/// A planted defect; each makes another figure fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// Every gateway keeps its own buckets.
    PerGatewayBuckets,
    /// The services keep no safety limit.
    NoSafetyLimit,
    /// Refused requests get in by a second door.
    SecondDoor,
    /// plans-api falls silent for a while after each commit.
    SilentControlPlane,
}

impl Sabotage {
    const ALL: [(&'static str, Sabotage); 4] = [
        ("per-gateway-buckets", Sabotage::PerGatewayBuckets),
        ("no-safety-limit", Sabotage::NoSafetyLimit),
        ("second-door", Sabotage::SecondDoor),
        ("silent-control-plane", Sabotage::SilentControlPlane),
    ];

    fn named(name: &str) -> anyhow::Result<Sabotage> {
        crate::report::named(&Sabotage::ALL, name)
    }
}

/// Runs all of it.
pub async fn run(quick: bool, seed: u64, sabotage: Option<&str>) -> anyhow::Result<Report> {
    let sabotage = sabotage.map(Sabotage::named).transpose()?;
    let mut report = Report::new("incident", seed);
    report.samples_needed(SAMPLES_MIN);
    let length = Duration::from_secs(if quick { 10 } else { 60 });
    let rounds = if quick { 3 } else { 5 };
    let mut scene = Scene::set(length, seed, sabotage).await?;
    let before = phases::before(&mut scene, &mut report).await?;
    phases::shadow(&mut scene, &mut report).await?;
    phases::enforce(&mut scene, &mut report, &before).await?;
    moves::plan_changes(&mut scene, &mut report).await?;
    outage::both_kinds(&mut scene, &mut report, rounds).await?;
    moves::rollback(&mut scene, &mut report).await?;
    Ok(report)
}
