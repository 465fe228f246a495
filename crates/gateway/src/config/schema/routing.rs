//! Keys of routes and upstreams.

use super::policy::FAILURE;
use super::process::BODY_BYTES;
use super::{Key, Kind, NAME, key};

const MILLION: u64 = 1_000_000;
const METHOD: Kind = Kind::Spelled("^[A-Z-]+$");
const ENDPOINT: Kind = Kind::Spelled("^.+:[0-9]{1,5}$");

const CORS: Kind = Kind::Table(&[
    key(
        "origins",
        Kind::List(&Kind::Text),
        "[\"https://app.example.com\"]",
        "as browsers spell them, or [\"*\"]",
    )
    .needed(),
    key(
        "methods",
        Kind::List(&METHOD),
        "[\"GET\", \"POST\"]",
        "methods that pages may use; else the route's",
    ),
    key(
        "headers",
        Kind::List(&Kind::Text),
        "[\"x-api-key\", \"authorization\", \"content-type\"]",
        "headers that pages may send",
    )
    .default("[\"x-api-key\", \"authorization\", \"content-type\"]"),
    key("expose", Kind::List(&Kind::Text), "[\"x-page\"]", "further headers that pages may read"),
    key("credentials", Kind::Flag, "true", "cookies may come along; not with \"*\"")
        .default("false"),
    key("max_age", Kind::Time, "\"10m\"", "a browser does not ask again for this long")
        .default("\"10m\""),
]);

pub(super) const ROUTE: &[Key] = &[
    key("upstream", Kind::Spelled(NAME), "\"orders\"", "name of the service below").needed(),
    key(
        "name",
        Kind::Spelled(NAME),
        "\"reports\"",
        "named in cost rules and metrics; default: the upstream's name",
    ),
    key("host", Kind::Text, "\"*.example.com\"", "omitted: any"),
    key("path", Kind::Spelled("^/"), "\"/orders\"", "this and everything below it")
        .default("\"/\""),
    key("exact", Kind::Flag, "true", "the path itself and nothing under it").default("false"),
    key("methods", Kind::List(&METHOD), "[\"GET\", \"POST\"]", "omitted: any"),
    key(
        "cost",
        Kind::Whole(0, 1_000_000_000_000),
        "1",
        "tokens of a request, unless the plan says otherwise",
    )
    .default("1"),
    key(
        "auth",
        Kind::OneOf(&["key", "anonymous", "none"]),
        "\"key\"",
        "or \"anonymous\": limited by address; \"none\": not limited",
    )
    .default("\"key\""),
    key(
        "failure",
        Kind::Either(&[Kind::OneOf(&["plan"]), FAILURE]),
        "\"plan\"",
        "or closed, local, coarse, open: replaces the plan's",
    )
    .default("\"plan\""),
    key(
        "headers",
        Kind::Labels,
        "{ x-channel = \"beta\" }",
        "only requests with this field; \"*\": any value",
    ),
    key("strip_prefix", Kind::Flag, "true", "the service does not see the path's prefix")
        .default("false"),
    key("rewrite", Kind::Spelled("^/"), "\"/v2\"", "... or sees this in its place"),
    key("body_bytes", BODY_BYTES, "1000000", "this route's own; else that of [limits]"),
    key("head_timeout", Kind::Time, "\"5s\"", "this route's own; else the upstream's"),
    key(
        "total_timeout",
        Kind::Either(&[Kind::OneOf(&["none"]), Kind::Time]),
        "\"20s\"",
        "this route's own; else the upstream's",
    ),
    key(
        "cors",
        CORS,
        "{ origins = [\"https://app.example.com\"] }",
        "pages there may read the answers, refusals too",
    ),
];

const WEIGHTED: Kind = Kind::Table(&[
    key("address", ENDPOINT, "\"orders-2:9001\"", "host:port").needed(),
    key("weight", Kind::Whole(1, 100), "3", "its part of the requests, beside those of others")
        .default("1"),
]);

const TLS: Kind = Kind::Table(&[
    key(
        "server_name",
        Kind::Text,
        "\"orders.internal\"",
        "whom the certificate is for; else the endpoint's host",
    ),
    key("ca_file", Kind::File, "\"internal-ca.pem\"", "PEM; else an authority that browsers trust"),
]);

const HASH: Kind = Kind::Table(&[
    key(
        "hash",
        Kind::OneOf(&["key", "header"]),
        "\"header\"",
        "one endpoint for each client, or for each value of a header",
    )
    .needed(),
    key("name", Kind::Text, "\"x-cart\"", "the header"),
]);

const RETRY: Kind = Kind::Table(&[
    key("attempts", Kind::Whole(0, 10), "1", "0 is off").default("1"),
    key(
        "budget",
        Kind::Share { above_zero: false },
        "0.2",
        "part of the requests that may be sent again",
    )
    .default("0.2"),
    key("per_second_min", Kind::Whole(0, MILLION), "3", "and so many a second").default("3"),
]);

