//! plans-api and shadow-compare in this process, and gateways that are only a feed call.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use daemon::{Context, Drain, Failure};
use limiter_core::{Clock, SystemClock};
use serde_json::json;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use wire::batch::{Batch, BatchAck, TallyCell};
use wire::client::plans::{PlansClient, Role};
use wire::client::{Call, Client};
use wire::policy::FeedRequest;
use wire::rollout::Phase;

use crate::run::{Ran, command, finish};

/// A control plane with an admin's token.
pub(crate) struct Control {
    runtime: Runtime,
    drain: Drain,
    folder: TempDir,
    pub(crate) addr: String,
    pub(crate) token: String,
    shadow: String,
}

impl Control {
    pub(crate) fn start() -> Control {
        let runtime = Runtime::new().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let drain = Drain::new();
        let (addr, token, shadow) = runtime.block_on(start(folder.path(), &drain));
        Control { runtime, drain, folder, addr, token, shadow }
    }

    /// Runs `weir` against it as the admin.
    pub(crate) fn weir(&self, args: &[&str]) -> Ran {
        self.weir_as(&self.token, args)
    }

    /// Runs `weir` with another token.
    pub(crate) fn weir_as(&self, token: &str, args: &[&str]) -> Ran {
        let mut command = command(args);
        command.env("WEIR_ADDR", &self.addr).env("WEIR_TOKEN", token);
        finish(command)
    }

    /// A file in its folder.
    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// A path in its folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Does something to the database behind its back.
    pub(crate) fn by_hand(&self, sql: &str) {
        let url = plans_api::Settings::database_in(self.folder.path());
        self.block_on(async {
            let database = daemon::sql::Database::open(&url).await.unwrap();
            let mut tx = database.write().await.unwrap();
            tx.run_text(sql).await.unwrap();
            tx.commit().await.unwrap();
            database.close().await;
        });
    }

    /// Talks to it without the program.
    pub(crate) fn api(&self) -> PlansClient {
        PlansClient::new(&self.addr, Some(&self.token)).unwrap()
    }

    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// A token of this role.
    pub(crate) fn token(&self, role: Role) -> String {
        self.block_on(self.api().create_token("test", role, None, "test")).unwrap().token
    }

    /// A gateway asks for changes once and says what it has applied.
    pub(crate) fn gateway_says(&self, id: &str, applied: u64) {
        let token = self.token(Role::Gateway);
        let api = PlansClient::new(&self.addr, Some(&token)).unwrap();
        self.block_on(async {
            let history = api.snapshot().await.unwrap().history;
            api.feed(&feed_request(id, &history, applied)).await.unwrap();
        });
    }

    /// A gateway asks once, and says which objects it would not take.
    pub(crate) fn gateway_refuses(&self, id: &str, rejected: Vec<wire::policy::Rejected>) {
        let token = self.token(Role::Gateway);
        let api = PlansClient::new(&self.addr, Some(&token)).unwrap();
        self.block_on(async {
            let snapshot = api.snapshot().await.unwrap();
            let request = feed_request(id, &snapshot.history, snapshot.revision);
            api.feed(&FeedRequest { rejected, ..request }).await.unwrap();
        });
    }

    /// A gateway asks once, and says which routes it has.
    pub(crate) fn gateway_has(&self, id: &str, routes: &[&str]) {
        let token = self.token(Role::Gateway);
        let api = PlansClient::new(&self.addr, Some(&token)).unwrap();
        let routes = routes.iter().map(|route| (*route).to_owned()).collect();
        self.block_on(async {
            let snapshot = api.snapshot().await.unwrap();
            let request = feed_request(id, &snapshot.history, snapshot.revision);
            api.feed(&FeedRequest { routes, ..request }).await.unwrap();
        });
    }

