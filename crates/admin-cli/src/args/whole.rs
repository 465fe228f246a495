//! Whole states: files against what plans-api has.

use clap::Args;

use super::contracts::Files;

/// Taking away what is in no file.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Prune {
    /// Delete what carries the label of --selector and stands in no file
    #[arg(long, requires = "selector")]
    pub(crate) prune: bool,
    /// A label such as team=x
    #[arg(long, value_name = "NAME=TEXT", requires = "prune")]
    pub(crate) selector: Option<String>,
    /// More than a tenth of what carries the label: so many at most
    #[arg(long, value_name = "N", requires = "prune")]
    pub(crate) allow_deletes: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct Diff {
    #[command(flatten)]
    pub(crate) files: Files,
    /// Of what is in no file, tell only what carries this label
    #[arg(long, value_name = "NAME=TEXT")]
    pub(crate) selector: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Export {
    /// Instead: a bootstrap file for gateways that start where no control plane answers
    #[arg(long)]
    pub(crate) bootstrap: bool,
}
