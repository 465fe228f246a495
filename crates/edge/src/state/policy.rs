//! The policy on disk, in two generations: the older one is overwritten, so a damaged file leaves
//! the other.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use wire::policy::{Rejected, Snapshot};

use super::sealed::{self, Sealed};

/// Longest file that is read: what a control plane may tell, and room for reports.
const FILE_BYTES_MAX: u64 = 80 << 20;
const NAMES: [&str; 2] = ["policy.a", "policy.b"];

/// A policy as it was in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptPolicy {
    /// The last valid version of everything.
    pub(crate) policy: Snapshot,
    /// Newer versions that are not valid.
    pub(crate) rejected: Vec<Rejected>,
}

#[derive(Serialize, Deserialize)]
struct Written {
    generation: u64,
    kept: KeptPolicy,
}

/// Which file holds what is newest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Generations {
    /// Of the newest whole file; 0 without one.
    pub(super) newest: u64,
    next: usize,
}

/// Reads the newest whole generation.
pub(super) fn read(folder: &Path) -> (Generations, Option<KeptPolicy>) {
    let mut generations = Generations::default();
    let mut newest = None;
    for (place, name) in NAMES.iter().enumerate() {
        let written = match sealed::read(&folder.join(name), FILE_BYTES_MAX) {
            Sealed::Absent => continue,
            Sealed::Damaged(why) => {
                tracing::error!(file = name, why, "a damaged file of the state folder is left out");
                continue;
            }
            Sealed::Whole(bytes) => serde_json::from_slice::<Written>(&bytes),
        };
        match written {
            Ok(written) if generations.newest < written.generation => {
                generations = Generations { newest: written.generation, next: 1 - place };
                newest = Some(written.kept);
            }
            Ok(_older) => {}
            Err(error) => {
                tracing::error!(file = name, %error, "a file of another program is left out");
            }
        }
    }
    (generations, newest)
}

/// Writes the next generation over the older one.
pub(super) fn write(
    folder: &Path,
    generations: &mut Generations,
    kept: KeptPolicy,
) -> io::Result<()> {
    let generation = generations.newest + 1;
    let name = NAMES.get(generations.next).copied().unwrap_or("policy.a");
    let bytes = serde_json::to_vec(&Written { generation, kept })?;
    sealed::write(folder, name, &bytes)?;
    *generations = Generations { newest: generation, next: 1 - generations.next.min(1) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(revision: u64) -> KeptPolicy {
        let policy = Snapshot {
            history: "h".to_owned(),
            revision,
            pepper_id: String::new(),
            live_gateways: 1,
            plans: Vec::new(),
            rollout: None,
            killswitch: None,
        };
        KeptPolicy { policy, rejected: Vec::new() }
    }

    fn newest(folder: &Path) -> Option<u64> {
        read(folder).1.map(|kept| kept.policy.revision)
    }

    #[test]
    fn the_newest_whole_generation_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let (mut generations, none) = read(folder);
        assert_eq!(none, None);
        for revision in [3, 5, 4] {
            write(folder, &mut generations, kept(revision)).unwrap();
            assert_eq!(newest(folder), Some(revision), "a new history may have lower numbers");
            assert_eq!(read(folder).0, generations);
        }
        std::fs::write(folder.join("policy.a"), "damaged").unwrap();
        assert_eq!(newest(folder), Some(5), "the other generation");
        let (mut generations, _) = read(folder);
        write(folder, &mut generations, kept(9)).unwrap();
        assert_eq!(newest(folder), Some(9), "over the damaged one");
        std::fs::write(folder.join("policy.a"), "damaged").unwrap();
        assert_eq!(newest(folder), Some(5));
        std::fs::write(folder.join("policy.b"), "damaged").unwrap();
        assert_eq!(newest(folder), None);
    }
}
