//! Who does what, and why: goes into the audit with every change, in the same transaction.

/// Longest reason, in bytes.
pub(crate) const REASON_BYTES_MAX: usize = 1_024;

/// `via` of a change that is only tried: all of it is done and none of it kept, so no row has it.
pub(crate) const DRY_RUN: &str = "dry_run";

/// Who is behind a change.
#[derive(Debug, Clone)]
pub struct Stamp {
    /// Whose token.
    pub actor: String,
    /// `api`, or `start` for what the program does itself.
    pub via: &'static str,
    /// Why.
    pub reason: String,
    /// Of the request.
    pub request_id: String,
    /// The caller's name for the call, if it may be sent twice.
    pub once: Option<Once>,
}

/// A call that is to be done once however often it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Once {
    /// Whose token.
    pub token_id: String,
    /// The caller's name for it.
    pub name: String,
    /// Of path, query and body.
    pub request_hash: wire::key::KeyHash,
}

impl Stamp {
    /// What the program does itself when it starts.
    pub(crate) fn start() -> Stamp {
        Stamp {
            actor: "weir-plans-api".to_owned(),
            via: "start",
            reason: "first start".to_owned(),
            request_id: String::new(),
            once: None,
        }
    }
}
