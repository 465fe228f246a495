//! One promise for each toxic.

use std::time::Duration;

use fault_proxy::{Direction, Moment, Rule, Rules, Toxic};
use tokio::time::Instant;

use crate::line::{End, Line, counted, world};

#[test]
fn without_rules_every_byte_passes_and_is_counted() {
    let (_server, proxy, mut line) = world();
    line.send(&["SET k a\u{e9}\r\nb", "GET k", "LRANGE none 0 -1", "NOSUCH"]);
    line.expect("+OK\r\n$6\r\na\u{e9}\r\nb\r\n*0\r\n-ERR unknown command 'NOSUCH'");
    line.send_raw(b"PING\r\n");
    line.expect(", with args beginning with: \r\n+PONG\r\n");
    let counters = proxy.counters();
    assert_eq!((counters.connections, counters.open, counters.malformed), (1, 1, 0));
    assert_eq!((counters.command("SET"), counters.command("GET")), (1, 1));
    assert_eq!(counters.faults.len(), 0);
}

#[test]
fn a_long_value_passes_whatever_its_pieces_are() {
    let (_server, _proxy, mut line) = world();
    let value = "x".repeat(3_000_000);
    line.send(&[&format!("SET k {value}"), "GET k", "PING"]);
    line.expect("+OK\r\n$3000000\r\n");
    assert!(line.read(value.len()) == value);
    line.expect("\r\n+PONG\r\n");
}

#[test]
fn a_delay_holds_the_reply_and_keeps_the_order() {
    let (_server, proxy, mut line) = world();
    let by = Duration::from_millis(30);
    proxy.set(Rule::new(Toxic::delay(by)).on("ECHO"));
    let began = Instant::now();
    line.send(&["ECHO a", "PING", "ECHO b", "PING"]);
    line.expect("$1\r\na\r\n+PONG\r\n$1\r\nb\r\n+PONG\r\n");
    assert!(began.elapsed() >= by);
    assert_eq!(proxy.counters().fault("delay"), 2);
    let began = Instant::now();
    let jitter = Toxic::Delay { by, jitter: by };
    proxy.set(jitter);
    line.send(&["PING"]);
    line.expect("+PONG\r\n");
    assert!(began.elapsed() >= by);
}

#[test]
fn a_reply_is_cut_after_any_byte_and_the_connection_closed() {
    let (server, proxy, _) = world();
    let reply = "*3\r\n$1\r\na\r\n:12\r\n$-1\r\n";
    for after in 0..=reply.len() {
        proxy.set(Rule::new(Toxic::Cut { after }).on("EVAL"));
        let mut line = Line::to(proxy.address());
        line.send(&["EVAL return{'a',12,false} 0"]);
        let part: String = reply.chars().take(after).collect();
        assert_eq!(line.rest(), (part, End::Closed), "after {after}");
    }
    drop(server);
}

#[test]
fn a_reset_before_or_during_a_command_leaves_it_undone_and_one_after_it_does_not() {
    for (moment, executed) in [(Moment::Before, 0), (Moment::During, 0), (Moment::After, 1)] {
        let (server, proxy, mut line) = world();
        proxy.set(Rule::new(Toxic::Reset(moment)).on("INCR"));
        line.send(&["PING"]);
        line.expect("+PONG\r\n");
        line.send(&["INCR n"]);
        assert_eq!(line.rest(), (String::new(), End::Reset), "{moment:?}");
        assert_eq!(counted(&server), executed, "{moment:?}");
    }
}

#[test]
fn a_blackhole_takes_commands_or_replies_of_this_connection_for_ever() {
    for (direction, executed) in [(Direction::ToServer, 0), (Direction::ToClient, 1)] {
        let (server, proxy, mut line) = world();
        proxy.set(Rule::new(Toxic::Blackhole(direction)).on("INCR").times(1));
        line.send(&["PING", "INCR n", "PING"]);
        line.expect("+PONG\r\n");
        // A later connection is served, so the commands of the first would have been as well.
        proxy.clear();
        let mut other = Line::to(proxy.address());
        other.send(&["PING"]);
        other.expect("+PONG\r\n");
        line.send(&["PING"]);
        assert!(line.is_silent(), "{direction:?}");
        assert_eq!(counted(&server), executed, "{direction:?}");
    }
}

