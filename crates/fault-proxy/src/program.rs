//! The proxy as a program: it says where it listens, follows a script if it was given one, and
//! takes orders over HTTP.
//!
//! The control port has no password: whoever reaches it can break the connection to Redis, so it
//! belongs on loopback. Orders are PUT and DELETE, which no web page can send there unasked.

use std::ffi::OsString;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::routing::{delete, get, put};
use clap::Parser;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep_until};

use crate::json::{Script, target_from_json};
use crate::proxy::FaultProxy;
use crate::rules::Rules;
use crate::strict::Mistakes;

/// Longest order.
const BODY_MAX: usize = 1024 * 1024;

/// A TCP proxy before Redis that breaks things on command.
#[derive(Debug, Parser)]
#[command(name = "weir-fault-proxy", version)]
struct Options {
    /// Where clients connect to
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// The Redis behind it
    #[arg(long, default_value = "127.0.0.1:6379", value_name = "HOST:PORT")]
    upstream: String,
    /// Where orders are taken: PUT /rules, DELETE /rules, GET /counters, PUT /target,
    /// DELETE /connections
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDRESS")]
    control: SocketAddr,
    /// Steps to follow from the start, as JSON
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
}

/// Runs until interrupted.
pub fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let options = match Options::try_parse_from(arguments) {
        Ok(options) => options,
        Err(told) => {
            // Help and version are errors to the parser only; nobody reads a broken pipe.
            drop(told.print());
            return ExitCode::from(if told.use_stderr() { 64 } else { 0 });
        }
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell_error(&format!("weir-fault-proxy: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> anyhow::Result<()> {
    let script = options.script.as_ref().map(read_script).transpose()?;
    let upstream = resolve(&options.upstream)?;
    let proxy = FaultProxy::start_at(options.listen, upstream)
        .with_context(|| format!("cannot listen at {}", options.listen))?;
    let proxy = Arc::new(proxy);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let control = TcpListener::bind(options.control).await;
        let control = control.with_context(|| format!("cannot listen at {}", options.control))?;
        tell(&format!("proxy    {} -> {upstream}", proxy.address()));
        tell(&format!("control  http://{}", control.local_addr()?));
        let orders = router(Arc::clone(&proxy)).into_make_service();
        tokio::select! {
            served = axum::serve(control, orders) => served?,
            () = follow(script, &proxy) => {}
            interrupted = tokio::signal::ctrl_c() => interrupted?,
        }
        Ok(())
    })
}

fn read_script(file: &PathBuf) -> anyhow::Result<Script> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    Script::from_json(&text).with_context(|| format!("{} cannot be followed", file.display()))
}

fn resolve(upstream: &str) -> anyhow::Result<SocketAddr> {
    let found = upstream.to_socket_addrs();
    let mut found = found.with_context(|| format!("--upstream: {upstream} has no address"))?;
    match found.next() {
        Some(address) => Ok(address),
        None => bail!("--upstream: {upstream} has no address"),
    }
}

/// Performs the steps, then waits for ever: the proxy stays as the last one left it.
async fn follow(script: Option<Script>, proxy: &FaultProxy) {
    let began = Instant::now();
    for step in script.into_iter().flat_map(|script| script.steps) {
        sleep_until(began + step.at).await;
        tell(&format!("step     {} ms: {:?}", step.at.as_millis(), step.act));
        step.act.perform(proxy);
    }
    std::future::pending().await
}

fn router(proxy: Arc<FaultProxy>) -> Router {
    Router::new()
        .route("/rules", put(set).delete(clear))
        .route("/counters", get(counters))
        .route("/target", put(retarget))
        .route("/connections", delete(close_all))
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .with_state(proxy)
}

type Answer = Result<StatusCode, (StatusCode, String)>;

async fn set(State(proxy): State<Arc<FaultProxy>>, body: String) -> Answer {
    proxy.set(Rules::from_json(&body).map_err(refused)?);
    Ok(StatusCode::NO_CONTENT)
}

async fn clear(State(proxy): State<Arc<FaultProxy>>) -> StatusCode {
    proxy.clear();
    StatusCode::NO_CONTENT
}

async fn counters(State(proxy): State<Arc<FaultProxy>>) -> axum::Json<serde_json::Value> {
    axum::Json(proxy.counters().json())
}

async fn retarget(State(proxy): State<Arc<FaultProxy>>, body: String) -> Answer {
    proxy.retarget(target_from_json(&body).map_err(refused)?);
    Ok(StatusCode::NO_CONTENT)
}

async fn close_all(State(proxy): State<Arc<FaultProxy>>) -> StatusCode {
    proxy.close_all();
    StatusCode::NO_CONTENT
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that map_err asks for")]
fn refused(mistakes: Mistakes) -> (StatusCode, String) {
    (StatusCode::UNPROCESSABLE_ENTITY, format!("{mistakes}\n"))
}

#[expect(clippy::print_stdout, reason = "a program for people")]
fn tell(line: &str) {
    println!("{line}");
}

#[expect(clippy::print_stderr, reason = "a program for people")]
fn tell_error(line: &str) {
    eprintln!("{line}");
}
