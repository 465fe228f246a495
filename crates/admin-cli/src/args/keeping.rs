//! What is kept: backups.

use std::path::PathBuf;

use clap::Subcommand;

use super::ChangeFlags;

#[derive(Debug, Subcommand)]
pub(crate) enum BackupCommand {
    /// Write everything that plans-api knows to a file
    ///
    /// Plans, clients, hashes of keys and tokens, the rollout, the audit. The pepper is not in it:
    /// keep a copy of that file elsewhere, without it the hashes of keys open nothing.
    #[command(after_help = "Example:\n  weir backup create weir-2026-12-01.ndjson")]
    Create {
        /// The file; it must not be there yet
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Replace everything that plans-api knows by a backup
    ///
    /// Tokens that are here stay, and keys that were revoked here stay revoked. Gateways read the
    /// restored policy at once and serve the old one until then.
    #[command(after_help = "Example:\n  \
        weir backup restore weir-2026-12-01.ndjson --reason \"disk lost\" --wait --yes")]
    Restore {
        /// A file that `weir backup create` wrote
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        change: ChangeFlags,
    },
}
