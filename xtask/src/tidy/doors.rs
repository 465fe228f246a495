//! Each foreign crate has few doors: the files that may name it. To change the Redis client, the
//! database driver or the argument parser, one opens one file or folder.
//!
//! Tests may name what they like. A crate that is not listed has no door of its own.

use super::Finding;
use super::source::{Tree, code, is_test, is_word, without_tests, words};

struct Door {
    /// As it is written in code.
    foreign: &'static str,
    /// Beginnings of the paths that may name it.
    open_in: &'static [&'static str],
}

const fn door(foreign: &'static str, open_in: &'static [&'static str]) -> Door {
    Door { foreign, open_in }
}

const SERVICE_SETTINGS: &[&str] = &[
    "crates/daemon/src/settings",
    "crates/daemon/src/run",
    "crates/gateway/src/flags",
    "crates/plans-api/src/config",
    "crates/shadow-compare/src/config",
    "crates/admin-cli/src/args",
    "crates/fault-proxy/src/program",
];

const HTTP_SERVERS: &[&str] = &[
    "crates/daemon/src/ops",
    "crates/plans-api/src/http",
    "crates/shadow-compare/src/http",
    "crates/gateway/src/ops",
    "crates/demo/src/services",
    "crates/admin-cli/src/commands/dev/echo",
    "crates/fault-proxy/src/program",
];

/// Both ends of a request, and its body between them.
const GATEWAY_ENGINE: &[&str] = &[
    "crates/gateway/src/server",
    "crates/gateway/src/upstream",
    "crates/gateway/src/body",
    "crates/gateway/src/linger",
    "crates/gateway/src/upgrade",
];

const DOORS: &[Door] = &[
    door(
        "redis",
        &[
            "crates/limiter-core/src/store/redis",
            "crates/limiter-core/src/testkit/differential",
            "crates/test-servers/src",
        ],
    ),
    door(
        "sqlx",
        &["crates/daemon/src/sql", "crates/plans-api/src/store", "crates/shadow-compare/src/store"],
    ),
    door("reqwest", &["crates/wire/src/client"]),
    door("subtle", &["crates/wire/src/key"]),
    door("axum", HTTP_SERVERS),
    door("hyper", GATEWAY_ENGINE),
    door("hyper_util", GATEWAY_ENGINE),
    door("socket2", GATEWAY_ENGINE),
    door(
        "rustls",
        &[
            "crates/gateway/src/server",
            "crates/gateway/src/upstream",
            "crates/limiter-core/src/store/redis",
        ],
    ),
    door("tokio_rustls", &["crates/gateway/src/server", "crates/gateway/src/upstream"]),
    door("webpki_roots", &["crates/gateway/src/upstream"]),
    door("tower", &["crates/safety-limit/src/layer"]),
    door("clap", SERVICE_SETTINGS),
    door("comfy_table", &["crates/admin-cli/src/output"]),
    door("tracing_subscriber", &["crates/daemon/src/log"]),
    door("tracing_appender", &["crates/daemon/src/log"]),
    door(
        "arc_swap",
        &[
            "crates/limiter-core/src/store/redis",
            "crates/edge/src/plan_book",
            "crates/gateway/src/server/tls",
            "crates/gateway/src/server/live",
        ],
    ),
    door("listenfd", &["crates/daemon/src/sockets"]),
    door("command_fds", &["crates/daemon/src/succession"]),
    door("quick_cache", &["crates/edge/src/key_cache"]),
];

/// Names of foreign crates outside their doors.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.rust().filter(|(path, _)| !is_test(path)) {
        let code = code(text);
        let code = without_tests(&code);
        for name in foreign_names(code) {
            findings.extend(closed(path, name));
        }
    }
    findings.dedup();
    findings
}

fn closed(path: &str, name: &str) -> Option<Finding> {
    let (allowed, open_in) = match name {
        "prometheus_client" => (path.ends_with("/metrics.rs"), "a crate's own metrics.rs".into()),
        "serde" | "serde_json" => {
            let core = path.starts_with("crates/limiter-core/");
            (!core, "every crate but limiter-core: domain types do not serialise".to_owned())
        }
        _ => {
            let door = DOORS.iter().find(|door| door.foreign == name)?;
            let opens = |prefix: &&str| {
                let rest = path.strip_prefix(*prefix);
                rest.is_some_and(|rest| !rest.starts_with(is_word))
            };
            (door.open_in.iter().any(opens), door.open_in.join(", "))
        }
    };
    (!allowed).then(|| {
        let what = format!(
            "names `{name}`, whose doors are {open_in}. Go through one of them, or move the door \
             (xtask/src/tidy/doors.rs) with an ADR"
        );
        Finding::new(path, what)
    })
}

/// Names that stand where only a crate (or a module of ours by the same name) can stand: at the
/// beginning of a path.
fn foreign_names(code: &str) -> Vec<&str> {
    let own: Vec<&str> = words(code)
        .filter(|(before, _, _)| before.ends_with("mod "))
        .map(|(_, name, _)| name)
        .collect();
    words(code)
        .filter(|(before, name, after)| {
            let begins_path = match before.trim_end().strip_suffix("::") {
                None => !before.ends_with('.'),
                Some(parent) => !parent.ends_with(|c| is_word(c) || c == '>'),
            };
            let imported = before.ends_with("use ") && after.starts_with([';', ' ']);
            begins_path && (after.starts_with("::") || imported) && !own.contains(name)
        })
        .map(|(_, name, _)| name)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        check(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn a_foreign_crate_outside_its_door_is_found() {
        assert_eq!(found("crates/edge/src/edge.rs", "use redis::Client;"), 1);
        assert_eq!(found("crates/edge/src/edge.rs", "fn f() -> ::redis::Client { todo() }"), 1);
        assert_eq!(found("crates/wire/src/plan.rs", "#[derive(clap::Args)] struct A;"), 1);
        assert_eq!(found("crates/wire/src/plan.rs", "use reqwest as http;"), 1);
        assert_eq!(found("crates/limiter-core/src/limit.rs", "use serde::Serialize;"), 1);
        assert_eq!(found("crates/edge/src/record.rs", "use prometheus_client::registry;"), 1);
    }

    #[test]
    fn its_door_stands_open() {
        assert_eq!(found("crates/limiter-core/src/store/redis.rs", "use redis::Client;"), 0);
        assert_eq!(found("crates/limiter-core/src/store/redis/link.rs", "use redis::Client;"), 0);
        assert_eq!(found("crates/limiter-core/src/store/redis_x.rs", "use redis::Client;"), 1);
        assert_eq!(found("crates/edge/src/metrics.rs", "use prometheus_client::registry;"), 0);
    }

    #[test]
    fn modules_of_ours_comments_and_tests_are_no_foreign_crates() {
        let module = "mod redis;\npub use redis::RedisStore;\nfn f(x: store::redis::RedisStore) {}";
        assert_eq!(found("crates/limiter-core/src/store.rs", module), 0);
        assert_eq!(found("crates/edge/src/edge.rs", "//! redis::Client\nfn f() {}"), 0);
        assert_eq!(
            found("crates/edge/src/edge.rs", "#[cfg(test)]\nmod tests { use redis::A; }"),
            0
        );
        assert_eq!(found("crates/edge/tests/it/main.rs", "use redis::Client;"), 0);
    }
}
