//! Keys of what a process is: its ports, its bounds, its store, its control plane.

use super::{Key, Kind, key};

const ADDRESS: Kind = Kind::Spelled("^(\\[[0-9a-fA-F:.]+\\]|[0-9.]+):[0-9]{1,5}$");
const BASE_URL: Kind = Kind::Spelled("^https?://[^ @?#]+$");
const MILLION: u64 = 1_000_000;

const PAIR: Kind = Kind::Table(&[
    key("cert_file", Kind::File, "\"api.pem\"", "PEM, the certificate first, then its chain")
        .needed(),
    key("key_file", Kind::File, "\"api.key\"", "PEM, the key of that certificate").needed(),
]);

pub(super) const LISTEN: &[Key] = &[
    key(
        "address",
        ADDRESS,
        "\"127.0.0.1:8080\"",
        "\"0.0.0.0:8080\" to be reached from elsewhere; port 0 takes a free one",
    )
    .default("\"127.0.0.1:8080\""),
    key("http2", Kind::Flag, "true", "HTTP/2 beside HTTP/1.1; without TLS with prior knowledge")
        .default("true"),
    key(
        "tls",
        Kind::Either(&[PAIR, Kind::List(&PAIR)]),
        "{ cert_file = \"api.pem\", key_file = \"api.key\" }",
        "or a list of such, chosen by name; new files need no restart",
    ),
    key(
        "client_ca_file",
        Kind::File,
        "\"callers.pem\"",
        "callers must show a certificate of this authority",
    ),
    key(
        "trusted_proxies",
        Kind::List(&Kind::Text),
        "[\"10.0.0.0/8\"]",
        "networks whose X-Forwarded-For is believed",
    ),
    key(
        "proxy_protocol",
        Kind::Flag,
        "true",
        "they speak the PROXY protocol, version 2; all others are closed",
    )
    .default("false"),
];

pub(super) const OPERATIONS: &[Key] = &[
    key("address", ADDRESS, "\"127.0.0.1:9080\"", "keep it on loopback or a private network")
        .default("\"127.0.0.1:9080\""),
    key(
        "token_file",
        Kind::File,
        "\"operations.token\"",
        "needed where clients are shown or something changes",
    ),
];

pub(super) const BODY_BYTES: Kind =
    Kind::Either(&[Kind::OneOf(&["unlimited"]), Kind::Whole(1, i64::MAX.unsigned_abs())]);

pub(super) const LIMITS: &[Key] = &[
    key("head_bytes", Kind::Whole(8_192, 1_048_576), "16384", "longest request head: 431")
        .default("16384"),
    key("head_fields", Kind::Whole(1, 1_000), "100", "most header fields: 431").default("100"),
    key("body_bytes", BODY_BYTES, "\"unlimited\"", "or a number of bytes: 413")
        .default("\"unlimited\""),
    key("first_byte", Kind::Time, "\"10s\"", "longest wait for a connection's first bytes")
        .default("\"10s\""),
    key("head_time", Kind::Time, "\"10s\"", "longest wait for a whole request head")
        .default("\"10s\""),
    key("idle", Kind::Time, "\"60s\"", "longest wait for a connection's next request")
        .default("\"60s\""),
    key("handshake_time", Kind::Time, "\"10s\"", "longest wait for a TLS handshake")
        .default("\"10s\""),
    key(
        "connections_per_worker",
        Kind::Whole(1, MILLION),
        "10000",
        "further ones wait in the kernel",
    )
    .default("10000"),
    key("connections_per_address", Kind::Whole(1, MILLION), "1000", "further ones are closed")
        .default("1000"),
    key("h2_streams", Kind::Whole(1, 1_000), "100", "open HTTP/2 streams of a connection")
        .default("100"),
    key(
        "upgrades_per_client",
        Kind::Whole(0, MILLION),
        "100",
        "WebSockets and other upgraded connections of one client: 429",
    )
    .default("100"),
    key(
        "upgrade_idle",
        Kind::Either(&[Kind::OneOf(&["none"]), Kind::Time]),
        "\"none\"",
        "or a time: they are closed after so long a silence",
    )
    .default("\"none\""),
    key(
        "x_ratelimit",
        Kind::OneOf(&["refusals", "always"]),
        "\"always\"",
        "or \"always\": admitted requests are told X-RateLimit-* too",
    )
    .default("\"refusals\""),
    key(
        "region_share",
        Kind::Share { above_zero: true },
        "1",
        "this region's part of every plan, where each has a store of its own",
    )
    .default("1"),
];

