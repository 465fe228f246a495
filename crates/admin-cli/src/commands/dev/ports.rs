//! Free ports near the usual ones, so that a busy one is no reason to give up.

use std::net::{Ipv4Addr, TcpListener};

use daemon::Failure;

/// How many ports are tried above the first.
const TRIES: u16 = 100;

/// Any port is one of these: the kernel gives higher ones to outgoing connections, and one of those
/// could come between the choice and its use.
const ANY: std::ops::Range<u16> = 12_000..31_000;

/// The ports of all parts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ports {
    pub(crate) traffic: u16,
    pub(crate) plans: u16,
    pub(crate) shadow: u16,
    pub(crate) operations: u16,
}

/// Takes `first` and its neighbours, or the next free ones; 0 takes any. What is moved is said.
/// All are held until all are found, so that no two parts get the same.
pub(crate) fn choose(first: u16, say: impl Fn(&str)) -> Result<Ports, Failure> {
    let mut held = Vec::new();
    let mut take = |what: &str, offset: u16| -> Result<u16, Failure> {
        let wanted = if first == 0 { 0 } else { first.saturating_add(offset) };
        let (listener, port) = free(wanted).ok_or_else(|| {
            let line = format!("--port: no free port for {what} from {wanted} on");
            Failure::Settings(vec![line])
        })?;
        held.push(listener);
        if first != 0 && port != wanted {
            say(&format!("port {wanted} is busy: {what} is at {port}"));
        }
        Ok(port)
    };
    Ok(Ports {
        traffic: take("the gateway", 0)?,
        plans: take("plans-api", 1)?,
        shadow: take("shadow-compare", 2)?,
        operations: take("the gateway's operations port", 1_000)?,
    })
}

fn free(wanted: u16) -> Option<(TcpListener, u16)> {
    (0..TRIES).find_map(|step| {
        let port = if wanted == 0 { fastrand::u16(ANY) } else { wanted.checked_add(step)? };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?;
        Some((listener, port))
    })
}

/// Any free ports.
pub(crate) fn any() -> Result<Ports, Failure> {
    choose(0, |_| {})
}
