//! All of it together: Redis, Postgres, plans-api, shadow-compare, gateways and services, each a
//! process on loopback, in one temporary folder, gone when dropped.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use demo::Mode;
use wire::key::token_hash;

use crate::control::Control;
use crate::gateways::{Gateway, GatewaySettings, Policy, Store};
use crate::postgres::Postgres;
use crate::process::{Child, Launcher, START_MAX, eventually, free_port};
use crate::redis::Redis;
use crate::services::Services;

/// What the world consists of.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Number of gateways.
    pub gateways: usize,
    /// Names of the services.
    pub services: Vec<&'static str>,
    /// Replicas of each.
    pub replicas: u32,
    /// How they behave at first.
    pub mode: Mode,
    /// Buckets in Redis; otherwise each gateway keeps its own.
    pub redis: bool,
    /// The control plane's data in Postgres; otherwise in SQLite.
    pub postgres: bool,
    /// How long a request waits for Redis: the default of gateways, or longer where a test is
    /// about something else than waiting and its machine is busy.
    pub deadline: &'static str,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            gateways: 3,
            services: demo::SERVICES.to_vec(),
            replicas: 3,
            mode: Mode { service_us: [0, 0], concurrency: 1_000, ..Mode::default() },
            redis: true,
            postgres: false,
            deadline: "5ms",
        }
    }
}

/// A process of the control plane that can be stopped and started again with the same flags.
#[derive(Debug)]
pub struct Part {
    name: &'static str,
    args: Vec<OsString>,
    launcher: Launcher,
    child: Option<Child>,
}

impl Part {
    async fn start(
        launcher: &Launcher,
        name: &'static str,
        args: Vec<OsString>,
    ) -> anyhow::Result<Part> {
        let mut part = Part { name, args, launcher: launcher.clone(), child: None };
        part.restart().await?;
        Ok(part)
    }

    /// Starts it (again).
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        self.child = None;
        let (child, _) = self.launcher.start_ready(self.name, self.name, self.args.clone()).await?;
        self.child = Some(child);
        Ok(())
    }

    /// SIGKILL.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.take().context("it is not running")?.kill()
    }

    /// The process.
    pub fn child(&mut self) -> anyhow::Result<&mut Child> {
        self.child.as_mut().context("it is not running")
    }
}

/// Everything, running.
#[derive(Debug)]
pub struct World {
    /// The callers' way in.
    pub gateways: Vec<Gateway>,
    /// What is to be limited.
    pub services: Services,
    /// The operator.
    pub control: Control,
    /// plans-api.
    pub plans_api: Part,
    /// shadow-compare.
    pub shadow_compare: Part,
    /// The shared store, if there is one.
    pub redis: Option<Redis>,
    /// The database server, if there is one.
    pub postgres: Option<Postgres>,
    launcher: Launcher,
    settings: GatewaySettings,
    /// Last: nothing lives in it any more when it goes. Kept, with all logs, if asked for.
    _dir: tempfile::TempDir,
}

/// Name of the databases in Postgres.
pub const PLANS_DATABASE: &str = "plans";
const SHADOW_DATABASE: &str = "shadow";
/// Set to anything, it keeps a world's folder with all logs.
pub const KEEP: &str = "WEIR_TESTS_KEEP";

