//! `cargo lab NAME`: one experiment on real parts, judged by its limits.
//!
//! `ok` is computed, never set: it is true if every required figure is there and within its limit,
//! the load was really offered, and there were samples enough. Exit 0 only then.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]
#![expect(unreachable_pub, reason = "a program has no outside; `pub` says what a module offers")]

mod crowd; // clients of very different size
mod report; // figures, limits, and whether all of them hold
mod parts; // this binary as any part of Weir
mod incident; // 9 × its contract, before and after
mod outage; // the store breaks in eleven ways
mod differential; // the Redis script against the model
mod store; // what the bucket store costs
mod decide; // what a decision from a lease costs
mod simulate; // a fleet on a clock of events
mod accuracy; // leases against one exact bucket
mod standalone; // gateways with their plans in their own file
mod retry; // whether a refusal's promise can be trusted
mod latency; // what limits cost a request in time
mod restarts; // new processes in the place of old ones
mod overload; // ten times what a gateway can do
mod plain; // gateways before a service that costs nothing
mod proxy; // what a request costs, against other proxies
mod balancers; // what a balancer before gateways saves
mod relay; // a line that can be slow or dead
mod propagate; // how soon a change is in force everywhere
mod control; // the control plane away, poisoned, stolen

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use serde_json::{Map, Value};

use crate::report::{Limit, Report};

const USAGE: &str = "\
usage: cargo lab incident     [--quick] [--seed N] [--json] [--sabotage NAME]
       cargo lab outage       [--quick] [--seed N] [--json] [--sabotage NAME]
       cargo lab differential [--quick] [--steps N] [--seed N] [--json] [--sabotage NAME]
       cargo lab store        [--quick] [--seed N] [--json] [--sabotage NAME]
       cargo lab decide       [--quick] [--seed N] [--json] [--sabotage NAME]
       cargo lab simulate     [--quick] [--seeds N] [--seed N] [--json] [--sabotage NAME]
       cargo lab accuracy     [--quick] [--seed N] [--json] [--sabotage NAME]
       cargo lab retry        [--quick] [--seed N] [--json] [--sabotage NAME]
       cargo lab latency      [--quick] [--seed N] [--json] [--sabotage NAME]
       cargo lab restarts     [--quick] [--seed N] [--json] [--sabotage NAME]
       cargo lab overload     [--quick] [--seed N] [--json] [--sabotage NAME]
       cargo lab proxy        [--quick] [--seed N] [--before LAB] [--json] [--sabotage NAME]
       cargo lab balancers    [--quick] [--seed N] [--json] [--sabotage NAME]
       cargo lab propagate    [--quick] [--seed N] [--json] [--sabotage NAME]
       cargo lab control      [--quick] [--seed N] [--json] [--sabotage NAME]";

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    match args.next() {
        Some(word) if word == "part" => parts::run(args),
        Some(name) => experiment(&name.to_string_lossy(), args),
        None => {
            eprintln!("{USAGE}");
            ExitCode::from(64)
        }
    }
}

