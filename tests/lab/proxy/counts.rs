//! What a request costs in counts, which no other guest of the machine changes: system calls and
//! allocations, for a forwarded and a refused request over both protocols.
//!
//! System calls are counted by the kernel (`perf stat`, or `strace` where perf may not) while a
//! known number of requests passes. Allocations are counted by valgrind, whole runs of the process
//! with fewer and with more requests: the difference is the requests'. So nothing is built into
//! the gateway for it, and its allocator is the one that ships.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use system_tests::growth::Protocol;
use system_tests::oracle::float;
use system_tests::process::{Launcher, find_program};
use tokio::time::Instant;

use super::load::{Extent, Load, Who};
use super::meter::SUBJECT_CORE;
use super::subjects::{Arm, Subjects};
use crate::plain::Setting;

/// How long a tracer may take to begin or to end.
const TRACER_MAX: Duration = Duration::from_secs(10);
/// Clients in valgrind, where everything is slow.
const FEW_KEYS: usize = 8;
/// Requests of the shorter run; the longer one has three times as many.
const FEW_REQUESTS: u64 = 1_000;

/// What is counted.
#[derive(Debug, Clone, Copy)]
pub struct Cell {
    /// What the caller speaks.
    pub protocol: Protocol,
    /// `Limits` for forwarded requests, `Refusing` for refused ones.
    pub arm: Arm,
}

impl Cell {
    /// All four.
    pub const ALL: [Cell; 4] = [
        Cell { protocol: Protocol::Http1, arm: Arm::Limits },
        Cell { protocol: Protocol::Http1, arm: Arm::Refusing },
        Cell { protocol: Protocol::Http2, arm: Arm::Limits },
        Cell { protocol: Protocol::Http2, arm: Arm::Refusing },
    ];

    /// Its name in figures.
    pub fn name(self) -> String {
        let what = if self.arm == Arm::Refusing { "refusal" } else { "forward" };
        let protocol = match self.protocol {
            Protocol::Http1 => "http1",
            Protocol::Http2 => "http2",
        };
        format!("{what}_{protocol}")
    }
}

/// System calls of a request.
pub async fn system_calls(
    launcher: &Launcher,
    subjects: &Subjects,
    cell: Cell,
    requests: u64,
) -> anyhow::Result<f64> {
    let subject = subjects.of(cell.arm).context("no such process")?;
    let load = subjects.load(cell.arm, cell.protocol, 1)?;
    let mut failed = Vec::new();
    for kind in [Kind::Perf, Kind::Strace] {
        let file = launcher.dir().join(format!("{}.{kind:?}", cell.name()));
        let mut tracer = Tracer { kind, process: subject.child.id(), file, running: None };
        match load.play(Extent::Requests(requests), move || tracer.edge()).await {
            Ok((answers, _, calls)) => {
                return Ok(float(calls) / float(usize::try_from(answers.all())?));
            }
            Err(error) => failed.push(format!("{kind:?}: {error:#}")),
        }
    }
    bail!("system calls cannot be counted: {}", failed.join("; "))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Perf,
    Strace,
}

/// Counts system calls from its first edge to its second.
struct Tracer {
    kind: Kind,
    process: u32,
    file: PathBuf,
    running: Option<Child>,
}

