//! Flags, what they come to, and the files of the state folder. Every mistake is told at once.

use std::fmt;
use std::fs::DirBuilder;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use daemon::settings::{Problems, secret_file, write_private};
use daemon::{Failure, HasProcessFlags, ProcessFlags};
use wire::key::Pepper;

/// The control plane of Weir: plans, clients, API keys, rollout.
#[derive(Clone, clap::Parser)]
#[command(name = "weir-plans-api", version)]
pub struct Flags {
    #[command(flatten)]
    process: ProcessFlags,
    /// Where to listen; port 0 takes a free one.
    #[arg(long, env = "WEIR_PLANS_LISTEN", default_value = "127.0.0.1:8081")]
    listen: String,
    /// Allow another address than loopback although the API speaks plain HTTP: something in front
    /// of it must then keep tokens secret.
    #[arg(long, env = "WEIR_PLANS_INSECURE")]
    insecure: bool,
    /// `postgres://…` or `sqlite://PATH`; default: `plans.db` in the state folder.
    #[arg(long, env = "WEIR_PLANS_DATABASE", value_name = "URL", hide_env_values = true)]
    database: Option<String>,
    /// A file with the database's URL, if it has a password.
    #[arg(long, value_name = "PATH", conflicts_with = "database")]
    database_file: Option<PathBuf>,
    /// Folder for the pepper and the embedded database.
    #[arg(long, env = "WEIR_STATE_DIR", value_name = "DIR", default_value = "/var/lib/weir")]
    state_dir: PathBuf,
    /// Address of shadow-compare; without it there is no evidence, so no `--all enforce`.
    #[arg(long, env = "WEIR_SHADOW_COMPARE", value_name = "URL", requires = "control_token_file")]
    shadow_compare: Option<String>,
    /// The secret that shadow-compare shares with this process.
    #[arg(long, value_name = "PATH")]
    control_token_file: Option<PathBuf>,
    /// The secret of the gateways' operations ports.
    #[arg(long, value_name = "PATH")]
    operations_token_file: Option<PathBuf>,
    /// Also write the bootstrap token to this file (0600), for automation.
    #[arg(long, value_name = "PATH")]
    bootstrap_token_file: Option<PathBuf>,
}

impl fmt::Debug for Flags {
    /// Without the database, whose URL may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Flags { listen, state_dir, .. } = self;
        f.debug_struct("Flags")
            .field("listen", listen)
            .field("state_dir", state_dir)
            .finish_non_exhaustive()
    }
}

impl HasProcessFlags for Flags {
    fn process(&self) -> &ProcessFlags {
        &self.process
    }
}

/// What the process runs with.
#[derive(Clone)]
pub struct Settings {
    /// Where to listen.
    pub listen: SocketAddr,
    /// URL of the database.
    pub database: String,
    /// Folder for the pepper.
    pub state_dir: PathBuf,
    /// Where the evidence is.
    pub shadow_compare: Option<ShadowCompare>,
    /// The secret of the gateways' operations ports.
    pub operations_token: Option<String>,
    /// Where to write the bootstrap token.
    pub bootstrap_token_file: Option<PathBuf>,
}

/// Where the evidence is, and the secret shared with it.
#[derive(Clone)]
pub struct ShadowCompare {
    /// Its address.
    pub url: String,
    /// The shared secret.
    pub control_token: String,
}

impl fmt::Debug for Settings {
    /// Without the database, whose URL may hold a password, and without the operations token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings { listen, state_dir, shadow_compare, .. } = self;
        f.debug_struct("Settings")
            .field("listen", listen)
            .field("state_dir", state_dir)
            .field("shadow_compare", shadow_compare)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ShadowCompare {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShadowCompare").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Settings {
    /// The embedded database of a state folder.
    pub fn database_in(state_dir: &Path) -> String {
        format!("sqlite://{}", state_dir.join("plans.db").display())
    }
}

impl Flags {
    /// Reads the files and checks every flag.
    pub fn check(self) -> Result<Settings, Failure> {
        let mut problems = Problems::new();
        let listen = problems
            .check(format_args!("--listen {}", self.listen), self.listen.parse::<SocketAddr>());
        if let Some(listen) = listen
            && !listen.ip().is_loopback()
            && !self.insecure
        {
            let what = "is not loopback, and the API speaks plain HTTP: say --insecure if something in front keeps tokens secret";
            problems.add(format_args!("--listen {listen}"), what);
        }
        let mut secret = |flag: &str, path: Option<PathBuf>| {
            path.and_then(|path| problems.check(flag, secret_file(&path)))
        };
        let database = secret("--database-file", self.database_file);
        let control_token = secret("--control-token-file", self.control_token_file);
        let operations_token = secret("--operations-token-file", self.operations_token_file);
        if let Err(error) = private_folder(&self.state_dir) {
            problems.add(format_args!("--state-dir {}", self.state_dir.display()), error);
        }
        let database =
            database.or(self.database).unwrap_or_else(|| Settings::database_in(&self.state_dir));
        if !["postgres://", "postgresql://", "sqlite://"].iter().any(|s| database.starts_with(s)) {
            problems.add("--database", "must be postgres://… or sqlite://PATH");
        }
        let shadow_compare = self.shadow_compare.zip(control_token);
        problems.none_or_err()?;
        let listen = listen.ok_or_else(|| Failure::Settings(vec!["--listen".to_owned()]))?;
        Ok(Settings {
            listen,
            database,
            state_dir: self.state_dir,
            shadow_compare: shadow_compare
                .map(|(url, control_token)| ShadowCompare { url, control_token }),
            operations_token,
            bootstrap_token_file: self.bootstrap_token_file,
        })
    }
}

fn private_folder(path: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// The pepper of a state folder; made (0600) if there is none.
pub(crate) fn pepper(state_dir: &Path) -> Result<Pepper, Failure> {
    let wrong = |what: String| Failure::Settings(vec![format!("--state-dir: {what}")]);
    private_folder(state_dir)
        .map_err(|error| wrong(format!("{}: {error}", state_dir.display())))?;
    let path = state_dir.join("pepper");
    match std::fs::read(&path) {
        Ok(bytes) => Pepper::from_bytes(&bytes)
            .map_err(|error| wrong(format!("{}: {error}", path.display()))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let pepper = Pepper::generate().map_err(Failure::other)?;
            write_private(&path, pepper.bytes()).map_err(|error| wrong(error.to_string()))?;
            Ok(pepper)
        }
        Err(error) => Err(wrong(format!("{}: {error}", path.display()))),
    }
}
