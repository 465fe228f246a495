//! `trusted_proxies` and `proxy_protocol` of a listener: who may say where a caller is, by which
//! words.

use std::net::IpAddr;

use ipnet::IpNet;
use wire::strict::{Fields, Problems};

use super::read::{texts, wrong};

/// Most networks of one listener: each connection is compared with all of them, and so is what
/// trusted ones say.
const NETWORKS_MAX: usize = 1_000;

/// Whether the PROXY protocol is spoken, and who is believed, in it or in header fields.
pub(super) fn listener(fields: &mut Fields<'_>, problems: &mut Problems) -> (bool, Vec<IpNet>) {
    const NAME: &str = "trusted_proxies";
    let spoken = fields.flag("proxy_protocol", problems);
    let given = texts(fields, NAME, problems);
    if NETWORKS_MAX < given.len() {
        wrong(problems, fields.path(NAME), format!("must be at most {NETWORKS_MAX} networks"));
    }
    if spoken && given.is_empty() {
        let what = "needs `trusted_proxies`: nobody else may say where a caller is";
        wrong(problems, fields.path("proxy_protocol"), what);
    }
    let mut networks = Vec::new();
    for (index, text) in given.into_iter().enumerate() {
        let alone = |_no_network| text.parse::<IpAddr>().map(IpNet::from);
        match text.parse::<IpNet>().or_else(alone) {
            Ok(network) if network.addr().to_canonical() == network.addr() => {
                networks.push(network.trunc());
            }
            Ok(_) | Err(_) => {
                let path = format!("{}[{index}]", fields.path(NAME));
                let what = "must be a network or an address, like `10.0.0.0/8` or `2001:db8::1`";
                wrong(problems, path, what);
            }
        }
    }
    (spoken, networks)
}
