//! The command line of `weir-gateway`. What a gateway does stands in its file; flags say which.

use std::io::Write;
use std::path::{Path, PathBuf};

use daemon::{Context, Failure, HasProcessFlags, ProcessFlags};
use wire::key::{ApiKey, KeyEnv};
use wire::name::Name;

use crate::assembly;
use crate::config;
use crate::config::schema::{example, schema};

/// One rate limit per client, at the edge.
#[derive(Debug, clap::Parser)]
#[command(name = "weir-gateway", version)]
pub(crate) struct Flags {
    #[command(subcommand)]
    command: Option<Command>,
    /// The gateway's file.
    #[arg(long, env = "WEIR_GATEWAY_CONFIG", value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    #[command(flatten)]
    process: ProcessFlags,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Judge the file, name every mistake and what is most likely none, start nothing.
    Check,
    /// Print the JSON Schema of the file.
    Schema,
    /// Print a commented file with all defaults.
    Example,
    /// Make an API key for a client of the file: the key on the first line, then its [[key]] table.
    Key {
        /// The client's id.
        #[arg(long)]
        client: String,
    },
}

impl HasProcessFlags for Flags {
    fn process(&self) -> &ProcessFlags {
        &self.process
    }
}

/// Does what the command line says.
pub(crate) async fn run(flags: Flags, context: Context) -> Result<(), Failure> {
    let read = || match &flags.config {
        None => Err(Failure::Settings(vec!["--config: say which file".to_owned()])),
        Some(file) => Ok((config::load(file).map_err(Failure::Settings)?, file.as_path())),
    };
    match &flags.command {
        None => assembly::serve(read()?.0, context).await,
        Some(Command::Schema) => say(&[format!("{:#}", schema())]),
        Some(Command::Example) => say(&[example().trim_end().to_owned()]),
        Some(Command::Check) => {
            let (config, file) = read()?;
            warn(&config::doubts(&config))?;
            say(&[format!("{} is valid", file.display())])
        }
        Some(Command::Key { client }) => {
            let (config, file) = read()?;
            say(&key(&config, client, file)?)
        }
    }
}

fn key(config: &config::Config, client: &str, file: &Path) -> Result<Vec<String>, Failure> {
    Name::new(client).map_err(|error| Failure::Settings(vec![format!("--client: {error}")]))?;
    let key = ApiKey::generate(KeyEnv::Live, assembly::pepper(config)).map_err(Failure::other)?;
    Ok(vec![
        key.text,
        String::new(),
        format!("# into {}:", file.display()),
        "[[key]]".to_owned(),
        format!("id = \"{}\"", key.id),
        format!("client = \"{client}\""),
        format!("hash = \"{}\"", key.hash.to_hex()),
    ])
}

/// On standard error: what is valid and most likely not meant.
fn warn(doubts: &[String]) -> Result<(), Failure> {
    let mut err = std::io::stderr().lock();
    for doubt in doubts {
        writeln!(err, "weir-gateway: warning: {doubt}").map_err(Failure::other)?;
    }
    Ok(())
}

fn say(lines: &[String]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", lines.join("\n")).map_err(Failure::other)
}
