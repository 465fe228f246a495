//! What sets the latch, and that only its id opens it.

use std::path::Path;
use std::process::Command;

use edge::limiter::SystemClock;

use super::*;

fn on(folder: &Path) -> KillSwitch {
    let clock = Arc::new(SystemClock::new());
    let (switch, metrics) = (edge::KillSwitch::default(), KillSwitchMetrics::default());
    KillSwitch::restore(Some(folder), switch, clock, metrics).unwrap()
}

fn id(kill_switch: &KillSwitch) -> String {
    kill_switch.state().expect("it is set").id.to_string()
}

fn name(text: &str) -> Option<Name> {
    Some(Name::new(text).unwrap())
}

#[test]
fn whatever_stands_there_sets_it_and_a_restart_finds_it_set() {
    type Make = fn(&Path);
    let makes: [(&str, Make); 9] = [
        ("nothing in it", |file| std::fs::write(file, "").unwrap()),
        ("a word", |file| std::fs::write(file, "off\n").unwrap()),
        ("bytes", |file| std::fs::write(file, [0xff; 9]).unwrap()),
        ("half of ours", |file| std::fs::write(file, "{\"id\":\"ks-1").unwrap()),
        ("an id that is none", |file| std::fs::write(file, "{\"id\":\"../x\"}").unwrap()),
        ("too much", |file| std::fs::write(file, " ".repeat(100_000)).unwrap()),
        ("a folder", |file| std::fs::create_dir(file).unwrap()),
        ("a link to nowhere", |file| std::os::unix::fs::symlink("/nowhere/x", file).unwrap()),
        ("a pipe", |file| {
            assert!(Command::new("mkfifo").arg(file).status().unwrap().success());
        }),
    ];
    for (what, make) in makes {
        let folder = tempfile::tempdir().unwrap();
        let running = on(folder.path());
        assert!(!running.is_set(), "{what}");
        make(&folder.path().join("killswitch"));
        running.look();
        assert!(running.is_set(), "{what}");
        let first = id(&running);
        running.look();
        assert_eq!(id(&running), first, "{what}: its name stays");
        let next = on(folder.path());
        assert!(next.is_set(), "{what}");
        if what != "a folder" {
            assert_eq!(id(&next), first, "{what}: it was written down under its name");
        }
    }
}

#[test]
fn a_file_with_an_id_is_set_under_that_id() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("killswitch");
    std::fs::write(&file, "{\"id\": \"incident-7\", \"set_at\": \"2026-01-02T03:04:05Z\"}")
        .unwrap();
    let running = on(folder.path());
    let set = running.state().unwrap();
    assert_eq!((set.id.as_str(), set.set_at.as_str()), ("incident-7", "2026-01-02T03:04:05Z"));
    assert!(set.kept);
}

#[test]
fn only_its_id_clears_it() {
    let folder = tempfile::tempdir().unwrap();
    let running = on(folder.path());
    assert!(matches!(running.clear("ks-1"), Err(NotCleared::NotSet)));
    running.set(name("ks-1"));
    assert!(running.is_set(), "before the disk is asked");
    running.look();
    assert_eq!(running.set(name("ks-2")).id.as_str(), "ks-1", "what is set stays as it is");
    assert!(matches!(running.clear("ks-2"), Err(NotCleared::OtherId)));
    // A file that is gone clears nothing, and is there again.
    std::fs::remove_file(folder.path().join("killswitch")).unwrap();
    running.look();
    assert_eq!(id(&running), "ks-1");
    assert_eq!(id(&on(folder.path())), "ks-1");
    running.clear("ks-1").unwrap();
    running.look();
    assert!(!running.is_set() && !on(folder.path()).is_set());
    assert!(!folder.path().join("killswitch").exists());
}

#[test]
fn two_processes_on_one_folder_set_and_clear_it_for_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (on(folder.path()), on(folder.path()));
    for _again in 0..2 {
        new.set(name("ks-1"));
        new.look();
        old.look();
        assert_eq!(id(&old), "ks-1");
        old.clear("ks-1").unwrap();
        new.look();
        assert!(!new.is_set(), "it does not hold on to what the other one cleared");
        old.look();
        assert!(!old.is_set());
    }
}

#[test]
fn a_disk_that_fails_opens_nothing_and_is_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let running = on(&state);
    running.set(name("ks-1"));
    running.look();
    running.clear("ks-1").unwrap();
    // The same id again, of which the folder says that it was cleared.
    std::fs::rename(&state, folder.path().join("away")).unwrap();
    running.set(name("ks-1"));
    running.look();
    assert!(running.is_set() && !running.state().unwrap().kept);
    std::fs::rename(folder.path().join("away"), &state).unwrap();
    running.look();
    assert!(running.is_set() && running.state().unwrap().kept);
    assert_eq!(id(&on(&state)), "ks-1");
}

#[test]
fn what_cannot_be_removed_stays_set_and_is_told() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("killswitch")).unwrap();
    let running = on(folder.path());
    let id = id(&running);
    assert!(matches!(running.clear(&id), Err(NotCleared::Disk(_))));
    running.look();
    assert!(running.is_set());
}

#[test]
fn without_a_folder_it_works_until_the_process_ends() {
    let clock = Arc::new(SystemClock::new());
    let (switch, metrics) = (edge::KillSwitch::default(), KillSwitchMetrics::default());
    let running = KillSwitch::restore(None, switch.clone(), clock, metrics.clone()).unwrap();
    let set = running.set(None);
    running.look();
    assert!(switch.is_set() && !running.state().unwrap().kept);
    assert_eq!(metrics.set.get(), 1);
    running.clear(set.id.as_str()).unwrap();
    assert!(!switch.is_set());
    assert_eq!(metrics.set.get(), 0);
}
