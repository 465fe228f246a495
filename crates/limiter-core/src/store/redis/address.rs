//! A store's URL: which topology, where, as whom. Strict, and every mistake is told at once, in
//! words that never repeat a part of the URL that could be a password.

use std::fmt;

/// What a URL says.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) topology: Topology,
    pub(super) tls: bool,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: i64,
}

/// Who says which server takes the writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Topology {
    /// Nobody: there is one.
    Single(HostPort),
    /// Sentinels, who know it by a name.
    Sentinel { sentinels: Vec<HostPort>, service: String },
    /// The nodes themselves, slot by slot.
    Cluster { seeds: Vec<HostPort> },
}

/// A name or address, resolved anew at each dial, and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct HostPort {
    pub(super) host: String,
    pub(super) port: u16,
}

impl HostPort {
    /// As servers spell each other: `host:port`, the host without brackets. An empty host is that
    /// of the server that speaks.
    pub(super) fn told_by(text: &str, speaker: &HostPort) -> Option<HostPort> {
        let (host, port) = text.rsplit_once(':')?;
        let host = if host.is_empty() { &speaker.host } else { host };
        let port = port.parse().ok().filter(|port| *port > 0)?;
        (host != "?").then(|| HostPort { host: host.to_owned(), port })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            return write!(f, "[{}]:{}", self.host, self.port);
        }
        write!(f, "{}:{}", self.host, self.port)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Single,
    Sentinel,
    Cluster,
}

const SCHEMES: [(&str, Kind, bool); 6] = [
    ("redis", Kind::Single, false),
    ("rediss", Kind::Single, true),
    ("redis+sentinel", Kind::Sentinel, false),
    ("rediss+sentinel", Kind::Sentinel, true),
    ("redis+cluster", Kind::Cluster, false),
    ("rediss+cluster", Kind::Cluster, true),
];
const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
const HOSTS_MAX: usize = 64;

/// Reads a URL, or tells everything that is wrong with it.
pub(super) fn parse(url: &str) -> Result<Address, Vec<String>> {
    let mut mistakes = Vec::new();
    let scheme_and_rest = url.split_once("://").and_then(|(scheme, rest)| {
        let known = SCHEMES.iter().find(|(name, _, _)| *name == scheme);
        known.map(|(_, kind, tls)| (*kind, *tls, rest))
    });
    let Some((kind, tls, rest)) = scheme_and_rest else {
        let names = SCHEMES.map(|(name, _, _)| format!("{name}://"));
        return Err(vec![format!("must be a URL that begins with {}", names.join(", "))]);
    };
    if rest.contains(['?', '#']) {
        mistakes.push(
            "takes no `?` or `#` part; such a character in a name or password is written %3F or %23"
                .to_owned(),
        );
    }
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (user, hosts) = match authority.rsplit_once('@') {
        Some((user, hosts)) => (Some(user), hosts),
        None => (None, authority),
    };
    let (username, password) = user.map_or((None, None), |text| account(text, &mut mistakes));
    let hosts = self::hosts(kind, hosts, &mut mistakes);
    let (service, database) = self::path(kind, path, &mut mistakes);
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    let topology = match (kind, hosts.first()) {
        (Kind::Single, Some(first)) => Topology::Single(first.clone()),
        (Kind::Sentinel, _) => Topology::Sentinel { sentinels: hosts, service },
        (Kind::Single | Kind::Cluster, _) => Topology::Cluster { seeds: hosts },
    };
    Ok(Address { topology, tls, username, password, database })
}

fn account(text: &str, mistakes: &mut Vec<String>) -> (Option<String>, Option<String>) {
    let (name, password) = match text.split_once(':') {
        Some((name, password)) => (name, Some(password)),
        None => (text, None),
    };
    let mut read = |what: &str, text: &str| {
        let text = decoded(text);
        if text.is_none() {
            mistakes.push(format!("the {what} has a broken %XX, or is not UTF-8"));
        }
        text.filter(|text| !text.is_empty())
    };
    (read("username", name), password.and_then(|password| read("password", password)))
}

fn hosts(kind: Kind, text: &str, mistakes: &mut Vec<String>) -> Vec<HostPort> {
    let default = if kind == Kind::Sentinel { SENTINEL_PORT } else { REDIS_PORT };
    let texts: Vec<&str> = text.split(',').collect();
    let mut hosts = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        match host(text, default) {
            Ok(host) if hosts.contains(&host) => {
                mistakes.push(format!("address {} of {} is there twice", index + 1, texts.len()));
            }
            Ok(host) => hosts.push(host),
            Err(what) => {
                mistakes.push(format!("address {} of {}: {what}", index + 1, texts.len()));
            }
        }
    }
    if kind == Kind::Single && texts.len() > 1 {
        mistakes.push(
            "one server has one address; several are for redis+sentinel:// and redis+cluster://"
                .to_owned(),
        );
    }
    if texts.len() > HOSTS_MAX {
        mistakes.push(format!("at most {HOSTS_MAX} addresses"));
    }
    hosts
}

