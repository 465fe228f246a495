//! The one map from errors to statuses, codes and messages. The caller reads what it can act on;
//! the log reads the chain of causes.

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use axum::http::{Response as HttpResponse, StatusCode};
use axum::response::{IntoResponse, Response};
use daemon::log::chain;
use daemon::sql::SqlError;
use wire::error::{ErrorBody, ErrorCode, FieldError, PROBLEM_JSON};

use crate::auth::Denied;
use crate::store::StoreError;

/// Every code that this program answers with; the list that callers are promised.
pub const CODES: &[ErrorCode] = &[
    ErrorCode::BadRequest,
    ErrorCode::TokenMissing,
    ErrorCode::TokenInvalid,
    ErrorCode::RoleTooSmall,
    ErrorCode::OwnApproval,
    ErrorCode::NotFound,
    ErrorCode::MethodNotAllowed,
    ErrorCode::BodyTooLarge,
    ErrorCode::InUse,
    ErrorCode::AlreadyCreated,
    ErrorCode::NotNextStep,
    ErrorCode::GateRefused,
    ErrorCode::HistoryGone,
    ErrorCode::Changed,
    ErrorCode::CapacityOutOfRange,
    ErrorCode::RefillOutOfRange,
    ErrorCode::Resolution,
    ErrorCode::CostOutOfRange,
    ErrorCode::FailureOutOfRange,
    ErrorCode::UnlimitedWithLimits,
    ErrorCode::UnknownField,
    ErrorCode::InvalidValue,
    ErrorCode::PolicyTooLarge,
    ErrorCode::IdempotencyMismatch,
    ErrorCode::PreconditionMissing,
    ErrorCode::TooManyAttempts,
    ErrorCode::Internal,
    ErrorCode::DatabaseUnavailable,
    ErrorCode::GatewayUnreachable,
    ErrorCode::EvidenceUnavailable,
];

/// Seconds after which a call may succeed that found no database or no evidence.
const TRY_AGAIN_SECONDS: u64 = 1;

/// A refusal on its way out.
#[derive(Debug)]
pub(crate) struct ApiError {
    body: Box<ErrorBody>,
    retry_after: Option<u64>,
    /// The call was done before: its first answer takes the place of this one.
    repeated: bool,
}

/// Marks the response to a call that was done before.
#[derive(Debug, Clone, Copy)]
pub(super) struct Repeated;

impl ApiError {
    /// A refusal that needs no more words than its title.
    pub(crate) fn of(code: ErrorCode) -> ApiError {
        ErrorBody::new(code, code.title()).into()
    }

    /// Its code.
    #[cfg(test)]
    pub(super) const fn code(&self) -> ErrorCode {
        self.body.code
    }

    /// Our fault: the caller reads little, the log all.
    pub(crate) fn internal(error: impl std::error::Error + 'static) -> ApiError {
        tracing::error!(error = %chain(&error), "internal error");
        ApiError::of(ErrorCode::Internal)
    }
}

impl From<ErrorBody> for ApiError {
    fn from(body: ErrorBody) -> ApiError {
        let retry_after = (body.status == 503).then_some(TRY_AGAIN_SECONDS);
        ApiError { body: Box::new(body), retry_after, repeated: false }
    }
}

impl From<ErrorCode> for ApiError {
    fn from(code: ErrorCode) -> ApiError {
        ApiError::of(code)
    }
}

impl From<Box<ErrorBody>> for ApiError {
    fn from(body: Box<ErrorBody>) -> ApiError {
        (*body).into()
    }
}

impl From<Vec<FieldError>> for ApiError {
    fn from(errors: Vec<FieldError>) -> ApiError {
        ErrorBody::of_fields(errors).into()
    }
}

impl From<Denied> for ApiError {
    fn from(denied: Denied) -> ApiError {
        match denied {
            Denied::Refused(body, retry_after) => ApiError { body, retry_after, repeated: false },
            Denied::Store(error) => error.into(),
        }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> ApiError {
        let detail = error.to_string();
        match error {
            StoreError::NotFound { .. } => ErrorBody::new(ErrorCode::NotFound, detail).into(),
            StoreError::Changed { object, .. } => {
                let body = ErrorBody::new(ErrorCode::Changed, detail)
                    .with_hint("look at the object as it is now and decide anew");
                ErrorBody { object: object.map(|object| *object), ..body }.into()
            }
            StoreError::Repeated => {
                ApiError { repeated: true, ..ErrorBody::new(ErrorCode::InUse, detail).into() }
            }
            StoreError::Unusable(_) => ErrorBody::new(ErrorCode::InvalidValue, detail).into(),
            StoreError::InUse(_) => ErrorBody::new(ErrorCode::InUse, detail).into(),
            StoreError::Refused(errors) => errors.into(),
            StoreError::HistoryGone(_) => ErrorBody::new(ErrorCode::HistoryGone, detail)
                .with_hint("read the snapshot and go on from its revision")
                .into(),
            StoreError::Sql(error) => of_sql(error),
            // Whoever may read the object may read what is wrong with it, and has to mend it.
            StoreError::Damaged { .. } => {
                tracing::error!(%error, "damaged");
                ErrorBody::new(ErrorCode::Internal, detail).into()
            }
            StoreError::OtherPepper { .. } => ApiError::internal(error),
        }
    }
}

fn of_sql(error: SqlError) -> ApiError {
    match error {
        SqlError::Busy(_) | SqlError::Gone(_) | SqlError::Silent | SqlError::Unwritable(..) => {
            tracing::warn!(error = %chain(&error), "the database does not do it");
            ErrorBody::new(ErrorCode::DatabaseUnavailable, error.to_string()).into()
        }
        SqlError::Constraint(ref name, _) => {
            tracing::warn!(error = %chain(&error), "the second door refused what the first let in");
            let detail = format!("the database refuses the value ({name})");
            ErrorBody::new(ErrorCode::InvalidValue, detail).into()
        }
        SqlError::Other(_) | SqlError::Url(_) => ApiError::internal(error),
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.body.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = status.into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.repeated {
            response.extensions_mut().insert(Repeated);
        }
        response.extensions_mut().insert(self.body);
        response
    }
}

/// The problem document of a refusal; one that the framework made by itself gets one too.
pub(super) fn problem(response: Response, request_id: &str) -> Response {
    let (mut parts, _) = response.into_parts();
    let own = parts.extensions.remove::<Box<ErrorBody>>();
    let mut body = own.unwrap_or_else(|| {
        let code = match parts.status.as_u16() {
            404 => ErrorCode::NotFound,
            405 => ErrorCode::MethodNotAllowed,

            413 => ErrorCode::BodyTooLarge,
            400..=499 => ErrorCode::BadRequest,
            _ => ErrorCode::Internal,
        };
        Box::new(ErrorBody::new(code, code.title()))
    });
    debug_assert!(CODES.contains(&body.code), "{:?} is not on the list", body.code);
    body.request_id = Some(request_id.to_owned());
    parts.status = StatusCode::from_u16(body.status).unwrap_or(parts.status);
    parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
    parts.headers.remove(axum::http::header::CONTENT_LENGTH);
    let text = serde_json::to_vec(&body).unwrap_or_default();
    HttpResponse::from_parts(parts, Body::from(text))
}
