//! Exactly what the robot runs, in the order in which a mistake shows soonest.
//!
//! Each lab command is run in its short form, then once per planted fault ("sabotage"): a judge
//! that passes a planted fault is broken, so the run must then fail, and by the figure meant.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::run;

type Step = (&'static str, fn() -> Result<()>);

const STEPS: &[Step] = &[
    ("fmt", fmt),
    ("clippy", clippy),
    ("tidy", crate::tidy::command),
    ("docs", docs),
    ("test", || crate::test::command(&[])),
    ("api", crate::api::command),
    ("lab", lab),
];

/// Builds with fewer features than the workspace has as a whole: what others build.
const SLIM: &[&[&str]] = &[
    &["limiter-core", "--no-default-features"],
    &["limiter-core", "--no-default-features", "--features", "limiter"],
    &["admin-cli", "--no-default-features"],
];

/// A lab command that judges what exists.
struct Experiment {
    /// Its short form.
    words: &'static [&'static str],
    /// Whether what exists must pass here too.
    must_pass: MustPass,
    planted: &'static [Planted],
}

/// What a robot can ask of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MustPass {
    Here,
    /// It measures times, which on a busy machine say nothing: only planted faults are looked for.
    OnAQuietMachine,
}

/// A fault to plant in what an experiment judges.
struct Planted {
    fault: &'static str,
    /// The figure that must then fail.
    figure: &'static str,
    of: Kind,
}

/// What a figure is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Counts and sums: looked for side by side with others.
    Counts,
    /// Times: looked for with the machine to itself.
    Times,
}

const fn counts(fault: &'static str, figure: &'static str) -> Planted {
    Planted { fault, figure, of: Kind::Counts }
}

const fn times(fault: &'static str, figure: &'static str) -> Planted {
    Planted { fault, figure, of: Kind::Times }
}

/// Runs of an experiment before it counts as failed.
const TRIES: usize = 2;
/// Planted faults that are looked for side by side.
const FAULTS_AT_ONCE: usize = 4;

/// What takes longest stands last: what must pass is run from the front, so that a mistake shows
/// soon, and what is looked for side by side from the back, so that no long run is left alone.
const LAB: &[Experiment] = &[
    Experiment {
        words: &["differential", "--steps", "100000"],
        must_pass: MustPass::Here,
        // It plants its other faults by itself, in every run.
        planted: &[counts("partial-debit", "differences"), counts("time-runs-back", "differences")],
    },
    Experiment {
        // Ten thousand runs of a simulated minute each.
        words: &["simulate"],
        must_pass: MustPass::Here,
        planted: &[
            counts("no-cap", "broken_runs"),
            counts("free-lease", "broken_runs"),
            counts("undead-lease", "broken_runs"),
            counts("deaf", "broken_runs"),
        ],
    },
    Experiment {
        words: &["retry", "--quick"],
        must_pass: MustPass::Here,
        planted: &[
            counts("halved-promise", "alone_first_retry"),
            counts("per-gateway-buckets", "over_contract_tokens"),
        ],
    },
    Experiment {
        words: &["restarts", "--quick"],
        must_pass: MustPass::Here,
        planted: &[
            counts("deaf-drain", "refused_connections"),
            counts("impatient", "websockets_cut"),
        ],
    },
    Experiment {
        words: &["propagate", "--quick"],
        must_pass: MustPass::OnAQuietMachine,
        planted: &[
            // Seconds of silence, as below.
            counts("slow-feed", "plan_change_p99_seconds"),
            counts("deaf-gateway", "revocation_p99_seconds"),
            counts("chatty-gateway", "idle_calls_per_gateway_second"),
        ],
    },
    Experiment {
        words: &["control", "--quick"],
        must_pass: MustPass::Here,
        planted: &[
            counts("forgetful-gateway", "effect_on_known_clients"),
            counts("lost-state", "restarted_first_decision_seconds"),
            counts("careless-hand", "other_clients_touched"),
            counts("leaky-note", "usable_keys_in_dump"),
        ],
    },
    Experiment {
        words: &["decide", "--quick"],
        must_pass: MustPass::OnAQuietMachine,
        planted: &[times("spelled-key", "wide_weir_ns"), times("no-lease", "hot_weir_ns")],
    },
    Experiment {
        words: &["accuracy", "--quick"],
        must_pass: MustPass::OnAQuietMachine,
        planted: &[counts("per-gateway-buckets", "over_burst_ok")],
    },
    Experiment {
        words: &["latency", "--quick"],
        must_pass: MustPass::OnAQuietMachine,
        planted: &[times("far-store", "added_ms_p99"), times("no-leases", "added_ms_p50")],
    },
    Experiment {
        words: &["store", "--quick"],
        must_pass: MustPass::OnAQuietMachine,
        planted: &[
            counts("call-per-request", "mix_calls_per_request"),
            counts("fat-state", "redis_bytes_per_key"),
        ],
    },
    Experiment {
        words: &["outage", "--quick"],
        must_pass: MustPass::OnAQuietMachine,
        planted: &[counts("fails-open", "errors_of_ours"), counts("alone-in-fleet", "over_tokens")],
    },
    Experiment {
        words: &["overload", "--quick"],
        must_pass: MustPass::OnAQuietMachine,
        planted: &[
            times("refuses-too-much", "goodput_share_at_10x"),
            times("dear-refusals", "refusal_over_forward"),
        ],
    },
    Experiment {
        words: &["incident", "--quick"],
        must_pass: MustPass::Here,
        planted: &[
            // Seconds of silence, for which no load is needed.
            counts("silent-control-plane", "plan_change_seconds"),
            counts("per-gateway-buckets", "admitted_over_contract_enforced"),
            counts("no-safety-limit", "safety_fleet_over_ten_plans"),
            counts("second-door", "refused_reached_service"),
        ],
    },
];