    /// A gateway that follows until the end of the test.
    pub(crate) fn gateway_follows(&self, id: &'static str) {
        self.gateway_says(id, 0);
        let token = self.token(Role::Gateway);
        let api = PlansClient::new(&self.addr, Some(&token)).unwrap();
        let drain = self.drain.clone();
        let follow = async move {
            let history = api.snapshot().await.unwrap().history;
            let mut applied = 0;
            while !drain.is_started() {
                let mut request = feed_request(id, &history, applied);
                request.wait_ms = 200;
                match api.feed(&request).await {
                    Ok(answer) => applied = answer.head,
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        };
        let _guard = self.runtime.enter();
        daemon::tasks::spawn("test-gateway", follow);
    }

    /// Minutes since 1970, now.
    pub(crate) fn minute() -> u64 {
        SystemClock::new().now().us() / 60_000_000
    }

    /// Where its shadow-compare is.
    pub(crate) fn shadow_addr(&self) -> &str {
        &self.shadow
    }

    /// A gateway reports these pairs of a client in shadow.
    pub(crate) fn pairs(&self, client: &str, since: u64, agree: u64, stricter: u64) {
        let cell = TallyCell {
            minute: 1,
            client: client.to_owned(),
            service: "orders".to_owned(),
            phase: Phase::Shadow,
            since_revision: since,
            requests: agree + stricter,
            both_allow: agree,
            stricter,
            edge_denied: stricter,
            ..TallyCell::default()
        };
        let batch = Batch {
            gateway: "gw-1".to_owned(),
            boot: format!("boot-{agree}-{stricter}"),
            seq: 1,
            revision: since,
            last: false,
            cum_decisions: agree + stricter,
            cum_records: 0,
            cells: vec![cell],
            records: Vec::new(),
        };
        let client = Client::new(&self.shadow, Some(GATEWAY_TOKEN)).unwrap();
        let ack: BatchAck = self.block_on(client.send(Call::post("/v1/batches", &batch))).unwrap();
        assert!(!ack.duplicate);
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.drain.start();
    }
}

/// Known to shadow-compare alone.
pub(crate) const GATEWAY_TOKEN: &str = "weiro_testtest00_of-the-gateway";

fn feed_request(id: &str, history: &str, applied: u64) -> FeedRequest {
    FeedRequest {
        gateway: id.to_owned(),
        boot: "boot".to_owned(),
        build: "0".to_owned(),
        ops_url: None,
        routes: Vec::new(),
        history: history.to_owned(),
        after: applied,
        wait_ms: 0,
        applied,
        rejected: Vec::new(),
        killswitch: None,
    }
}

async fn start(folder: &Path, drain: &Drain) -> (String, String, String) {
    let bootstrap = folder.join("bootstrap");
    let (hashes, control) = (folder.join("hashes"), folder.join("control"));
    std::fs::write(&hashes, wire::key::token_hash(GATEWAY_TOKEN).to_hex()).unwrap();
    std::fs::write(&control, "a secret of two").unwrap();
    let settings = shadow_compare::Settings {
        listen: ([127, 0, 0, 1], 0).into(),
        database: None,
        state_dir: folder.to_owned(),
        gateway_tokens_file: hashes,
        control_token_file: control,
        settle_seconds: 60,
        process: daemon::ProcessFlags::default(),
    };
    let shadow = part(drain, |context| shadow_compare::serve(settings, context)).await;
    let settings = plans_api::Settings {
        listen: ([127, 0, 0, 1], 0).into(),
        database: plans_api::Settings::database_in(folder),
        state_dir: folder.to_owned(),
        shadow_compare: Some(plans_api::ShadowCompare {
            url: shadow.clone(),
            control_token: "a secret of two".to_owned(),
        }),
        operations_token: None,
        bootstrap_token_file: Some(bootstrap.clone()),
    };
    let addr = part(drain, |context| plans_api::serve(settings, context)).await;
    let first = std::fs::read_to_string(&bootstrap).unwrap();
    let api = PlansClient::new(&addr, Some(first.trim())).unwrap();
    let admin = api.create_token("admin", Role::Admin, None, "test").await.unwrap();
    (addr, admin.token, shadow)
}

async fn part<F, Fut>(drain: &Drain, serve: F) -> String
where
    F: FnOnce(Context) -> Fut,
    Fut: Future<Output = Result<(), Failure>> + Send + 'static,
{
    let (context, addresses) = Context::in_process(drain.clone());
    let service = daemon::tasks::spawn("part", serve(context));
    let Some(addresses) = addresses.wait().await else {
        panic!("ended early: {:?}", service.await);
    };
    format!("http://{}", addresses["api"])
}

/// A plan of many, as a file has it.
pub(crate) fn plan_lines(count: usize) -> String {
    let plan =
        |n| format!("[plan.p{n:03}]\nburst = {{ capacity = {}, refill = \"1/s\" }}\n", n + 1);
    (0..count).map(plan).collect()
}

/// The smallest valid plan body.
pub(crate) fn small_plan() -> serde_json::Value {
    json!({ "burst": { "capacity": 10, "refill": "1/s" } })
}
