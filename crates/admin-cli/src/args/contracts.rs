//! Plans, clients, keys, limits, tokens, and files of them.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use wire::client::plans::Role;
use wire::key::KeyEnv;

use super::{ChangeFlags, ENVS, Prune, one_of, role};

#[derive(Debug, Subcommand)]
pub(crate) enum PlanCommand {
    /// All plans
    #[command(after_help = "Example:\n  weir plan list -o name")]
    List,
    /// One plan
    #[command(after_help = "Example:\n  weir plan get pro -o json")]
    Get {
        /// Name of the plan
        name: String,
    },
    /// Make a plan, or change what the flags name
    #[command(
        after_help = "Example:\n  weir plan set pro --burst 100@50/s --sustained 2000000@2000000/d"
    )]
    Set(Box<PlanSet>),
    /// Delete a plan that no client uses
    #[command(after_help = "Example:\n  weir plan delete old --yes")]
    Delete {
        /// Name of the plan
        name: String,
        #[command(flatten)]
        change: ChangeFlags,
    },
    /// Every change of a plan, oldest first
    #[command(after_help = "Example:\n  weir plan history pro")]
    History {
        /// Name of the plan
        name: String,
    },
    /// Look for plans that are valid but odd
    #[command(after_help = "Example:\n  weir plan lint -f plans.toml")]
    Lint {
        /// Files instead of what plans-api has
        #[arg(short, long = "file", value_name = "PATH")]
        files: Vec<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct PlanSet {
    /// Name of the plan
    pub(crate) name: String,
    /// Burst limit: capacity@refill, such as 100@50/s
    #[arg(long, value_name = "N@RATE", allow_hyphen_values = true)]
    pub(crate) burst: Option<String>,
    /// Sustained limit in the same form, or none
    #[arg(long, value_name = "N@RATE", allow_hyphen_values = true)]
    pub(crate) sustained: Option<String>,
    /// Admitted without the store: closed, local, coarse, open or a share of the plan
    #[arg(long, value_name = "POLICY", allow_hyphen_values = true)]
    pub(crate) failure: Option<String>,
    /// What shares a bucket: client or key
    #[arg(long)]
    pub(crate) scope: Option<String>,
    /// Cost of a route; may stand often, replaces all cost rules
    #[arg(long = "cost", value_name = "[METHOD:]ROUTE=N")]
    pub(crate) costs: Vec<String>,
    /// No limits at all
    #[arg(long, conflicts_with_all = ["burst", "sustained"])]
    pub(crate) unlimited: bool,
    /// Labels for selecting; may stand often, replaces all labels
    #[arg(long = "label", value_name = "NAME=TEXT")]
    pub(crate) labels: Vec<String>,
    /// A note for people
    #[arg(long)]
    pub(crate) note: Option<String>,
    /// Take the plan of this name from a file of plans instead
    #[arg(short, long, value_name = "PATH", conflicts_with_all =
          ["burst", "sustained", "failure", "scope", "costs", "unlimited", "labels", "note"])]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) change: ChangeFlags,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ClientCommand {
    /// All clients
    #[command(after_help = "Example:\n  weir client list --plan pro")]
    List {
        /// Only those of this plan
        #[arg(long)]
        plan: Option<String>,
        /// Only those with limits of their own now
        #[arg(long)]
        overridden: bool,
    },
    /// One client
    #[command(after_help = "Example:\n  weir client get acme")]
    Get {
        /// Id of the client
        id: String,
    },
    /// Make a client, or change what the flags name
    #[command(after_help = "Example:\n  weir client set acme --plan pro --reason \"upgrade\"")]
    Set(ClientSet),
    /// Delete a client and its keys
    #[command(after_help = "Example:\n  weir client delete acme --yes")]
    Delete(Named),
    /// Refuse all its requests until it is resumed
    #[command(after_help = "Example:\n  weir client suspend acme --reason \"abuse\" --yes")]
    Suspend(Named),
    /// Let a suspended client call again
    #[command(after_help = "Example:\n  weir client resume acme --wait=10s")]
    Resume(Named),
    /// Limits of its own for a time, in place of its plan's
    #[command(subcommand, after_help = "Example:\n  weir client override clear acme --yes")]
    Override(OverrideCommand),
    /// Everything that decides what it may do now
    #[command(after_help = "Example:\n  weir client explain acme")]
    Explain {
        /// Id of the client
        id: String,
    },
    /// What it used, minute by minute
    #[command(after_help = "Example:\n  weir client usage acme --since 3m")]
    Usage {
        /// Id of the client
        id: String,
        /// How far back, at most a day
        #[arg(long, value_name = "TIME", default_value = "60m",
              value_parser = humantime::parse_duration)]
        since: Duration,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum OverrideCommand {
    /// Give it limits of its own; they end by themselves
    #[command(after_help = "Example:\n  weir client override set acme --burst 200@100/s \
        --for 7d --reason \"launch\"")]
    Set(OverrideSet),
    /// Let its plan's limits hold again
    #[command(after_help = "Example:\n  weir client override clear acme --yes")]
    Clear(Named),
}

#[derive(Debug, Args)]
pub(crate) struct OverrideSet {
    /// Id of the client
    pub(crate) id: String,
    /// Burst limit: capacity@refill, such as 200@100/s
    #[arg(long, value_name = "N@RATE", allow_hyphen_values = true)]
    pub(crate) burst: Option<String>,
    /// Sustained limit in the same form
    #[arg(long, value_name = "N@RATE", allow_hyphen_values = true)]
    pub(crate) sustained: Option<String>,
    /// Admitted without the store: closed, local, coarse, open or a share of the limits
    #[arg(long, value_name = "POLICY", allow_hyphen_values = true)]
    pub(crate) failure: Option<String>,
    /// How long it holds, at most a year
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) lasting: Duration,
    #[command(flatten)]
    pub(crate) change: ChangeFlags,
}