impl Tracer {
    fn edge(&mut self) -> anyhow::Result<usize> {
        if let Some(mut running) = self.running.take() {
            kill_process(Pid::from_child(&running), Signal::INT)?;
            running.wait()?;
            let text = std::fs::read_to_string(&self.file)?;
            return self.count(&text).with_context(|| format!("no count in {text}"));
        }
        let program = match self.kind {
            Kind::Perf => find_program("perf", "linux-perf")?,
            Kind::Strace => find_program("strace", "strace")?,
        };
        let words = std::fs::File::create(self.words())?;
        let mut command = Command::new(program);
        match self.kind {
            Kind::Perf => command.args(["stat", "-x", ",", "-I", "50"]),
            Kind::Strace => command.args(["-c", "-f"]),
        };
        if self.kind == Kind::Perf {
            command.args(["-e", "raw_syscalls:sys_enter"]);
        }
        command.arg("-p").arg(self.process.to_string()).arg("-o").arg(&self.file);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(words);
        let running = self.running.insert(command.spawn()?);
        let deadline = Instant::now() + TRACER_MAX;
        // perf's first line of counts, strace's word that it holds the process.
        let (sign, place) = match self.kind {
            Kind::Perf => ("raw_syscalls", self.file.clone()),
            Kind::Strace => ("attached", self.file.with_extension("words")),
        };
        while !std::fs::read_to_string(&place).unwrap_or_default().contains(sign) {
            let ended = running.try_wait()?.is_some() || deadline < Instant::now();
            if ended {
                running.kill()?;
                running.wait()?;
                self.running = None;
                bail!("{}", std::fs::read_to_string(self.words())?.trim().to_owned());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(0)
    }

    fn words(&self) -> PathBuf {
        self.file.with_extension("words")
    }

    fn count(&self, text: &str) -> Option<usize> {
        match self.kind {
            // seconds,count,unit,event,…
            Kind::Perf => {
                let counts = text.lines().filter(|line| line.contains("raw_syscalls"));
                counts.map(|line| line.split(',').nth(1)?.trim().parse::<usize>().ok()).sum()
            }
            // % time, seconds, µs per call, calls, (errors), total
            Kind::Strace => {
                let total = text.lines().find(|line| line.trim_end().ends_with("total"))?;
                total.split_whitespace().nth(3)?.parse().ok()
            }
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        if let Some(mut running) = self.running.take() {
            drop(running.kill());
            drop(running.wait());
        }
    }
}

/// Allocations of a request.
pub async fn allocations(
    launcher: &Launcher,
    subjects: &Subjects,
    cell: Cell,
) -> anyhow::Result<f64> {
    let few = whole_run(launcher, subjects, cell, FEW_REQUESTS).await?;
    let more = whole_run(launcher, subjects, cell, 3 * FEW_REQUESTS).await?;
    let between = more.checked_sub(few).context("fewer allocations by more requests")?;
    Ok(float(between) / float(usize::try_from(2 * FEW_REQUESTS)?))
}

/// Allocations from the start to the end of a gateway that so many requests went through.
async fn whole_run(
    launcher: &Launcher,
    subjects: &Subjects,
    cell: Cell,
    requests: u64,
) -> anyhow::Result<usize> {
    let valgrind = find_program("valgrind", "valgrind")?;
    let log = launcher.dir().join("valgrind.log");
    let words = ["--tool=memcheck", "--leak-check=no", "--undef-value-errors=no"];
    let mut args: Vec<OsString> =
        vec![SUBJECT_CORE.to_string().into(), "exec".into(), valgrind.into()];
    args.extend(words.map(OsString::from));
    args.push(format!("--log-file={}", log.display()).into());
    args.extend([launcher.exe().into(), "part".into(), "gateway".into()]);
    // In valgrind, Redis is too slow for the usual deadline as well.
    let setting = Setting { deadline: "50ms", ..Setting::shipped("gateway_counted") };
    let mut gateway = subjects.plain.gateway(launcher, setting, "pinned", args).await?;
    let keys = subjects.keys(cell.arm).iter().take(FEW_KEYS).cloned().collect();
    let (target, protocol) = (gateway.at, cell.protocol);
    let load = Load { target, protocol, keys, who: Who::InTurn, seed: 1 };
    let (answers, (), ()) = load.play(Extent::Requests(requests), || Ok(())).await?;
    anyhow::ensure!(answers.strange == 0, "in valgrind: {answers:?}");
    gateway.child.terminate(TRACER_MAX * 3).await?;
    heap_allocations(&log)
}

fn heap_allocations(log: &Path) -> anyhow::Result<usize> {
    let text = std::fs::read_to_string(log)?;
    let told = text.lines().find_map(|line| line.split_once("total heap usage: "));
    let (_, rest) = told.with_context(|| format!("valgrind tells nothing: {text}"))?;
    let count = rest.split_whitespace().next().unwrap_or_default().replace(',', "");
    count.parse().context("valgrind's count")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracer(kind: Kind) -> Tracer {
        Tracer { kind, process: 0, file: PathBuf::new(), running: None }
    }

    #[test]
    fn counts_are_read_from_what_the_tracers_print() {
        let perf = "# started on Mon\n\n     0.05,123,,raw_syscalls:sys_enter,5,100.00,,\n\
                    0.1,<not counted>,,other,0,,\n0.15,7,,raw_syscalls:sys_enter,5,100.00,,\n";
        assert_eq!(tracer(Kind::Perf).count(perf), Some(130));
        let strace = "% time  seconds  usecs/call  calls errors syscall\n------ ---\n\
                      60.00 0.1 5 100 3 read\n------ ---\n100.00    0.163211  1  151  5 total\n";
        assert_eq!(tracer(Kind::Strace).count(strace), Some(151));
        assert_eq!(tracer(Kind::Strace).count("nothing"), None);
    }

    #[test]
    fn valgrind_writes_commas() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "==1== HEAP SUMMARY:\n==1==   total heap usage: 12,345 allocs, 1 frees\n";
        std::fs::write(file.path(), text).unwrap();
        assert_eq!(heap_allocations(file.path()).unwrap(), 12_345);
    }
}
