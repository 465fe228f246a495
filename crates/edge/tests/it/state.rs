//! A restart begins with what the last process left. Whatever the disk does, nothing that was
//! acknowledged is taken back, and nobody waits for it.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use edge::{PolicySource, Refusal, ToldSwitch};
use wire::policy::KeyState;

use super::plane::Plane;
use super::world::{Setting, World, route, until};

/// One that keeps its state in `folder`.
pub(crate) fn start(plane: &Arc<Plane>, folder: &Path) -> World {
    let setting = Setting { state_dir: Some(folder.to_owned()), ..Setting::default() };
    World::new(setting, PolicySource::ControlPlane(plane.clone()))
}

async fn started(plane: &Arc<Plane>, folder: &Path) -> World {
    let world = start(plane, folder);
    until("the policy", || world.edge.is_ready()).await;
    world
}

fn away(plane: &Plane, away: bool) {
    plane.away.store(away, Ordering::SeqCst);
}

/// A plan, a client, and two keys that have been used and are on disk.
pub(crate) async fn used(plane: &Arc<Plane>, folder: &Path) -> World {
    plane.put_plan("pro", 1_000, "0");
    plane.put_client("acme", "pro");
    for key in ["key-a", "key-b"] {
        plane.put_key(key, "acme", KeyState::Active);
    }
    let world = started(plane, folder).await;
    for key in ["key-a", "key-b"] {
        assert_eq!(world.request(key, &route("orders")).await, Ok(()));
    }
    acknowledged(plane).await;
    world
}

/// One more revision, in force and on disk.
async fn acknowledged(plane: &Plane) {
    let revision = plane.other_write();
    until("the acknowledgement", || plane.acknowledged() >= revision).await;
}

#[tokio::test]
async fn f31_a_start_needs_nobody_where_the_last_process_left_its_state() {
    let folder = tempfile::tempdir().unwrap();
    let plane = Plane::new();
    let world = used(&plane, folder.path()).await;
    let head = plane.head();
    drop(world.finish().await);
    away(&plane, true);
    let (lookups, snapshots) = (plane.lookups(), plane.snapshots.load(Ordering::SeqCst));
    let world = started(&plane, folder.path()).await;
    let book = world.edge.book().unwrap();
    assert_eq!((book.history().to_owned(), book.revision()), head);
    assert_eq!(world.request("key-a", &route("orders")).await, Ok(()));
    assert_eq!(plane.lookups(), lookups, "nobody was asked");
    let other = world.request("key-c", &route("orders")).await;
    assert!(matches!(other, Err(Refusal::KeyUnverified { .. })), "{other:?}");
    away(&plane, false);
    acknowledged(&plane).await;
    let asked = plane.snapshots.load(Ordering::SeqCst) - snapshots;
    assert_eq!(asked, 0, "the feed goes on where it was");
}

#[tokio::test]
async fn only_the_owner_reads_what_is_kept_and_no_key_stands_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let plane = Plane::new();
    let world = used(&plane, &state).await;
    drop(world.finish().await);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&state), 0o700);
    let files: Vec<_> =
        std::fs::read_dir(&state).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(files.len() >= 3, "{files:?}");
    for file in files {
        assert_eq!(mode(&file), 0o600, "{file:?}");
        let text = String::from_utf8_lossy(&std::fs::read(&file).unwrap()).into_owned();
        assert!(!text.contains("key-a\"") && !text.contains(" key-a "), "{file:?}: {text}");
    }
}

#[tokio::test]
async fn a_policy_from_a_disk_or_a_file_sets_the_kill_switch_and_clears_none() {
    let folder = tempfile::tempdir().unwrap();
    let (state, file) = (folder.path().join("state"), folder.path().join("bootstrap.json"));
    let plane = Plane::new();
    for id in [None, Some("inc-7")] {
        plane.set_killswitch(id);
        drop(used(&plane, &state).await.finish().await);
        std::fs::write(&file, plane.export().to_text()).unwrap();
        for (state_dir, bootstrap) in [(Some(&state), None), (None, Some(&file))] {
            away(&plane, true);
            let (state_dir, bootstrap) = (state_dir.cloned(), bootstrap.cloned());
            let setting = Setting { state_dir, bootstrap, ..Setting::default() };
            let world = World::new(setting, PolicySource::ControlPlane(plane.clone()));
            until("the policy", || world.edge.is_ready()).await;
            let told = world.edge.kill_switch().told();
            let says = |id: &str| matches!(&*told.borrow(), ToldSwitch::Set(set) if set.id == id);
            match id {
                None => assert_eq!(*told.borrow(), ToldSwitch::Nothing, "it may be set by now"),
                Some(id) => assert!(says(id), "{:?}", told.borrow()),
            }
            away(&plane, false);
            match id {
                None => until("its end", || *told.borrow() == ToldSwitch::Clear).await,
                Some(id) => until("the switch", || says(id)).await,
            }
            drop(world.finish().await);
        }
    }
}