/// One object by its id, and a change to it.
#[derive(Debug, Args)]
pub(crate) struct Named {
    /// Its id, as `list` shows it
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) change: ChangeFlags,
}

#[derive(Debug, Args)]
pub(crate) struct ClientSet {
    /// Id of the client
    pub(crate) id: String,
    /// Its plan; needed for a new client
    #[arg(long)]
    pub(crate) plan: Option<String>,
    /// A name for people
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Labels; may stand often, replaces all labels
    #[arg(long = "label", value_name = "NAME=TEXT")]
    pub(crate) labels: Vec<String>,
    #[command(flatten)]
    pub(crate) change: ChangeFlags,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// A new key; it is shown once
    #[command(after_help = "Example:\n  weir key create acme --env test --expires-in 90d")]
    Create {
        /// Client that the key will belong to
        client: String,
        /// live or test
        #[arg(long, default_value = "live", value_parser = one_of(&ENVS))]
        env: KeyEnv,
        /// Ends after this time
        #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
        expires_in: Option<Duration>,
        #[command(flatten)]
        change: ChangeFlags,
    },
    /// All keys, never their secrets
    #[command(after_help = "Example:\n  weir key list --client acme")]
    List {
        /// Only those of this client
        #[arg(long)]
        client: Option<String>,
    },
    /// One key
    #[command(after_help = "Example:\n  weir key get k7Q2f9xkda")]
    Get {
        /// Id of the key: the third part of its text
        id: String,
    },
    /// Stop a key for now
    #[command(after_help = "Example:\n  weir key disable k7Q2f9xkda")]
    Disable(Named),
    /// Let a disabled key work again
    #[command(after_help = "Example:\n  weir key enable k7Q2f9xkda")]
    Enable(Named),
    /// Stop a key for ever
    #[command(after_help = "Example:\n  weir key revoke k7Q2f9xkda --reason \"leak\" --yes --wait")]
    Revoke(Named),
    /// A new secret for a key, shown once; the old one ends after a while
    #[command(after_help = "Example:\n  weir key rotate k7Q2f9xkda --overlap 24h")]
    Rotate {
        /// Id of the key
        id: String,
        /// How long the old secret still opens; 0s ends it at once [default: 24h]
        #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
        overlap: Option<Duration>,
        #[command(flatten)]
        change: ChangeFlags,
    },
    /// Take over keys that were made elsewhere, by their SHA-256
    #[command(after_help = "Example:\n  weir key import keys.csv --reason \"from the old system\"")]
    Import {
        /// CSV (sha256,client,expires_at) or a JSON list of such objects; - is standard input
        file: PathBuf,
        #[command(flatten)]
        change: ChangeFlags,
    },
    /// When a key's secrets were last used
    #[command(after_help = "Example:\n  weir key usage k7Q2f9xkda")]
    Usage {
        /// Id of the key
        id: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum LimitCommand {
    /// Levels of a client's buckets, read without taking
    #[command(after_help = "Example:\n  weir limit inspect acme -o json")]
    Inspect {
        /// Client whose buckets are read
        client: String,
    },
    /// Would a request of this cost pass now? Takes nothing
    #[command(after_help = "Example:\n  weir limit try acme --cost 5")]
    Try {
        /// Client whose buckets are read
        client: String,
        /// Tokens that the request would take
        #[arg(long, default_value_t = 1)]
        cost: u64,
    },
    /// Hold the last hour's exact minutes against what the limits allow; exit 14 if one is above
    #[command(after_help = "Example:\n  weir limit verify acme")]
    Verify {
        /// Client whose minutes are checked
        client: String,
    },
    /// Fill a client's buckets
    #[command(after_help = "Example:\n  weir limit reset acme --reason \"our fault\"")]
    Reset {
        /// Client whose buckets are filled
        client: String,
        #[command(flatten)]
        change: ChangeFlags,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Apply {
    #[command(flatten)]
    pub(crate) files: Files,
    #[command(flatten)]
    pub(crate) prune: Prune,
    #[command(flatten)]
    pub(crate) change: ChangeFlags,
}

#[derive(Debug, Args)]
pub(crate) struct Files {
    /// A TOML file, or a folder of them; may stand often, - is standard input
    #[arg(short, long = "file", required = true, value_name = "PATH")]
    pub(crate) files: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Validate {
    /// A TOML file, or a folder of them; - is standard input
    #[arg(value_name = "FILE", required_unless_present = "files")]
    pub(crate) paths: Vec<PathBuf>,
    /// The same with a flag, as apply has it; may stand often
    #[arg(short, long = "file", value_name = "PATH")]
    pub(crate) files: Vec<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// All operator tokens, never their secrets
    #[command(after_help = "Example:\n  weir token list")]
    List,
    /// A new token; it is shown once
    #[command(after_help = "Example:\n  weir token create ana --role operator --expires-in 90d")]
    Create {
        /// Whose it is
        name: String,
        /// What it may do
        #[arg(long, value_parser = role())]
        role: Role,
        /// Ends after this time
        #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
        expires_in: Option<Duration>,
        #[command(flatten)]
        change: ChangeFlags,
    },
    /// End a token
    #[command(after_help = "Example:\n  weir token revoke k7Q2f9xkda --yes")]
    Revoke(Named),
}
