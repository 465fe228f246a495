//! A running shadow-compare on one of the back ends, a gateway that posts, a control plane that
//! asks.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use daemon::{Context, Drain, Failure};
use shadow_compare::Settings;
use tokio::task::JoinHandle;
use wire::batch::{Batch, TallyCell};
use wire::client::shadow::ShadowClient;
use wire::client::{Call, Client};
use wire::key::token_hash;
use wire::rollout::{Phase, RolloutRule, RolloutValue, RuleSubject};

use crate::postgres::Postgres;

pub(crate) const GATEWAY_TOKEN: &str = "weiro_gateway_1";
pub(crate) const CONTROL_TOKEN: &str = "weiro_control_1";
/// How long anything may take until the test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Where the evidence of a test is kept.
pub(crate) enum Backend {
    Sqlite(tempfile::TempDir),
    Postgres(Box<Postgres>),
}

impl Backend {
    pub(crate) fn sqlite() -> Backend {
        Backend::Sqlite(tempfile::tempdir().unwrap())
    }

    pub(crate) fn postgres() -> Backend {
        Backend::Postgres(Box::new(Postgres::start()))
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Backend::Sqlite(folder) => format!("sqlite://{}", folder.path().join("s.db").display()),
            Backend::Postgres(server) => server.url(),
        }
    }
}

/// One test for each back end.
macro_rules! on_both {
    ($($name:ident)*) => {
        mod on_sqlite {
            $(#[tokio::test]
            async fn $name() { super::$name(crate::world::Backend::sqlite()).await }
            )*
        }
        mod on_postgres {
            $(#[tokio::test]
            async fn $name() { super::$name(crate::world::Backend::postgres()).await }
            )*
        }
    };
}
pub(crate) use on_both;

/// Tokens and state of one shadow-compare.
pub(crate) struct Home {
    pub(crate) folder: tempfile::TempDir,
}

impl Home {
    pub(crate) fn new() -> Home {
        let folder = tempfile::tempdir().unwrap();
        let home = Home { folder };
        std::fs::write(home.gateways(), token_hash(GATEWAY_TOKEN).to_hex() + "\n").unwrap();
        std::fs::write(home.control(), CONTROL_TOKEN).unwrap();
        home
    }

    pub(crate) fn gateways(&self) -> PathBuf {
        self.folder.path().join("gateways")
    }

    pub(crate) fn control(&self) -> PathBuf {
        self.folder.path().join("control")
    }

    fn settings(&self, url: &str) -> Settings {
        Settings {
            listen: "127.0.0.1:0".parse().unwrap(),
            database: Some(url.to_owned()),
            state_dir: self.folder.path().join("state"),
            gateway_tokens_file: self.gateways(),
            control_token_file: self.control(),
            settle_seconds: 1,
            process: daemon::ProcessFlags::default(),
        }
    }
}

/// Two ways to talk to one shadow-compare.
pub(crate) struct Door {
    pub(crate) base: String,
    pub(crate) gateway: ShadowClient,
    pub(crate) control: ShadowClient,
}

impl Door {
    fn at(base: String) -> Door {
        Door {
            gateway: ShadowClient::new(&base, GATEWAY_TOKEN).unwrap(),
            control: ShadowClient::new(&base, CONTROL_TOKEN).unwrap(),
            base,
        }
    }

    /// Posts; whether it was a duplicate.
    pub(crate) async fn post(&self, batch: &Batch) -> bool {
        let ack = self.gateway.post_batch(batch, PATIENCE).await.unwrap();
        assert_eq!(ack.acked_seq, batch.seq);
        ack.duplicate
    }

    /// Posts until it is acknowledged.
    pub(crate) async fn post_at_last(&self, batch: &Batch) {
        eventually("the batch is taken", async || {
            self.gateway.post_batch(batch, PATIENCE).await.is_ok()
        })
        .await;
    }

    /// A metric without labels.
    pub(crate) async fn metric(&self, name: &str) -> u64 {
        let client = Client::new(&self.base, None).unwrap();
        let text = client.send_raw(Call::get("/metrics")).await.unwrap();
        let text = String::from_utf8(text).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    }

    /// Waits until everything that is known now is in the database.
    pub(crate) async fn minute_write(&self) {
        let begun = self.metric("weir_shadow_minute_writes_total").await;
        eventually("two minute writes", async || {
            begun + 2 <= self.metric("weir_shadow_minute_writes_total").await
        })
        .await;
    }
}

/// A shadow-compare in this process.
pub(crate) struct World {
    pub(crate) door: Door,
    pub(crate) home: Home,
    drain: Drain,
    task: JoinHandle<Result<(), Failure>>,
}

impl World {
    pub(crate) async fn start(backend: &Backend) -> World {
        World::start_at_home(backend, Home::new()).await
    }

