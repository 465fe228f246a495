//! A process that is killed while it writes, and a disk that then loses or changes some bytes: it
//! starts with a whole state, and no key comes back whose end was acknowledged.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use edge::Refusal;
use wire::policy::KeyState;

use super::plane::Plane;
use super::state::start;
use super::world::{World, route, until};

/// Says to a copy of this test program that it is the one to be killed.
const FOLDER: &str = "WEIR_TEST_STATE_FOLDER";
const NAME: &str = "killed::a_killed_process_leaves_a_whole_state_and_no_revoked_key";
/// Processes that are killed.
const ROUNDS: usize = 15;

#[test]
fn a_killed_process_leaves_a_whole_state_and_no_revoked_key() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    if let Some(folder) = std::env::var_os(FOLDER) {
        runtime.block_on(write_until_killed(Path::new(&folder)));
    }
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..ROUNDS {
        let folder = tempfile::tempdir().unwrap();
        let told = kill_one(folder.path(), 5 + random.usize(..30));
        let damage = ["none", "policy.a", "policy.b", "keys.log", "keys.mark"];
        let damaged = damage[round % damage.len()];
        spoil(&folder.path().join(damaged), &mut random);
        let case = format!("round {round} of seed {seed}, damaged: {damaged}");
        runtime.block_on(judge(folder.path(), &told, &case));
    }
}

/// What the process said of keys: it says so once it is acknowledged.
#[derive(Default)]
struct Said {
    open: BTreeSet<String>,
    revoked: BTreeSet<String>,
}

/// Makes keys, uses them and revokes some, and says what is acknowledged.
async fn write_until_killed(folder: &Path) {
    let plane = Plane::new();
    plane.put_plan("pro", 1_000_000, "0");
    plane.put_client("acme", "pro");
    let world = start(&plane, folder);
    until("the policy", || world.edge.is_ready()).await;
    for number in 0_u64.. {
        let key = format!("key-{number}");
        plane.put_key(&key, "acme", KeyState::Active);
        assert_eq!(world.request(&key, &route("orders")).await, Ok(()));
        if number % 3 == 0 {
            plane.put_plan("pro", 1_000_000 + number, "0");
        }
        say(&plane, "open", &key).await;
        if number % 2 == 0 {
            plane.put_key(&key, "acme", KeyState::Revoked);
            say(&plane, "revoked", &key).await;
        }
    }
}

async fn say(plane: &Plane, what: &str, key: &str) {
    let (_, head) = plane.head();
    until("the acknowledgement", || plane.acknowledged() >= head).await;
    let mut out = std::io::stdout().lock();
    writeln!(out, "\nsaid {what} {key}").unwrap();
}

/// Kills a process after it has said so much, at any moment.
fn kill_one(folder: &Path, lines: usize) -> Said {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env(FOLDER, folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut said = Said::default();
    let lines_said = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut told = lines_said.filter(|line| line.starts_with("said "));
    let mut note = |line: &str| {
        let mut words = line.split(' ').skip(1).map(ToOwned::to_owned);
        match (words.next().as_deref(), words.next()) {
            (Some("open"), Some(key)) => drop(said.open.insert(key)),
            (Some("revoked"), Some(key)) => {
                said.open.remove(&key);
                said.revoked.insert(key);
            }
            _ => panic!("not understood: {line}"),
        }
    };
    told.by_ref().take(lines).for_each(|line| note(&line));
    std::thread::sleep(Duration::from_micros(fastrand::u64(..3_000)));
    child.kill().unwrap();
    told.for_each(|line| note(&line));
    child.wait().unwrap();
    said
}

/// Cuts the end off, or flips a bit.
fn spoil(file: &Path, random: &mut fastrand::Rng) {
    let Ok(mut bytes) = std::fs::read(file) else { return };
    let at = random.usize(..bytes.len());
    if random.bool() {
        bytes.truncate(at);
    } else {
        bytes[at] ^= 1 << random.u8(..8);
    }
    std::fs::write(file, bytes).unwrap();
}

async fn judge(folder: &Path, said: &Said, case: &str) {
    assert!(said.revoked.len() + said.open.len() >= 3, "{case}: it said too little");
    let plane = Plane::new();
    plane.away.store(true, Ordering::SeqCst);
    let world: World = start(&plane, folder);
    until(case, || world.edge.is_ready()).await;
    let mut known = 0;
    for key in &said.revoked {
        let answer = world.request(key, &route("orders")).await;
        let refused = matches!(answer, Err(Refusal::KeyInvalid | Refusal::KeyUnverified { .. }));
        assert!(refused, "{case}: {key} is back: {answer:?}");
    }
    for key in &said.open {
        known += usize::from(world.request(key, &route("orders")).await == Ok(()));
    }
    // Nothing is lost where nothing but one generation of the policy was. The last key may have been
    // revoked without its being said any more.
    if !case.ends_with("keys.log") {
        assert!(said.open.len() <= known + 1, "{case}: {known} of {}", said.open.len());
    }
}
