//! Which route a request would take, for people who ask.

use http::{HeaderMap, Method};

use super::{NoRoute, Route, RouteTable, canonical_host, canonical_path};

impl RouteTable {
    /// The route for a method, an authority (`host:port`, or empty where hosts do not matter) and
    /// a path, without header fields; or why there is none.
    pub fn of_request(&self, method: &str, authority: &str, path: &str) -> Result<&Route, String> {
        let method = Method::from_bytes(method.as_bytes())
            .map_err(|_error| format!("`{method}` is no method"))?;
        let host = match authority {
            "" => "".into(),
            authority => canonical_host(authority).map_err(|error| error.to_string())?,
        };
        let path = canonical_path(path).map_err(|error| error.to_string())?;
        self.find(&host, &path, &method, &HeaderMap::new()).map_err(|why| match why {
            NoRoute::Unknown => format!("none has this host and path ({path})"),
            NoRoute::Method(allowed) => {
                let allowed: Vec<&str> = allowed.iter().map(Method::as_str).collect();
                format!("this path is for {} only", allowed.join(", "))
            }
            NoRoute::TwoReadings => {
                "whoever ignores empty segments and parameters reads another route's path"
                    .to_owned()
            }
            NoRoute::UnclearField => "a field may be read in another way".to_owned(),
        })
    }
}
