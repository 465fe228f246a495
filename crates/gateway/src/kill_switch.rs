//! The kill switch of this gateway: a latch that puts every client in shadow.
//!
//! It is set by an operator, by a file that appears in the state folder, or by the control plane for
//! all gateways, and stays set until it is cleared by its id, there or here: no restart opens it, no file that vanishes and no disk that fails.
//! What is in doubt counts as set. In this process it is in force before the disk has been asked,
//! and requests pay for it with the one flag that the edge reads.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use daemon::Drain;
use edge::limiter::Clock;
use wire::name::Name;

mod folder; // what the disk remembers
pub(crate) mod metrics; // whether it is set
mod told; // what the control plane says

use folder::{Folder, Found, There};
use metrics::KillSwitchMetrics;

/// How often the folder is looked at: a file is in force a second later at the latest.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Latch {
    /// What clears it.
    pub id: Name,
    /// When it was set, or seen first; RFC 3339.
    pub set_at: String,
    /// Whether the folder has it, so that a restart finds it.
    pub kept: bool,
    /// Set by the control plane, for all gateways.
    pub told: bool,
}

/// Why it stays set.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotCleared {
    /// There is nothing to clear.
    #[error("the kill switch is not set")]
    NotSet,
    /// Somebody means another one.
    #[error("the kill switch is set under another id")]
    OtherId,
    /// The next start would find it.
    #[error("its file cannot be removed, so the kill switch stays set")]
    Disk(#[source] io::Error),
}

/// The latch, and the two places where it can be set.
#[derive(Debug)]
pub(crate) struct KillSwitch {
    switch: edge::KillSwitch,
    /// Held for moments. The flag of the edge is flipped under it.
    latch: Mutex<Option<Latch>>,
    /// What was cleared last; told again, it stays so.
    cleared: Mutex<Option<There>>,
    folder: Option<Folder>,
    /// Held by whoever is at the disk; never waited for under the other lock.
    disk: Mutex<Disk>,
    clock: Arc<dyn Clock>,
    metrics: KillSwitchMetrics,
    end: Drain,
}

#[derive(Debug, Default)]
struct Disk {
    /// The last write failed: said once, not each time.
    failing: bool,
}

impl KillSwitch {
    /// As the last process left it, if there is a folder to remember that; it is made if need be.
    pub(crate) fn restore(
        state_dir: Option<&Path>,
        switch: edge::KillSwitch,
        clock: Arc<dyn Clock>,
        metrics: KillSwitchMetrics,
    ) -> io::Result<KillSwitch> {
        let restored = KillSwitch {
            switch,
            latch: Mutex::default(),
            cleared: Mutex::default(),
            folder: state_dir.map(Folder::at).transpose()?,
            disk: Mutex::default(),
            clock,
            metrics,
            end: Drain::new(),
        };
        restored.look();
        Ok(restored)
    }

    /// Whether everybody is in shadow.
    pub(crate) fn is_set(&self) -> bool {
        self.switch.is_set()
    }

    /// What is set, if anything is.
    pub(crate) fn state(&self) -> Option<Latch> {
        lock(&self.latch).clone()
    }

    /// Whether there is a folder at all.
    pub(crate) fn has_folder(&self) -> bool {
        self.folder.is_some()
    }

    /// Sets it at once; [`KillSwitch::look`] then has it remembered. What is set stays as it is.
    pub(crate) fn set(&self, id: Option<Name>) -> Latch {
        let mut latch = lock(&self.latch);
        if let Some(set) = latch.as_ref() {
            return set.clone();
        }
        let set = self.new_latch(id.unwrap_or_else(|| random_id("ks")));
        self.take(&mut latch, set.clone(), "operator");
        set
    }

    /// Clears it, if this is its id. Waits for the disk.
    pub(crate) fn clear(&self, id: &str) -> Result<(), NotCleared> {
        let mut disk = lock(&self.disk);
        // A hand may have put another one there a moment ago.
        self.look_at(&mut disk);
        let set = self.state().ok_or(NotCleared::NotSet)?;
        if set.id.as_str() != id {
            return Err(NotCleared::OtherId);
        }
        if let Some(folder) = &self.folder {
            folder.clear(&set).map_err(NotCleared::Disk)?;
        }
        let mut latch = lock(&self.latch);
        if latch.as_ref().is_some_and(|now| now.id == set.id) {
            self.open(&mut latch);
        }
        Ok(())
    }