/// Runs `ci [--only NAMES]`.
pub(crate) fn command(arguments: &[&str]) -> Result<()> {
    let chosen = match arguments {
        [] => STEPS.to_vec(),
        ["--only", names] => choose(names)?,
        _ => bail!("ci knows only --only STEP,STEP"),
    };
    for (name, step) in chosen {
        println!("── {name}");
        #[expect(clippy::disallowed_methods, reason = "tells a person how long a step took")]
        let begin = Instant::now();
        step().with_context(|| format!("step {name}"))?;
        println!("── {name}: ok, {} s", begin.elapsed().as_secs());
    }
    Ok(())
}

fn choose(names: &str) -> Result<Vec<Step>> {
    let known = || STEPS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    names
        .split(',')
        .map(|name| {
            let step = STEPS.iter().find(|(step, _)| *step == name).copied();
            step.with_context(|| format!("there is no step `{name}`; there are {}", known()))
        })
        .collect()
}

fn fmt() -> Result<()> {
    run::must_succeed(run::cargo().args(["fmt", "--all", "--check"]))
}

fn clippy() -> Result<()> {
    let words = ["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"];
    run::must_succeed(run::cargo().args(words))?;
    for features in SLIM {
        let words = ["clippy", "--locked", "-p"];
        let strict = ["--", "-D", "warnings"];
        run::must_succeed(run::cargo().args(words).args(*features).args(strict))?;
    }
    Ok(())
}

fn docs() -> Result<()> {
    let words = ["doc", "--locked", "--workspace", "--no-deps", "--document-private-items"];
    run::must_succeed(run::cargo().args(words).env("RUSTDOCFLAGS", "-D warnings"))
}

fn lab() -> Result<()> {
    for experiment in LAB.iter().filter(|experiment| experiment.must_pass == MustPass::Here) {
        must_be(experiment, &[], "be ok", |verdict, success| verdict.ok && success)?;
    }
    for (experiment, planted) in planted(Kind::Times) {
        look_for(experiment, planted)?;
    }
    let side_by_side: Vec<_> = planted(Kind::Counts).rev().collect();
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        let take = || side_by_side.get(next.fetch_add(1, Ordering::Relaxed));
        while let Some((experiment, planted)) = take() {
            look_for(experiment, planted)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..FAULTS_AT_ONCE).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
}

fn planted(of: Kind) -> impl DoubleEndedIterator<Item = (&'static Experiment, &'static Planted)> {
    LAB.iter()
        .flat_map(|experiment| experiment.planted.iter().map(move |planted| (experiment, planted)))
        .filter(move |(_, planted)| planted.of == of)
}

/// A judge that passes a planted fault, or fails for another reason, is broken.
fn look_for(experiment: &Experiment, planted: &Planted) -> Result<()> {
    let Planted { fault, figure, .. } = *planted;
    let seen = |verdict: &Verdict, success: bool| !success && verdict.sees(figure);
    must_be(experiment, &["--sabotage", fault], &format!("fail by `{figure}`"), seen)?;
    println!("   the planted fault {fault} is seen");
    Ok(())
}

