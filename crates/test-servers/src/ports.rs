//! Free ports. The kernel's own choice (port 0) could be taken by somebody's outgoing connection
//! between the choice and a restart on it, so these lie below that range, and a locked file keeps
//! them from other test programs.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::bail;

const RANGE: std::ops::Range<u16> = 12_000..31_000;
const TRIES: usize = 500;

/// A port of ours until it is dropped.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _lock: File,
}

impl Port {
    /// One that nobody listens on.
    pub fn free() -> anyhow::Result<Port> {
        for _ in 0..TRIES {
            if let Some(port) = Port::try_number(fastrand::u16(RANGE)) {
                return Ok(port);
            }
        }
        bail!("no free port between {} and {}", RANGE.start, RANGE.end)
    }

    fn try_number(number: u16) -> Option<Port> {
        let folder = std::env::temp_dir().join("test-servers-ports");
        std::fs::create_dir_all(&folder).ok()?;
        let file = folder.join(number.to_string());
        let lock = File::options().create(true).append(true).open(file).ok()?;
        lock.try_lock().ok()?;
        TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        Some(Port { number, _lock: lock })
    }

    /// Its number.
    pub const fn number(&self) -> u16 {
        self.number
    }

    /// With the loopback address.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.number))
    }
}
