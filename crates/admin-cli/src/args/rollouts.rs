//! Moves of a rollout, and what they rest on: gate, shadow, gateways, audit.

use std::time::Duration;

use clap::{Args, Subcommand};
use wire::audit::AuditPlace;
use wire::client::plans::TopBy;
use wire::rollout::Phase;

use super::{BACK_TO, ChangeFlags, PHASES, TOP_BY, one_of};

#[derive(Debug, Subcommand)]
pub(crate) enum RolloutCommand {
    /// Put clients, or all of them, into a phase
    #[command(
        after_help = "Examples:\n  weir rollout set edge --all shadow --reason \"week 1\"\n  \
        weir rollout set edge --client acme,zeta enforce --reason \"canary\" --yes"
    )]
    Set {
        /// Name of the rollout; a new one is made
        name: String,
        /// off, shadow or enforce
        #[arg(value_parser = one_of(&PHASES))]
        phase: Phase,
        /// These clients; may stand often or be a list with commas
        #[arg(
            long = "client",
            value_name = "ID",
            value_delimiter = ',',
            required_unless_present = "all",
            conflicts_with = "all"
        )]
        clients: Vec<String>,
        /// Everybody; enforcing all has to pass the gate
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        change: ChangeFlags,
    },
    /// Everybody back to shadow (or off), at once and without a gate
    #[command(after_help = "Example:\n  weir rollout rollback edge --reason \"INC-114\" --wait")]
    Rollback {
        /// Name of the rollout
        name: String,
        /// shadow or off
        #[arg(long, default_value = "shadow", value_parser = one_of(&BACK_TO))]
        to: Phase,
        #[command(flatten)]
        change: ChangeFlags,
    },
    /// One rollout: its rules and its history
    #[command(after_help = "Example:\n  weir rollout get edge")]
    Get {
        /// Name of the rollout
        name: String,
    },
    /// All rollouts
    #[command(after_help = "Example:\n  weir rollout list")]
    List,
}

#[derive(Debug, Subcommand)]
pub(crate) enum GateCommand {
    /// May all be enforced? Exit 0: yes; 3: differs too much; 4: too few pairs
    #[command(after_help = "Example:\n  weir gate status edge")]
    Status {
        /// Name of the rollout
        name: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum ShadowCommand {
    /// The clients hit most
    #[command(after_help = "Example:\n  weir shadow top --by disagree -n 3")]
    Top {
        /// What counts
        #[arg(long, default_value = "would-deny", value_parser = one_of(&TOP_BY))]
        by: TopBy,
        /// How many
        #[arg(short, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
        n: u32,
    },
    /// Both decisions about one request
    #[command(after_help = "Example:\n  weir shadow explain 01JABCDEF0")]
    Explain {
        /// The answer's x-request-id
        request_id: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum GatewayCommand {
    /// All known gateways
    #[command(after_help = "Example:\n  weir gateway list -o json")]
    List,
    /// One gateway: what it has, and what it would not take
    #[command(after_help = "Example:\n  weir gateway get gw-1")]
    Get {
        /// Its id, as `list` shows it
        id: String,
    },
    /// Count a gateway no more that is gone for good
    #[command(after_help = "Example:\n  weir gateway forget gw-9 --yes")]
    Forget(super::Named),
}

#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// Changes, oldest first
    #[command(after_help = "Examples:\n  weir audit list -o json\n  \
        weir audit list --actor ana --kind plan --id pro --since 24h")]
    List(AuditList),
    /// Walk the audit's chain and name the first row that was altered, dropped, moved or cut
    #[command(after_help = "Examples:\n  weir audit verify\n  \
        weir audit verify --kept 0:0000000000000000000000000000000000000000000000000000000000000000")]
    Verify {
        /// A tip kept elsewhere (`weir audit tip`): the chain has to pass it
        #[arg(long, value_name = "SEQ:HASH", value_parser = kept_tip)]
        kept: Option<AuditPlace>,
    },
    /// Number and hash of the newest change, to keep elsewhere
    #[command(after_help = "Example:\n  weir audit tip")]
    Tip,
}

/// Which changes.
#[derive(Debug, Args)]
pub(crate) struct AuditList {
    /// Only of this token: its name, its id, or both as the list shows them
    #[arg(long, value_name = "NAME")]
    pub(crate) actor: Option<String>,
    /// Only of objects of this kind: plan, client, key, rollout, token
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Option<String>,
    /// Only of objects with this id
    #[arg(long, value_name = "ID")]
    pub(crate) id: Option<String>,
    /// Only of the last time
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) since: Option<Duration>,
}

fn kept_tip(text: &str) -> Result<AuditPlace, &'static str> {
    AuditPlace::parse(text).ok_or("must be SEQ:HASH as `weir audit tip` prints it")
}