    /// Goes by what the folder holds, and has it hold what is set. Waits for the disk.
    pub(crate) fn look(&self) {
        self.look_at(&mut lock(&self.disk));
    }

    fn look_at(&self, disk: &mut Disk) {
        let Some(folder) = &self.folder else { return };
        let Some(unkept) = self.follow(folder.find()) else { return };
        match folder.keep(&unkept) {
            Ok(()) => {
                disk.failing = false;
                let mut latch = lock(&self.latch);
                if let Some(set) = latch.as_mut().filter(|set| set.id == unkept.id) {
                    set.kept = true;
                }
            }
            Err(error) if !disk.failing => {
                disk.failing = true;
                tracing::warn!(%error, "the kill switch is set, but that could not be written down");
            }
            Err(_still) => {}
        }
    }

    /// Goes by what was found; what the folder should hold instead, if that is something else.
    fn follow(&self, found: Found) -> Option<Latch> {
        let mut latch = lock(&self.latch);
        match (found, latch.clone()) {
            (Found::Set(Some(there)), Some(set)) if there.id == set.id => {
                *latch = Some(Latch { kept: true, ..set });
                None
            }
            (Found::Set(Some(there)), _) => {
                let There { id, set_at, told } = there;
                let set_at = set_at.unwrap_or_else(|| self.now());
                self.take(&mut latch, Latch { id, set_at, kept: true, told }, "file");
                None
            }
            // It has a name here, and whatever the file says, the next start finds it.
            (Found::Set(None), Some(set)) => {
                *latch = Some(Latch { kept: true, ..set });
                None
            }
            (Found::Set(None), None) => {
                let set = Latch { kept: true, ..self.new_latch(random_id("file")) };
                self.take(&mut latch, set.clone(), "file");
                Some(set)
            }
            // By the process that came before this one, or after it.
            (Found::Cleared(last), Some(set)) if set.kept && set.id == last.id => {
                self.open(&mut latch);
                None
            }
            (Found::Cleared(_) | Found::Nothing, Some(set)) => {
                let unkept = Latch { kept: false, ..set };
                *latch = Some(unkept.clone());
                Some(unkept)
            }
            (Found::Cleared(last), None) => {
                *lock(&self.cleared) = Some(last);
                None
            }
            (Found::Nothing, None) | (Found::Unsure, _) => None,
        }
    }

    fn take(&self, latch: &mut Option<Latch>, set: Latch, by: &str) {
        self.switch.set();
        self.metrics.set.set(1);
        let id = set.id.as_str();
        tracing::warn!(id, by, "the kill switch is set: nobody is refused by a limit");
        self.switch.set_own((!set.told).then(|| id.to_owned()));
        *latch = Some(set);
    }

    fn open(&self, latch: &mut Option<Latch>) {
        self.switch.clear();
        self.metrics.set.set(0);
        self.switch.set_own(None);
        let cleared = latch.take();
        let id = cleared.as_ref().map(|latch| latch.id.as_str());
        tracing::warn!(id, "the kill switch is cleared: phases are those of the policy");
        *lock(&self.cleared) = cleared.map(There::from);
    }

    fn new_latch(&self, id: Name) -> Latch {
        Latch { id, set_at: self.now(), kept: false, told: false }
    }

    fn now(&self) -> String {
        rfc3339(Duration::from_micros(self.clock.now().us()))
    }

    /// Ends [`watch`].
    pub(crate) fn end(&self) {
        self.end.start();
    }
}

/// Looks at the folder again and again, and hears the control plane, also while the gateway drains:
/// it still answers then.
pub(crate) async fn watch(kill_switch: Arc<KillSwitch>) {
    let mut told = kill_switch.switch.told();
    let mut ended = std::pin::pin!(kill_switch.end.started());
    loop {
        let says = told.borrow_and_update().clone();
        let looking = Arc::clone(&kill_switch);
        let look = move || {
            looking.hear(&says);
            looking.look();
        };
        // A file system that hangs must not hold a thread of the runtime.
        if let Err(error) = tokio::task::spawn_blocking(look).await {
            tracing::error!(%error, "the kill switch's folder could not be looked at");
        }
        tokio::select! {
            () = &mut ended => return,
            Ok(()) = told.changed() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

fn rfc3339(since_1970: Duration) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + since_1970).to_string()
}

fn random_id(of: &str) -> Name {
    Name::new(&format!("{of}-{:08x}", fastrand::u32(..))).expect("small letters and digits")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
