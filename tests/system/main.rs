//! Stories over several processes: real gateways, plans-api, shadow-compare, services, Redis and
//! Postgres on free ports. Each story starts a world of its own and leaves nothing behind.

mod stage; // what the stories share
mod one_limit; // a client's limit holds wherever its requests go
mod plan_change; // from the operator's command to every gateway
mod catalog; // one client's own limits, keys from elsewhere
mod store_loss; // Redis frozen and back, plans-api gone
mod control_loss; // its database gone or frozen, its switch, its poison
mod rollout; // shadow, gate, enforce, back
mod first_hour; // what a newcomer types
mod apart; // three programs, started by hand
mod long_bodies; // they pass, and nothing stays
mod balancers; // their files are good as they are shipped
mod cases; // rows of CASES.md that need more than one process
