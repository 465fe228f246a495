//! A service that costs next to nothing: it finds where a request ends and answers from memory.
//!
//! It is there for figures about what stands before it, so it parses no more than it must, and
//! speaks HTTP/1.1 alone. `GET …/bytes/N` is answered by `N` bytes, as fast as they are taken;
//! whatever else has no body, by sixteen bytes. A body is read with pauses, as by a busy service,
//! and answered by its length in sixteen digits.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::process::{Child, Launcher};

/// What is answered to most requests.
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 16\r\n\r\n\
    sixteen bytes ok";
/// A longer head is no head.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Bytes of long bodies that are moved at once.
const PIECE: usize = 64 * 1024;
/// A reader that is slower than its writer stops so often …
pub const PAUSE_EVERY: u64 = 8 * 1024 * 1024;
/// … for so long.
pub const PAUSE: Duration = Duration::from_millis(20);

/// Starts one in a process of its own.
pub async fn start(launcher: &Launcher) -> anyhow::Result<(Child, SocketAddr)> {
    let (child, ports) = launcher.start_ready("origin", "origin", Vec::new()).await?;
    let at = ports.get("traffic")?;
    Ok((child, at))
}

/// `lab part origin --ports-file FILE`.
pub fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    match serve(&args.collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell(&error);
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stderr, reason = "a program's last words")]
fn tell(error: &anyhow::Error) {
    eprintln!("origin: {error:#}");
}

fn serve(args: &[OsString]) -> anyhow::Result<()> {
    let file = match args {
        [_name, flag, file] if flag == "--ports-file" => file.clone(),
        other => anyhow::bail!("usage: origin --ports-file FILE, not {other:?}"),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        announce(Path::new(&file), listener.local_addr()?)?;
        loop {
            let (stream, _) = listener.accept().await?;
            daemon::tasks::spawn("connection", async move {
                // Whoever calls sees its connection end.
                drop(connection(stream).await);
            });
        }
    })
}

/// All at once, so that nobody reads half of it.
fn announce(file: &Path, at: SocketAddr) -> anyhow::Result<()> {
    let beside = file.with_extension("new");
    std::fs::write(&beside, serde_json::json!({ "traffic": at }).to_string())?;
    std::fs::rename(&beside, file).context("ports file")
}

/// What a head asks for.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Word,
    Bytes(u64),
    Upload(u64),
}

async fn connection(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = BytesMut::with_capacity(HEAD_BYTES_MAX);
    loop {
        let end = loop {
            if let Some(end) = end_of_head(&buffer) {
                break end;
            }
            if HEAD_BYTES_MAX <= buffer.len() || stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        };
        let asked = asked(buffer.get(..end).unwrap_or_default());
        buffer.advance(end);
        match asked {
            Asked::Word => stream.write_all(ANSWER).await?,
            Asked::Bytes(count) => send(&mut stream, count).await?,
            Asked::Upload(count) => {
                take(&mut stream, &mut buffer, count).await?;
                let head = "HTTP/1.1 200 OK\r\ncontent-length: 16\r\n\r\n";
                stream.write_all(format!("{head}{count:016}").as_bytes()).await?;
            }
        }
        if buffer.is_empty() {
            buffer.clear();
            buffer.reserve(HEAD_BYTES_MAX);
        }
    }
}

/// Where the first request's head ends.
pub fn end_of_head(bytes: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let rest = bytes.get(from..)?;
        let line = rest.iter().position(|byte| *byte == b'\n')?;
        from += line + 1;
        if bytes.get(from..)?.starts_with(b"\r\n") {
            return Some(from + 2);
        }
    }
}

/// The number in a field of a head.
pub fn number_of(head: &[u8], field: &[u8]) -> Option<u64> {
    let mut lines = head.split(|byte| *byte == b'\n');
    let value = lines.find_map(|line| {
        let (name, value) = line.split_at_checked(field.len())?;
        name.eq_ignore_ascii_case(field).then(|| value.strip_prefix(b":"))?
    })?;
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

fn asked(head: &[u8]) -> Asked {
    let mut words = head.splitn(3, |byte| *byte == b' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if method == b"GET" {
        let text = std::str::from_utf8(target).unwrap_or_default();
        let count = text.split_once("/bytes/").and_then(|(_, count)| count.parse().ok());
        return count.map_or(Asked::Word, Asked::Bytes);
    }
    number_of(head, b"content-length").map_or(Asked::Word, Asked::Upload)
}

async fn send(stream: &mut TcpStream, count: u64) -> io::Result<()> {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {count}\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let piece = vec![b'x'; PIECE];
    let mut left = count;
    while left > 0 {
        let now = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        stream.write_all(piece.get(..now).unwrap_or_default()).await?;
        left -= now as u64;
    }
    Ok(())
}

/// Takes a body of so many bytes, some of which may be in the buffer already.
async fn take(stream: &mut TcpStream, buffer: &mut BytesMut, count: u64) -> io::Result<()> {
    let there = usize::try_from(count).unwrap_or(usize::MAX).min(buffer.len());
    buffer.advance(there);
    let mut taken = there as u64;
    let mut pause_at = PAUSE_EVERY;
    let mut piece = vec![0; PIECE];
    while taken < count {
        let most = usize::try_from(count - taken).unwrap_or(PIECE).min(PIECE);
        let Some(room) = piece.get_mut(..most) else { break };
        match stream.read(room).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => taken += read as u64,
        }
        if pause_at <= taken {
            pause_at += PAUSE_EVERY;
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_ends_at_its_empty_line() {
        assert_eq!(end_of_head(b"GET / HTTP/1.1\r\nhost: a\r\n\r\nGET"), Some(27));
        assert_eq!(end_of_head(b"GET / HTTP/1.1\r\nhost: a\r\n"), None);
        assert_eq!(end_of_head(b""), None);
    }

    #[test]
    fn what_is_asked_for_is_in_the_first_line_and_the_length() {
        assert_eq!(asked(b"GET /orders HTTP/1.1\r\n\r\n"), Asked::Word);
        assert_eq!(asked(b"GET /a/bytes/70 HTTP/1.1\r\n\r\n"), Asked::Bytes(70));
        assert_eq!(asked(b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n"), Asked::Upload(9));
        assert_eq!(asked(b"POST / HTTP/1.1\r\nx-content-length: 9\r\n\r\n"), Asked::Word);
    }

    #[test]
    fn the_short_answer_has_sixteen_bytes() {
        let end = end_of_head(ANSWER).unwrap();
        assert_eq!(ANSWER.len() - end, 16);
        assert_eq!(number_of(&ANSWER[..end], b"content-length"), Some(16));
    }
}