    pub(crate) async fn start_at_home(backend: &Backend, home: Home) -> World {
        let drain = Drain::new();
        let (context, addresses) = Context::in_process(drain.clone());
        let serve = shadow_compare::serve(home.settings(&backend.url()), context);
        let task = daemon::tasks::spawn("shadow-compare", serve);
        let Some(addresses) = addresses.wait().await else {
            panic!("shadow-compare does not start: {:?}", task.await);
        };
        World { door: Door::at(format!("http://{}", addresses["api"])), home, drain, task }
    }

    /// Ends it as a signal would.
    pub(crate) async fn stop(self) -> Home {
        self.drain.start();
        tokio::time::timeout(PATIENCE, self.task).await.unwrap().unwrap().unwrap();
        self.home
    }
}

/// A shadow-compare in a process of its own.
pub(crate) struct Process {
    pub(crate) door: Door,
    child: Child,
}

impl Process {
    pub(crate) fn command(home: &Home, url: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir-shadow-compare"));
        command
            .args(["--listen", "127.0.0.1:0", "--settle-seconds", "1", "--database", url])
            .arg("--state-dir")
            .arg(home.folder.path().join("state"))
            .arg("--gateway-tokens-file")
            .arg(home.gateways())
            .arg("--control-token-file")
            .arg(home.control())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command
    }

    pub(crate) async fn start(home: &Home, url: &str) -> Process {
        let ports = home.folder.path().join("ports");
        std::fs::remove_file(&ports).ok();
        let mut command = Process::command(home, url);
        let child = command.arg("--ports-file").arg(&ports).stderr(Stdio::null()).spawn().unwrap();
        eventually("shadow-compare is ready", async || ports.exists()).await;
        let said: BTreeMap<String, String> =
            serde_json::from_slice(&std::fs::read(&ports).unwrap()).unwrap();
        Process { door: Door::at(format!("http://{}", said["api"])), child }
    }

    /// Waits until one that was started ends by itself: its exit code and its last words.
    pub(crate) async fn refused(home: &Home, url: &str) -> (Option<i32>, String) {
        let said = home.folder.path().join("said");
        let mut command = Process::command(home, url);
        let child = command.stderr(std::fs::File::create(&said).unwrap()).spawn().unwrap();
        let mut process = Process { door: Door::at("http://127.0.0.1:1".to_owned()), child };
        let mut code = None;
        for _ in 0..PATIENCE.as_millis() / 20 {
            if let Some(status) = process.child.try_wait().unwrap() {
                code = status.code();
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        (code, std::fs::read_to_string(said).unwrap())
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Asks again and again, within a bound.
pub(crate) async fn eventually(what: &str, ask: impl AsyncFn() -> bool) {
    let asking = async {
        while !ask().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, asking).await.is_ok(), "not in time: {what}");
}

/// The present minute.
#[expect(clippy::disallowed_methods, reason = "tests stand outside of the clock")]
pub(crate) fn this_minute() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() / 60
}

/// One gateway process that makes batches.
pub(crate) struct Gateway {
    boot: String,
    seq: u64,
    decisions: u64,
}

impl Gateway {
    pub(crate) fn new(boot: &str) -> Gateway {
        Gateway { boot: boot.to_owned(), seq: 0, decisions: 0 }
    }

    /// Its next batch.
    pub(crate) fn batch(&mut self, cells: Vec<TallyCell>) -> Batch {
        self.seq += 1;
        self.decisions += cells.iter().map(|cell| cell.requests).sum::<u64>();
        Batch {
            gateway: "gw-1".to_owned(),
            boot: self.boot.clone(),
            seq: self.seq,
            revision: 10,
            last: false,
            cum_decisions: self.decisions,
            cum_records: 0,
            cells,
            records: Vec::new(),
        }
    }

    /// Its last batch.
    pub(crate) fn goodbye(&mut self) -> Batch {
        Batch { last: true, ..self.batch(Vec::new()) }
    }
}

/// A shadow cell of the present minute: pairs that agree, and pairs in which only the edge denies.
pub(crate) fn pairs(client: &str, agreeing: u64, stricter: u64) -> TallyCell {
    TallyCell {
        minute: this_minute(),
        client: client.to_owned(),
        service: "orders".to_owned(),
        phase: Phase::Shadow,
        since_revision: 7,
        requests: agreeing + stricter,
        both_allow: agreeing,
        stricter,
        edge_denied: stricter,
        cost_allowed: agreeing,
        ..TallyCell::default()
    }
}

/// Everybody is in shadow since `since_revision`.
pub(crate) fn all_in_shadow(since_revision: u64) -> RolloutValue {
    let rule = RolloutRule { subject: RuleSubject::All, phase: Phase::Shadow, since_revision };
    RolloutValue {
        name: "edge".to_owned(),
        rules: vec![rule],
        share_bp: 10_000,
        revision: since_revision,
    }
}
