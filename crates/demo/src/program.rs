//! One replica as a process of its own: flags, a ports file, nothing else.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tokio::net::TcpListener;

use crate::services::{Mode, Replica, serve};

const USAGE: &str = "\
usage: service --name NAME [--instance N] [--instances N] [--listen ADDRESS] [--ports-file FILE]
               [--mode JSON]";

/// Runs a replica until it is killed. `args` begins with the program's name.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    match Flags::read(args).map_err(io::Error::other).and_then(|flags| flags.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::from(64)
        }
    }
}

#[expect(clippy::print_stderr, reason = "a small program without a log")]
fn complain(error: &io::Error) {
    eprintln!("service: {error}");
}

struct Flags {
    name: String,
    instance: u32,
    instances: u32,
    listen: SocketAddr,
    ports_file: Option<PathBuf>,
    mode: Mode,
}

impl Flags {
    fn read(args: impl IntoIterator<Item = OsString>) -> Result<Flags, String> {
        let mut flags = Flags {
            name: String::new(),
            instance: 1,
            instances: 1,
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            ports_file: None,
            mode: Mode::default(),
        };
        let mut args = args.into_iter().skip(1);
        while let Some(flag) = args.next() {
            let flag = flag.to_string_lossy().into_owned();
            let value = args.next().ok_or_else(|| format!("{flag} needs a value\n{USAGE}"))?;
            let text = value.to_string_lossy().into_owned();
            let wrong = |why: &dyn std::fmt::Display| format!("{flag} {text}: {why}\n{USAGE}");
            match flag.as_str() {
                "--name" => flags.name.clone_from(&text),
                "--instance" => flags.instance = text.parse().map_err(|why| wrong(&why))?,
                "--instances" => flags.instances = text.parse().map_err(|why| wrong(&why))?,
                "--listen" => flags.listen = text.parse().map_err(|why| wrong(&why))?,
                "--ports-file" => flags.ports_file = Some(PathBuf::from(value)),
                "--mode" => flags.mode = serde_json::from_str(&text).map_err(|why| wrong(&why))?,
                _ => return Err(format!("{flag} is unknown\n{USAGE}")),
            }
        }
        if flags.name.is_empty() {
            return Err(format!("--name is missing\n{USAGE}"));
        }
        Ok(flags)
    }

    fn run(self) -> io::Result<()> {
        // Nine of these share a machine with what they are there for: one thread each.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let listener = TcpListener::bind(self.listen).await?;
            let at = listener.local_addr()?;
            if let Some(file) = &self.ports_file {
                write_ports(file, at)?;
            }
            let replica = Replica::new(&self.name, self.instance, self.instances, self.mode);
            serve(listener, replica).await
        })
    }
}

/// Whole or not at all: a reader that polls for the file never sees half of it.
fn write_ports(file: &Path, at: SocketAddr) -> io::Result<()> {
    let draft = file.with_extension("draft");
    std::fs::write(&draft, format!("{{\"traffic\":\"{at}\"}}\n"))?;
    std::fs::rename(draft, file)
}
