//! The script as it ships and the language it is spoken to in: for whoever measures its cost.

use crate::call::{Reply, Request};
use crate::store::redis::{command, script};

/// The script's text.
pub const TEXT: &str = script::TEXT;

/// Calls are made one after another here, so all may bear the same.
const TAG: u16 = 0;

/// The argument that follows the key.
pub fn argument(request: &Request) -> Vec<u8> {
    command::argument(request, TAG)
}

/// Reads the reply to `asked`; `None` if it does not fit.
pub fn reply(text: &[u8], asked: &Request) -> Option<Reply> {
    command::reply(text, asked, TAG).ok()
}
