//! plans-api with its full database, eight gateways, and callers whose keys every gateway knows.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use demo::Mode;
use futures_util::future::{join_all, try_join_all};
use serde_json::json;
use system_tests::control::Control;
use system_tests::gateways::{Policy, counters};
use system_tests::process::{Child, Launcher, eventually, free_port};
use system_tests::traffic::Callers;
use system_tests::world::{PLANS_DATABASE, Shape, World};
use tokio::time::Instant;

use super::seed::{self, Known, Size};
use super::{Extent, GATEWAYS, Sabotage};
use crate::relay::Relay;
use crate::report::Report;

/// How late the planted slow line makes every answer of plans-api.
const SLOW: Duration = Duration::from_millis(2_500);
/// How often keys are asked for that a gateway could not verify at once.
const WARM_MAX: Duration = Duration::from_secs(30);

/// Everything, running.
pub struct Stage {
    pub world: World,
    pub callers: Callers,
    /// By client of `callers`.
    pub known: Vec<Known>,
    /// Numbers of the plans that the storm changes.
    pub storm_plans: std::ops::Range<u32>,
    relays: Vec<Relay>,
}

/// What gateways have asked plans-api for since it was started.
#[derive(Debug, Clone, Copy, Default)]
pub struct Asked {
    pub polls: f64,
    pub snapshots: f64,
    pub hashes: f64,
}

impl Asked {
    /// What came since `before`.
    pub fn since(self, before: Asked) -> Asked {
        Asked {
            polls: self.polls - before.polls,
            snapshots: self.snapshots - before.snapshots,
            hashes: self.hashes - before.hashes,
        }
    }

    /// Calls about the policy, of each gateway in a second.
    pub fn per_gateway_second(self, length: Duration) -> f64 {
        (self.polls + self.snapshots) / f64::from(GATEWAYS) / length.as_secs_f64()
    }
}

impl Stage {
    pub async fn set(
        extent: &Extent,
        sabotage: Option<Sabotage>,
        report: &mut Report,
    ) -> anyhow::Result<Stage> {
        let began = Instant::now();
        let shape = Shape {
            gateways: 0,
            services: vec!["orders"],
            replicas: 1,
            mode: Mode { service_us: [0, 0], concurrency: 1_000, ..Mode::default() },
            redis: false,
            postgres: extent.postgres,
            ..Shape::default()
        };
        let world = World::start(&std::env::current_exe()?, shape).await?;
        let watched = extent.watched();
        let seeding = Instant::now();
        let known = seed::fill(&world, extent.size, &watched).await?;
        report.field("seeding_seconds", json!(round(seeding.elapsed())));
        let mut stage = Stage {
            callers: Callers::new(&[], &[], &[])?,
            world,
            known,
            storm_plans: extent.storm_plans(),
            relays: Vec::new(),
        };
        stage.add_gateways(sabotage).await?;
        stage.callers = stage.new_callers()?;
        stage.make_known().await?;
        for relay in &stage.relays {
            match sabotage {
                Some(Sabotage::DeafGateway) => relay.set_dead(true),
                Some(Sabotage::SlowFeed | Sabotage::ChattyGateway) | None => relay.delay(SLOW),
            }
        }
        let Size { plans, clients, keys } = extent.size;
        for (name, count) in [("plans", plans), ("clients", clients), ("keys", keys)] {
            report.field(name, json!(count));
        }
        report.field("gateways", json!(GATEWAYS));
        report.field("set_up_seconds", json!(round(began.elapsed())));
        Ok(stage)
    }

    /// All of them behind a slow line, one behind a line that will die, or none.
    async fn add_gateways(&mut self, sabotage: Option<Sabotage>) -> anyhow::Result<()> {
        let plans_api = self.plans_api()?;
        for number in 0..GATEWAYS {
            let behind_relay = match sabotage {
                Some(Sabotage::SlowFeed) => true,
                Some(Sabotage::DeafGateway) => number == 0,
                Some(Sabotage::ChattyGateway) | None => false,
            };
            let relay = match behind_relay {
                true => Some(Relay::start(plans_api).await?),
                false => None,
            };
            let url = relay.as_ref().map(Relay::url);
            self.world
                .add_gateway(|settings| {
                    if let (Policy::Control { plans_api, .. }, Some(url)) =
                        (&mut settings.policy, url)
                    {
                        *plans_api = url;
                    }
                })
                .await?;
            self.relays.extend(relay);
        }
        Ok(())
    }

