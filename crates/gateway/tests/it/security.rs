//! Attacks, row by row: what must be refused reaches nobody, what must be survived costs others
//! nothing, and what is secret stays it. The rows are listed in tests/CASES.md.

mod floods; // HTTP/2 as no caller writes it
mod framing; // where a request of HTTP/1.1 ends
mod hosts; // whom a request is for, and in which words
mod identity; // who a caller may say it is
mod leaving; // upgrades that are none
mod own_ports; // what is no service
mod refusals; // answers that tell no more than they must
mod slowness; // callers that take their time
mod silence; // what no log says
mod sizes; // heads that are too large
mod versions; // TLS

use std::net::SocketAddr;

use crate::support::{Gateway, KEY, Service, file};

/// Never the reason of a refusal.
const PLAN: &str = "burst = { capacity = 10000, refill = \"10000/s\" }";
/// Behind a request that is to be refused: it must arrive nowhere.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nhost: a\r\nx-api-key: acme-key\r\n\r\n";
/// Nothing ends for want of a head, so a connection that ends was ended.
const PATIENT: &str = "[limits]\nfirst_byte = \"1m\"\nhead_time = \"1m\"\n";

/// A gateway before a service that answers everything.
async fn world() -> (Gateway, Service) {
    let service = Service::hello().await;
    let gateway = Gateway::start(&text(service.address)).await;
    (gateway, service)
}

fn text(service: SocketAddr) -> String {
    file(PLAN, "", service) + PATIENT
}

/// A request head with a key; `more` are further lines.
fn head(line: &str, more: &str) -> String {
    format!("{line}\r\nhost: a\r\nx-api-key: {KEY}\r\n{more}\r\n")
}