impl World {
    /// Starts everything with `exe`, the lab's binary, and waits until all gateways are ready.
    pub async fn start(exe: &Path, shape: Shape) -> anyhow::Result<World> {
        let mut dir = tempfile::Builder::new().prefix("weir-world-").tempdir()?;
        dir.disable_cleanup(std::env::var_os(KEEP).is_some());
        let launcher = Launcher::new(exe, dir.path());
        let redis = match shape.redis {
            true => Some(Redis::start(&launcher).await?),
            false => None,
        };
        let postgres = match shape.postgres {
            true => Some(Postgres::start(&launcher).await?),
            false => None,
        };
        let services =
            Services::start(&launcher, &shape.services, shape.replicas, &shape.mode).await?;
        let plane = Plane::start(&launcher, postgres.as_ref()).await?;
        let settings = GatewaySettings {
            store: redis.as_ref().map_or(Store::Memory, |redis| Store::Redis(redis.url())),
            policy: plane.policy,
            operations_token_file: plane.operations_token_file,
            deadline: shape.deadline,
        };
        let mut gateways = Vec::new();
        for number in 1..=shape.gateways {
            gateways.push(Gateway::start(&launcher, number, &settings, &services).await?);
        }
        let world = World {
            gateways,
            services,
            control: plane.control,
            plans_api: plane.plans_api,
            shadow_compare: plane.shadow_compare,
            redis,
            postgres,
            launcher,
            settings,
            _dir: dir,
        };
        world.wait_ready().await?;
        Ok(world)
    }

    /// Another gateway of the same kind, but with other settings where `change` says so.
    pub async fn add_gateway(
        &mut self,
        change: impl FnOnce(&mut GatewaySettings),
    ) -> anyhow::Result<()> {
        self.start_gateway(change).await?;
        self.wait_ready().await
    }

    /// The same, but it is only waited for until it listens.
    pub async fn start_gateway(
        &mut self,
        change: impl FnOnce(&mut GatewaySettings),
    ) -> anyhow::Result<()> {
        let mut settings = self.settings.clone();
        change(&mut settings);
        let number = self.gateways.len() + 1;
        let gateway = Gateway::start(&self.launcher, number, &settings, &self.services).await?;
        self.gateways.push(gateway);
        Ok(())
    }

    /// Waits until every gateway has a policy.
    pub async fn wait_ready(&self) -> anyhow::Result<()> {
        let client = reqwest::Client::builder().no_proxy().build()?;
        for gateway in &self.gateways {
            let url = format!("http://{}/readyz", gateway.operations);
            eventually(&format!("{} is ready", gateway.id), START_MAX, || async {
                let ready = client.get(&url).send().await.is_ok_and(|a| a.status().is_success());
                Ok(ready.then_some(()))
            })
            .await?;
        }
        Ok(())
    }

    /// Starts a Redis that no gateway of this world knows yet.
    pub async fn start_redis(&mut self) -> anyhow::Result<()> {
        self.redis = Some(Redis::start(&self.launcher).await?);
        Ok(())
    }

    /// Runs the operator's program; its exit code and what it printed on stdout and stderr.
    pub async fn weir(&self, args: &[&str]) -> anyhow::Result<Said> {
        weir(&self.launcher, self.control.base(), &self.admin_token()?, args).await
    }

    /// The operator's token.
    pub fn admin_token(&self) -> anyhow::Result<String> {
        Ok(std::fs::read_to_string(self.launcher.dir().join("admin-token"))?)
    }

    /// The temporary folder.
    pub fn dir(&self) -> &Path {
        self.launcher.dir()
    }

    /// The shared store.
    pub fn redis(&mut self) -> anyhow::Result<&mut Redis> {
        self.redis.as_mut().context("this world has no Redis")
    }

    /// The database server.
    pub fn postgres(&self) -> anyhow::Result<&Postgres> {
        self.postgres.as_ref().context("this world has no Postgres")
    }

    /// A plan with one client and one key; the key's text, once all gateways have the plan.
    pub async fn customer(&self, client: &str, plan: &serde_json::Value) -> anyhow::Result<String> {
        self.control.put_plan(client, plan).await?;
        self.control.put_client(client, client).await?;
        let (_, key) = self.control.create_key(client).await?;
        // The key's own revision is not needed by anybody: keys are looked up. The plan is.
        let revision = self.control.put_client(client, client).await?;
        self.control.wait_applied(self.gateways.len(), revision).await?;
        Ok(key)
    }
}

/// What a program said.
#[derive(Debug)]
pub struct Said {
    /// Its exit code.
    pub code: i32,
    /// Data.
    pub stdout: String,
    /// Everything for people.
    pub stderr: String,
}

