//! What is looked at and done on an ordinary day, and on a bad one.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use wire::client::plans::TopBy;

use super::{ChangeFlags, Named, TOP_BY, one_of};

#[derive(Debug, Args)]
pub(crate) struct Top {
    /// What counts
    #[arg(long, default_value = "requests", value_parser = one_of(&TOP_BY))]
    pub(crate) by: TopBy,
    /// How many
    #[arg(short, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) n: u32,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RouteCommand {
    /// Names of routes, and which gateways have them
    #[command(after_help = "Example:\n  weir route list")]
    List,
    /// Which route a request takes, by a gateway's file
    #[command(after_help = "Example:\n  weir route test GET https://api.example.com/orders/7 \
        --config gateway.toml")]
    Test(RouteTest),
}

#[derive(Debug, Args)]
pub(crate) struct RouteTest {
    /// Method of the request
    pub(crate) method: String,
    /// Its URL, with the host that callers use
    pub(crate) url: String,
    /// A gateway's file
    #[arg(long, value_name = "FILE", default_value = "gateway.toml")]
    pub(crate) config: PathBuf,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KillswitchCommand {
    /// Whether it is set, and at which gateways by hand
    #[command(after_help = "Example:\n  weir killswitch status")]
    Status,
    /// Everybody into shadow, at once, on every gateway
    #[command(after_help = "Example:\n  weir killswitch set --reason \"INC-114\" --yes")]
    Set {
        /// A name for it, to clear it by; made up otherwise
        #[arg(long)]
        id: Option<String>,
        #[command(flatten)]
        change: ChangeFlags,
    },
    /// Phases hold again
    #[command(after_help = "Example:\n  weir killswitch clear inc-114 --yes")]
    Clear(Named),
}

#[derive(Debug, Subcommand)]
pub(crate) enum ApprovalCommand {
    /// All that are kept
    #[command(after_help = "Example:\n  weir approvals list")]
    List,
    /// Do what somebody else asked for
    #[command(after_help = "Example:\n  weir approvals accept k7Q2f9xkda --yes")]
    Accept(Named),
    /// End it without doing it
    #[command(after_help = "Example:\n  weir approvals refuse k7Q2f9xkda --reason \"not now\"")]
    Refuse(Named),
}