    fn new_callers(&self) -> anyhow::Result<Callers> {
        let gateways: Vec<_> = self.world.gateways.iter().map(|gateway| gateway.traffic).collect();
        let keys: Vec<_> =
            self.known.iter().map(|known| (known.client.clone(), known.key.clone())).collect();
        Callers::new(&gateways, &self.world.services.names(), &keys)
    }

    /// Where plans-api listens.
    pub fn plans_api(&self) -> anyhow::Result<SocketAddr> {
        let base = self.world.control.base();
        let address = base.trim_start_matches("http://").trim_end_matches('/');
        address.parse().with_context(|| format!("the address of plans-api: {base}"))
    }

    /// Each key at each gateway, so that what is measured is about keys that are known there.
    async fn make_known(&self) -> anyhow::Result<()> {
        let gateways = (0..self.world.gateways.len()).map(async |gateway| {
            for client in 0..self.known.len() {
                eventually("a key is known", WARM_MAX, || async {
                    let sent = self.callers.one(client, gateway, 0).await;
                    let retry = sent.status == 503;
                    anyhow::ensure!(retry || sent.status == 200, "warm-up: {sent:?}");
                    Ok((!retry).then_some(()))
                })
                .await?;
            }
            anyhow::Ok(())
        });
        try_join_all(gateways).await.map(drop)
    }

    /// What plans-api has counted.
    pub async fn asked(&self) -> anyhow::Result<Asked> {
        let names = [
            "weir_plans_feed_polls_total",
            "weir_plans_snapshots_total",
            "weir_plans_lookups_total",
        ];
        let [polls, snapshots, hashes] = counters(self.plans_api()?, names).await?;
        Ok(Asked { polls, snapshots, hashes })
    }

    /// Lines that were dead live again.
    pub fn revive(&self) {
        self.relays.iter().for_each(|relay| relay.set_dead(false));
    }

    /// plans-api and all gateways end at once and start at once; how long until all are ready.
    pub async fn restart_all(&mut self) -> anyhow::Result<Duration> {
        self.world.plans_api.kill()?;
        for gateway in &mut self.world.gateways {
            gateway.child()?.kill()?;
        }
        let began = Instant::now();
        let World { plans_api, gateways, .. } = &mut self.world;
        let (started, all) =
            tokio::join!(plans_api.restart(), join_all(gateways.iter_mut().map(|g| g.restart())));
        started?;
        all.into_iter().collect::<anyhow::Result<()>>()?;
        self.world.wait_ready().await?;
        let took = began.elapsed();
        self.callers = self.new_callers()?;
        Ok(took)
    }

    /// A second plans-api over the same Postgres, for changes that the first one only hears of.
    pub async fn second(&self) -> anyhow::Result<(Child, Control)> {
        let dir = self.world.dir();
        let state = dir.join("plans-state-2");
        std::fs::create_dir_all(&state)?;
        std::fs::copy(dir.join("plans-state/pepper"), state.join("pepper"))?;
        let at = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let database = self.world.postgres()?.url(PLANS_DATABASE);
        let launcher = Launcher::new(std::env::current_exe()?, dir);
        let args = vec![
            "--listen".into(),
            at.to_string().into(),
            "--state-dir".into(),
            state.into(),
            "--database".into(),
            database.into(),
        ];
        let (child, _) = launcher.start_ready("plans-api-2", "plans-api", args).await?;
        let control = Control::new(&format!("http://{at}"), &self.world.admin_token()?)?;
        Ok((child, control))
    }
}

/// Seconds, to the millisecond.
pub fn round(time: Duration) -> f64 {
    (time.as_secs_f64() * 1_000.0).round() / 1_000.0
}
