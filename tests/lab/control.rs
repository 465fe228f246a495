//! The control plane away, poisoned and stolen: what becomes of requests.
//!
//! Away: Postgres and plans-api are killed under steady load, one gateway is restarted and one is
//! started for the first time meanwhile. Poisoned: rows and changes that no door would let in are
//! written straight into the database. Stolen: everything that is stored or logged is searched for
//! the secrets that were made.

mod scene; // the parts, the clients, the load
mod frozen; // a server that says nothing
mod away; // Postgres and plans-api are gone
mod starts; // gateways that start without them
mod mutations; // what no door would let in
mod poison; // and what becomes of everybody else
mod dump; // everything stored, searched for secrets

use std::time::Duration;

use crate::report::Report;
use scene::Scene;

/// A planted defect; each makes another figure fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// A loaded gateway loses its memory and its state: `effect_on_known_clients`.
    ForgetfulGateway,
    /// The restarted gateway's state folder is lost: `restarted_first_decision_seconds`.
    LostState,
    /// With the poison, a sound client is suspended too: `other_clients_touched`.
    CarelessHand,
    /// Somebody has written a key into a plan's note: `usable_keys_in_dump`.
    LeakyNote,
}

const SABOTAGES: [(&str, Sabotage); 4] = [
    ("forgetful-gateway", Sabotage::ForgetfulGateway),
    ("lost-state", Sabotage::LostState),
    ("careless-hand", Sabotage::CarelessHand),
    ("leaky-note", Sabotage::LeakyNote),
];

/// How long everything is.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    /// The load before the fault, which must be without an error.
    before: Duration,
    /// The fault.
    away: Duration,
    /// Of it, with Postgres frozen, and again with Postgres killed, before plans-api goes too.
    ask: Duration,
    /// The load while the database is poisoned.
    poison: Duration,
}

const FULL: Extent = Extent {
    before: Duration::from_secs(60),
    away: Duration::from_secs(600),
    ask: Duration::from_secs(20),
    poison: Duration::from_secs(60),
};
const QUICK: Extent = Extent {
    before: Duration::from_secs(6),
    away: Duration::from_secs(60),
    ask: Duration::from_secs(6),
    poison: Duration::from_secs(20),
};

/// Runs all of it.
pub async fn run(quick: bool, seed: u64, sabotage: Option<&str>) -> anyhow::Result<Report> {
    let sabotage = sabotage.map(|name| crate::report::named(&SABOTAGES, name)).transpose()?;
    let extent = if quick { QUICK } else { FULL };
    let mut report = Report::new("control", seed);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut scene = Scene::set(sabotage).await?;
    away::play(&mut scene, &extent, sabotage, &mut random, &mut report).await?;
    poison::play(&mut scene, &extent, sabotage, &mut random, &mut report).await?;
    dump::search(&mut scene, &mut report).await?;
    Ok(report)
}
