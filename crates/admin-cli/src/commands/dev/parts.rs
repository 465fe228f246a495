//! One service inside this process, through the same door that its program uses.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use daemon::{Addresses, Context, Drain, Failure};
use limiter_core::{Clock, SystemClock};
use serde_json::Value;
use tokio::task::JoinHandle;
use wire::client::{Call, Client};

use super::state::{BOOTSTRAP, CONTROL, GATEWAY_HASHES, OPERATIONS};

/// How long a part may take to end.
const END: Duration = Duration::from_secs(8);
/// Between two looks at a part that is not ready.
const LOOK: Duration = Duration::from_millis(2);

/// A running service.
#[derive(Debug)]
pub(crate) struct Part {
    name: &'static str,
    context: Context,
    addresses: Addresses,
    service: JoinHandle<Result<(), Failure>>,
}

/// Starts a service and waits until it has told its addresses, or why it ended before.
pub(crate) async fn start<F, Fut>(name: &'static str, serve: F) -> Result<Part, Failure>
where
    F: FnOnce(Context) -> Fut,
    Fut: Future<Output = Result<(), Failure>> + Send + 'static,
{
    let (context, addresses) = Context::in_process(Drain::new());
    let mut service = daemon::tasks::spawn(name, serve(context.clone()));
    let addresses = tokio::select! {
        biased;
        ended = &mut service => return Err(early(name, ended)),
        addresses = addresses.wait() => addresses,
    };
    match addresses {
        Some(addresses) => Ok(Part { name, context, addresses, service }),
        None => Err(early(name, service.await)),
    }
}

fn early(name: &str, ended: Result<Result<(), Failure>, tokio::task::JoinError>) -> Failure {
    match ended {
        Ok(Ok(())) => Failure::other(format!("{name} ended before it was ready")),
        Ok(Err(Failure::Settings(lines))) => {
            Failure::Settings(lines.iter().map(|line| format!("{name}: {line}")).collect())
        }
        Ok(Err(Failure::Other(error))) => {
            Failure::other(format!("{name}: {}", daemon::log::chain(error.as_ref())))
        }
        Err(error) => Failure::other(format!("{name}: {error}")),
    }
}

impl Part {
    /// Where it listens.
    pub(crate) fn address(&self, what: &str) -> Result<SocketAddr, Failure> {
        let known = self.addresses.get(what).copied();
        known.ok_or_else(|| Failure::other(format!("{} tells no address for {what}", self.name)))
    }

    /// Waits until it ends by itself, which it should not.
    pub(crate) async fn ended(&mut self) -> Result<(), Failure> {
        tokio::select! {
            ended = &mut self.service => Err(early(self.name, ended)),
            what = self.context.tasks.failed() => {
                Err(Failure::other(format!("{}: {what}", self.name)))
            }
        }
    }

    /// Drains it.
    pub(crate) async fn stop(&mut self) {
        self.context.drain.start();
        if !self.service.is_finished()
            && tokio::time::timeout(END, &mut self.service).await.is_err()
        {
            self.service.abort();
        }
        self.context.tasks.join(END).await;
    }
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

fn secret(folder: &Path, name: &str) -> Result<String, Failure> {
    daemon::settings::secret_file(&folder.join(name)).map_err(Failure::other)
}

/// plans-api over a state folder.
pub(crate) async fn plans_api(
    folder: &Path,
    port: u16,
    shadow_port: u16,
    database: Option<&str>,
) -> Result<Part, Failure> {
    let settings = plans_api::Settings {
        listen: loopback(port),
        database: database
            .map_or_else(|| plans_api::Settings::database_in(folder), ToOwned::to_owned),
        state_dir: folder.to_owned(),
        shadow_compare: Some(plans_api::ShadowCompare {
            url: format!("http://127.0.0.1:{shadow_port}"),
            control_token: secret(folder, CONTROL)?,
        }),
        operations_token: Some(secret(folder, OPERATIONS)?),
        bootstrap_token_file: Some(folder.join(BOOTSTRAP)),
    };
    start("plans-api", |context| plans_api::serve(settings, context)).await
}

/// shadow-compare over a state folder.
pub(crate) async fn shadow_compare(
    folder: &Path,
    port: u16,
    database: Option<&str>,
) -> Result<Part, Failure> {
    let settings = shadow_compare::Settings {
        listen: loopback(port),
        database: database.map(ToOwned::to_owned),
        state_dir: folder.to_owned(),
        gateway_tokens_file: folder.join(GATEWAY_HASHES),
        control_token_file: folder.join(CONTROL),
        settle_seconds: 60,
        process: daemon::ProcessFlags::default(),
    };
    start("shadow-compare", |context| shadow_compare::serve(settings, context)).await
}

/// A gateway from its file.
pub(crate) async fn gateway(file: &Path) -> Result<Part, Failure> {
    let config = gateway::config::load(file).map_err(Failure::Settings)?;
    start("gateway", |context| gateway::serve(config, context)).await
}

/// Waits until a gateway's operations port says that it is ready.
pub(crate) async fn ready(operations: SocketAddr, patience: Duration) -> Result<(), Failure> {
    let client = Client::new(&format!("http://{operations}"), None).map_err(Failure::other)?;
    let clock = SystemClock::new();
    let start = clock.now();
    loop {
        match client.send::<Value>(Call::get("/readyz")).await {
            Ok(_) => return Ok(()),
            Err(error) if clock.now().since(start) >= patience => {
                return Err(Failure::other(format!("the gateway is not ready: {error}")));
            }
            Err(_) => tokio::time::sleep(LOOK).await,
        }
    }
}
