//! What a gateway cannot change while it runs: what it has bound, and what its decisions stand on.

use edge::limiter::store::redis::RedisSettings;
use wire::error::{ErrorCode, FieldError};

use super::{Config, ControlConfig, Listener, Operations, PolicyChoice, Secret, StoreChoice};

/// The keys that differ and need a restart.
pub(crate) fn differences(running: &Config, new: &Config) -> Vec<FieldError> {
    let mut differing: Vec<String> = Vec::new();
    let mut check = |same: bool, key: &str| {
        if !same {
            differing.push(key.to_owned());
        }
    };
    check(running.workers == new.workers, "workers");
    check(running.deadline == new.deadline, "store.deadline");
    check(running.limits.region_share == new.limits.region_share, "limits.region_share");
    check(running.overload == new.overload, "overload");
    check(running.access_log == new.access_log, "access_log");
    store(&running.store, &new.store, &mut check);
    policy(&running.policy, &new.policy, &mut check);
    operations(&running.operations, &new.operations, &mut check);
    listeners(&running.listeners, &new.listeners, &mut check);
    let told = |field| FieldError {
        field,
        code: ErrorCode::InvalidValue,
        detail: "cannot change while the gateway runs: restart it, or take the change back"
            .to_owned(),
    };
    differing.into_iter().map(told).collect()
}

fn store(running: &StoreChoice, new: &StoreChoice, check: &mut impl FnMut(bool, &str)) {
    match (running, new) {
        (StoreChoice::Memory, StoreChoice::Memory) => {}
        (StoreChoice::Redis { settings: running }, StoreChoice::Redis { settings: new }) => {
            redis(running, new, check);
        }
        (StoreChoice::Memory, StoreChoice::Redis { .. })
        | (StoreChoice::Redis { .. }, StoreChoice::Memory) => check(false, "store.url"),
    }
}

fn redis(running: &RedisSettings, new: &RedisSettings, check: &mut impl FnMut(bool, &str)) {
    check(running.url == new.url, "store.url");
    check(running.username == new.username, "store.username");
    check(running.password_file == new.password_file, "store.password_file");
    check(running.sentinel_username == new.sentinel_username, "store.sentinel_username");
    let same = running.sentinel_password_file == new.sentinel_password_file;
    check(same, "store.sentinel_password_file");
    check(running.trusted_roots == new.trusted_roots, "store.trusted_roots_file");
    check(running.connections == new.connections, "store.connections");
}

fn policy(running: &PolicyChoice, new: &PolicyChoice, check: &mut impl FnMut(bool, &str)) {
    match (running, new) {
        (PolicyChoice::File(running), PolicyChoice::File(new)) => {
            check(running.pepper.id() == new.pepper.id(), "standalone.pepper_file");
            check(running.state_dir == new.state_dir, "standalone.state_dir");
        }
        (PolicyChoice::Control(running), PolicyChoice::Control(new)) => {
            control(running, new, check);
        }
        (PolicyChoice::File(_), PolicyChoice::Control(_))
        | (PolicyChoice::Control(_), PolicyChoice::File(_)) => check(false, "control"),
    }
}

fn control(running: &ControlConfig, new: &ControlConfig, check: &mut impl FnMut(bool, &str)) {
    check(running.plans_api == new.plans_api, "control.plans_api");
    check(running.shadow_compare == new.shadow_compare, "control.shadow_compare");
    check(running.token.expose() == new.token.expose(), "control.token_file");
    check(running.pepper.id() == new.pepper.id(), "control.pepper_file");
    check(running.state_dir == new.state_dir, "control.state_dir");
    check(running.bootstrap_file == new.bootstrap_file, "control.bootstrap_file");
    check(running.records_per_s == new.records_per_s, "control.records_per_s");
    check(running.gateway == new.gateway, "control.gateway");
}

fn operations(running: &Operations, new: &Operations, check: &mut impl FnMut(bool, &str)) {
    check(running.address == new.address, "operations.address");
    let token = |operations: &Operations| {
        operations.token.as_ref().map(Secret::expose).map(wire::key::token_hash)
    };
    let same = match (token(running), token(new)) {
        (None, None) => true,
        (Some(running), Some(new)) => running == new,
        (None, Some(_)) | (Some(_), None) => false,
    };
    check(same, "operations.token_file");
}