fn host(text: &str, default_port: u16) -> Result<HostPort, &'static str> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or("`[` without `]`")?;
            let _checked: std::net::Ipv6Addr =
                host.parse().map_err(|_not_one| "not an IPv6 address between `[` and `]`")?;
            let port = match port.strip_prefix(':') {
                Some(port) => Some(port),
                None if port.is_empty() => None,
                None => return Err("something else than `:port` after `]`"),
            };
            (host, port)
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() {
        return Err("no host");
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    if !host.chars().all(plain) {
        return Err("a host has letters, digits, `.`, `-` and `_` only");
    }
    let port = match port {
        None => default_port,
        Some(port) if port.bytes().all(|digit| digit.is_ascii_digit()) => {
            port.parse().ok().filter(|port| *port > 0).ok_or("a port is 1 to 65535")?
        }
        Some(_) => return Err("a port is 1 to 65535"),
    };
    Ok(HostPort { host: host.to_owned(), port })
}

fn path(kind: Kind, text: &str, mistakes: &mut Vec<String>) -> (String, i64) {
    let (service, database) = match kind {
        Kind::Single => ("", text),
        Kind::Sentinel => text.split_once('/').unwrap_or((text, "")),
        Kind::Cluster => {
            if !text.is_empty() {
                mistakes
                    .push("a Cluster has one database, so nothing follows its addresses".into());
            }
            ("", "")
        }
    };
    let service = decoded(service).unwrap_or_default();
    if kind == Kind::Sentinel && service.is_empty() {
        mistakes
            .push("say which service the sentinels watch: redis+sentinel://host/SERVICE".into());
    }
    let number = if database.is_empty() { Some(0) } else { database.parse::<u16>().ok() };
    if number.is_none() {
        mistakes.push("the database after `/` is a number".to_owned());
    }
    (service, i64::from(number.unwrap_or(0)))
}

/// Undoes %XX.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let mut digit = || char::from(rest.next()?).to_digit(16);
            let (high, low) = (digit()?, digit()?);
            bytes.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str, port: u16) -> HostPort {
        HostPort { host: host.to_owned(), port }
    }

    #[test]
    fn each_topology_has_one_form() {
        let single = parse("redis://cache.example:7000/3").unwrap();
        assert_eq!(single.topology, Topology::Single(at("cache.example", 7000)));
        assert_eq!((single.tls, single.database), (false, 3));
        assert_eq!(parse("redis://127.0.0.1").unwrap().topology, {
            Topology::Single(at("127.0.0.1", 6379))
        });
        assert_eq!(parse("rediss://[::1]:1/").unwrap().topology, Topology::Single(at("::1", 1)));

        let watched = parse("rediss+sentinel://u:p%40%2F@a,b:1,[::2]/my%20service/2").unwrap();
        assert!(watched.tls);
        assert_eq!((watched.username.as_deref(), watched.password.as_deref()), {
            (Some("u"), Some("p@/"))
        });
        assert_eq!(watched.database, 2);
        let sentinels = vec![at("a", 26379), at("b", 1), at("::2", 26379)];
        let service = "my service".to_owned();
        assert_eq!(watched.topology, Topology::Sentinel { sentinels, service });

        let cluster = parse("redis+cluster://:secret@a:1,b:2").unwrap();
        assert_eq!(cluster.topology, Topology::Cluster { seeds: vec![at("a", 1), at("b", 2)] });
        assert_eq!((cluster.username, cluster.password.as_deref()), (None, Some("secret")));
    }

    #[test]
    fn every_mistake_is_told_and_no_password_is() {
        for (url, count, told) in [
            ("", 1, "rediss+cluster://"),
            ("http://a", 1, "that begins"),
            ("redis://", 1, "no host"),
            ("redis://a,b", 1, "several are for redis+sentinel://"),
            ("redis://a:0", 1, "1 to 65535"),
            ("redis://a:+1", 1, "1 to 65535"),
            ("redis://a/one", 1, "is a number"),
            ("redis://a?protocol=resp3", 1, "no `?`"),
            ("redis+sentinel://a,a:26379/s", 1, "there twice"),
            ("redis+sentinel://a:x,/", 3, "SERVICE"),
            ("redis+cluster://a/0", 1, "one database"),
            ("redis://u:%zz@a", 1, "broken %XX"),
            ("redis://[::1", 1, "without `]`"),
            ("redis://u:hunter2#x@a", 2, "%23"),
            ("redis://u:hunter2/x@a", 2, "1 to 65535"),
        ] {
            let Err(mistakes) = parse(url) else { panic!("{url} is taken") };
            assert_eq!(mistakes.len(), count, "{url}: {mistakes:?}");
            let all = mistakes.join("; ");
            assert!(all.contains(told), "{url}: {all}");
            assert!(!all.contains("hunter2"), "{all}");
        }
    }

    #[test]
    fn servers_spell_each_other_in_their_own_way() {
        let speaker = at("speaker", 1);
        assert_eq!(HostPort::told_by("10.0.0.1:7", &speaker), Some(at("10.0.0.1", 7)));
        assert_eq!(HostPort::told_by("::1:7", &speaker), Some(at("::1", 7)));
        assert_eq!(HostPort::told_by(":7", &speaker), Some(at("speaker", 7)));
        for nonsense in ["", "?:7", "a", "a:0", "a:70000"] {
            assert_eq!(HostPort::told_by(nonsense, &speaker), None, "{nonsense}");
        }
    }
}
