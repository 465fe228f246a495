//! Moves of a rollout, and what they rest on: gate, shadow, gateways, audit.

use clap::Subcommand;
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
    /// All changes, oldest first
    #[command(after_help = "Example:\n  weir audit list -o json")]
    List,
}