/// What a start finds, and what it then has in force and whom it asked.
#[tokio::test]
async fn f31_sources_are_taken_in_their_order() {
    for (kept, plane_is_up, exported, in_force) in [
        ("present", true, true, Some("plane")),
        ("present", false, true, Some("disk")),
        ("present", false, false, Some("disk")),
        ("damaged", true, true, Some("plane")),
        ("damaged", false, true, Some("export")),
        ("damaged", false, false, None),
        ("absent", true, true, Some("plane")),
        ("absent", true, false, Some("plane")),
        ("absent", false, true, Some("export")),
        ("absent", false, false, None),
        ("of a later revision", true, false, Some("disk")),
        ("of a later revision", false, true, Some("disk")),
    ] {
        let case = format!("{kept}, plane up: {plane_is_up}, exported: {exported}");
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let plane = Plane::new();
        let old = plane.head().1;
        let world = used(&plane, &state).await;
        let file = folder.path().join("bootstrap.json");
        std::fs::write(&file, plane.export().to_text()).unwrap();
        let export_at = plane.head().1;
        acknowledged(&plane).await;
        let disk_at = plane.head().1;
        drop(world.finish().await);
        match kept {
            "absent" => std::fs::remove_dir_all(&state).unwrap(),
            "damaged" => {
                for name in ["policy.a", "policy.b"] {
                    let _either = std::fs::write(state.join(name), "\u{0}\u{0}");
                }
            }
            "of a later revision" => plane.go_back(old),
            _ => {}
        }
        let plane_at = plane.other_write();
        away(&plane, !plane_is_up);
        let setting = Setting {
            state_dir: Some(state),
            bootstrap: exported.then_some(file),
            ..Setting::default()
        };
        let world = World::new(setting, PolicySource::ControlPlane(plane.clone()));
        let expected = match in_force {
            Some("disk") => Some(disk_at),
            Some("plane") => Some(plane_at),
            Some("export") => Some(export_at),
            _ => None,
        };
        match expected {
            Some(revision) => {
                until(&case, || world.edge.revision() == revision).await;
                let opens = world.request("key-a", &route("orders")).await;
                assert_eq!(opens, Ok(()), "{case}");
            }
            None => {
                let asked = plane.requests.lock().len() + plane.asked();
                until(&case, || plane.requests.lock().len() + plane.asked() >= asked + 2).await;
                assert!(!world.edge.is_ready(), "{case}");
            }
        }
        if kept == "of a later revision" {
            let snapshots = plane.snapshots.load(Ordering::SeqCst);
            if plane_is_up {
                until("a snapshot", || plane.snapshots.load(Ordering::SeqCst) > snapshots).await;
            }
            assert_eq!(world.edge.revision(), disk_at, "it never goes back: {case}");
        }
    }
}

#[tokio::test]
async fn an_export_that_was_edited_or_is_of_another_pepper_is_not_taken() {
    let folder = tempfile::tempdir().unwrap();
    let plane = Plane::new();
    plane.put_plan("pro", 5, "0");
    let text = plane.export().to_text();
    let ours = super::world::pepper().id();
    let mut other = plane.export();
    other.policy.pepper_id = "another".to_owned();
    assert!(text.contains(&ours));
    away(&plane, true);
    let cases = [("edited", text.replace("pro", "por")), ("other", other.to_text())];
    for (name, text) in cases {
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        let setting = Setting { bootstrap: Some(file), ..Setting::default() };
        let world = World::new(setting, PolicySource::ControlPlane(plane.clone()));
        let asked = plane.asked();
        until("some attempts", || plane.asked() >= asked + 2).await;
        assert!(!world.edge.is_ready(), "{name}");
    }
}

