//! Keys of a policy that stands in the gateway's own file.

use super::{Key, Kind, NAME, key};

const MOST: u64 = 1_000_000_000_000;

/// A word, or a share in decimals.
pub(super) const FAILURE: Kind = Kind::Either(&[
    Kind::OneOf(&["closed", "local", "coarse", "open"]),
    Kind::Spelled("^[0-9]{1,3}(\\.[0-9]{1,4})?$"),
]);

const LIMIT: Kind = Kind::Table(&[
    key("capacity", Kind::Whole(1, MOST), "20", "tokens of a full bucket").needed(),
    key(
        "refill",
        Kind::Spelled("^(0|[0-9]+/[0-9]*[smhd])$"),
        "\"5/s\"",
        "tokens that come back: also 30/10s, 6/m, 2/h, 1/d",
    )
    .needed(),
]);

const COST: Kind = Kind::Table(&[
    key("route", Kind::Spelled(NAME), "\"reports\"", "name of the route").needed(),
    key("method", Kind::Text, "\"POST\"", "only this method"),
    key("cost", Kind::Whole(0, MOST), "5", "tokens of a request").needed(),
]);

pub(super) const STANDALONE: &[Key] = &[
    key(
        "gateways",
        Kind::Whole(1, 10_000),
        "1",
        "gateways that share the plans: what one may admit while the store is away",
    )
    .default("1"),
    key(
        "pepper_file",
        Kind::File,
        "\"pepper\"",
        "32 random bytes; needed if you import keys that people thought up",
    ),
    key(
        "state_dir",
        Kind::File,
        "\"/var/lib/weir\"",
        "a file `killswitch` in it puts every client in shadow; remembers that over restarts",
    ),
];

pub(super) const PLAN: &[Key] = &[
    key("burst", LIMIT, "{ capacity = 20, refill = \"5/s\" }", "what may come at once"),
    key(
        "sustained",
        LIMIT,
        "{ capacity = 10000, refill = \"10000/d\" }",
        "what may come over a day; both must agree",
    ),
    key("unlimited", Kind::Flag, "true", "instead of both").default("false"),
    key(
        "failure",
        FAILURE,
        "\"coarse\"",
        "without a store: closed, local (half), coarse (ten times), open, or a share",
    )
    .default("\"coarse\""),
    key(
        "scope",
        Kind::OneOf(&["client", "key"]),
        "\"client\"",
        "or \"key\": each API key has a bucket of its own",
    )
    .default("\"client\""),
    key(
        "costs",
        Kind::List(&COST),
        "[{ route = \"reports\", method = \"POST\", cost = 5 }]",
        "dearer and cheaper routes; the first that fits",
    ),
    key("labels", Kind::Labels, "{}", "for people"),
    key("note", Kind::Text, "\"since 2026\"", "for people"),
];

pub(super) const CLIENT: &[Key] = &[
    key("plan", Kind::Spelled(NAME), "\"pro\"", "its plan's name").needed(),
    key("state", Kind::OneOf(&["active", "suspended"]), "\"active\"", "or \"suspended\": 403")
        .default("\"active\""),
    key("name", Kind::Text, "\"Acme Ltd\"", "for people"),
    key("labels", Kind::Labels, "{}", "for people"),
];

pub(super) const KEY: &[Key] = &[
    key("id", Kind::Spelled("^[!-~]{1,64}$"), "\"example01\"", "its public id").needed(),
    key("client", Kind::Spelled(NAME), "\"acme\"", "whose it is").needed(),
    key(
        "hash",
        Kind::Spelled("^[0-9a-fA-F]{64}$"),
        "\"00000000000000000000000000000000000000000000000000000000000000ff\"",
        "made by `weir-gateway key`",
    )
    .needed(),
    key("expires_at", Kind::Text, "\"2030-01-01T00:00:00Z\"", "until when it opens"),
];

pub(super) const ANONYMOUS: &[Key] =
    &[key("plan", Kind::Spelled(NAME), "\"free\"", "the plan of each address").needed()];
