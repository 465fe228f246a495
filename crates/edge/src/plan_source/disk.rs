//! What there is before a control plane has been heard: what the last process left, and if that is
//! nothing and nobody answers, a file that was exported.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wire::bootstrap::{BOOTSTRAP_BYTES_MAX, Bootstrap};

use super::http::{Feed, News, Target};
use crate::key_cache::AsOf;
use crate::plan_book::{Offer, PlanBook};

impl Feed {
    /// Puts in force what the last process left. Whether the feed can go on from there; otherwise
    /// changes may be missed.
    pub(super) async fn restore(&self, target: &Target<'_>) -> bool {
        let Some(keeper) = target.keeper else { return false };
        target.keys.remember_changes();
        let (keeper, keys) = (Arc::clone(keeper), Arc::clone(target.keys));
        let ours = target.pepper_id.clone();
        let restored = tokio::task::spawn_blocking(move || {
            let loaded = keeper.load();
            let kept = loaded.policy?;
            if kept.policy.pepper_id != ours {
                let theirs = kept.policy.pepper_id;
                tracing::warn!(theirs, ours, "the state folder is of another pepper: left out");
                return None;
            }
            if let Some(as_of) = &loaded.as_of {
                keys.begin_after(as_of.revision);
                keys.in_step(as_of.clone());
            }
            let known = keys.restore(loaded.keys);
            Some((kept, loaded.as_of, loaded.heard_ms, known))
        });
        let Ok(Some((kept, as_of, heard_ms, keys))) = restored.await else { return false };
        let holds_at = as_of.as_ref().map_or(0, |as_of| as_of.revision);
        let book = PlanBook::from_kept(kept, target.shelf.region(), holds_at);
        let (revision, history) = (book.revision(), book.history().to_owned());
        if self.put_in_force(book, News::Older, target) == Offer::Stale {
            return false;
        }
        self.was_heard(heard_ms, target);
        tracing::info!(revision, history, keys, "policy in force, as the last process left it");
        as_of.is_some()
    }

    /// Puts an exported policy in force. It is asked on for a newer one all the same.
    pub(super) async fn bootstrap(&self, file: &Path, target: &Target<'_>) {
        let path = file.to_owned();
        let read = tokio::task::spawn_blocking(move || read(path)).await;
        let exported = match read {
            Ok(Ok(exported)) => exported,
            Ok(Err(reason)) => {
                let file = file.display().to_string();
                tracing::error!(file, reason, "the bootstrap file was not taken");
                return;
            }
            Err(error) => {
                tracing::error!(%error, "the bootstrap file was not read");
                return;
            }
        };
        let Bootstrap { policy, keys, written_at } = exported;
        if policy.pepper_id != target.pepper_id {
            let (ours, theirs) = (&target.pepper_id, &policy.pepper_id);
            tracing::error!(ours, theirs, "the bootstrap file is of another pepper: not taken");
            return;
        }
        let as_of = AsOf { history: policy.history.clone(), revision: policy.revision };
        target.keys.begin_after(as_of.revision);
        target.keys.fill(keys);
        let book = PlanBook::from_snapshot(&policy, target.shelf.region(), None);
        if self.put_in_force(book, News::Older, target) == Offer::Taken {
            let AsOf { history, revision } = as_of.clone();
            target.keys.in_step(as_of);
            self.was_heard(written_at, target);
            tracing::warn!(
                revision,
                history,
                written_at,
                "policy in force from the bootstrap file"
            );
        }
    }
}

fn read(path: PathBuf) -> Result<Bootstrap, String> {
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    file.take(BOOTSTRAP_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    if BOOTSTRAP_BYTES_MAX < u64::try_from(bytes.len()).unwrap_or(u64::MAX) {
        return Err(format!("it is longer than {BOOTSTRAP_BYTES_MAX} bytes"));
    }
    Bootstrap::parse(&bytes).map_err(|error| match std::error::Error::source(&error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    })
}
