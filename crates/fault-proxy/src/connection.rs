//! One client's connection and the server's behind it: bytes in, whole commands and replies
//! through the [`Exchange`], bytes out.
//!
//! Everything happens in one task, so that the three parts need no lock among them and end
//! together.

use std::cell::RefCell;
use std::future::pending;
use std::io;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::Instant;

use crate::alarm::Alarm;
use crate::counters::Counters;
use crate::exchange::{Delivery, Exchange, Then, ToServer};
use crate::resp::{self, Malformed, Scanner};
use crate::shared::Shared;

/// Replies that are due are written together up to this size.
const WRITE_MAX: usize = 64 * 1024;
const READ_MIN: usize = 4 * 1024;

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Close,
    Reset,
}

struct Connection<'a> {
    shared: &'a Shared,
    exchange: RefCell<Exchange>,
    /// Something is in the outbox, or nothing more will come.
    outgoing: Notify,
    /// A reply has left or has come.
    room: Notify,
    server_ended: RefCell<bool>,
}

/// Carries both directions until one side ends or a toxic ends both.
pub(crate) async fn run(mut client: TcpStream, mut server: TcpStream, shared: &Shared) {
    let connection = Connection {
        shared,
        exchange: RefCell::new(Exchange::new(Instant::now())),
        outgoing: Notify::new(),
        room: Notify::new(),
        server_ended: RefCell::new(false),
    };
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let end = tokio::select! {
        end = connection.commands(from_client, to_server) => end,
        end = connection.replies(from_server) => end,
        end = connection.deliver(to_client) => end,
    };
    match end {
        // An error here means that the socket is gone already.
        Ok(End::Reset) => drop((client.set_zero_linger(), server.set_zero_linger())),
        Ok(End::Close) | Err(_) => {}
    }
}

impl Connection<'_> {
    async fn commands(&self, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>) -> io::Result<End> {
        let (mut buffer, mut scanner) = (BytesMut::new(), Scanner::default());
        let mut passed = BytesMut::new();
        loop {
            buffer.reserve(READ_MIN);
            if from.read_buf(&mut buffer).await? == 0 {
                to.shutdown().await?;
                // Replies to what was sent before still come.
                return pending().await;
            }
            let mut end = None;
            while end.is_none() {
                let Some(length) = self.sound(resp::scan_command(&mut scanner, &buffer))? else {
                    break;
                };
                let command = buffer.split_to(length);
                match self.command(&command) {
                    ToServer::Pass => passed.extend_from_slice(&command),
                    ToServer::Nothing => {}
                    ToServer::Reset(part) => {
                        passed.extend_from_slice(command.get(..part).unwrap_or_default());
                        end = Some(End::Reset);
                    }
                }
            }
            if !passed.is_empty() {
                to.write_all(&passed).await?;
                self.shared.count(|counters| counters.bytes_to_server += long(passed.len()));
                passed.clear();
            }
            if let Some(end) = end {
                return Ok(end);
            }
            while !self.exchange.borrow().takes_commands() {
                self.room.notified().await;
            }
        }
    }

    fn command(&self, command: &[u8]) -> ToServer {
        let words = resp::words(command);
        let toxics = self.shared.draw(&words);
        let garble = |bytes: &mut [u8], count| self.shared.garble(bytes, count);
        let now = Instant::now();
        let to_server =
            self.exchange.borrow_mut().command(&words, command.len(), toxics, now, garble);
        if to_server == ToServer::Nothing {
            self.outgoing.notify_one();
        }
        to_server
    }

    async fn replies(&self, mut from: ReadHalf<'_>) -> io::Result<End> {
        let (mut buffer, mut scanner) = (BytesMut::new(), Scanner::default());
        loop {
            buffer.reserve(READ_MIN);
            let read = from.read_buf(&mut buffer).await;
            if !matches!(read, Ok(1..)) {
                *self.server_ended.borrow_mut() = true;
                self.outgoing.notify_one();
                return pending().await;
            }
            let now = Instant::now();
            while let Some(length) = self.sound(scanner.scan(&buffer))? {
                let reply = buffer.split_to(length).freeze();
                let garble = |bytes: &mut [u8], count| self.shared.garble(bytes, count);
                self.exchange.borrow_mut().reply(reply, now, garble);
                self.shared.count(|counters| counters.replies += 1);
            }
            self.outgoing.notify_one();
            self.room.notify_waiters();
            while !self.exchange.borrow().takes_replies() {
                self.room.notified().await;
            }
        }
    }

    async fn deliver(&self, mut to: WriteHalf<'_>) -> io::Result<End> {
        let mut alarm = Alarm::default();
        let mut together = BytesMut::new();
        loop {
            let next = self.exchange.borrow().next_at();
            match next {
                Some(due) => alarm.until(due).await?,
                None if *self.server_ended.borrow() => return Ok(End::Close),
                None => {
                    self.outgoing.notified().await;
                    continue;
                }
            }
            let mut special = None;
            while let Some(delivery) = self.next_due() {
                if !delivery.is_plain() {
                    special = Some(delivery);
                    break;
                }
                together.extend_from_slice(&delivery.bytes);
                if together.len() >= WRITE_MAX {
                    break;
                }
            }
            self.write(&mut to, &together).await?;
            together.clear();
            if let Some(delivery) = special {
                self.write_in_pieces(&mut to, &delivery).await?;
                match delivery.then {
                    Then::GoOn => {}
                    Then::Close => return Ok(End::Close),
                    Then::Reset => return Ok(End::Reset),
                }
            }
            self.room.notify_waiters();
        }
    }

    fn next_due(&self) -> Option<Delivery> {
        self.exchange.borrow_mut().next_due(Instant::now())
    }

    async fn write(&self, to: &mut WriteHalf<'_>, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        to.write_all(bytes).await?;
        self.shared.count(|counters| counters.bytes_to_client += long(bytes.len()));
        Ok(())
    }

    async fn write_in_pieces(&self, to: &mut WriteHalf<'_>, delivery: &Delivery) -> io::Result<()> {
        let Some((size, pause)) = delivery.pieces else {
            return self.write(to, &delivery.bytes).await;
        };
        let mut alarm = Alarm::default();
        for piece in delivery.bytes.chunks(size) {
            self.write(to, piece).await?;
            // Without a pause as well, others get their turn between two pieces.
            yield_now().await;
            alarm.until(Instant::now() + pause).await?;
        }
        Ok(())
    }

    /// Counts what cannot be understood, and ends the connection.
    fn sound<T>(&self, scanned: Result<T, Malformed>) -> io::Result<T> {
        scanned.map_err(|malformed| {
            self.shared.count(|counters: &mut Counters| counters.malformed += 1);
            io::Error::new(io::ErrorKind::InvalidData, malformed)
        })
    }
}

fn long(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
