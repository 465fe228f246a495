//! The shipped account does everything that a store needs, over TLS too; what an account lacks is
//! told in words and heals without a restart.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use limiter_core::Request;
use limiter_core::store::BucketStore;
use limiter_core::store::redis::{RedisSettings, RedisStore};
use limiter_core::testkit::check_store;
use test_servers::{Cluster, SentinelSet, ServerOptions, Tls};

use crate::server::{
    key, meanwhile, plan, store_at, store_with, until, until_answered, until_told,
};
use crate::stores::RealTime;

const PASSWORD: &str = "s3cret-of-a-test";
const RECOVERY_MAX: Duration = Duration::from_secs(2);

/// The accounts as they ship, but for the password and an administrator for the test.
fn shipped(folder: &Path) -> PathBuf {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/redis/users.acl");
    let text = std::fs::read_to_string(shipped).unwrap();
    assert!(text.contains("user default off"), "everybody else is kept out");
    let text = text
        .replace("user default off", "user default on nopass ~* &* +@all")
        .replace("CHANGE-ME", PASSWORD);
    assert!(text.contains(PASSWORD));
    let file = folder.join("users.acl");
    std::fs::write(&file, text).unwrap();
    file
}

/// With the settings as they ship, but for the place of the accounts.
fn configured(options: ServerOptions, name: &str) -> ServerOptions {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/redis").join(name);
    let text = std::fs::read_to_string(shipped).unwrap();
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    let settings = lines.filter(|(name, _)| !name.starts_with('#') && *name != "aclfile");
    settings.fold(options, |options, (name, value)| options.setting(name, value.trim_matches('"')))
}

/// `redis://…` with the shipped account.
fn as_weir(url: &str) -> String {
    url.replace("://", &format!("://weir:{PASSWORD}@"))
}

async fn passes(store: &Arc<RedisStore>, salt: &str) {
    until("the store is linked", || store.is_answering()).await;
    check_store(store, &RealTime, salt).await;
    assert_eq!(store.trouble(), None);
    let refused: u64 = store.counters().refused().map(|(_, count)| count).sum();
    assert_eq!(refused, 0, "nothing was asked that the account may not");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_shipped_account_passes_the_suite_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    let tls = Arc::new(Tls::new().unwrap());
    let options = ServerOptions::default().accounts(&shipped(folder.path())).tls(&tls);
    let options = configured(options, "redis.conf");
    let server = meanwhile(|| options.start()).unwrap();
    let roots = tls.roots().as_bytes().to_vec();
    let url = as_weir(&server.tls_url().unwrap());
    let store = store_with(&RedisSettings {
        trusted_roots: Some(roots),
        ..RedisSettings::new(url.clone())
    });
    passes(&store, "tls").await;
    let denied: Vec<redis::Value> = meanwhile(|| server.query("ACL LOG")).unwrap();
    assert!(denied.is_empty(), "{denied:?}");

    // A certificate of an authority that is not trusted is no server.
    let other = Tls::new().unwrap().roots().as_bytes().to_vec();
    let stranger =
        store_with(&RedisSettings { trusted_roots: Some(other), ..RedisSettings::new(url) });
    until_told(&stranger, &["certificate"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_shipped_account_passes_the_suite_under_sentinel_and_in_a_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let file = shipped(folder.path());
    let set = meanwhile(|| SentinelSet::start_with(1, || ServerOptions::default().accounts(&file)))
        .unwrap();
    passes(&store_at(&as_weir(&crate::sentinel::url(&set)), 2), "sentinel").await;
    drop(set);
    let cluster =
        meanwhile(|| Cluster::start_with(3, 0, || ServerOptions::default().accounts(&file)))
            .unwrap();
    let store = store_at(&as_weir(&crate::cluster::url(&cluster)), 2);
    until_answered(&store, &key("acme"), 10).await;
    until("every node is linked", || {
        (0..cluster.nodes()).all(|node| {
            let clients: String =
                meanwhile(|| cluster.node(node).query("CLIENT LIST TYPE normal")).unwrap();
            clients.lines().filter(|line| line.contains("user=weir")).count() >= 2
        })
    })
    .await;
    passes(&store, "cluster").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f25_each_permission_that_lacks_is_named_and_heals_when_it_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let file = shipped(folder.path());
    let server = meanwhile(|| ServerOptions::default().accounts(&file).start()).unwrap();
    let store = store_at(&as_weir(&server.url()), 1);
    until_answered(&store, &key("acme"), 1_000).await;
    for (command, named) in [
        ("evalsha", "evalsha"),
        ("script|load", "script"),
        ("time", "can't run this command"),
        ("get", "can't run this command"),
        ("set", "can't run this command"),
    ] {
        let set = |sign: &str| {
            let words = format!("ACL SETUSER weir {sign}{command}");
            let _told: String = meanwhile(|| server.query(&words)).unwrap();
        };
        set("-");
        if command == "script|load" {
            let _told: u64 = meanwhile(|| server.query("CLIENT KILL USER weir")).unwrap();
        }
        let request = Request::take(plan(1_000), 1, 1);
        let mut calls = 0;
        let told = |text: &String| text.contains("permission") && text.contains(named);
        while !store.trouble().is_some_and(|trouble| told(&trouble)) {
            // Each with a bucket of its own: to store that takes the SET.
            let key = key(&format!("{command} {calls}"));
            let _refused = store.call(&key, &request).await;
            calls += 1;
            assert!(calls < 4_000, "{command}: {:?}", store.trouble());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        set("+");
        let (waited, _) = until_answered(&store, &key("acme"), 1_000).await;
        assert!(waited <= RECOVERY_MAX, "{command}: {waited:?}");
        until("nothing is wrong any more", || store.trouble().is_none()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f25_a_wrong_password_is_told_and_a_new_one_in_the_file_is_used_without_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let file = shipped(folder.path());
    let server = meanwhile(|| ServerOptions::default().accounts(&file).start()).unwrap();
    let password_file = folder.path().join("password");
    std::fs::write(&password_file, "wrong\n").unwrap();
    let store = store_with(&RedisSettings {
        username: Some("weir".into()),
        password_file: Some(password_file.clone()),
        ..RedisSettings::new(server.url())
    });
    until_told(&store, &["WRONGPASS", "assword"]).await;
    std::fs::write(&password_file, format!("{PASSWORD}\n")).unwrap();
    let (waited, _) = until_answered(&store, &key("acme"), 10).await;
    assert!(waited <= RECOVERY_MAX, "{waited:?}");
    until("nothing is wrong any more", || store.trouble().is_none()).await;

    // The other way round: the server's password changes, connections are closed, the file follows.
    let _told: String = meanwhile(|| server.query("ACL SETUSER weir resetpass >another")).unwrap();
    let _told: u64 = meanwhile(|| server.query("CLIENT KILL USER weir")).unwrap();
    until_told(&store, &["WRONGPASS", "assword"]).await;
    std::fs::write(&password_file, "another").unwrap();
    let (waited, _) = until_answered(&store, &key("acme"), 10).await;
    assert!(waited <= RECOVERY_MAX, "{waited:?}");
    std::fs::remove_file(&password_file).unwrap();
    let _told: u64 = meanwhile(|| server.query("CLIENT KILL USER weir")).unwrap();
    until_told(&store, &["cannot read the password"]).await;
}