const HEALTH: Kind = Kind::Table(&[
    key("path", Kind::Spelled("^/"), "\"/healthz\"", "what is asked for").default("\"/healthz\""),
    key("every", Kind::Time, "\"5s\"", "how often").default("\"5s\""),
    key("timeout", Kind::Time, "\"1s\"", "how long an answer may take").default("\"1s\""),
    key("fall", Kind::Whole(1, 100), "3", "failures in a row until it is down").default("3"),
    key("rise", Kind::Whole(1, 100), "2", "successes in a row until it is up").default("2"),
]);

const EJECTION: Kind = Kind::Table(&[
    key("consecutive", Kind::Whole(0, 1_000), "5", "failed requests in a row; 0 is off")
        .default("5"),
    key("for", Kind::Time, "\"10s\"", "how long it is set aside").default("\"10s\""),
    key("max_share", Kind::Share { above_zero: false }, "0.5", "most endpoints that are")
        .default("0.5"),
]);

const MARK: Kind = Kind::Table(&[
    key("name", Kind::Text, "\"x-limited-by\"", "the header").needed(),
    key("value", Kind::Text, "\"orders\"", "its value, if any will not do"),
]);

pub(super) const PAIRING_KEYS: &[Key] = &[
    key("deny_status", Kind::Whole(400, 599), "429", "the status with which the service refuses")
        .default("429"),
    key(
        "deny_header",
        MARK,
        "{ name = \"x-limited-by\", value = \"orders\" }",
        "marks that refusal as the service's limiter",
    ),
    key("decision_header", Kind::Text, "\"x-weir-decision\"", "a header with the whole decision"),
];

pub(super) const UPSTREAM: &[Key] = &[
    key(
        "endpoints",
        Kind::List(&Kind::Either(&[ENDPOINT, WEIGHTED])),
        "[\"127.0.0.1:9001\"]",
        "or more: [..., { address = \"orders-2:9001\", weight = 3 }]",
    )
    .needed(),
    key("resolve_every", Kind::Time, "\"5s\"", "names are resolved again by then")
        .default("\"5s\""),
    key(
        "protocol",
        Kind::OneOf(&["http1", "http2"]),
        "\"http1\"",
        "or \"http2\": agreed on over TLS, else with prior knowledge",
    )
    .default("\"http1\""),
    key(
        "tls",
        TLS,
        "{ server_name = \"orders.internal\", ca_file = \"internal-ca.pem\" }",
        "or {}: the endpoint's host, public authorities",
    ),
    key("connect_timeout", Kind::Time, "\"1s\"", "longest wait for a connection").default("\"1s\""),
    key(
        "head_timeout",
        Kind::Time,
        "\"30s\"",
        "from the last byte of the request to the response head",
    )
    .default("\"30s\""),
    key("idle_timeout", Kind::Time, "\"60s\"", "between two pieces of a body").default("\"60s\""),
    key(
        "total_timeout",
        Kind::Either(&[Kind::OneOf(&["none"]), Kind::Time]),
        "\"none\"",
        "the whole exchange",
    )
    .default("\"none\""),
    key("keep_idle", Kind::Time, "\"30s\"", "less than the service keeps its idle connections")
        .default("\"30s\""),
    key(
        "max_connections",
        Kind::Whole(1, MILLION),
        "1024",
        "requests out at one endpoint; further ones wait for connect_timeout ...",
    )
    .default("1024"),
    key("max_pending", Kind::Whole(0, MILLION), "1024", "... if no more than these do: 503 beyond")
        .default("1024"),
    key(
        "balance",
        Kind::Either(&[Kind::OneOf(&["least_request", "round_robin"]), HASH]),
        "\"least_request\"",
        "or \"round_robin\", { hash = \"key\" }, { hash = \"header\", name = \"x-cart\" }",
    )
    .default("\"least_request\""),
    key(
        "retry",
        RETRY,
        "{ attempts = 1, budget = 0.2, per_second_min = 3 }",
        "only what cannot do anything twice",
    )
    .default("{}"),
    key(
        "health",
        HEALTH,
        "{ path = \"/healthz\", every = \"5s\", timeout = \"1s\", fall = 3, rise = 2 }",
        "active probes",
    ),
    key(
        "ejection",
        EJECTION,
        "{ consecutive = 5, for = \"10s\", max_share = 0.5 }",
        "after failures in traffic",
    )
    .default("{}"),
    key(
        "panic_share",
        Kind::Share { above_zero: false },
        "0",
        "fewer usable endpoints than this share: all are used",
    )
    .default("0"),
    key(
        "slow_start",
        Kind::Time,
        "\"10s\"",
        "an endpoint that came back takes its share little by little",
    )
    .default("\"10s\""),
    key(
        "pairing",
        Kind::Table(PAIRING_KEYS),
        "{ decision_header = \"x-weir-decision\" }",
        "how the service's own decision is known, for the shadow phase",
    ),
];
