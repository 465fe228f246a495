//! `lab part NAME args…`: this binary as any part of Weir, so that every process of an experiment
//! is one program, built once.

use std::ffi::OsString;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use rustix::process::{Signal, set_parent_process_death_signal};
use system_tests::origin;

use crate::restarts;

/// Becomes the part; `args` begins with its name.
pub fn run(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let Some(name) = args.next() else {
        eprintln!(
            "lab part: which one? gateway, plans-api, shadow-compare, weir, service, echo, answers, \
             origin, exec, kept gateway, pinned CORE PART, busy-gateway"
        );
        return ExitCode::from(64);
    };
    if name == "kept" {
        return kept(args);
    }
    // Nothing that an experiment starts outlives it, even if it is killed.
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        eprintln!("lab part: cannot ask to end with the starter: {error}");
    }
    let part = name.to_string_lossy().into_owned();
    let args = std::iter::once(name).chain(args);
    match part.as_str() {
        "gateway" => gateway::main(args),
        "plans-api" => plans_api::main(args),
        "shadow-compare" => shadow_compare::main(args),
        "weir" => admin_cli::main(args),
        "service" => demo::main(args),
        "echo" => restarts::echo(args.skip(1)),
        "answers" => crate::overload::service::main(args.skip(1)),
        "origin" => origin::main(args),
        "exec" => exec(args.skip(1)),
        "pinned" => pinned(args.skip(1)),
        "busy-gateway" => busy_gateway(args),
        other => {
            eprintln!("lab part: `{other}` is none");
            ExitCode::from(64)
        }
    }
}

/// A gateway that outlives its starter, since another one starts each: it ends with whoever holds
/// its standard input open.
#[expect(clippy::exit, reason = "whoever wanted an orderly end is gone")]
fn kept(args: impl Iterator<Item = OsString>) -> ExitCode {
    std::thread::spawn(|| {
        let mut rest = Vec::new();
        drop(std::io::stdin().read_to_end(&mut rest));
        std::process::exit(1);
    });
    gateway::main(args)
}

/// On one core, with all its threads.
fn pinned(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let core = args.next().and_then(|core| core.to_string_lossy().parse().ok());
    let Some(core) = core else {
        eprintln!("lab part pinned: on which core?");
        return ExitCode::from(64);
    };
    if let Err(error) = crate::proxy::meter::pin(core) {
        eprintln!("lab part pinned: core {core}: {error}");
        return ExitCode::FAILURE;
    }
    // A list, so that the type of this does not contain itself.
    run(args.collect::<Vec<_>>().into_iter())
}

/// A planted defect: a gateway with a thread that finds no rest.
fn busy_gateway(args: impl Iterator<Item = OsString>) -> ExitCode {
    let busy = std::thread::Builder::new().name("busy".to_owned());
    let spawned = busy.spawn(|| {
        loop {
            std::hint::spin_loop();
        }
    });
    if let Err(error) = spawned {
        eprintln!("lab part busy-gateway: {error}");
        return ExitCode::FAILURE;
    }
    gateway::main(args)
}

fn exec(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let Some(program) = args.next() else {
        eprintln!("lab part exec: which program?");
        return ExitCode::from(64);
    };
    let error = Command::new(&program).args(args).exec();
    eprintln!("lab part exec: {}: {error}", program.display());
    ExitCode::from(127)
}
