//! From a name to addresses: the machine's resolver, unless somebody brings another.

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;

/// Addresses that are being looked for.
pub type Resolving<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'a>>;

/// Knows where names point now. It may be slow: no request waits for it.
pub trait Resolve: Debug + Send + Sync {
    /// All addresses of a `host:port`.
    fn resolve<'a>(&'a self, name: &'a str) -> Resolving<'a>;
}

/// The machine's own resolver: its hosts file, its name servers.
#[derive(Debug, Clone, Copy)]
pub struct SystemNames;

impl Resolve for SystemNames {
    fn resolve<'a>(&'a self, name: &'a str) -> Resolving<'a> {
        Box::pin(async move { Ok(tokio::net::lookup_host(name).await?.collect()) })
    }
}
