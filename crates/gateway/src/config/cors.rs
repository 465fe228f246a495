//! The table `cors` of a route: which pages may read its answers.

use http::{HeaderName, HeaderValue, Method};
use serde_json::Value;
use wire::strict::{Fields, Problems};

use super::read::{texts, time, wrong};
use crate::cors::{Cors, EXPOSED};
use crate::route::canonical_host;

/// Methods of pages where neither the table nor the route names any.
const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];
/// Headers that pages may send if the table names none: without the first two nobody shows a key.
const HEADERS: [&str; 3] = ["x-api-key", "authorization", "content-type"];
const MAX_AGE: std::time::Duration = std::time::Duration::from_secs(600);

/// The table at `path`, of a route for these methods.
pub(super) fn read(
    value: &Value,
    path: &str,
    of_route: &[Method],
    problems: &mut Problems,
) -> Option<Cors> {
    let mut fields = Fields::of(value, path, problems);
    let f = &mut fields;
    let credentials = f.flag("credentials", problems);
    let origins = origins(f, credentials, problems);
    let mut methods = texts(f, "methods", problems);
    for (index, text) in methods.iter().enumerate() {
        if Method::from_bytes(text.as_bytes()).is_err() || text.contains(char::is_lowercase) {
            let place = format!("{}[{index}]", f.path("methods"));
            wrong(problems, place, format!("`{text}` is no method"));
        }
    }
    if methods.is_empty() {
        methods = of_route.iter().map(Method::as_str).collect();
    }
    if methods.is_empty() {
        methods.extend(METHODS);
    }
    let headers = match f.get("headers") {
        Some(_) => names(f, "headers", problems),
        None => HEADERS.to_vec(),
    };
    let exposed = names(f, "expose", problems);
    let max_age = time(f, "max_age", problems, MAX_AGE).as_secs();
    fields.finish(problems);
    let list = |names: &[&str]| HeaderValue::try_from(names.join(", ")).ok();
    Some(Cors {
        origins,
        methods: list(&methods)?,
        headers: list(&headers)?,
        exposed: list(&[&[EXPOSED], exposed.as_slice()].concat())?,
        credentials,
        max_age: HeaderValue::from(max_age),
    })
}

/// The listed origins; `None` if every origin may read.
fn origins(
    fields: &mut Fields<'_>,
    credentials: bool,
    problems: &mut Problems,
) -> Option<Vec<HeaderValue>> {
    const NAME: &str = "origins";
    let given = texts(fields, NAME, problems);
    if given.is_empty() {
        let what = "must be a list of origins like \"https://app.example.com\", or [\"*\"]";
        wrong(problems, fields.path(NAME), what);
    }
    if given == ["*"] {
        if credentials {
            let what = "name the origins: with credentials not every page may read";
            wrong(problems, fields.path(NAME), what);
        }
        return None;
    }
    let mut origins = Vec::new();
    for (index, text) in given.iter().enumerate() {
        match origin(text) {
            Some(origin) => origins.push(origin),
            None => {
                let what = format!(
                    "must be an origin as browsers spell it, like `https://app.example.com` or \
                     `http://localhost:3000`, not `{text}`"
                );
                wrong(problems, format!("{}[{index}]", fields.path(NAME)), what);
            }
        }
    }
    Some(origins)
}

/// Scheme and host in lower case, and the port unless it is the scheme's own.
fn origin(text: &str) -> Option<HeaderValue> {
    let (scheme, rest) = text.split_once("://")?;
    let plain = |byte: u8| byte.is_ascii_lowercase() || b"+-.".contains(&byte);
    let own_port = match scheme {
        "https" => ":443",
        "http" => ":80",
        _ => "",
    };
    let spelled = !scheme.is_empty()
        && scheme.bytes().all(plain)
        && !rest.bytes().any(|byte| byte.is_ascii_uppercase())
        && (own_port.is_empty() || !rest.ends_with(own_port))
        && !rest.ends_with(['.', ':']);
    (spelled && canonical_host(rest).is_ok()).then(|| HeaderValue::from_str(text).ok())?
}

fn names<'a>(fields: &mut Fields<'a>, name: &'static str, problems: &mut Problems) -> Vec<&'a str> {
    let given = texts(fields, name, problems);
    for (index, text) in given.iter().enumerate() {
        if HeaderName::try_from(*text).is_err() {
            let place = format!("{}[{index}]", fields.path(name));
            wrong(problems, place, format!("`{text}` is no header name"));
        }
    }
    given
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_spelled_as_browsers_do() {
        for good in ["https://app.example", "http://localhost:3000", "app+x://h", "http://[::1]:9"]
        {
            assert!(origin(good).is_some(), "{good}");
        }
        for bad in [
            "app.example",
            "https://",
            "https://app.example/",
            "https://App.example",
            "https://app.example:443",
            "http://app.example:80",
            "https://*.example",
            "https://u@app.example",
            "null",
            "",
        ] {
            assert!(origin(bad).is_none(), "{bad}");
        }
    }
}