#[test]
fn a_sliced_reply_comes_whole_in_the_end() {
    let (_server, proxy, mut line) = world();
    let pause = Duration::from_millis(2);
    proxy.set(Toxic::Slice { bytes: 1, pause });
    let began = Instant::now();
    line.send(&["ECHO abc", "PING"]);
    line.expect("$3\r\nabc\r\n+PONG\r\n");
    assert!(began.elapsed() >= pause * 15, "sixteen bytes have fifteen pauses between them");
    proxy.set(Toxic::Slice { bytes: 5, pause: Duration::ZERO });
    line.send(&["ECHO abc"]);
    line.expect("$3\r\nabc\r\n");
}

#[test]
fn a_garbled_reply_has_its_length_and_other_bytes() {
    let (_server, proxy, mut line) = world();
    proxy.set(Rules { seed: 3, list: vec![Rule::new(Toxic::Garble { bytes: 1 })] });
    for _ in 0..20 {
        line.send(&["ECHO abcdefgh"]);
        let (got, sent) = (line.read_bytes(14), *b"$8\r\nabcdefgh\r\n");
        let changed = got.iter().zip(sent).filter(|(got, sent)| **got != *sent).count();
        assert_eq!(changed, 1);
    }
}

#[test]
fn swapped_replies_change_places_and_a_repeated_one_comes_twice() {
    let (_server, proxy, mut line) = world();
    proxy.set([Rule::new(Toxic::Swap).on("ECHO"), Rule::new(Toxic::Repeat).on("GET")]);
    line.send(&["ECHO a", "PING", "GET none", "PING"]);
    line.expect("+PONG\r\n$1\r\na\r\n$-1\r\n$-1\r\n+PONG\r\n");
}

#[test]
fn a_swallowed_reply_is_missing_although_the_command_was_executed() {
    let (server, proxy, mut line) = world();
    proxy.set(Rule::new(Toxic::Swallow).on("INCR").times(1));
    line.send(&["INCR n", "INCR n"]);
    line.expect(":2\r\n");
    assert_eq!(counted(&server), 2);
}

#[test]
fn an_injected_error_answers_in_its_turn_and_nothing_is_executed() {
    let (server, proxy, mut line) = world();
    proxy.set(Rule::new(Toxic::inject("OOM command not allowed")).on("INCR"));
    line.send(&["PING", "INCR n", "ECHO a"]);
    line.expect("+PONG\r\n-OOM command not allowed\r\n$1\r\na\r\n");
    assert_eq!(counted(&server), 0);
}

#[test]
fn a_huge_header_and_a_push_come_before_the_reply() {
    let (_server, proxy, mut line) = world();
    proxy.set([Rule::new(Toxic::HugeHeader).on("PING"), Rule::new(Toxic::Push).on("ECHO")]);
    line.send(&["ECHO a", "PING"]);
    line.expect(">2\r\n$10\r\ninvalidate\r\n*1\r\n$9\r\nunrelated\r\n$1\r\na\r\n");
    line.expect("$536870912\r\n+PONG\r\n");
}

#[test]
fn pushes_of_the_server_itself_belong_to_no_command() {
    let (server, proxy, mut line) = world();
    line.send(&["HELLO 3"]);
    line.expect("%7\r\n");
    line.send(&["PING"]);
    while !line.read(1).contains('+') {}
    line.expect("PONG\r\n");
    line.send(&["SUBSCRIBE news"]);
    line.expect(">3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n");
    let heard: u64 = server.query("PUBLISH news hot").unwrap();
    assert_eq!(heard, 1);
    line.expect(">3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$3\r\nhot\r\n");
    proxy.set(Rule::new(Toxic::Swallow).on("ECHO"));
    line.send(&["ECHO a", "PING"]);
    line.expect("+PONG\r\n");
}
