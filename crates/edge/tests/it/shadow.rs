//! Shadow is inert: whoever is in shadow changes nothing for anybody who is not, and is not
//! changed itself except that nothing is refused.

use std::sync::Arc;
use std::time::Duration;

use edge::limiter::Cost;
use edge::{Admission, Refusal, RouteTerms, Told};
use proptest::prelude::*;
use wire::policy::KeyState;
use wire::rollout::Phase;

use super::plane::Plane;
use super::world::{World, observed, service, terms};
use wire::batch::Side;

/// One request of a run: who, what it costs, and how much later than the one before.
#[derive(Debug, Clone)]
struct Step {
    client: usize,
    cost: u64,
    later_ms: u64,
}

/// What a client can notice.
type Noticed = (usize, Result<(), Refusal>, Option<Told>);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (0..3_usize, 0..5_u64, 0..400_u64).prop_map(|(client, cost, later_ms)| Step {
        client,
        cost,
        later_ms,
    });
    prop::collection::vec(step, 1..60)
}

const CLIENTS: [&str; 3] = ["a", "b", "c"];

async fn run(steps: &[Step], phases: [Phase; 3]) -> (Vec<Noticed>, Vec<u64>) {
    let plane = Plane::new();
    plane.put_plan("pro", 4, "5/s");
    for client in CLIENTS {
        plane.put_client(client, "pro");
        plane.put_key(&format!("key-{client}"), client, KeyState::Active);
    }
    let rules: Vec<_> =
        CLIENTS.iter().zip(phases).map(|(client, phase)| (Some(*client), phase)).collect();
    plane.put_rollout(&rules, 10_000);
    let world = World::of_plane(plane).await;
    let mut noticed = Vec::new();
    for step in steps {
        world.clock.advance(Duration::from_millis(step.later_ms));
        let cost = Cost::new(step.cost).unwrap();
        let route = Arc::new(RouteTerms { cost, ..terms("orders") });
        let key = format!("key-{}", CLIENTS[step.client]);
        let (result, ticket) = match world.admit(&key, &route).await {
            Admission::Forward(ticket) => (Ok(()), ticket),
            Admission::Refuse(refusal, ticket) => (Err(refusal), ticket.unwrap()),
        };
        noticed.push((step.client, result, ticket.told()));
        world.edge.done(ticket, observed(200, service(Side::Allow)));
    }
    let shelf = world.finish().await;
    let denied = CLIENTS.iter().map(|client| shelf.total(client).edge_denied).collect();
    (noticed, denied)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn who_is_in_shadow_changes_nothing_for_anybody_else(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (all, denied) = run(&steps, [Phase::Enforce; 3]).await;
            for shadow in 0..CLIENTS.len() {
                let mut phases = [Phase::Enforce; 3];
                phases[shadow] = Phase::Shadow;
                let (with, would) = run(&steps, phases).await;
                let others = |noticed: &[Noticed]| -> Vec<Noticed> {
                    noticed.iter().filter(|seen| seen.0 != shadow).cloned().collect()
                };
                prop_assert_eq!(others(&all), others(&with));
                // The one in shadow notices nothing, and is decided exactly as it would have been.
                let own = with.iter().filter(|seen| seen.0 == shadow);
                prop_assert!(own.clone().all(|seen| seen.1.is_ok() && seen.2.is_none()));
                prop_assert_eq!(&denied, &would);
            }
            Ok(())
        })?;
    }
}
