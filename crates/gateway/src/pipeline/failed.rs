//! What a caller is told when its service did not answer.

use std::time::Duration;

use wire::error::ErrorCode;

use crate::reply::Problem;
use crate::upstream::Failed;

/// One answer for each reason.
pub(super) fn failed(reason: Failed) -> Problem {
    let second = Duration::from_secs(1);
    match reason {
        Failed::NoEndpoint => {
            let detail = "no endpoint of the service is known";
            Problem::new(ErrorCode::UpstreamUnavailable, detail).retry(second)
        }
        Failed::Overloaded => {
            let detail = "the service has as many requests as it may";
            Problem::new(ErrorCode::Overloaded, detail).retry(second)
        }
        Failed::Unreachable => {
            Problem::new(ErrorCode::UpstreamFailed, "the service could not be reached")
        }
        Failed::Timeout => {
            Problem::new(ErrorCode::UpstreamTimeout, "the service did not answer in time")
        }
        Failed::CallerStalled | Failed::CallerGone => {
            Problem::new(ErrorCode::RequestTimeout, "the body did not arrive")
        }
        Failed::BodyBroken => {
            Problem::new(ErrorCode::BadRequest, "the body is not framed as it should be")
        }
        Failed::BodyTooLarge => {
            Problem::new(ErrorCode::BodyTooLarge, "the body is longer than allowed")
        }
    }
}
