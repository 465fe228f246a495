//! What the stories share: a world, and callers for some of its clients.

use std::path::Path;

use serde_json::Value;
use system_tests::services::Arrived;
use system_tests::traffic::{Callers, Sent};
use system_tests::world::{Shape, World};

/// A world whose parts are this package's own binary.
pub(crate) async fn world(shape: Shape) -> anyhow::Result<World> {
    World::start(Path::new(env!("CARGO_BIN_EXE_lab")), shape).await
}

/// The longest that a gateway may be told to wait: a test about amounts must not be decided by a
/// busy machine. The lab measures with the default.
const PATIENT: &str = "50ms";

/// Three gateways, three services with `replicas` replicas each, no limits of their own.
pub(crate) fn wide(replicas: u32) -> Shape {
    Shape { replicas, deadline: PATIENT, ..Shape::default() }
}

/// `gateways` gateways before one service without limits of its own.
pub(crate) fn small(gateways: usize) -> Shape {
    Shape { gateways, services: vec!["orders"], replicas: 1, deadline: PATIENT, ..Shape::default() }
}

/// Callers for these clients, each with a plan of its own, over all gateways.
pub(crate) async fn callers(world: &World, plans: &[(&str, Value)]) -> anyhow::Result<Callers> {
    let mut keys = Vec::new();
    for (client, plan) in plans {
        keys.push(((*client).to_owned(), world.customer(client, plan).await?));
    }
    let gateways: Vec<_> = world.gateways.iter().map(|gateway| gateway.traffic).collect();
    Callers::new(&gateways, &world.services.names(), &keys)
}

/// How many answers have this status.
pub(crate) fn count(all: &[Sent], status: u16) -> usize {
    all.iter().filter(|sent| sent.status == status).count()
}

/// How many of these requests a service has worked on.
pub(crate) fn worked_on(all: &[Sent], arrivals: &[Arrived]) -> usize {
    system_tests::oracle::Origin::new(arrivals).admitted_us(all).len()
}