#[tokio::test]
async fn on_a_full_disk_all_goes_on_but_nothing_new_is_acknowledged_until_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let plane = Plane::new();
    let world = used(&plane, folder.path()).await;
    let saved = plane.acknowledged();
    let files = ["policy.a.new", "policy.b.new", "keys.mark.new", "keys.log.new"];
    for name in files {
        // Every write to it fails as one to a full disk does.
        symlink("/dev/full", folder.path().join(name)).unwrap();
    }
    let revoked = plane.put_key("key-a", "acme", KeyState::Revoked);
    until("the revocation in force", || world.edge.revision() >= revoked).await;
    let orders = route("orders");
    assert_eq!(world.request("key-a", &orders).await, Err(Refusal::KeyInvalid));
    assert_eq!(world.request("key-b", &orders).await, Ok(()));
    let metrics = world.edge.metrics();
    until("the failure in the metrics", || metrics.state_is_unsaved()).await;
    let calls = plane.requests.lock().len();
    let more = plane.put_plan("pro", 900, "0");
    until("another call", || plane.requests.lock().len() > calls + 1).await;
    assert_eq!(world.edge.revision(), more, "changes come into force");
    assert_eq!(plane.acknowledged(), saved, "and are not acknowledged");
    for name in files {
        std::fs::remove_file(folder.path().join(name)).unwrap();
    }
    until("the acknowledgement", || plane.acknowledged() >= more).await;
    assert!(!metrics.state_is_unsaved());
    drop(world.finish().await);
    away(&plane, true);
    let world = started(&plane, folder.path()).await;
    assert_eq!(world.request("key-a", &orders).await, Err(Refusal::KeyInvalid));
    assert_eq!(world.request("key-b", &orders).await, Ok(()));
}

#[tokio::test]
async fn a_folder_is_written_by_one_process_at_a_time_and_handed_over() {
    let folder = tempfile::tempdir().unwrap();
    let plane = Plane::new();
    let first = used(&plane, folder.path()).await;
    let second = started(&plane, folder.path()).await;
    let unsaved = |world: &World| world.edge.metrics().state_is_unsaved();
    until("that nothing of the second one is kept", || unsaved(&second)).await;
    assert!(!unsaved(&first));
    let log = || std::fs::read(folder.path().join("keys.log")).unwrap();
    let revoked = plane.put_key("key-a", "acme", KeyState::Revoked);
    until("both", || first.edge.revision() >= revoked && second.edge.revision() >= revoked).await;
    until("the first one's line", || log().iter().filter(|byte| **byte == b'\n').count() >= 5)
        .await;
    let before = log();
    first.edge.leave_state();
    until("the second one's log", || log() != before).await;
    assert!(String::from_utf8(log()).unwrap().starts_with("weir-keys/1 2\n"), "a log of its own");
    until("that what the second one has is kept", || !unsaved(&second)).await;
    drop(first.finish().await);
    drop(second.finish().await);
    away(&plane, true);
    let third = started(&plane, folder.path()).await;
    assert_eq!(third.edge.revision(), revoked);
    assert_eq!(third.request("key-a", &route("orders")).await, Err(Refusal::KeyInvalid));
    assert_eq!(third.request("key-b", &route("orders")).await, Ok(()));
}

#[tokio::test]
async fn a_state_of_another_pepper_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let plane = Plane::new();
    drop(used(&plane, folder.path()).await.finish().await);
    for name in ["policy.a", "policy.b"] {
        let file = folder.path().join(name);
        let Ok(bytes) = std::fs::read(&file) else { continue };
        let text = String::from_utf8(bytes).unwrap();
        let content = text.get(..text.len() - 66).unwrap();
        let content = content.replace(&super::world::pepper().id(), "0000000000000000");
        let seal = edge_seal(&content);
        std::fs::write(&file, format!("{content}{seal}")).unwrap();
    }
    away(&plane, true);
    let world = start(&plane, folder.path());
    let asked = plane.asked();
    until("some attempts", || plane.asked() >= asked + 2).await;
    assert!(!world.edge.is_ready());
}

fn edge_seal(content: &str) -> String {
    format!("\n{}\n", blake3::hash(content.as_bytes()).to_hex())
}