/// What a listener accepts may change; where it listens and what TLS shows may not. Contents of
/// certificate files are looked at by themselves.
fn listeners(running: &[Listener], new: &[Listener], check: &mut impl FnMut(bool, &str)) {
    for listener in new.iter().filter(|new| !running.iter().any(|old| old.name == new.name)) {
        check(false, &format!("listen.{}", listener.name));
    }
    for old in running {
        let place = format!("listen.{}", old.name);
        let Some(new) = new.iter().find(|new| new.name == old.name) else {
            check(false, &place);
            continue;
        };
        check(old.address == new.address, &format!("{place}.address"));
        let pairs = |listener: &Listener| listener.tls.as_ref().map(|tls| tls.pairs.clone());
        check(pairs(old) == pairs(new), &format!("{place}.tls"));
        let authorities =
            |listener: &Listener| listener.tls.as_ref().and_then(|tls| tls.client_ca_file.clone());
        check(authorities(old) == authorities(new), &format!("{place}.client_ca_file"));
        let same = old.tls.is_none() || old.http2 == new.http2;
        check(same, &format!("{place}.http2"));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::parse;

    const REST: &str =
        "[[route]]\nupstream = \"up\"\n[upstream.up]\nendpoints = [\"127.0.0.1:1\"]\n";

    fn keys(running: &str, new: &str) -> Vec<String> {
        let config = |text: &str| parse(&format!("{text}{REST}"), Path::new(".")).unwrap();
        let errors = differences(&config(running), &config(new));
        errors.into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn what_is_bound_and_what_decisions_stand_on_needs_a_restart() {
        let listen = |rest: &str| format!("[listen.main]\naddress = \"127.0.0.1:1\"\n{rest}");
        let redis = |rest: &str| format!("[store]\nurl = \"redis://h\"\n{rest}");
        for (running, new, expected) in [
            ("workers = 1\n".to_owned(), "workers = 2\n".to_owned(), &["workers"][..]),
            (
                listen(""),
                "[listen.main]\naddress = \"127.0.0.1:2\"\n".to_owned(),
                &["listen.main.address"],
            ),
            (listen(""), listen("[listen.more]\naddress = \"127.0.0.1:3\"\n"), &["listen.more"]),
            (listen("[listen.more]\naddress = \"127.0.0.1:3\"\n"), listen(""), &["listen.more"]),
            (redis(""), String::new(), &["store.url"]),
            (
                redis(""),
                redis("connections = 3\ndeadline = \"9ms\"\n"),
                &["store.deadline", "store.connections"],
            ),
            (
                String::new(),
                "[operations]\naddress = \"127.0.0.1:7\"\n".to_owned(),
                &["operations.address"],
            ),
            (String::new(), "[limits]\nregion_share = 0.5\n".to_owned(), &["limits.region_share"]),
            (String::new(), "[access_log]\nto = \"stderr\"\n".to_owned(), &["access_log"]),
            (
                String::new(),
                "[standalone]\nstate_dir = \"state\"\n".to_owned(),
                &["standalone.state_dir"],
            ),
        ] {
            assert_eq!(keys(&running, &new), expected, "{running} → {new}");
        }
    }

    #[test]
    fn everything_else_may_change() {
        let running = "[listen.main]\naddress = \"127.0.0.1:1\"\n[drain]\ngrace = \"1s\"\n";
        let new = "[listen.main]\naddress = \"127.0.0.1:1\"\nhttp2 = false\n\
            trusted_proxies = [\"10.0.0.0/8\"]\nproxy_protocol = true\n\
            [limits]\nbody_bytes = 5\nconnections_per_worker = 7\nhead_time = \"3s\"\n\
            [plan.p]\nunlimited = true\n[standalone]\ngateways = 4\n[anonymous]\nplan = \"p\"\n";
        assert_eq!(keys(running, new), [""; 0]);
        assert_eq!(keys(new, running), [""; 0]);
    }
}
