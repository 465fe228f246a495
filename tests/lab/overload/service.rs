//! `lab part answers`: a service that costs next to nothing itself and, if asked to, a gateway very
//! much. `/light` is answered with sixteen bytes. So is `/heavy/N`, but its head names N header
//! fields in `Connection`, each of which a gateway has to look for and remove.

use std::collections::HashMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use bytes::Bytes;
use demo::ID_HEADER;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Longest request head.
const HEAD_MAX: usize = 16_384;
/// Most names that a gateway's HTTP engine takes in one head.
pub const NAMES_MAX: u32 = 45_000;

/// Runs until it is killed; `args` are `--ports-file FILE`.
pub fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("answers: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(mut args: impl Iterator<Item = OsString>) -> anyhow::Result<()> {
    let flag = args.next().context("--ports-file FILE is needed")?;
    anyhow::ensure!(flag == "--ports-file", "{} is unknown", flag.display());
    let file = args.next().context("--ports-file needs a file")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        let ports = serde_json::json!({ "traffic": listener.local_addr()? });
        let beside = std::path::PathBuf::from(&file).with_extension("half");
        std::fs::write(&beside, ports.to_string())?;
        std::fs::rename(beside, file)?;
        let answers = Arc::new(Answers::default());
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let answers = Arc::clone(&answers);
            daemon::tasks::spawn("caller", async move {
                // A gateway that closes its connections is no failure.
                drop(answers.serve(stream).await);
            });
        }
    })
}

/// What it says, and who asked.
#[derive(Debug, Default)]
struct Answers {
    arrived: Mutex<Vec<u64>>,
    heavy: Mutex<HashMap<u32, Bytes>>,
}

impl Answers {
    async fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut head = Vec::with_capacity(HEAD_MAX);
        loop {
            while !head.ends_with(b"\r\n\r\n") {
                if stream.read_buf(&mut head).await? == 0 || HEAD_MAX < head.len() {
                    return Ok(());
                }
            }
            let answer = self.answer(&String::from_utf8_lossy(&head));
            head.clear();
            stream.write_all(&answer).await?;
        }
    }

    fn answer(&self, head: &str) -> Bytes {
        let path = head.split(' ').nth(1).unwrap_or_default();
        if path == "/-/arrivals" {
            let arrived = self.arrived.lock();
            let lines: Vec<String> = arrived.iter().map(u64::to_string).collect();
            return answer("", &lines.join("\n"));
        }
        let id = head.lines().find_map(|line| line.strip_prefix(ID_HEADER)?.strip_prefix(": "));
        self.arrived.lock().extend(id.and_then(|id| id.parse::<u64>().ok()));
        let names = path.strip_prefix("/heavy/").and_then(|names| names.parse::<u32>().ok());
        let names = names.unwrap_or(0).min(NAMES_MAX);
        let mut made = self.heavy.lock();
        made.entry(names).or_insert_with(|| answer(&connection(names), "sixteen bytes...")).clone()
    }
}

fn connection(names: u32) -> String {
    let names: Vec<String> = (0..names).map(|name| format!("x-{name:05}")).collect();
    if names.is_empty() { String::new() } else { format!("connection: {}\r\n", names.join(",")) }
}

fn answer(fields: &str, body: &str) -> Bytes {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n{fields}\r\n{body}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asked_is_known_and_a_heavy_head_is_as_heavy_as_asked() {
        let answers = Answers::default();
        let light = answers.answer("GET /light HTTP/1.1\r\nhost: a\r\nx-demo-id: 0007\r\n\r\n");
        assert!(light.ends_with(b"\r\n\r\nsixteen bytes...") && light.len() < 100);
        let heavy = answers.answer("GET /heavy/3 HTTP/1.1\r\nx-demo-id: 8\r\n\r\n");
        let text = String::from_utf8(heavy.to_vec()).unwrap();
        assert!(text.contains("\r\nconnection: x-00000,x-00001,x-00002\r\n"), "{text}");
        let arrived = answers.answer("GET /-/arrivals HTTP/1.1\r\n\r\n");
        assert!(arrived.ends_with(b"\r\n\r\n7\n8"));
    }
}
