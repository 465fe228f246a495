//! A caller that writes any bytes and tells what became of them.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::PATIENCE;

/// What became of some bytes on a connection of their own, up to its end.
#[derive(Debug)]
pub(crate) struct Came {
    /// Statuses of the answers, in order, without interim ones.
    pub(crate) statuses: Vec<u16>,
    /// Everything that was read.
    pub(crate) text: String,
}

/// Writes them and reads until the other side ends the connection, which it must.
pub(crate) async fn write(to: SocketAddr, bytes: &[u8]) -> Came {
    let exchange = async {
        let mut stream = TcpStream::connect(to).await.unwrap();
        // The other side may end it before it has read all.
        stream.write_all(bytes).await.ok();
        let (mut answer, mut piece) = (Vec::new(), [0; 4_096]);
        while let Ok(count @ 1..) = stream.read(&mut piece).await {
            answer.extend_from_slice(&piece[..count]);
        }
        answer
    };
    let shown: String = String::from_utf8_lossy(bytes).chars().take(200).collect();
    let answer = tokio::time::timeout(PATIENCE, exchange).await;
    let answer = answer.unwrap_or_else(|_| panic!("the connection stays open after {shown:?}"));
    let text = String::from_utf8_lossy(&answer).into_owned();
    let heads = text.split("HTTP/1.").skip(1).filter_map(|head| head.get(2..5));
    let statuses = heads.filter_map(|status| status.parse().ok());
    Came { statuses: statuses.filter(|status| 200 <= *status).collect(), text }
}
