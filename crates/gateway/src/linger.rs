//! The body of a refused request: read and thrown away, within bounds, while the refusal is on its
//! way, so that a caller that writes everything before it reads still gets the answer.
//!
//! A connection that closes with unread data is reset, and a reset takes the answer along. Short
//! bodies are drained and the connection lives on; of a long one as much is taken as the bounds
//! allow, and the connection is closed after it.

use std::time::Duration;

use http_body::Body;
use http_body_util::BodyExt;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout, timeout_at};

use crate::body::Incoming;

/// A body that is known to be this short is worth the connection.
const SHORT_BYTES: u64 = 65_536;
/// Most bytes thrown away.
const DRAINED_BYTES_MAX: u64 = 32 * 1_048_576;
/// Longest wait for the next piece.
const PIECE_WAIT: Duration = Duration::from_secs(2);
/// Longest time over all pieces.
const WHOLE_WAIT: Duration = Duration::from_secs(10);

/// What happens to the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// It may serve further requests.
    Connection,
    /// It is closed after the answer.
    Nothing,
}

/// Drains what was not read, in the background. A caller that `waits` for a word before it sends
/// its body gets the refusal instead.
pub(crate) fn after_refusal(unread: Option<Incoming>, waits: bool) -> Keep {
    let Some(body) = unread.filter(|body| !body.is_end_stream()) else {
        return Keep::Connection;
    };
    if waits {
        return Keep::Nothing;
    }
    let short = body.size_hint().upper().is_some_and(|bytes| bytes <= SHORT_BYTES);
    daemon::tasks::spawn("drain of a refused body", throw_away(body));
    if short { Keep::Connection } else { Keep::Nothing }
}

/// The same for what is left of a body that went to a service, once the service does not read it
/// any more.
pub(crate) fn after_answer(rest: impl Future<Output = Option<Incoming>> + Send + 'static) {
    if Handle::try_current().is_err() {
        return; // its worker has ended
    }
    daemon::tasks::spawn("drain of the rest of a body", async move {
        if let Some(body) = rest.await {
            throw_away(body).await;
        }
    });
}

async fn throw_away(mut body: Incoming) {
    let end = Instant::now() + WHOLE_WAIT;
    let mut bytes = 0;
    while bytes < DRAINED_BYTES_MAX {
        let piece = timeout_at(end, timeout(PIECE_WAIT, body.frame())).await;
        match piece {
            Ok(Ok(Some(Ok(frame)))) => {
                bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
            }
            // Ended, broken or late.
            Ok(Ok(Some(Err(_)) | None) | Err(_)) | Err(_) => return,
        }
    }
}
