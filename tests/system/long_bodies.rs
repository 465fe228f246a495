//! A long body passes through a gateway's process without staying in it, whatever protocol its
//! caller speaks and whichever side is slow.

use std::path::Path;

use system_tests::growth::{self, Protocol, Subject, Way};
use system_tests::origin;
use system_tests::process::{Launcher, free_port};

const MIB: u64 = 1024 * 1024;

#[tokio::test]
async fn a_body_of_64_mib_past_a_slow_reader_grows_a_gateway_by_less_than_16() {
    let folder = tempfile::tempdir().unwrap();
    let launcher = Launcher::new(Path::new(env!("CARGO_BIN_EXE_lab")), folder.path());
    let (_origin, service) = origin::start(&launcher).await.unwrap();
    let at = std::net::SocketAddr::from(([127, 0, 0, 1], free_port().unwrap()));
    let text = format!(
        "workers = 1\n[listen.main]\naddress = \"{at}\"\n\
         [operations]\naddress = \"127.0.0.1:0\"\n\
         [plan.any]\nunlimited = true\n\
         [[route]]\npath = \"/\"\nupstream = \"service\"\nauth = \"none\"\n\
         [upstream.service]\nendpoints = [\"{service}\"]\n"
    );
    let file = launcher.dir().join("gateway.toml");
    std::fs::write(&file, text).unwrap();
    let args = vec!["--config".into(), file.into_os_string()];
    let (gateway, _ports) = launcher.start_ready("gateway", "gateway", args).await.unwrap();
    let subject = Subject { process: gateway.id(), at, key: "none" };
    for protocol in [Protocol::Http1, Protocol::Http2] {
        for way in [Way::Up, Way::Down] {
            let grown = growth::of(&subject, protocol, way, 64 * MIB).await.unwrap();
            assert!(grown <= 16 * MIB, "{protocol:?} {way:?}: {grown} bytes while 64 MiB passed");
        }
    }
}
