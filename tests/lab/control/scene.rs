//! Gateways over one Redis, the control plane over Postgres, and clients whose keys are known.

use std::time::Duration;

use demo::Mode;
use demo::incident::Shot;
use serde_json::json;
use system_tests::control::plan;
use system_tests::oracle::{Origin, float, offered_achieved};
use system_tests::traffic::{Callers, Sent};
use system_tests::world::{Shape, World};
use tokio::task::JoinHandle;

use super::Sabotage;
use crate::report::Report;

/// Clients within their plans.
pub const SOUND: usize = 20;
/// The index of the client that asks for more than its plan; it follows the sound ones.
pub const GREEDY: usize = SOUND;
/// What its plan gives it, a second.
pub const GREEDY_PER_S: f64 = 10.0;
/// Clients whose objects are damaged; they follow the greedy one.
pub const BAD: usize = 40;
/// Keys that no gateway has seen; they follow the bad clients.
pub const FRESH: usize = 24;
/// Gateways that carry the load all the time, and one that is restarted.
pub const LOADED: usize = 2;
pub const RESTARTED: usize = LOADED;

const SOUND_RATE: f64 = 4.0;
const GREEDY_RATE: f64 = 30.0;
/// A request that is sent later than this is not the intended load.
const LATE_MAX: Duration = Duration::from_millis(250);

/// Everything, running.
pub struct Scene {
    pub world: World,
    pub callers: Callers,
    /// Every key that was made: its id and its text.
    pub keys: Vec<(String, String)>,
}

/// The name of a client and of its plan.
pub fn sound(number: usize) -> String {
    format!("sound-{number:02}")
}

/// The name of a client and of its plan, both to be damaged.
pub fn bad(number: usize) -> String {
    format!("bad-{number:02}")
}

impl Scene {
    pub async fn set(sabotage: Option<Sabotage>) -> anyhow::Result<Scene> {
        let shape = Shape {
            gateways: LOADED + 1,
            services: vec!["orders"],
            replicas: 1,
            mode: Mode { service_us: [0, 0], concurrency: 1_000, ..Mode::default() },
            redis: true,
            postgres: true,
            // This is not about waiting for Redis.
            deadline: "50ms",
        };
        let world = World::start(&std::env::current_exe()?, shape).await?;
        let mut callers = Vec::new();
        let mut keys = Vec::new();
        let mut make = async |client: &str, of: &serde_json::Value| {
            world.control.put_plan(client, of).await?;
            world.control.put_client(client, client).await?;
            let (id, key) = world.control.create_key(client).await?;
            keys.push((id, key.clone()));
            callers.push((client.to_owned(), key));
            anyhow::Ok(())
        };
        // More than whoever looks for a change asks for, every few milliseconds.
        let plenty = plan(1_000, "500/s", "coarse");
        for number in 0..SOUND {
            make(&sound(number), &plenty).await?;
        }
        make("greedy", &plan(10, "10/s", "coarse")).await?;
        for number in 0..BAD {
            make(&bad(number), &plenty).await?;
        }
        let mut of_fresh = plan(1_000, "500/s", "coarse");
        world.control.put_plan("fresh", &of_fresh).await?;
        let mut revision = world.control.put_client("fresh", "fresh").await?;
        for number in 0..FRESH {
            let (id, key) = world.control.create_key("fresh").await?;
            keys.push((id, key.clone()));
            callers.push((format!("fresh-{number}"), key));
        }
        if sabotage == Some(Sabotage::LeakyNote)
            && let Some((_, key)) = keys.first()
            && let Some(fields) = of_fresh.as_object_mut()
        {
            fields.insert("note".to_owned(), json!(format!("the key is {key}")));
            revision = world.control.put_plan("fresh", &of_fresh).await?;
        }
        world.control.wait_applied(world.gateways.len(), revision).await?;
        let gateways: Vec<_> = world.gateways.iter().map(|gateway| gateway.traffic).collect();
        let callers = Callers::new(&gateways, &world.services.names(), &callers)?;
        let scene = Scene { world, callers, keys };
        scene.make_known().await?;
        Ok(scene)
    }

    /// Each key but the fresh ones once at each gateway.
    async fn make_known(&self) -> anyhow::Result<()> {
        for client in 0..GREEDY + 1 + BAD {
            for gateway in 0..self.world.gateways.len() {
                let sent = self.callers.one(client, gateway, 0).await;
                anyhow::ensure!(sent.status == 200 || sent.status == 429, "warm-up: {sent:?}");
            }
        }
        Ok(())
    }

    /// The steady load for `length`, begun now.
    pub fn load(
        &self,
        length: Duration,
        random: &mut fastrand::Rng,
    ) -> JoinHandle<anyhow::Result<Vec<Sent>>> {
        let mut shots = Vec::new();
        for client in 0..=GREEDY {
            let rate = if client == GREEDY { GREEDY_RATE } else { SOUND_RATE };
            let mut at = 0.0;
            loop {
                at -= (1.0 - random.f64()).ln() / rate;
                if at > length.as_secs_f64() {
                    break;
                }
                let gateway = random.usize(0..LOADED);
                shots.push(Shot { at: Duration::from_secs_f64(at), client, gateway, service: 0 });
            }
        }
        shots.sort_by_key(|shot| shot.at);
        let callers = self.callers.clone();
        daemon::tasks::spawn("load", async move { callers.open_loop(&shots).await })
    }

    /// What became of a stretch's requests, by their answers and by what has arrived.
    pub async fn judge(
        &self,
        name: &str,
        sent: &[Sent],
        report: &mut Report,
    ) -> anyhow::Result<Stretch> {
        let arrivals = self.world.services.arrivals().await?;
        self.world.services.forget_arrivals().await?;
        let origin = Origin::new(&arrivals);
        let (greedy, sound): (Vec<&Sent>, Vec<&Sent>) =
            sent.iter().partition(|sent| sent.client == GREEDY);
        let served = |sent: &&&Sent| sent.status == 200 && origin.arrival(sent).is_some();
        let touched: Vec<&&Sent> = sound.iter().filter(|sent| !served(sent)).collect();
        let first = greedy.iter().map(|sent| sent.sent_us).min().unwrap_or(0);
        let last = greedy.iter().map(|sent| sent.sent_us).max().unwrap_or(0);
        let seconds = Duration::from_micros(last - first).as_secs_f64();
        let stretch = Stretch {
            requests: sound.len(),
            touched: touched.len(),
            greedy_over_plan: float(origin.admitted_us(greedy.iter().copied()).len())
                / (GREEDY_PER_S * seconds),
            p99_ms: system_tests::oracle::quantile(sound.iter().map(|sent| sent.took), 0.99)
                .as_secs_f64()
                * 1_000.0,
        };
        report.samples(sent.len() as u64);
        report.offered(offered_achieved(sent, sent.len(), LATE_MAX));
        let examples: Vec<String> =
            touched.iter().take(5).map(|sent| format!("{sent:?}")).collect();
        report.round(json!({ "stretch": name, "requests": stretch.requests,
            "touched": stretch.touched, "greedy_over_plan": stretch.greedy_over_plan,
            "p99_ms": stretch.p99_ms, "examples": examples }));
        Ok(stretch)
    }
}

/// One stretch of the steady load.
#[derive(Debug, Clone, Copy)]
pub struct Stretch {
    /// Of clients within their plans.
    pub requests: usize,
    /// Those that were not answered by the service.
    pub touched: usize,
    /// What the greedy client got, over what its plan gives it without the burst.
    pub greedy_over_plan: f64,
    pub p99_ms: f64,
}
