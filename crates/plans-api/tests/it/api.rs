//! One control plane inside the test, on port 0, with a token for every role.

use std::net::SocketAddr;

use daemon::{Context, Drain};
use plans_api::{Settings, ShadowCompare};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use wire::client::plans::{PlansClient, Role};
use wire::client::{Call, Client, ClientError, Method};
use wire::error::ErrorBody;
use wire::policy::FeedRequest;

pub(crate) struct Api {
    pub(crate) address: SocketAddr,
    pub(crate) admin: PlansClient,
    pub(crate) operator: PlansClient,
    pub(crate) viewer: PlansClient,
    pub(crate) gateway: PlansClient,
    pub(crate) service: PlansClient,
    pub(crate) support: PlansClient,
    pub(crate) approver: PlansClient,
    pub(crate) bootstrap_token: String,
    pub(crate) database: String,
    pub(crate) state_dir: TempDir,
    drain: Drain,
    served: JoinHandle<Result<(), daemon::Failure>>,
}

/// One more instance.
pub(crate) struct Second {
    address: SocketAddr,
    drain: Drain,
    served: JoinHandle<Result<(), daemon::Failure>>,
}

impl Second {
    pub(crate) fn connect(&self, token: &str) -> PlansClient {
        PlansClient::new(&format!("http://{}", self.address), Some(token)).unwrap()
    }

    pub(crate) async fn stop(self) {
        self.drain.start();
        self.served.await.unwrap().unwrap();
    }
}

impl Api {
    pub(crate) async fn sqlite() -> Api {
        let folder = tempfile::tempdir().unwrap();
        let database = Settings::database_in(folder.path());
        Api::start(folder, database, None, None).await
    }

    pub(crate) async fn on(database: String) -> Api {
        Api::start(tempfile::tempdir().unwrap(), database, None, None).await
    }

    pub(crate) async fn with_shadow(url: &str, control_token: &str) -> Api {
        let folder = tempfile::tempdir().unwrap();
        let database = Settings::database_in(folder.path());
        let shadow = ShadowCompare { url: url.to_owned(), control_token: control_token.to_owned() };
        Api::start(folder, database, Some(shadow), None).await
    }

    pub(crate) async fn start(
        state_dir: TempDir,
        database: String,
        shadow_compare: Option<ShadowCompare>,
        operations_token: Option<String>,
    ) -> Api {
        let file = state_dir.path().join("bootstrap");
        let settings = Settings {
            listen: "127.0.0.1:0".parse().unwrap(),
            database: database.clone(),
            state_dir: state_dir.path().to_owned(),
            shadow_compare,
            operations_token,
            bootstrap_token_file: Some(file.clone()),
        };
        let (address, drain, served) = serve(settings).await;
        let bootstrap_token = std::fs::read_to_string(&file).unwrap().trim().to_owned();
        let base = format!("http://{address}");
        let connect = |token: &str| PlansClient::new(&base, Some(token)).unwrap();
        let first = connect(&bootstrap_token);
        let admin = first.create_token("root", Role::Admin, None, "test").await.unwrap();
        let admin = connect(&admin.token);
        let mut tokens = Vec::new();
        for role in [
            Role::Operator,
            Role::Viewer,
            Role::Gateway,
            Role::Service,
            Role::Support,
            Role::Approver,
        ] {
            let made = admin.create_token(role.name(), role, None, "test").await.unwrap();
            tokens.push(connect(&made.token));
        }
        let [operator, viewer, gateway, service, support, approver] = tokens.try_into().unwrap();
        Api {
            address,
            admin,
            operator,
            viewer,
            gateway,
            service,
            support,
            approver,
            bootstrap_token,
            database,
            state_dir,
            drain,
            served,
        }
    }

    /// Another instance over the same database, with the same pepper.
    pub(crate) async fn second(
        &self,
    ) -> (SocketAddr, Drain, JoinHandle<Result<(), daemon::Failure>>) {
        serve(Settings {
            listen: "127.0.0.1:0".parse().unwrap(),
            database: self.database.clone(),
            state_dir: self.state_dir.path().to_owned(),
            shadow_compare: None,
            operations_token: None,
            bootstrap_token_file: None,
        })
        .await
    }

    /// The same, with a shadow-compare.
    pub(crate) async fn second_with(&self, url: &str, control_token: &str) -> Second {
        let shadow = ShadowCompare { url: url.to_owned(), control_token: control_token.to_owned() };
        let (address, drain, served) = serve(Settings {
            listen: "127.0.0.1:0".parse().unwrap(),
            database: self.database.clone(),
            state_dir: self.state_dir.path().to_owned(),
            shadow_compare: Some(shadow),
            operations_token: None,
            bootstrap_token_file: None,
        })
        .await;
        Second { address, drain, served }
    }

    pub(crate) fn base(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A client with any token, or none.
    pub(crate) fn raw(&self, token: Option<&str>) -> Client {
        Client::new(&self.base(), token).unwrap()
    }

    /// The database as somebody with a password for it sees it.
    pub(crate) async fn by_hand(&self) -> daemon::sql::Database {
        daemon::sql::Database::open(&self.database).await.unwrap()
    }

    pub(crate) async fn plan(&self, name: &str) {
        let body = json!({ "burst": { "capacity": 10, "refill": "1/s" } });
        self.operator.put_plan(name, &body, "test", None).await.unwrap();
    }

    pub(crate) async fn client(&self, id: &str, plan: &str) {
        self.operator.put_client(id, &json!({ "plan": plan }), "test", None).await.unwrap();
    }

    pub(crate) async fn stop(self) {
        self.drain.start();
        self.served.await.unwrap().unwrap();
    }
}

async fn serve(settings: Settings) -> (SocketAddr, Drain, JoinHandle<Result<(), daemon::Failure>>) {
    let drain = Drain::new();
    let (context, addresses) = Context::in_process(drain.clone());
    let served = daemon::tasks::spawn("plans-api", plans_api::serve(settings, context));
    match addresses.wait().await {
        Some(addresses) => (addresses["api"], drain, served),
        None => panic!("it did not start: {:?}", served.await.unwrap()),
    }
}

/// The refusal in an error.
pub(crate) fn refusal<T: std::fmt::Debug>(result: Result<T, ClientError>) -> ErrorBody {
    match result {
        Err(ClientError::Refused(body)) => *body,
        other => panic!("expected a refusal, not {other:?}"),
    }
}

/// Status and code, as a table row.
pub(crate) fn told<T: std::fmt::Debug>(result: Result<T, ClientError>) -> (u16, &'static str) {
    let body = refusal(result);
    (body.status, body.code.name())
}

pub(crate) fn put(path: &str, body: &Value) -> Call {
    Call::new(Method::PUT, path).json(body).if_match_or_insist(None)
}

pub(crate) fn feed_request(gateway: &str, history: &str, after: u64, wait_ms: u64) -> FeedRequest {
    FeedRequest {
        gateway: gateway.to_owned(),
        boot: "boot".to_owned(),
        build: "0.1.0".to_owned(),
        ops_url: None,
        routes: vec!["orders".to_owned()],
        history: history.to_owned(),
        after,
        wait_ms,
        applied: after,
        rejected: Vec::new(),
        killswitch: None,
    }
}