fn experiment(name: &str, args: impl Iterator<Item = OsString>) -> ExitCode {
    let flags = match Flags::read(name, args) {
        Ok(flags) => flags,
        Err(error) => {
            eprintln!("lab: {error:#}\n{USAGE}");
            return ExitCode::from(64);
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("lab: {error}");
            return ExitCode::FAILURE;
        }
    };
    let finished = runtime.block_on(async {
        // Dropping the experiment ends its processes and removes its folders.
        tokio::select! {
            report = flags.run() => Some(report),
            _ = tokio::signal::ctrl_c() => None,
        }
    });
    match finished {
        Some(Ok(report)) => {
            println!("{}", report.table());
            if flags.json {
                println!("{}", report.json());
            }
            if report.ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Some(Err(error)) => {
            eprintln!("lab {name}: {error:#}");
            if flags.json {
                let mut report = Report::new(name, flags.seed);
                report.broken(&format!("{error:#}"));
                println!("{}", report.json());
            }
            ExitCode::FAILURE
        }
        None => {
            eprintln!("lab {name}: interrupted; everything is cleaned up");
            ExitCode::from(130)
        }
    }
}

struct Flags {
    name: String,
    quick: bool,
    json: bool,
    seed: u64,
    steps: Option<u64>,
    seeds: Option<u64>,
    /// The lab's program of another build.
    before: Option<PathBuf>,
    sabotage: Option<String>,
}

impl Flags {
    fn read(name: &str, mut args: impl Iterator<Item = OsString>) -> anyhow::Result<Flags> {
        let mut flags = Flags {
            name: name.to_owned(),
            quick: false,
            json: false,
            seed: 1,
            steps: None,
            seeds: None,
            before: None,
            sabotage: None,
        };
        while let Some(flag) = args.next() {
            let flag = flag.to_string_lossy().into_owned();
            let mut value = || {
                let value = args.next().with_context(|| format!("{flag} needs a value"))?;
                Ok::<_, anyhow::Error>(value.to_string_lossy().into_owned())
            };
            match flag.as_str() {
                "--quick" => flags.quick = true,
                "--json" => flags.json = true,
                "--seed" => flags.seed = value()?.parse().context("--seed")?,
                "--steps" => flags.steps = Some(value()?.parse().context("--steps")?),
                "--seeds" => flags.seeds = Some(value()?.parse().context("--seeds")?),
                "--before" => flags.before = Some(value()?.into()),
                "--sabotage" => flags.sabotage = Some(value()?),
                other => bail!("{other} is unknown"),
            }
        }
        Ok(flags)
    }

    async fn run(&self) -> anyhow::Result<Report> {
        match self.name.as_str() {
            "incident" => incident::run(self.quick, self.seed, self.sabotage.as_deref()).await,
            "outage" => outage::run(self.quick, self.seed, self.sabotage.as_deref()).await,
            "differential" => self.differential().await,
            "store" => store::run(self.quick, self.seed, self.sabotage.as_deref()).await,
            "decide" => decide::run(self.quick, self.seed, self.sabotage.as_deref()).await,
            "simulate" => {
                simulate::run(self.quick, self.seed, self.seeds, self.sabotage.as_deref()).await
            }
            "accuracy" => accuracy::run(self.quick, self.seed, self.sabotage.as_deref()).await,
            "retry" => retry::run(self.quick, self.seed, self.sabotage.as_deref()).await,
            "latency" => latency::run(self.quick, self.seed, self.sabotage.as_deref()).await,
            "restarts" => restarts::run(self.quick, self.seed, self.sabotage.as_deref()).await,
            "overload" => overload::run(self.quick, self.seed, self.sabotage.as_deref()).await,
            "proxy" => {
                let before = self.before.as_deref();
                proxy::run(self.quick, self.seed, before, self.sabotage.as_deref()).await
            }
            "propagate" => propagate::run(self.quick, self.seed, self.sabotage.as_deref()).await,
            "control" => control::run(self.quick, self.seed, self.sabotage.as_deref()).await,
            "balancers" => balancers::run(self.quick, self.seed, self.sabotage.as_deref()).await,
            other => bail!("there is no experiment `{other}`"),
        }
    }

    async fn differential(&self) -> anyhow::Result<Report> {
        let full = 1_000_000;
        let steps = self.steps.unwrap_or(if self.quick { 100_000 } else { full });
        let sabotage = self.sabotage.clone();
        let mut report = Report::new("differential", self.seed);
        let options = differential::Options { steps, seed: self.seed, sabotage };
        let fields: Map<String, Value> = differential::run(options).await?;
        for (name, value) in fields {
            match name.as_str() {
                "samples" => report.samples(value.as_u64().unwrap_or(0)),
                "notes" => report.note(value.to_string()),
                _ => report.field(&name, value),
            }
        }
        report.samples_needed(steps);
        // The short form visits each branch in proportion.
        let visits = u32::try_from(steps / 1_000).unwrap_or(u32::MAX).clamp(1, 1_000);
        report.limit("differences", Limit::Exactly(0.0));
        report.limit("branches_min", Limit::AtLeast(f64::from(visits)));
        report.limit("denied_share", Limit::AtLeast(0.2));
        report.limit("planted_found", Limit::Exactly(10.0));
        Ok(report)
    }
}
