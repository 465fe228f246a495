//! Each kind of server starts, fails over or moves a slot, and goes away.

use std::sync::Arc;

use test_servers::{Cluster, SentinelSet, Server, ServerOptions, Tls, until};

#[test]
fn a_server_is_frozen_killed_and_comes_back_empty_on_its_port() -> anyhow::Result<()> {
    let mut server = Server::start()?;
    let _told: String = server.query("SET a 1")?;
    server.freeze()?;
    assert!(server.query::<String>("GET a").is_err(), "a frozen server does not answer");
    server.thaw()?;
    assert_eq!(server.query::<String>("GET a")?, "1");
    let port = server.port();
    server.restart()?;
    assert_eq!(server.port(), port);
    assert_eq!(server.query::<Option<String>>("GET a")?, None);
    Ok(())
}

#[test]
fn a_server_with_tls_listens_on_both_ports() -> anyhow::Result<()> {
    let tls = Arc::new(Tls::new()?);
    let server = ServerOptions::default().tls(&tls).start()?;
    let port = server.tls_port().unwrap();
    std::net::TcpStream::connect(("127.0.0.1", port))?;
    assert_eq!(server.query::<String>("PING")?, "PONG");
    Ok(())
}

#[test]
fn sentinels_promote_a_replica_when_told_and_when_the_primary_dies() -> anyhow::Result<()> {
    let mut set = SentinelSet::start(2)?;
    assert_eq!(set.primary()?, 0);
    let second = set.failover()?;
    assert_ne!(second, 0);
    set.server_mut(second).kill();
    let third = set.until_primary_is_not(second)?;
    assert_ne!(third, second);
    Ok(())
}

#[test]
fn a_cluster_moves_a_slot_with_its_keys_and_survives_a_primary() -> anyhow::Result<()> {
    let mut cluster = Cluster::start()?;
    let slot = cluster.slot("{a}")?;
    let owner = cluster.owner(slot)?;
    let _told: String = cluster.node(owner).query("SET {a} 1")?;
    let other = (owner + 1) % 3;
    cluster.migrate(slot, other)?;
    assert_eq!(cluster.owner(slot)?, other);
    assert_eq!(cluster.node(other).query::<String>("GET {a}")?, "1");
    let replica = cluster.replica_of(other)?;
    until("the replica has the key", || {
        Ok((cluster.node(replica).query::<u64>("DBSIZE")? == 1).then_some(()))
    })?;
    cluster.node_mut(other).kill();
    cluster.until_primary(replica)?;
    cluster.until_agreed()?;
    assert_eq!(cluster.node(replica).query::<String>("GET {a}")?, "1");
    Ok(())
}
