//! The shipped account does everything that a store needs, over TLS too; what an account lacks is
//! told in words and heals without a restart.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use limiter_core::Request;
use limiter_core::store::BucketStore;
use limiter_core::store::redis::{RedisSettings, RedisStore};
use limiter_core::testkit::check_store;
use test_servers::{Cluster, SentinelSet, Server, ServerOptions, Tls};

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

/// A server with the shipped account, and a store that has taken a token of so many with it.
async fn answered_as_shipped(capacity: u64) -> (tempfile::TempDir, Server, Arc<RedisStore>) {
    let folder = tempfile::tempdir().unwrap();
    let file = shipped(folder.path());
    let server = meanwhile(|| ServerOptions::default().accounts(&file).start()).unwrap();
    let store = store_at(&as_weir(&server.url()), 1);
    until_answered(&store, &key("acme"), capacity).await;
    (folder, server, store)
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
    let (_folder, server, store) = answered_as_shipped(1_000).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f25_a_certificate_that_is_out_of_date_is_told_as_such() {
    let tls = Arc::new(Tls::expired().unwrap());
    let server = meanwhile(|| ServerOptions::default().tls(&tls).start()).unwrap();
    let store = store_with(&RedisSettings {
        trusted_roots: Some(tls.roots().as_bytes().to_vec()),
        ..RedisSettings::new(server.tls_url().unwrap())
    });
    until_told(&store, &["expired", "Expired"]).await;
    let outcome = store.call(&key("acme"), &Request::take(plan(10), 1, 1)).await;
    assert!(outcome.is_err(), "{outcome:?}");
}

/// Whoever has the gateway's password can do what a gateway does, and nothing to anybody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s37_the_shipped_account_can_harm_no_other_user_of_the_server() {
    let (_folder, server, store) = answered_as_shipped(10).await;
    let _told: String = meanwhile(|| server.query("SET other:key theirs")).unwrap();
    let client = redis::Client::open(as_weir(&server.url())).unwrap();
    let mut thief = meanwhile(|| client.get_connection()).unwrap();
    let refused: [&[&str]; 31] = [
        &["CONFIG", "GET", "*"],
        &["CONFIG", "SET", "maxmemory", "1"],
        &["KEYS", "*"],
        &["SCAN", "0"],
        &["RANDOMKEY"],
        &["DBSIZE"],
        &["FLUSHALL"],
        &["FLUSHDB"],
        &["SWAPDB", "0", "1"],
        &["GET", "other:key"],
        &["SET", "other:key", "mine"],
        &["SET", "weird:key", "mine"],
        &["DEL", "weir:{acme}"],
        &["RENAME", "weir:{acme}", "weir:{other}"],
        &["SCRIPT", "FLUSH"],
        &["SCRIPT", "KILL"],
        &["FUNCTION", "LIST"],
        &["CLIENT", "LIST"],
        &["CLIENT", "KILL", "TYPE", "normal"],
        &["MONITOR"],
        &["SLOWLOG", "GET"],
        &["ACL", "LIST"],
        &["ACL", "SETUSER", "weir", "+@all"],
        &["SAVE"],
        &["SHUTDOWN", "NOSAVE"],
        &["REPLICAOF", "NO", "ONE"],
        &["MODULE", "LIST"],
        &["PUBLISH", "channel", "word"],
        &["EVAL", "return redis.call('FLUSHALL')", "0"],
        &["EVAL", "return redis.call('GET', KEYS[1])", "1", "other:key"],
        &["EVAL", "return redis.call('SET', 'other:key', 'mine')", "0"],
    ];
    for words in refused {
        let (verb, rest) = words.split_first().unwrap();
        let mut command = redis::cmd(verb);
        command.arg(rest);
        let answer = meanwhile(|| command.query::<redis::Value>(&mut thief));
        let error = answer.expect_err(&words.join(" "));
        let told = format!("{:?} {}", error.code(), error.detail().unwrap_or_default());
        let by_right = ["NOPERM", "permission", "can't run", "can't access"];
        assert!(by_right.iter().any(|word| told.contains(word)), "{words:?}: {told}");
    }
    let theirs: String = meanwhile(|| server.query("GET other:key")).unwrap();
    assert_eq!(theirs, "theirs");
    let (_, reply) = until_answered(&store, &key("acme"), 10).await;
    assert_eq!(reply.levels.burst.tokens, 8, "nor to the buckets");
}
