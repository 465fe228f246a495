//! What the proxy itself costs, and how exact a small delay is: round trips of PING to a Redis of
//! its own, directly, through the proxy, and through it with half a millisecond, in turns.
//!
//! `cargo run --release -p fault-proxy --example precision`
#![expect(clippy::print_stdout, reason = "an experiment for people")]

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use fault_proxy::{FaultProxy, Toxic};
use test_servers::Server;
use tokio::time::Instant;

const ROUNDS: usize = 20;
const PINGS: usize = 500;
const DELAY: Duration = Duration::from_micros(500);

fn main() -> anyhow::Result<()> {
    let server = Server::start()?;
    let plain = FaultProxy::start(server.address())?;
    let slow = FaultProxy::start(server.address())?;
    slow.set(Toxic::delay(DELAY));
    let mut lines = [server.address(), plain.address(), slow.address()].map(Line::to);
    let mut times: [Vec<u128>; 3] = Default::default();
    for _ in 0..ROUNDS {
        for (line, times) in lines.iter_mut().zip(&mut times) {
            let line = line.as_mut().map_err(|error| io::Error::new(error.kind(), "no line"))?;
            for _ in 0..PINGS {
                times.push(line.ping()?.as_nanos());
            }
        }
    }
    for (name, times) in ["direct", "proxy", "proxy + 500 µs"].iter().zip(&mut times) {
        times.sort_unstable();
        let at = |percent: usize| {
            let nanos = times.get(times.len() * percent / 100).copied().unwrap_or_default();
            let micros = nanos / 1_000;
            format!("{micros} µs")
        };
        println!(
            "{name:15} p25 {:>8}  median {:>8}  p75 {:>8}  p99 {:>8}",
            at(25),
            at(50),
            at(75),
            at(99)
        );
    }
    Ok(())
}

struct Line(TcpStream);

impl Line {
    fn to(address: SocketAddr) -> io::Result<Line> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Line(stream))
    }

    fn ping(&mut self) -> io::Result<Duration> {
        let began = Instant::now();
        self.0.write_all(b"*1\r\n$4\r\nPING\r\n")?;
        self.0.read_exact(&mut [0; 7])?;
        Ok(began.elapsed())
    }
}
