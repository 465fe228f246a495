//! What the control plane says about the kill switch of all gateways. It is latched as one that was
//! set here is, so it survives a restart without the control plane, and can be cleared here.

use std::time::Duration;

use edge::ToldSwitch;
use wire::killswitch::KillswitchValue;
use wire::name::Name;

use super::folder::There;
use super::{KillSwitch, Latch, NotCleared, lock, rfc3339};

impl KillSwitch {
    /// Goes by what is said. Waits for the disk where something is cleared.
    pub(super) fn hear(&self, says: &ToldSwitch) {
        match says {
            ToldSwitch::Nothing => {}
            ToldSwitch::Set(switch) => self.hear_set(switch),
            ToldSwitch::Clear => self.hear_cleared(None),
        }
    }

    fn hear_set(&self, switch: &KillswitchValue) {
        // The edge has checked it, and what is no name cannot be cleared either.
        let Ok(id) = Name::new(&switch.id) else { return };
        self.hear_cleared(Some(&id));
        let set_at = rfc3339(Duration::from_millis(switch.set_at));
        let mut latch = lock(&self.latch);
        if latch.is_none() && !self.was_cleared(&id, &set_at) {
            self.take(&mut latch, Latch { id, set_at, kept: false, told: true }, "control plane");
        }
    }

    /// Clears what was told before, unless it is this.
    fn hear_cleared(&self, unless: Option<&Name>) {
        let told = self.state().filter(|latch| latch.told && unless != Some(&latch.id));
        let Some(latch) = told else { return };
        match self.clear(latch.id.as_str()) {
            Ok(()) | Err(NotCleared::NotSet | NotCleared::OtherId) => {}
            Err(error @ NotCleared::Disk(_)) => {
                tracing::warn!(%error, "the control plane has cleared the kill switch");
            }
        }
    }

    /// Whether somebody here has cleared just that one.
    fn was_cleared(&self, id: &Name, set_at: &str) -> bool {
        let cleared = lock(&self.cleared);
        cleared
            .as_ref()
            .is_some_and(|last| last.id == *id && last.set_at.as_deref() == Some(set_at))
    }
}

impl From<Latch> for There {
    fn from(latch: Latch) -> There {
        There { id: latch.id, set_at: Some(latch.set_at), told: latch.told }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use edge::limiter::SystemClock;

    use super::super::metrics::KillSwitchMetrics;
    use super::*;

    fn on(folder: &Path) -> KillSwitch {
        let clock = Arc::new(SystemClock::new());
        let (switch, metrics) = (edge::KillSwitch::default(), KillSwitchMetrics::default());
        KillSwitch::restore(Some(folder), switch, clock, metrics).unwrap()
    }

    fn set(id: &str, set_at: u64) -> ToldSwitch {
        ToldSwitch::Set(KillswitchValue { id: id.to_owned(), set_at })
    }

    fn id(kill_switch: &KillSwitch) -> Option<String> {
        kill_switch.state().map(|latch| latch.id.to_string())
    }

    #[test]
    fn what_is_told_is_latched_over_restarts_until_it_is_told_otherwise() {
        let folder = tempfile::tempdir().unwrap();
        let running = on(folder.path());
        running.hear(&set("ks-1", 1_000));
        assert!(running.is_set(), "before the disk is asked");
        running.look();
        let next = on(folder.path());
        next.hear(&ToldSwitch::Nothing);
        assert_eq!(id(&next).as_deref(), Some("ks-1"), "without a control plane");
        assert!(next.state().unwrap().told);
        next.hear(&ToldSwitch::Clear);
        assert!(!next.is_set());
        next.look();
        assert!(!on(folder.path()).is_set());
    }

    #[test]
    fn an_own_one_is_no_matter_of_the_control_plane_and_the_other_way_round() {
        let folder = tempfile::tempdir().unwrap();
        let running = on(folder.path());
        running.set(Some(Name::new("here-1").unwrap()));
        running.look();
        running.hear(&ToldSwitch::Clear);
        running.hear(&set("ks-1", 1_000));
        assert_eq!(id(&running).as_deref(), Some("here-1"));
        running.clear("here-1").unwrap();
        running.hear(&set("ks-1", 1_000));
        assert_eq!(id(&running).as_deref(), Some("ks-1"), "it is still told");
        running.look();
        running.hear(&set("ks-2", 2_000));
        assert_eq!(id(&running).as_deref(), Some("ks-2"));
    }

    #[test]
    fn what_was_cleared_here_is_not_set_again_by_being_told_again() {
        let folder = tempfile::tempdir().unwrap();
        let running = on(folder.path());
        running.hear(&set("ks-1", 1_000));
        running.look();
        running.clear("ks-1").unwrap();
        running.hear(&set("ks-1", 1_000));
        assert!(!running.is_set());
        let next = on(folder.path());
        next.hear(&set("ks-1", 1_000));
        assert!(!next.is_set(), "nor after a restart");
        next.hear(&set("ks-1", 9_000));
        assert!(next.is_set(), "but it may be set anew");
    }
}
