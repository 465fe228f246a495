//! A log of the past against plans; needs nobody to ask.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// An access log; several are read in order, - is standard input
    #[arg(required = true, value_name = "ACCESS_LOG")]
    pub(crate) logs: Vec<PathBuf>,
    /// TOML file of plans and clients, or a folder of them; may stand often
    #[arg(long = "plans", required = true, value_name = "FILE")]
    pub(crate) plans: Vec<PathBuf>,
    /// What a line looks like; found out from the first one unless said
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) format: Option<LogFormat>,
    /// Field of the client: a position in nginx lines (quotes and brackets count as one), a name in JSON [default: 10, client]
    #[arg(long, value_name = "FIELD")]
    pub(crate) key_field: Option<String>,
    /// Field of the time [default: 4, start_time, time]
    #[arg(long, value_name = "FIELD")]
    pub(crate) time_field: Option<String>,
    /// Field of the route, for plans with costs by route [default: none, route]
    #[arg(long, value_name = "FIELD")]
    pub(crate) route_field: Option<String>,
    /// Plan of clients that stand in no file
    #[arg(long, value_name = "PLAN")]
    pub(crate) default_plan: Option<String>,
    /// List every client, also those that are not refused
    #[arg(long)]
    pub(crate) all: bool,
}

/// What a line looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Combined, with the client in a field behind it
    Nginx,
    /// One JSON object a line, with `start_time`
    Envoy,
    /// One JSON object a line
    Json,
}
