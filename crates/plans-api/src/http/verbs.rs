//! Which line of the table a call is (pure). The router knows paths, the table knows verbs too:
//! who may disable a key need not be allowed to revoke it.

use wire::error::ErrorCode;

use super::Route;

/// The table's line for a call, or why there is none. `matched` is the router's path; where it
/// ends with an object's name a POST has a verb behind it. The verb is read as the caller wrote it:
/// one that hides its letters behind percent signs is none.
pub(super) fn line_of(
    table: &'static [Route],
    method: &str,
    matched: &str,
    path: &str,
) -> Result<&'static Route, ErrorCode> {
    let named =
        |wanted: &str| table.iter().find(|route| route.method == method && route.path == wanted);
    if let Some(route) = named(matched) {
        return Ok(route);
    }
    if method != "POST" || !matched.ends_with('}') {
        return Err(ErrorCode::NotFound);
    }
    let last = path.rsplit('/').next().unwrap_or_default();
    let Some((_, verb)) = last.rsplit_once(':') else { return Err(ErrorCode::MethodNotAllowed) };
    named(&format!("{matched}:{verb}")).ok_or(ErrorCode::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::{Needs, ROUTES};

    #[test]
    fn a_verb_has_its_own_line_and_a_hidden_one_has_none() {
        let key = |path: &str| line_of(ROUTES, "POST", "/v1/keys/{id}", path).map(|r| r.needs);
        assert_eq!(key("/v1/keys/a:disable"), Ok(Needs::Support));
        assert_eq!(key("/v1/keys/a:revoke"), Ok(Needs::Operator));
        assert_eq!(key("/v1/keys/a:disable:revoke"), Ok(Needs::Operator));
        for none in ["a:explode", "a%3Arevoke", "a:disable%3Arevoke", "a:%64isable", "a:", "a: "] {
            let found = key(&format!("/v1/keys/{none}"));
            assert!(
                matches!(found, Err(ErrorCode::NotFound | ErrorCode::MethodNotAllowed)),
                "{none}"
            );
        }
        assert_eq!(key("/v1/keys/a"), Err(ErrorCode::MethodNotAllowed));
        assert_eq!(line_of(ROUTES, "PUT", "/v1/keys/{id}", "/v1/keys/a"), Err(ErrorCode::NotFound));
    }
}
