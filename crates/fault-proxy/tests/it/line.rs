//! A client that sees every byte, before a proxy before a Redis of its own.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use fault_proxy::FaultProxy;
use test_servers::Server;

/// How long anything may take that must come.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Line(TcpStream);

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Closed,
    Reset,
}

pub(crate) fn world() -> (Server, FaultProxy, Line) {
    let server = Server::start().unwrap();
    let proxy = FaultProxy::start(server.address()).unwrap();
    let line = Line::to(proxy.address());
    (server, proxy, line)
}

impl Line {
    pub(crate) fn to(address: SocketAddr) -> Line {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Line(stream)
    }

    /// Sends commands, words split at blanks, in one write.
    pub(crate) fn send(&mut self, commands: &[&str]) {
        let mut bytes = Vec::new();
        for command in commands {
            let words: Vec<&str> = command.split(' ').collect();
            bytes.extend(format!("*{}\r\n", words.len()).into_bytes());
            for word in words {
                bytes.extend(format!("${}\r\n{word}\r\n", word.len()).into_bytes());
            }
        }
        self.send_raw(&bytes);
    }

    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    /// Reads as many bytes as `expected` has, and compares.
    pub(crate) fn expect(&mut self, expected: &str) {
        assert_eq!(self.read(expected.len()), expected);
    }

    pub(crate) fn read(&mut self, length: usize) -> String {
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub(crate) fn read_bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Everything until the end.
    pub(crate) fn rest(&mut self) -> (String, End) {
        let mut bytes = Vec::new();
        let end = match self.0.read_to_end(&mut bytes) {
            Ok(_) => End::Closed,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => End::Reset,
            Err(error) => panic!("neither closed nor reset: {error}"),
        };
        (String::from_utf8(bytes).unwrap(), end)
    }

    /// Whether nothing comes although another connection's round trip has ended meanwhile.
    pub(crate) fn is_silent(&mut self) -> bool {
        self.0.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let read = self.0.read(&mut [0]);
        self.0.set_read_timeout(Some(PATIENCE)).unwrap();
        matches!(read, Err(error) if error.kind() == ErrorKind::WouldBlock)
    }
}

/// The number that INCR has left, asked for beside the proxy.
pub(crate) fn counted(server: &Server) -> u64 {
    let count: Option<u64> = server.query("GET n").unwrap();
    count.unwrap_or(0)
}
