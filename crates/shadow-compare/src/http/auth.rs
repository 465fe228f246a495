//! Who may do what: a gateway's token posts batches and nothing else, the control token asks and
//! posts none.
//!
//! Only hashes are compared, in constant time. The file with the gateways' hashes is read again
//! while the process runs, so a new gateway needs no restart and a removed one is out in seconds.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::http::{HeaderMap, header};
use daemon::Drain;
use wire::error::{ErrorBody, ErrorCode};
use wire::key::{KeyHash, token_hash};

/// How often the file is read again.
const READ_AGAIN: Duration = Duration::from_secs(5);
/// Gateways that may have a token.
const GATEWAY_TOKENS_MAX: usize = 1_000;

/// What a caller wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Post batches.
    Report,
    /// Ask.
    Read,
}

/// The tokens that are let in. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Tokens {
    gateways: Arc<RwLock<Vec<KeyHash>>>,
    file: Arc<PathBuf>,
    control: KeyHash,
}

impl Tokens {
    /// `gateways` were read from `file`; `control` is the hash of the control token.
    pub(crate) fn new(gateways: Vec<KeyHash>, file: PathBuf, control: KeyHash) -> Tokens {
        Tokens { gateways: Arc::new(RwLock::new(gateways)), file: Arc::new(file), control }
    }

    /// Lets a caller in, or says why not.
    pub(crate) fn admit(
        &self,
        headers: &HeaderMap,
        purpose: Purpose,
    ) -> Result<(), Box<ErrorBody>> {
        let no = |code, detail: &str| Err(Box::new(ErrorBody::new(code, detail)));
        let Some(shown) = headers.get(header::AUTHORIZATION) else {
            return no(ErrorCode::TokenMissing, "send `authorization: Bearer <token>`");
        };
        let token = shown.to_str().ok().and_then(|text| text.strip_prefix("Bearer "));
        let hash = token.map(|token| token_hash(token.trim()));
        let gateways = self.gateways.read().unwrap_or_else(PoisonError::into_inner);
        let gateway = hash.is_some_and(|hash| gateways.contains(&hash));
        let control = hash == Some(self.control);
        match purpose {
            Purpose::Report if gateway => Ok(()),
            Purpose::Read if control => Ok(()),
            Purpose::Report if control => {
                no(ErrorCode::RoleTooSmall, "only a gateway's token may post batches")
            }
            Purpose::Read if gateway => {
                no(ErrorCode::RoleTooSmall, "a gateway's token may only post batches")
            }
            Purpose::Report | Purpose::Read => {
                no(ErrorCode::TokenInvalid, "this token is not known here")
            }
        }
    }

    /// Reads the file again and again until the drain. A file that cannot be read changes nothing.
    pub(crate) async fn follow_file(self, drain: Drain) {
        let ended = drain.started();
        tokio::pin!(ended);
        loop {
            tokio::select! {
                () = &mut ended => return,
                () = tokio::time::sleep(READ_AGAIN) => {}
            }
            self.read_again();
        }
    }

    fn read_again(&self) {
        match gateway_hashes(&self.file) {
            Ok(hashes) => {
                *self.gateways.write().unwrap_or_else(PoisonError::into_inner) = hashes;
            }
            Err(lines) => tracing::warn!(error = %lines.join("; "), "gateway tokens not read"),
        }
    }
}

/// Reads one hash a line; empty lines and lines that start with `#` are skipped. All wrong lines at
/// once.
pub(crate) fn gateway_hashes(path: &Path) -> Result<Vec<KeyHash>, Vec<String>> {
    let text = std::fs::read_to_string(path).map_err(|error| vec![error.to_string()])?;
    let (mut hashes, mut wrong) = (Vec::new(), Vec::new());
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match KeyHash::from_hex(line) {
            Some(hash) => hashes.push(hash),
            None => {
                wrong.push(format!("line {} is not a hash of 64 hexadecimal digits", index + 1))
            }
        }
    }
    if hashes.len() > GATEWAY_TOKENS_MAX {
        wrong.push(format!("at most {GATEWAY_TOKENS_MAX} tokens, not {}", hashes.len()));
    }
    if wrong.is_empty() { Ok(hashes) } else { Err(wrong) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(tokens: &Tokens, token: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
        tokens.admit(&headers, Purpose::Report).is_ok()
    }

    #[test]
    fn a_file_that_cannot_be_read_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gateways");
        let line = |token| format!("# who may report\n\n{}\n", token_hash(token).to_hex());
        std::fs::write(&file, line("one")).unwrap();
        let tokens = Tokens::new(gateway_hashes(&file).unwrap(), file.clone(), token_hash("c"));
        assert!(admits(&tokens, "one") && !admits(&tokens, "two"));
        std::fs::write(&file, line("two")).unwrap();
        tokens.read_again();
        assert!(!admits(&tokens, "one") && admits(&tokens, "two"));
        for wrong in ["not a hash", "\n\nabcd"] {
            std::fs::write(&file, wrong).unwrap();
            tokens.read_again();
            assert!(admits(&tokens, "two"));
        }
        std::fs::remove_file(&file).unwrap();
        tokens.read_again();
        assert!(admits(&tokens, "two"));
        std::fs::write(&file, "# nobody\n").unwrap();
        tokens.read_again();
        assert!(!admits(&tokens, "two"));
    }

    #[test]
    fn every_wrong_line_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gateways");
        std::fs::write(&file, "abc\n# fine\nxyz\n").unwrap();
        let wrong = gateway_hashes(&file).unwrap_err();
        assert_eq!(wrong.len(), 2);
        assert!(wrong[0].contains("line 1") && wrong[1].contains("line 3"), "{wrong:?}");
    }
}