pub(super) const OVERLOAD: &[Key] = &[
    key(
        "shed",
        Kind::Flag,
        "true",
        "more than a worker can handle in time: 503, before anything is charged",
    )
    .default("true"),
    key("target", Kind::Time, "\"20ms\"", "longest wait for the worker that is no sign of it ...")
        .default("\"20ms\""),
    key("interval", Kind::Time, "\"200ms\"", "... unless no wait of an interval was shorter")
        .default("\"200ms\""),
];

pub(super) const ACCESS_LOG: &[Key] = &[
    key("to", Kind::Text, "\"stdout\"", "or \"stderr\", or a file").needed(),
    key("format", Kind::OneOf(&["json", "text"]), "\"json\"", "or \"text\"").default("\"json\""),
    key(
        "sample",
        Kind::Share { above_zero: false },
        "1",
        "the part of the answers that leave a line",
    )
    .default("1"),
    key(
        "sample_errors",
        Kind::Share { above_zero: false },
        "1",
        "the same for refusals and failures",
    )
    .default("1"),
    key("query", Kind::Flag, "false", "with the target's query").default("false"),
];

pub(super) const DRAIN: &[Key] = &[
    key("grace", Kind::Time, "\"2s\"", "after SIGTERM: not ready, but still accepting")
        .default("\"2s\""),
    key("finish", Kind::Time, "\"30s\"", "then: requests under way may take this long")
        .default("\"30s\""),
];

pub(super) const STORE: &[Key] = &[
    key(
        "url",
        Kind::Spelled("^(memory|rediss?(\\+sentinel|\\+cluster)?://.+)$"),
        "\"memory\"",
        "one gateway; \"redis://127.0.0.1:6379\" shares one limit between gateways",
    )
    .default("\"memory\""),
    key(
        "deadline",
        Kind::Time,
        "\"5ms\"",
        "a waiting request is decided by then, whatever the store does; at most 50ms",
    )
    .default("\"5ms\""),
    key("username", Kind::Text, "\"weir\"", "the account, if the URL does not name it"),
    key("password_file", Kind::File, "\"redis.password\"", "its password, read at each dial"),
    key(
        "sentinel_username",
        Kind::Text,
        "\"weir\"",
        "the account at the sentinels, if they want one",
    ),
    key(
        "sentinel_password_file",
        Kind::File,
        "\"sentinel.password\"",
        "its password, read at each dial",
    ),
    key(
        "trusted_roots_file",
        Kind::File,
        "\"internal-ca.pem\"",
        "PEM certificates to trust for rediss URLs; else the public ones",
    ),
    key("connections", Kind::Whole(1, 4), "2", "to each server; 2 unless said otherwise"),
];

pub(super) const CONTROL: &[Key] = &[
    key("plans_api", BASE_URL, "\"http://127.0.0.1:8081\"", "base URL").needed(),
    key(
        "shadow_compare",
        BASE_URL,
        "\"http://127.0.0.1:8082\"",
        "base URL; without it records stay here",
    ),
    key("token_file", Kind::File, "\"gateway.token\"", "an operator token of role gateway")
        .needed(),
    key("pepper_file", Kind::File, "\"pepper\"", "the 32 bytes that plans-api hashes keys with")
        .needed(),
    key(
        "state_dir",
        Kind::File,
        "\"/var/lib/weir\"",
        "keeps policy, keys in use, the kill switch and this gateway's random name over restarts",
    ),
    key(
        "bootstrap_file",
        Kind::File,
        "\"bootstrap.json\"",
        "made by `weir export --bootstrap`: the policy where state_dir has none and nobody answers",
    ),
    key(
        "records_per_s",
        Kind::Whole(0, MILLION),
        "1000",
        "full decision records; beyond it they are dropped and counted",
    )
    .default("1000"),
    key(
        "gateway",
        Kind::Spelled(super::NAME),
        "\"gw-1\"",
        "this gateway's name in lists; random if absent",
    ),
];
