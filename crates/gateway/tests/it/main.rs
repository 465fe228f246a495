//! The gateway in-process: real sockets on port 0, file plans, a fake service; one module per
//! promise.

#[cfg(test)]
mod support; // a whole world in a few lines

#[cfg(test)]
mod access_log; // a line for each answer
#[cfg(test)]
mod anonymous; // callers without a key
#[cfg(test)]
mod balance; // which endpoint, by load, turn or key
#[cfg(test)]
mod bodies; // streams, refused bodies, bounds
#[cfg(test)]
mod config; // every mistake at once
#[cfg(test)]
mod cors; // pages of other origins
#[cfg(test)]
mod crowds; // very many at once
#[cfg(test)]
mod drain; // a clean end
#[cfg(test)]
mod failure; // without a store, without a service
#[cfg(test)]
mod faults; // services that do what no service should
#[cfg(test)]
mod grpc; // calls, trailers, refusals
#[cfg(test)]
mod health; // away and back again
#[cfg(test)]
mod hygiene; // headers both ways
#[cfg(test)]
mod keys; // what an API key is
#[cfg(test)]
mod kill_switch; // everybody in shadow at once
#[cfg(test)]
mod limits; // denials and what they tell
#[cfg(test)]
mod listeners; // several, of both families
#[cfg(test)]
mod names; // endpoints that move
#[cfg(test)]
mod ops; // the operations port
#[cfg(test)]
mod ops_admin; // what operators ask of a running gateway
#[cfg(test)]
mod overload; // more than a worker can handle
#[cfg(test)]
mod phases; // shadow and off are invisible
#[cfg(test)]
mod problems; // refusals as programs read them
#[cfg(test)]
mod proxy_protocol; // what a balancer says about its caller
#[cfg(test)]
mod reload; // a new file while it runs
#[cfg(test)]
mod reload_process; // the same, to the program
#[cfg(test)]
mod restart; // a new process in the place of a running one
mod restart_state; // what it knows without anybody
#[cfg(test)]
mod retries; // what is sent again, and what never
#[cfg(test)]
mod route_terms; // what else a route says
#[cfg(test)]
mod routes; // host, path, method
#[cfg(test)]
mod security; // what has to be refused, survived or kept secret
#[cfg(test)]
mod systemd; // what the service manager hears and gives
#[cfg(test)]
mod tls; // certificates, old and new
#[cfg(test)]
mod upgrades; // connections that leave HTTP
#[cfg(test)]
mod upgrades_tls; // the same over TLS
#[cfg(test)]
mod upstream_file; // the upstream part of the file
#[cfg(test)]
mod upstream_tls; // services that show who they are
