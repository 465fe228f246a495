//! `weir dev`: gateway, plans-api and shadow-compare in this process, on loopback.
//!
//! Each part runs through its own library's `serve` and they talk over loopback HTTP, exactly as
//! the three programs do: there is no shortcut, so what works here works there. What is special is
//! only what a newcomer would have to set up by hand: tokens, a plan, a client, a key, an echo
//! service. Everything is kept in the state folder, for its owner alone.

mod echo; // answers where there is no service yet
pub(super) mod parts; // one service in this process
pub(super) mod ports; // free ports near the usual ones
pub(super) mod seed; // tokens, plan, client, key
pub(super) mod state; // the folder: lock, secrets, context

use std::ffi::OsString;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use daemon::{Context, Failure};
use limiter_core::{Clock, SystemClock, Timestamp};
use serde_json::json;

use self::parts::Part;
use self::seed::Spared;
use self::state::{Service, State};
use crate::args::{Dev, DevProcess, Globals};
use crate::contexts;
use crate::output::{Output, Report, Shown};

/// How long a gateway may take to be ready.
const READY: Duration = Duration::from_secs(20);

/// Runs until a signal. The folder is locked first: a second start there must not even read it.
pub(crate) fn main(flags: Dev, globals: Globals, output: Output) -> ExitCode {
    let start = SystemClock::new();
    let began = start.now();
    let state = match State::take(&flags.state_dir) {
        Ok(state) => state,
        Err(failure) => return output.failure(&failure).into(),
    };
    let process: [OsString; 3] =
        ["weir dev".into(), "--log-level".into(), flags.log_level.clone().into()];
    daemon::run("weir dev", process, move |_: DevProcess, context| async move {
        let stage = Stage { flags, globals, state, output, start, began };
        Box::pin(stage.run(context)).await
    })
}

struct Stage {
    flags: Dev,
    globals: Globals,
    state: State,
    output: Output,
    start: SystemClock,
    began: Timestamp,
}

/// Everything that was started, in the order in which it ends: the gateway first, so that its
/// last records still find somebody to take them.
struct Running {
    gateway: Part,
    plans: Part,
    shadow: Part,
    echo: Option<Part>,
    traffic: SocketAddr,
    operations: SocketAddr,
    key: String,
    spared: Option<Spared>,
}

impl Stage {
    async fn run(self, context: Context) -> Result<(), Failure> {
        let running = self.start(&context).await?;
        self.tell(&running);
        context.announce("traffic", running.traffic);
        context.announce("operations", running.operations);
        context.announce("api", running.plans.address("api")?);
        context.ready();
        let Running { mut gateway, mut plans, mut shadow, mut echo, .. } = running;
        let ended = tokio::select! {
            () = context.drain.started() => Ok(()),
            ended = gateway.ended() => ended,
            ended = plans.ended() => ended,
            ended = shadow.ended() => ended,
        };
        self.output.say("weir dev: draining");
        gateway.stop().await;
        plans.stop().await;
        shadow.stop().await;
        if let Some(echo) = &mut echo {
            echo.stop().await;
        }
        ended
    }

    async fn start(&self, context: &Context) -> Result<Running, Failure> {
        let ports = ports::choose(self.flags.port, |line| self.output.say(line))?;
        let echo = match &self.flags.upstream {
            Some(_) => None,
            None => Some(echo::start().await?),
        };
        let service = match (&self.flags.upstream, &echo) {
            (Some(url), _) => Service::at(url)?,
            (None, Some(echo)) => Service::http1(echo.address("echo")?.to_string()),
            (None, None) => return Err(Failure::Settings(vec!["no upstream".to_owned()])),
        };
        let database = self.flags.database.as_deref();
        let folder = self.state.folder();
        let plans = parts::plans_api(folder, ports.plans, ports.shadow, database).await?;
        let api = format!("http://{}", plans.address("api")?);
        // tokens before the parts that show them; the rest of the seed may come beside them
        let client = seed::tokens(&self.state, &api).await?;
        let config = state::gateway_toml(&ports, &service, self.flags.store.as_deref());
        self.state.keep("gateway.toml", config.as_bytes())?;
        let (shadow, seeded) = tokio::try_join!(
            parts::shadow_compare(folder, ports.shadow, database),
            seed::objects(&self.state, &client),
        )?;
        let spared = seed::spared(&client).await?;
        let gateway = parts::gateway(&folder.join("gateway.toml")).await?;
        self.state.keep_context(&api)?;
        let (traffic, operations) = (gateway.address("traffic")?, gateway.address("operations")?);
        let running =
            Running { gateway, plans, shadow, echo, traffic, operations, key: seeded.key, spared };
        tokio::select! {
            ready = parts::ready(operations, READY) => ready?,
            () = context.drain.started() => {}
        }
        Ok(running)
    }

