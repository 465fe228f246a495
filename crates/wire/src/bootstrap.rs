//! A whole policy with its keys in a file, for gateways that start where no control plane answers.
//!
//! One JSON object: `format`, `hash` and `content`. The hash is over the bytes of `content` as they
//! stand, so a file that was cut or edited is refused whole, and a newer writer may add fields.
//! Keys stand in it by hash only.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::policy::{FoundKey, Snapshot};

/// The only format there is.
const FORMAT: &str = "weir-bootstrap/1";
/// Longest file that is read, in bytes: a whole policy and half a million keys.
pub const BOOTSTRAP_BYTES_MAX: u64 = 512 << 20;

/// What `weir export --bootstrap` writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bootstrap {
    /// When it was written, in milliseconds since 1970.
    pub written_at: u64,
    /// The policy.
    pub policy: Snapshot,
    /// Every key that may open, once for each of its secrets, with its client. As of the policy's
    /// revision or later.
    pub keys: Vec<FoundKey>,
}

/// Why a file is none.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// Not JSON, or not this JSON.
    #[error("it is no bootstrap file")]
    Unreadable(#[source] serde_json::Error),
    /// Written by something else, or by a later program.
    #[error("its format is `{0}`, known is {FORMAT}")]
    Format(String),
    /// Cut, edited or damaged.
    #[error("its content was changed after it was written: export it again")]
    Hash,
}

#[derive(Serialize, Deserialize)]
struct Envelope<'a> {
    format: String,
    hash: String,
    #[serde(borrow)]
    content: &'a RawValue,
}

impl Bootstrap {
    /// The file's text.
    pub fn to_text(&self) -> String {
        let content = serde_json::to_string(self).expect("bodies have text keys");
        let hash = blake3::hash(content.as_bytes()).to_hex();
        format!("{{\"format\":\"{FORMAT}\",\"hash\":\"{hash}\",\"content\":{content}}}\n")
    }

    /// Reads a file's bytes.
    pub fn parse(bytes: &[u8]) -> Result<Bootstrap, BootstrapError> {
        let envelope: Envelope<'_> =
            serde_json::from_slice(bytes).map_err(BootstrapError::Unreadable)?;
        if envelope.format != FORMAT {
            return Err(BootstrapError::Format(envelope.format.chars().take(80).collect()));
        }
        let content = envelope.content.get();
        if blake3::hash(content.as_bytes()).to_hex().as_str() != envelope.hash {
            return Err(BootstrapError::Hash);
        }
        serde_json::from_str(content).map_err(BootstrapError::Unreadable)
    }
}
