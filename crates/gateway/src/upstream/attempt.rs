//! One attempt: a request goes to one endpoint, once, and the head of its response is waited for.

use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;
use http::{Request, StatusCode};
use tokio::time::Instant;

use super::connections::{ConnectError, Lease, SendError};
use super::health::Met;
use super::{Endpoint, Failed, Way, address_to, is_whole};
use crate::body::{Incoming, Upload, UploadEnd, UploadWatch};

/// How long an attempt may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// From the last byte of the request to the head of the response.
    pub head: Duration,
    /// Whatever happens.
    pub end: Option<Instant>,
}

/// Why an attempt gave no response.
#[derive(Debug)]
pub(super) enum Ended {
    /// There was no connection.
    Unconnected(Box<Request<Upload>>),
    /// The connection had closed before anything was written.
    Unsent(Box<Request<Upload>>),
    /// It ended before a response; the request may have arrived.
    Cut {
        /// Its connection goes on: the service has ended this exchange.
        alone: bool,
    },
    /// In a way that another attempt does not mend.
    Failed(Failed),
}

impl Way {
    /// A connection, and whether it was used before.
    async fn connection(
        &self,
        endpoint: &Arc<Endpoint>,
        use_kept: bool,
    ) -> Result<(Lease, bool), ConnectError> {
        if use_kept && let Some(lease) = self.connections.kept(endpoint).await {
            return Ok((lease, true));
        }
        // Apart, for most requests find a connection and are not to carry the room for making one.
        Ok((Box::pin(self.connections.connect(endpoint)).await?, false))
    }

    /// Sends the request to one endpoint, once.
    pub(super) async fn attempt(
        &self,
        mut request: Request<Upload>,
        target: &PathAndQuery,
        endpoint: &Arc<Endpoint>,
        use_kept: bool,
        watch: &mut Option<UploadWatch>,
        times: Times,
    ) -> Result<(http::Response<Incoming>, Lease), Ended> {
        let upstream = &self.upstream;
        let (mut lease, kept) = match self.connection(endpoint, use_kept).await {
            Ok(connection) => connection,
            Err(error) => {
                upstream.metrics.connect.inc();
                upstream.met(endpoint, Met::Failure);
                tracing::debug!(upstream = %upstream.config.name, %error, "not connected");
                return Err(Ended::Unconnected(Box::new(request)));
            }
        };
        address_to(&mut request, target, endpoint, lease.scheme());
        let ended = match self.head(&mut lease, request, watch, times).await {
            Ok(response) => {
                let met = match response.status() {
                    StatusCode::BAD_GATEWAY
                    | StatusCode::SERVICE_UNAVAILABLE
                    | StatusCode::GATEWAY_TIMEOUT => Met::Failure,
                    _ => Met::Answer,
                };
                upstream.met(endpoint, met);
                return Ok((response, lease));
            }
            Err(ended) => ended,
        };
        let fails = match &ended {
            // A kept connection that closes tells that it was kept too long, and no more.
            Ended::Unconnected(_) | Ended::Unsent(_) => !kept,
            Ended::Cut { alone } => *alone || !kept,
            Ended::Failed(failed) => matches!(failed, Failed::Unreachable | Failed::Timeout),
        };
        if fails {
            upstream.met(endpoint, Met::Failure);
        }
        if matches!(ended, Ended::Failed(Failed::Timeout)) {
            lease.abandon();
        }
        Err(ended)
    }

    /// Waits for the response head: as long as the body moves, and `head_timeout` after its end.
    async fn head(
        &self,
        lease: &mut Lease,
        request: Request<Upload>,
        watch: &mut Option<UploadWatch>,
        times: Times,
    ) -> Result<http::Response<Incoming>, Ended> {
        let mut sending = std::pin::pin!(lease.send(request));
        if let Some(watch) = watch.as_mut() {
            tokio::select! {
                biased;
                sent = &mut sending => return self.sent(sent, Some(watch)),
                stopped = uploaded(watch, self.upstream.config.idle_timeout) => match stopped {
                    Ok(()) => {}
                    Err(failed) => return Err(Ended::Failed(failed)),
                },
            }
        }
        let until = Instant::now() + times.head;
        // A service that is silent to the end of the whole time is as silent.
        let until = times.end.map_or(until, |end| end.min(until));
        match tokio::time::timeout_at(until, sending).await {
            Ok(sent) => self.sent(sent, watch.as_mut()),
            Err(_elapsed) => {
                self.upstream.metrics.timeout.inc();
                Err(Ended::Failed(Failed::Timeout))
            }
        }
    }

    fn sent(
        &self,
        sent: Result<http::Response<Incoming>, SendError>,
        watch: Option<&mut UploadWatch>,
    ) -> Result<http::Response<Incoming>, Ended> {
        match sent {
            Ok(response) if is_whole(&response) => Ok(response),
            Ok(response) => {
                self.upstream.metrics.broken.inc();
                let (upstream, status) = (&self.upstream.config.name, response.status());
                tracing::debug!(%upstream, %status, "a response with two readings");
                Err(Ended::Failed(Failed::Unreachable))
            }
            Err(SendError::Unsent(request)) => Err(Ended::Unsent(request)),
            Err(SendError::Broken(error)) => {
                let failed = match watch.and_then(UploadWatch::has_ended) {
                    Some(UploadEnd::TooLarge) => Failed::BodyTooLarge,
                    Some(UploadEnd::Broken) => Failed::CallerGone,
                    Some(UploadEnd::Unframed) => Failed::BodyBroken,
                    Some(UploadEnd::Complete) | None => {
                        self.upstream.metrics.broken.inc();
                        tracing::debug!(upstream = %self.upstream.config.name, %error, "no response");
                        if !error.is_parse() && !error.is_user() {
                            return Err(Ended::Cut { alone: is_reset(&error) });
                        }
                        Failed::Unreachable // what came is no HTTP
                    }
                };
                Err(Ended::Failed(failed))
            }
        }
    }
}

/// Whether the service has reset a stream of HTTP/2 that it had taken on.
fn is_reset(error: &hyper::Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref());
    cause.is_some_and(|cause: &h2::Error| {
        cause.is_reset() && cause.is_remote() && cause.reason() != Some(h2::Reason::REFUSED_STREAM)
    })
}

/// Waits for the end of the upload, as long as it moves.
async fn uploaded(watch: &mut UploadWatch, idle: Duration) -> Result<(), Failed> {
    let mut pieces = watch.pieces();
    loop {
        match tokio::time::timeout(idle, watch.end()).await {
            // Abandoned: the service answered early or is gone; the response will tell.
            Ok(Some(UploadEnd::Complete) | None) => return Ok(()),
            Ok(Some(UploadEnd::Broken)) => return Err(Failed::CallerGone),
            Ok(Some(UploadEnd::Unframed)) => return Err(Failed::BodyBroken),
            Ok(Some(UploadEnd::TooLarge)) => return Err(Failed::BodyTooLarge),
            Err(_elapsed) => {
                let now = watch.pieces();
                if now == pieces {
                    let caller = watch.caller_owes();
                    return Err(if caller { Failed::CallerStalled } else { Failed::Timeout });
                }
                pieces = now;
            }
        }
    }
}