async fn weir(launcher: &Launcher, base: &str, token: &str, args: &[&str]) -> anyhow::Result<Said> {
    let exe = launcher.exe().to_owned();
    let mut command = std::process::Command::new(exe);
    command.args(["part", "weir"]).args(args);
    command.env("WEIR_ADDR", base).env("WEIR_TOKEN", token);
    command.env("HOME", launcher.dir()).env("XDG_CONFIG_HOME", launcher.dir());
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    Ok(Said {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// plans-api and shadow-compare, with the secrets that they and the gateways share.
struct Plane {
    control: Control,
    plans_api: Part,
    shadow_compare: Part,
    policy: Policy,
    operations_token_file: PathBuf,
}

impl Plane {
    async fn start(launcher: &Launcher, postgres: Option<&Postgres>) -> anyhow::Result<Plane> {
        let file = |name: &str| launcher.dir().join(name);
        let address = |port: u16| format!("127.0.0.1:{port}");
        let (plans_at, shadow_at) = (address(free_port()?), address(free_port()?));
        let (plans_api, shadow_compare) =
            (format!("http://{plans_at}"), format!("http://{shadow_at}"));
        let secret = |name: &str| {
            let text: String = std::iter::repeat_with(fastrand::alphanumeric).take(40).collect();
            std::fs::write(file(name), text).map(|()| file(name))
        };
        let control_token_file = secret("control-token")?;
        let operations_token_file = secret("operations-token")?;
        let (plans_state, shadow_state) = (file("plans-state"), file("shadow-state"));
        std::fs::create_dir_all(&plans_state)?;
        std::fs::create_dir_all(&shadow_state)?;
        let (plans_url, shadow_url) = match postgres {
            Some(postgres) => (
                Some(postgres.create_database(PLANS_DATABASE).await?),
                Some(postgres.create_database(SHADOW_DATABASE).await?),
            ),
            None => (None, None),
        };
        let mut args: Vec<OsString> = vec!["--listen".into(), plans_at.into()];
        args.extend(["--state-dir".into(), plans_state.clone().into()]);
        args.extend(plans_url.into_iter().flat_map(|url| ["--database".into(), url.into()]));
        args.extend(["--shadow-compare".into(), shadow_compare.clone().into()]);
        args.extend(["--control-token-file".into(), control_token_file.clone().into()]);
        args.extend(["--operations-token-file".into(), operations_token_file.clone().into()]);
        let bootstrap = file("bootstrap-token");
        args.extend(["--bootstrap-token-file".into(), bootstrap.clone().into()]);
        let plans_part = Part::start(launcher, "plans-api", args).await?;

        let first = std::fs::read_to_string(&bootstrap).context("the bootstrap token")?;
        let admin =
            Control::new(&plans_api, first.trim())?.create_token("harness", "admin").await?;
        std::fs::write(file("admin-token"), &admin)?;
        let control = Control::new(&plans_api, &admin)?;
        let gateway_token = control.create_token("gateways", "gateway").await?;
        std::fs::write(file("gateway-token"), &gateway_token)?;
        std::fs::write(file("gateway-hashes"), token_hash(&gateway_token).to_hex() + "\n")?;

        let mut args: Vec<OsString> = vec!["--listen".into(), shadow_at.into()];
        args.extend(["--state-dir".into(), shadow_state.into()]);
        args.extend(shadow_url.into_iter().flat_map(|url| ["--database".into(), url.into()]));
        args.extend(["--gateway-tokens-file".into(), file("gateway-hashes").into()]);
        args.extend(["--control-token-file".into(), control_token_file.into()]);
        let shadow_part = Part::start(launcher, "shadow-compare", args).await?;
        let policy = Policy::Control {
            plans_api,
            shadow_compare,
            token_file: file("gateway-token"),
            pepper_file: plans_state.join("pepper"),
        };
        Ok(Plane {
            control,
            plans_api: plans_part,
            shadow_compare: shadow_part,
            policy,
            operations_token_file,
        })
    }
}
