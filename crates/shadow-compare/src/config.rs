//! Flags → what the service may rely on, with every mistake at once.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use daemon::settings::{Problems, secret_file};
use daemon::{Failure, HasProcessFlags, ProcessFlags};
use wire::key::{KeyHash, token_hash};

use crate::http::auth::gateway_hashes;

/// Receives what gateways decided and tells how far their decisions and the services' agree.
#[derive(Clone, clap::Parser)]
#[command(name = "weir-shadow-compare", version)]
pub struct Settings {
    /// Where to listen.
    #[arg(
        long,
        env = "WEIR_SHADOW_LISTEN",
        default_value = "127.0.0.1:8082",
        value_name = "ADDRESS"
    )]
    pub listen: SocketAddr,
    /// Where evidence is kept: postgres://… or sqlite://PATH; without it, a file in the state folder.
    #[arg(long, env = "WEIR_SHADOW_DATABASE", value_name = "URL", hide_env_values = true)]
    pub database: Option<String>,
    /// Folder for the default database.
    #[arg(long, env = "WEIR_STATE_DIR", value_name = "DIR", default_value = "/var/lib/weir")]
    pub state_dir: PathBuf,
    /// Hashes of the gateways' tokens, one a line; read again every few seconds.
    #[arg(long, env = "WEIR_GATEWAY_TOKENS_FILE", value_name = "FILE")]
    pub gateway_tokens_file: PathBuf,
    /// The token with which plans-api asks.
    #[arg(long, env = "WEIR_CONTROL_TOKEN_FILE", value_name = "FILE")]
    pub control_token_file: PathBuf,
    /// Seconds between writes of the sums.
    #[arg(long, env = "WEIR_SHADOW_SETTLE_SECONDS", default_value_t = 60, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=600))]
    pub settle_seconds: u64,
    /// Flags that every program has.
    #[command(flatten)]
    pub process: ProcessFlags,
}

impl std::fmt::Debug for Settings {
    /// Without the database, whose URL may hold a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Settings { listen, state_dir, settle_seconds, .. } = self;
        f.debug_struct("Settings")
            .field("listen", listen)
            .field("state_dir", state_dir)
            .field("settle_seconds", settle_seconds)
            .finish_non_exhaustive()
    }
}

impl HasProcessFlags for Settings {
    fn process(&self) -> &ProcessFlags {
        &self.process
    }
}

/// Checked settings.
pub(crate) struct Config {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Where evidence is kept.
    pub database: String,
    /// Hashes of the gateways' tokens.
    pub gateways: Vec<KeyHash>,
    /// Where they came from.
    pub gateway_tokens_file: PathBuf,
    /// Hash of the control token.
    pub control: KeyHash,
    /// Time between writes of the sums.
    pub settle_every: Duration,
}

impl Config {
    /// Reads the files; says everything that is wrong at once.
    pub(crate) fn load(settings: Settings) -> Result<Config, Failure> {
        let mut problems = Problems::new();
        if let Err(error) = std::fs::create_dir_all(&settings.state_dir) {
            problems.add("--state-dir", format!("{}: {error}", settings.state_dir.display()));
        }
        let database = match settings.database {
            Some(url) => url,
            None => format!("sqlite://{}", settings.state_dir.join("shadow.db").display()),
        };
        if !["postgres://", "postgresql://", "sqlite://"].iter().any(|s| database.starts_with(s)) {
            problems.add("--database", "is postgres://… or sqlite://PATH");
        }
        let gateways = gateway_hashes(&settings.gateway_tokens_file).unwrap_or_else(|lines| {
            let file = settings.gateway_tokens_file.display();
            lines.iter().for_each(|line| {
                problems.add("--gateway-tokens-file", format!("{file}: {line}"));
            });
            Vec::new()
        });
        let control =
            problems.check("--control-token-file", secret_file(&settings.control_token_file));
        problems.none_or_err()?;
        Ok(Config {
            listen: settings.listen,
            database,
            gateways,
            gateway_tokens_file: settings.gateway_tokens_file,
            control: token_hash(&control.unwrap_or_default()),
            settle_every: Duration::from_secs(settings.settle_seconds),
        })
    }
}
