//! Which methods a path takes. Verbs (`/v1/keys/x:revoke`) share the router's entry of what they are
//! verbs of, so the router alone would say too much: a verb takes POST alone, and what it is a verb
//! of takes all but POST.

use axum::extract::MatchedPath;
use axum::http::header::{ALLOW, HeaderValue};
use axum::http::{Method, Uri};
use axum::response::{IntoResponse, Response};
use wire::error::ErrorCode;

use super::ROUTES;
use super::error::ApiError;

/// Whether `path`, which the router found under `template`, takes `method`.
pub(super) fn allows(method: &Method, template: &str, path: &str) -> bool {
    let method = if *method == Method::HEAD { "GET" } else { method.as_str() };
    methods_of(template, path).contains(&method)
}

/// Says what the path takes instead.
pub(super) async fn refused(template: Option<MatchedPath>, uri: Uri) -> Response {
    let mut response = ApiError::of(ErrorCode::MethodNotAllowed).into_response();
    let template = template.as_ref().map_or("", MatchedPath::as_str);
    let mut methods = methods_of(template, uri.path());
    if methods.contains(&"GET") {
        methods.push("HEAD");
    }
    // A path of every process is no route of the table: the router knows what it takes.
    if template.starts_with("/v1/")
        && let Ok(allow) = HeaderValue::try_from(methods.join(", "))
    {
        response.headers_mut().insert(ALLOW, allow);
    }
    response
}

fn methods_of(template: &str, path: &str) -> Vec<&'static str> {
    let last = path.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    let verb = last.contains(':') || last.contains("%3a");
    let shared = template.ends_with('}');
    let mut methods: Vec<&str> = ROUTES
        .iter()
        .filter(|route| {
            let of_it = shared && route.path.split(':').next() == Some(template);
            of_it || route.path == template
        })
        .map(|route| route.method)
        .filter(|method| !shared || (*method == "POST") == verb)
        .collect();
    methods.dedup();
    methods
}