/// Runs an experiment, and once more if it did not end as it must: it measures times on a machine
/// that others may use, while a real fault shows every time. Both verdicts are printed.
fn must_be(
    experiment: &Experiment,
    more: &[&str],
    what: &str,
    holds: impl Fn(&Verdict, bool) -> bool,
) -> Result<()> {
    let mut last = Vec::new();
    for _ in 0..TRIES {
        let (verdict, success) = judged(experiment, more)?;
        if holds(&verdict, success) {
            return Ok(());
        }
        println!("   not as it must be: {}", verdict.failed.join(", "));
        last = verdict.failed;
    }
    let words = [experiment.words, more].concat().join(" ");
    bail!("`cargo lab {words}` must {what}, but failed by: {}", last.join(", "))
}

#[derive(Debug, PartialEq)]
struct Verdict {
    ok: bool,
    /// Figures that are not as they must be.
    failed: Vec<String>,
    /// Those of them that are numbers: what could not be measured has failed, and shows nothing.
    measured: Vec<String>,
}

impl Verdict {
    /// Whether a planted fault was seen for what it is: a run that broke off has seen nothing.
    fn sees(&self, figure: &str) -> bool {
        let named = |names: &[String], name: &str| names.iter().any(|named| named == name);
        !self.ok && named(&self.measured, figure) && !named(&self.failed, "broken")
    }
}

/// Runs a lab command; its verdict and whether it exited with 0.
fn judged(experiment: &Experiment, more: &[&str]) -> Result<(Verdict, bool)> {
    let mut command = run::cargo();
    command.arg("lab").args(experiment.words).arg("--json").args(more);
    let line = run::line_of(&command);
    println!("$ {line}");
    #[expect(clippy::disallowed_methods, reason = "tells a person how long a run took")]
    let begin = Instant::now();
    let output = run::output(&mut command)?;
    println!("{}── {line}: {} s", output.text, begin.elapsed().as_secs());
    let verdict = verdict_of(&output.text).with_context(|| format!("`{line}` gave no verdict"))?;
    Ok((verdict, output.success))
}

fn verdict_of(text: &str) -> Result<Verdict> {
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let object: Value = serde_json::from_str(last).context("the last line is no JSON")?;
    let ok = object.get("ok").and_then(Value::as_bool).context("`ok` is missing")?;
    let failed = object.get("not_met").and_then(Value::as_array).context("`not_met` is missing")?;
    let failed: Vec<String> = failed.iter().filter_map(Value::as_str).map(str::to_owned).collect();
    let is_number = |name: &&String| object.get(name.as_str()).is_some_and(Value::is_number);
    let measured = failed.iter().filter(is_number).cloned().collect();
    Ok(Verdict { ok, failed, measured })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_chosen_by_name_and_a_wrong_name_is_told() {
        let names: Vec<_> = choose("tidy,fmt").unwrap().iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["tidy", "fmt"]);
        let error = choose("fmt,test,deploy").unwrap_err().to_string();
        assert!(error.contains("`deploy`"), "{error}");
    }

    #[test]
    fn a_verdict_is_the_last_line_and_a_crash_is_none() {
        let text = "a table\n{\"ok\":true,\"not_met\":[]}\n\
                    {\"ok\":false,\"not_met\":[\"x\",\"y\"],\"x\":null,\"y\":2.5}\n\n";
        let verdict = verdict_of(text).unwrap();
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let (failed, measured) = (names(&["x", "y"]), names(&["y"]));
        assert_eq!(verdict, Verdict { ok: false, failed, measured });
        assert!(verdict_of("thread 'main' panicked").is_err());
        assert!(verdict_of("").is_err());
        assert!(verdict_of("{\"fine\":true}").is_err());
    }

    #[test]
    fn a_planted_fault_is_seen_by_its_own_figure_only() {
        let verdict = |ok, failed: &[&str]| {
            let failed: Vec<String> = failed.iter().map(|name| (*name).to_owned()).collect();
            Verdict { ok, measured: failed.clone(), failed }
        };
        assert!(verdict(false, &["x", "y"]).sees("y"));
        assert!(!verdict(true, &[]).sees("y"), "it cannot fail");
        assert!(!verdict(false, &["x"]).sees("y"), "it failed for another reason");
        assert!(!verdict(false, &["y", "broken"]).sees("y"), "it broke off");
        let empty = Verdict { measured: Vec::new(), ..verdict(false, &["y"]) };
        assert!(!empty.sees("y"), "it was not measured");
    }
}
