//! The script and its name at the server.

use std::sync::LazyLock;

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Script};

/// The script's text.
pub(crate) const TEXT: &str = include_str!("../take.lua");

static DIGEST: LazyLock<String> = LazyLock::new(|| Script::new(TEXT).get_hash().to_owned());

/// The SHA-1 by which a server knows the script.
pub(super) fn digest() -> &'static str {
    &DIGEST
}

/// Teaches it to the server.
pub(super) async fn load(connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
    redis::cmd("SCRIPT").arg("LOAD").arg(TEXT).query_async::<()>(connection).await
}
