//! What concerns this machine: contexts, and the whole system in one process.

use std::path::PathBuf;
#[cfg(feature = "dev")]
use std::time::Duration;

use clap::Subcommand;
#[cfg(feature = "dev")]
use clap::{Args, Parser};

#[derive(Debug, Subcommand)]
pub(crate) enum ContextCommand {
    /// Keep an address and a token; the first context becomes the current one
    #[command(after_help = "Example:\n  weir context add prod --addr https://weir.example.com \
        --token-file prod.token --production")]
    Add {
        /// Name of the context
        name: String,
        /// Read the token from this file at each use; WEIR_TOKEN is kept otherwise
        #[arg(long, value_name = "PATH")]
        token_file: Option<PathBuf>,
        /// Ask before every change, and want a reason
        #[arg(long)]
        production: bool,
    },
    /// Make a context the current one
    #[command(after_help = "Example:\n  weir context use prod")]
    Use {
        /// Name of the context
        name: String,
    },
    /// All contexts
    #[command(after_help = "Example:\n  weir context list")]
    List,
    /// The one in use, and where it comes from
    #[command(after_help = "Example:\n  weir context show")]
    Show,
    /// Forget a context
    #[command(after_help = "Example:\n  weir context remove prod")]
    Remove {
        /// Name of the context
        name: String,
    },
}

#[cfg(feature = "dev")]
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  weir dev --upstream http://127.0.0.1:3000\n  \
                        weir dev --upstream grpc://127.0.0.1:50051")]
pub(crate) struct Dev {
    /// Where requests go, http:// or grpc://; without it a built-in echo service answers
    #[arg(long, value_name = "URL")]
    pub(crate) upstream: Option<String>,
    /// Buckets in Redis instead of memory
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Plans and evidence in Postgres instead of SQLite files
    #[arg(long, value_name = "URL")]
    pub(crate) database: Option<String>,
    /// Folder of everything that is kept
    #[arg(long, value_name = "DIR", default_value = ".weir")]
    pub(crate) state_dir: PathBuf,
    /// First port to try for the gateway; 0 takes free ports for all parts
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub(crate) port: u16,
    /// How much the parts log to standard error: off, error, warn, info, debug
    #[arg(long, value_name = "LEVEL", default_value = "warn", env = "WEIR_LOG_LEVEL")]
    pub(crate) log_level: String,
    /// Set by cargo: the printed lines then begin with `cargo weir`
    #[arg(long, hide = true, env = "CARGO")]
    pub(crate) cargo: Option<String>,
}

/// What `weir dev` is as a process: logs like those of the three programs.
#[cfg(feature = "dev")]
#[derive(Debug, Parser)]
pub(crate) struct DevProcess {
    #[command(flatten)]
    process: daemon::ProcessFlags,
}

#[cfg(feature = "dev")]
impl daemon::HasProcessFlags for DevProcess {
    fn process(&self) -> &daemon::ProcessFlags {
        &self.process
    }
}

#[cfg(feature = "dev")]
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  weir demo --selftest")]
pub(crate) struct Demo {
    /// Run all phases, check every promise, exit 0 or 1
    #[arg(long)]
    pub(crate) selftest: bool,
    /// Length of a phase
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = humantime::parse_duration)]
    pub(crate) phase: Duration,
}