    fn tell(&self, running: &Running) {
        let took_ms = self.start.now().since(self.began).as_millis();
        let gateway = format!("http://{}", running.traffic);
        let address = |part: &Part| part.address("api").map(|at| format!("http://{at}")).ok();
        let weir = self.weir(address(&running.plans).as_deref());
        let told = Told::new(&gateway, &running.key, &weir, running.spared.as_ref());
        let json = json!({
            "gateway": gateway,
            "operations": format!("http://{}", running.operations),
            "plans_api": address(&running.plans),
            "shadow_compare": address(&running.shadow),
            "state_dir": self.state.folder().display().to_string(),
            "pid": std::process::id(),
            "plan": seed::PLAN,
            "client": seed::CLIENT,
            "key": running.key,
            "started_ms": u64::try_from(took_ms).unwrap_or(u64::MAX),
            "commands": {
                "allowed": told.allowed, "refused": told.refused, "change": told.change,
                "enforce": told.enforce,
            },
        });
        let report = Report::new(json, Shown::Text(told.text()));
        self.output.report(report.named(&gateway));
        self.output.say(&format!(
            "weir dev: operations (/top, /limits, /configz) at http://{}, with the token in {}",
            running.operations,
            self.state.folder().join(state::OPERATIONS).display()
        ));
        self.output.say(&format!(
            "weir dev: ready after {took_ms} ms, everything is in {}; Ctrl-C ends it",
            self.state.folder().display()
        ));
    }
}

impl Stage {
    /// How `weir` is called so that it meets this system: as shortly as it finds the context.
    fn weir(&self, api: Option<&str>) -> String {
        let weir = if self.flags.cargo.is_some() { "cargo weir" } else { "weir" };
        match contexts::resolve(&self.globals) {
            // The token too: another folder's system may have had this address.
            Ok(target)
                if Some(target.addr.as_str()) == api
                    && target.token == self.state.read(state::OPERATOR) =>
            {
                weir.to_owned()
            }
            Ok(_) | Err(_) => {
                let file = self.state.folder().join(contexts::FILE);
                let file = std::path::absolute(&file).unwrap_or(file);
                format!("{weir} --context '{}'", file.display())
            }
        }
    }
}

/// The lines to copy.
struct Told {
    allowed: String,
    /// Ends with a 429, whatever phase the client was in.
    refused: String,
    change: String,
    /// Why nobody is refused now, if it is so; and what changes that.
    spared: Option<String>,
    enforce: Option<String>,
}

impl Told {
    fn new(gateway: &str, key: &str, weir: &str, spared: Option<&Spared>) -> Told {
        let (plan, client) = (seed::PLAN, seed::CLIENT);
        let call = format!("-H 'x-api-key: {key}' {gateway}/hello");
        // curl itself knows a refusal; the blank lines stand between one answer and the next
        let until = format!("while curl -si --fail-with-body -w '\\n\\n' {call}; do :; done");
        let enforce = spared.map(|Spared { rollout, .. }| {
            format!(
                "{weir} rollout set {rollout} --client {client} enforce --yes --reason 'see a 429'"
            )
        });
        Told {
            allowed: format!("curl -si {call}"),
            refused: match &enforce {
                Some(enforce) => format!("{enforce} &&\n  {until}"),
                None => until,
            },
            change: format!("{weir} plan set {plan} --burst 20@10/s --reason 'more for everybody'"),
            spared: spared.map(|spared| format!("{client} is in {}", spared.phase.name())),
            enforce,
        }
    }

    fn text(&self) -> String {
        let Told { allowed, refused, change, spared, .. } = self;
        let (first, second) = match spared {
            None => (
                "one request: 200 with RateLimit fields".to_owned(),
                "until the bucket is empty: ends with 429 and Retry-After".to_owned(),
            ),
            Some(spared) => (
                "one request: 200".to_owned(),
                format!("{spared}: nobody is refused. To see a 429 again:"),
            ),
        };
        format!(
            "# {first}\n{allowed}\n\n# {second}\n{refused}\n\n\
             # change the plan; the gateway has it within a second\n{change}"
        )
    }
}

#[cfg(test)]
mod tests {
    use wire::rollout::Phase;

    use super::*;

    #[test]
    fn the_second_line_never_loops_while_nobody_is_refused() {
        let enforced = Told::new("http://g", "k", "weir", None);
        assert!(enforced.text().contains("\nwhile curl -si --fail-with-body"));
        assert_eq!(enforced.enforce, None);
        let spared = Spared { rollout: "edge".to_owned(), phase: Phase::Shadow };
        let text = Told::new("http://g", "k", "cargo weir", Some(&spared)).text();
        let lines = "# demo is in shadow: nobody is refused. To see a 429 again:\n\
                     cargo weir rollout set edge --client demo enforce --yes --reason 'see a 429' &&\n";
        assert!(text.contains(lines), "{text}");
        assert!(!text.contains("\nwhile") && !text.contains("RateLimit"), "{text}");
    }
}
