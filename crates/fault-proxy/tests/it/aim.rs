//! Faults meet what they are aimed at and nothing else; the address leads where it is told.

use fault_proxy::{FaultProxy, Rule, Toxic};
use test_servers::{Server, until};

use crate::line::{End, Line, counted, world};

#[test]
fn a_rule_for_a_key_meets_script_calls_of_that_key_only() {
    let (_server, proxy, mut line) = world();
    proxy.set([
        Rule::new(Toxic::inject("BUSY mine")).on("EVAL").key("mine"),
        Rule::new(Toxic::inject("BUSY theirs")).key_prefix("theirs:"),
    ]);
    line.send(&[
        "EVAL return(1) 1 mine",
        "EVAL return(1) 1 other",
        "EVAL return(1) 0",
        "GET theirs:1",
    ]);
    line.expect("-BUSY mine\r\n:1\r\n:1\r\n-BUSY theirs\r\n");
    assert_eq!(proxy.counters().fault("inject"), 2);
}

#[test]
fn a_count_is_shared_by_all_connections_and_ends() {
    let (_server, proxy, mut line) = world();
    proxy.set(Rule::new(Toxic::inject("ERR once")).on("PING").times(1));
    let mut other = Line::to(proxy.address());
    other.send(&["PING", "PING"]);
    other.expect("-ERR once\r\n+PONG\r\n");
    line.send(&["PING"]);
    line.expect("+PONG\r\n");
}

#[test]
fn new_connections_follow_the_target_and_old_ones_stay_until_they_are_closed() {
    let (first, proxy, mut old) = world();
    let second = Server::start().unwrap();
    old.send(&["INCR n"]);
    old.expect(":1\r\n");
    proxy.retarget(second.address());
    let mut new = Line::to(proxy.address());
    new.send(&["INCR n"]);
    new.expect(":1\r\n");
    old.send(&["INCR n"]);
    old.expect(":2\r\n");
    assert_eq!((counted(&first), counted(&second)), (2, 1));
    proxy.close_all();
    assert_eq!(old.rest(), (String::new(), End::Closed));
    assert_eq!(new.rest(), (String::new(), End::Closed));
    until("both are counted out", || Ok((proxy.counters().open == 0).then_some(()))).unwrap();
}

#[test]
fn a_server_that_is_not_there_is_counted_and_the_client_told() {
    let (mut server, proxy, mut line) = world();
    line.send(&["PING"]);
    line.expect("+PONG\r\n");
    server.kill();
    assert_eq!(line.rest().0, "");
    assert_eq!(Line::to(proxy.address()).rest(), (String::new(), End::Closed));
    assert_eq!(proxy.counters().unreachable, 1);
    server.restart().unwrap();
    let mut line = Line::to(proxy.address());
    line.send(&["PING"]);
    line.expect("+PONG\r\n");
}

#[test]
fn other_protocols_end_the_connection_and_are_counted() {
    let (_server, proxy, mut line) = world();
    line.send_raw(b"\x16\x03\x01\x02\x00");
    assert_eq!(line.rest().0, "");
    let mut line = Line::to(proxy.address());
    line.send_raw(b"*1\r\n$536870912\r\n");
    assert_eq!(line.rest().0, "");
    assert_eq!(proxy.counters().malformed, 2);
}

#[test]
fn dropping_the_proxy_ends_its_connections_and_its_thread() {
    let (_server, proxy, mut line) = world();
    line.send(&["PING"]);
    line.expect("+PONG\r\n");
    let address = proxy.address();
    drop(proxy);
    assert_eq!(line.rest(), (String::new(), End::Closed));
    assert!(std::net::TcpStream::connect(address).is_err());
}

#[tokio::test(start_paused = true)]
async fn the_proxy_keeps_its_own_time_under_a_paused_runtime() {
    let server = Server::start().unwrap();
    let proxy = FaultProxy::start(server.address()).unwrap();
    let by = std::time::Duration::from_millis(20);
    proxy.set(Toxic::delay(by));
    let began = tokio::time::Instant::now();
    let mut line = Line::to(proxy.address());
    line.send(&["PING"]);
    line.expect("+PONG\r\n");
    assert_eq!(began.elapsed(), std::time::Duration::ZERO, "nobody moved the paused clock");
}
