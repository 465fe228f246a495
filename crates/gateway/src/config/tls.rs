//! The tables `tls`, of listeners and of upstreams.
//!
//! Of a listener's certificates only paths are kept, since files may be replaced while the gateway
//! runs. What they hold is judged all the same, so that a wrong path or the key of another
//! certificate is refused before anything starts.

use std::path::{Path, PathBuf};

use serde_json::Value;
use wire::strict::{Fields, Problems, shown};

use super::EndpointConfig;
use super::read::{must_have, path, wrong};
use crate::server::pem::chain;
use crate::server::tls::{self, PAIRS_MAX, PairError};
use crate::upstream::tls::{UpstreamTls, UpstreamTlsError, can_be_named, host_of};

/// The certificates of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerTls {
    /// Which pair is shown goes by the name that a caller asks for; the first is for all others.
    pub pairs: Vec<PairFiles>,
    /// Callers must show a certificate of one of these authorities.
    pub client_ca_file: Option<PathBuf>,
}

/// A certificate with its chain, and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairFiles {
    /// PEM, the certificate itself first.
    pub cert_file: PathBuf,
    /// PEM.
    pub key_file: PathBuf,
}

/// `tls` and `client_ca_file` of a listener.
pub(super) fn listener(
    fields: &mut Fields<'_>,
    problems: &mut Problems,
    beside: &Path,
) -> Option<ListenerTls> {
    let client_ca_file = client_ca(fields, problems, beside);
    let place = fields.path("tls");
    let Some(value) = fields.get("tls") else {
        if client_ca_file.is_some() {
            wrong(problems, fields.path("client_ca_file"), "is of use with `tls` only");
        }
        return None;
    };
    let pairs: Vec<PairFiles> = match value {
        Value::Array(items) => {
            if items.is_empty() || PAIRS_MAX < items.len() {
                let what = format!("must be from 1 to {PAIRS_MAX} pairs, not {}", items.len());
                wrong(problems, place.clone(), what);
            }
            let pairs = items.iter().take(PAIRS_MAX).enumerate();
            pairs.filter_map(|(n, v)| pair(v, &format!("{place}[{n}]"), problems, beside)).collect()
        }
        Value::Object(_) => pair(value, &place, problems, beside).into_iter().collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            let what = format!(
                "must be `{{ cert_file, key_file }}` or a list of such, not {}",
                shown(value)
            );
            wrong(problems, place, what);
            Vec::new()
        }
    };
    Some(ListenerTls { pairs, client_ca_file })
}

fn pair(value: &Value, place: &str, problems: &mut Problems, beside: &Path) -> Option<PairFiles> {
    let mut fields = Fields::of(value, place, problems);
    let cert_file = needed_path(&mut fields, "cert_file", problems, beside);
    let key_file = needed_path(&mut fields, "key_file", problems, beside);
    let files =
        cert_file.zip(key_file).map(|(cert_file, key_file)| PairFiles { cert_file, key_file });
    if let Some(Err(error)) = files.as_ref().map(tls::pair) {
        let name = match &error {
            PairError::Certificate(_) => "cert_file",
            PairError::Key(_) | PairError::Strangers(..) => "key_file",
        };
        wrong(problems, fields.path(name), chain(&error));
    }
    fields.finish(problems);
    files
}

fn needed_path(
    fields: &mut Fields<'_>,
    name: &'static str,
    problems: &mut Problems,
    beside: &Path,
) -> Option<PathBuf> {
    must_have(fields, name, problems);
    path(fields, name, problems, beside)
}

fn client_ca(fields: &mut Fields<'_>, problems: &mut Problems, beside: &Path) -> Option<PathBuf> {
    const NAME: &str = "client_ca_file";
    let path = path(fields, NAME, problems, beside)?;
    if let Err(error) = tls::client_verifier(&path) {
        wrong(problems, fields.path(NAME), chain(&error));
    }
    Some(path)
}

/// `tls` of an upstream.
pub(super) fn upstream(
    fields: &mut Fields<'_>,
    endpoints: &[EndpointConfig],
    http2: bool,
    problems: &mut Problems,
    beside: &Path,
) -> Option<UpstreamTls> {
    let (place, hosts_at) = (fields.path("tls"), fields.path("endpoints"));
    let mut fields = Fields::of(fields.get("tls")?, &place, problems);
    let server_name = fields.text("server_name", problems);
    let ca_file = path(&mut fields, "ca_file", problems, beside);
    let made = UpstreamTls::new(server_name, ca_file.as_deref(), http2).map_err(|error| {
        let name = match &error {
            UpstreamTlsError::ServerName(_) => "server_name",
            UpstreamTlsError::Authorities(_) | UpstreamTlsError::Library(_) => "ca_file",
        };
        wrong(problems, fields.path(name), chain(&error));
    });
    fields.finish(problems);
    let mut names = endpoints.iter().map(|endpoint| endpoint.name.as_str());
    let unnamed = names.find(|name| !can_be_named(host_of(name)));
    if let (None, Some(endpoint)) = (server_name, unnamed) {
        let what = format!("no certificate can be for `{endpoint}`: say `server_name` in `tls`");
        wrong(problems, hosts_at, what);
    }
    made.ok()
}
