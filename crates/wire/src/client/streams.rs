//! Bodies that are not held in memory: files that come and files that go.

use std::fs::File;
use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use serde::de::DeserializeOwned;

use super::{ANSWER_BYTES_MAX, Call, Client, ClientError, innermost};

/// Bytes of a file that are read at once.
const PIECE_BYTES: usize = 64 << 10;
/// Longest transfer of a file.
pub const TRANSFER_MAX: Duration = Duration::from_secs(3_600);

impl Client {
    /// Sends and hands every piece of the answer to `sink`, which may say that it is enough.
    pub async fn download(
        &self,
        call: Call,
        mut sink: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), ClientError> {
        let mut request = self.request(&call)?;
        *request.timeout_mut() = Some(TRANSFER_MAX);
        let unreachable = |reason| ClientError::Unreachable { url: self.base.clone(), reason };
        let broken = |error: &reqwest::Error| unreachable(innermost(error));
        let mut answer = self.http.execute(request).await.map_err(|error| broken(&error))?;
        if !answer.status().is_success() {
            return Err(self.refusal(answer).await);
        }
        while let Some(piece) = answer.chunk().await.map_err(|error| broken(&error))? {
            sink(&piece).map_err(|error| ClientError::Malformed {
                url: self.base.clone(),
                status: 200,
                reason: format!("what came cannot be kept: {error}"),
            })?;
        }
        Ok(())
    }

    /// Sends a file as the body, in pieces, and reads a JSON answer.
    pub async fn upload<T: DeserializeOwned>(
        &self,
        call: Call,
        file: File,
    ) -> Result<T, ClientError> {
        let mut request = self.request(&call)?;
        *request.timeout_mut() = Some(TRANSFER_MAX);
        *request.body_mut() = Some(reqwest::Body::wrap(Pieces(file)));
        let answer = self.http.execute(request).await.map_err(|error| {
            ClientError::Unreachable { url: self.base.clone(), reason: innermost(&error) }
        })?;
        if !answer.status().is_success() {
            return Err(self.refusal(answer).await);
        }
        let status = answer.status().as_u16();
        let bytes = self.whole(answer).await?;
        serde_json::from_slice(&bytes).map_err(|error| self.malformed(status, error.to_string()))
    }

    async fn refusal(&self, answer: reqwest::Response) -> ClientError {
        let status = answer.status().as_u16();
        match self.whole(answer).await {
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(body) => ClientError::Refused(Box::new(body)),
                Err(error) => self.malformed(status, error.to_string()),
            },
            Err(error) => error,
        }
    }

    async fn whole(&self, mut answer: reqwest::Response) -> Result<Vec<u8>, ClientError> {
        let status = answer.status().as_u16();
        let mut bytes = Vec::new();
        loop {
            let piece = answer.chunk().await.map_err(|error| ClientError::Unreachable {
                url: self.base.clone(),
                reason: innermost(&error),
            })?;
            let Some(piece) = piece else { return Ok(bytes) };
            if ANSWER_BYTES_MAX < bytes.len() + piece.len() {
                let reason = format!("longer than {ANSWER_BYTES_MAX} bytes");
                return Err(self.malformed(status, reason));
            }
            bytes.extend_from_slice(&piece);
        }
    }
}

/// A file as a body. It is read where it is asked for: from a disk, a piece at a time.
struct Pieces(File);

impl Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let mut piece = vec![0; PIECE_BYTES];
        Poll::Ready(match self.get_mut().0.read(&mut piece) {
            Ok(0) => None,
            Ok(read) => {
                piece.truncate(read);
                Some(Ok(Frame::data(Bytes::from(piece))))
            }
            Err(error) => Some(Err(error)),
        })
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
