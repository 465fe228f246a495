//! What is under way when a gateway ends: thousands of idle WebSockets and requests whose service
//! takes its time. All of it has until the end of `finish`, and nothing has longer.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;
use system_tests::process::{START_MAX, eventually};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::balancer::Late;
use super::fleet::{Behind, Drain, ECHO, LATE, Member};
use super::frames::Socket;
use crate::report::Report;

/// Sockets that are opened at once.
const AT_A_TIME: usize = 64;
/// All are looked at after this share of `finish`.
const LOOK_AT: f64 = 0.6;
/// How much later than `finish` the last one may be cut.
const CUT_LATE_MAX: Duration = Duration::from_secs(5);

/// How many, and how a gateway ends under them.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    pub sockets: usize,
    /// Among them those that nobody closes.
    pub left: usize,
    pub requests: usize,
    /// Times that the gateway takes another file before it ends.
    pub reloads: u64,
    /// What is promised.
    pub promised: Drain,
}

/// How the gateway is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    InPlace,
    Terminated,
}

impl End {
    fn name(self) -> &'static str {
        match self {
            End::InPlace => "in place",
            End::Terminated => "SIGTERM",
        }
    }
}

/// Sums over both ends.
#[derive(Debug, Default)]
pub struct Held {
    pub sockets: usize,
    pub sockets_cut: usize,
    pub sockets_cut_on_reload: usize,
    pub reloads: u64,
    pub sockets_left: usize,
    pub requests: usize,
    pub requests_failed: usize,
    pub unclean: u64,
}

impl Held {
    /// One gateway that ends as `drain` says, which should be what is promised.
    pub async fn add(
        &mut self,
        end: End,
        size: Size,
        drain: Drain,
        behind: &Behind,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let name = if end == End::InPlace { "held-1" } else { "held-2" };
        let promised = size.promised;
        behind.services.forget_arrivals().await?;
        let mut gateway = Member::start(name, drain, behind).await?;
        let mut sockets = open(gateway.traffic, size.sockets, &behind.key).await?;
        let silent = echo(&mut sockets, 1).await;
        anyhow::ensure!(silent == 0, "{silent} WebSockets were dead before anything happened");
        let mut requests = JoinSet::new();
        for _ in 0..size.requests {
            let late = Late::begin(gateway.traffic, &behind.key).await?;
            requests.spawn(late.answered());
        }
        eventually("long requests are at their service", START_MAX, || async {
            let arrived = behind.services.arrivals().await?;
            let late = arrived.iter().filter(|arrived| arrived.service == LATE).count();
            Ok((late == size.requests).then_some(()))
        })
        .await?;
        let cut_on_reload = reload(&mut gateway, &mut sockets, size.reloads, &behind.key).await?;
        anyhow::ensure!(requests.try_join_next().is_none(), "a long request was not long enough");
        match end {
            End::InPlace => gateway.succeed().await?,
            End::Terminated => gateway.stop()?,
        }
        let began = Instant::now();
        let finish = began + promised.grace + promised.finish;
        let mut failed = 0;
        while let Some(answered) = requests.join_next().await {
            failed += usize::from(!answered?);
        }
        let answered_after = began.elapsed();
        // All are looked at near the end of what is promised.
        sleep_until(began + promised.grace + promised.finish.mul_f64(LOOK_AT)).await;
        let cut = echo(&mut sockets, 2).await;
        let looked_after = began.elapsed();
        let in_time = Instant::now() < finish;
        let mut left = sockets.split_off(sockets.len().saturating_sub(size.left));
        drop(sockets);
        let mut outlived = 0;
        for socket in &mut left {
            let longest = (finish + CUT_LATE_MAX).saturating_duration_since(Instant::now());
            outlived += usize::from(!socket.closes_within(longest).await);
        }
        gateway.gone(promised.finish + CUT_LATE_MAX).await?;
        report.round(json!({
            "held": end.name(), "sockets": size.sockets, "sockets_cut": cut,
            "reloads": size.reloads, "sockets_cut_on_reload": cut_on_reload,
            "requests": size.requests, "requests_failed": failed, "outlived_finish": outlived,
            "answered_after_s": answered_after.as_secs_f64(),
            "looked_after_s": looked_after.as_secs_f64(),
            "ended_after_s": began.elapsed().as_secs_f64(),
        }));
        if !in_time {
            report.broken("WebSockets were looked at too late for a verdict");
        }
        self.sockets += size.sockets;
        self.sockets_cut += cut;
        self.sockets_cut_on_reload += cut_on_reload;
        self.reloads += size.reloads;
        self.sockets_left += outlived;
        self.requests += size.requests;
        self.requests_failed += failed;
        self.unclean += gateway.unclean;
        Ok(())
    }
}

/// Has the gateway take so many new files; how many of the sockets are silent then.
async fn reload(
    gateway: &mut Member,
    sockets: &mut [Socket],
    times: u64,
    key: &str,
) -> anyhow::Result<usize> {
    for number in 0..times {
        gateway.reload(number).await?;
    }
    let newest = format!("spare-{}", times.saturating_sub(1));
    let mut newest = Socket::open(gateway.traffic, &newest, key).await?;
    anyhow::ensure!(newest.echoes(1).await, "the last reload was not taken");
    Ok(echo(sockets, 3).await)
}

/// Opens so many.
async fn open(gateway: SocketAddr, count: usize, key: &str) -> anyhow::Result<Vec<Socket>> {
    let mut sockets = Vec::with_capacity(count);
    while sockets.len() < count {
        let some = AT_A_TIME.min(count - sockets.len());
        let opening = (0..some).map(|_| Socket::open(gateway, ECHO, key));
        let opened = futures_util::future::try_join_all(opening).await;
        sockets.extend(opened.with_context(|| format!("after {} of them", sockets.len()))?);
    }
    Ok(sockets)
}

/// Sends a word through each; how many are silent.
async fn echo(sockets: &mut [Socket], word: u32) -> usize {
    let mut silent = 0;
    for some in sockets.chunks_mut(AT_A_TIME) {
        let echoes = some.iter_mut().map(|socket| socket.echoes(word));
        let echoes = futures_util::future::join_all(echoes).await;
        silent += echoes.into_iter().filter(|echoes| !echoes).count();
    }
    silent
}

/// Descriptors for all of them, in this process and in those that it starts.
pub fn make_room(sockets: usize) -> anyhow::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    // A gateway has two for each.
    let needed = u64::try_from(sockets * 2 + 2_000)?;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    let current = Some(limit.maximum.unwrap_or(u64::MAX).min(needed));
    anyhow::ensure!(
        current >= Some(needed),
        "{needed} open files are needed, and the hard limit is {:?}: ulimit -Hn {needed}",
        limit.maximum
    );
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).context("the limit of open files")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_made_only_where_it_lacks() {
        make_room(1).unwrap();
        let error = make_room(usize::MAX / 8).unwrap_err();
        assert!(error.to_string().contains("open files are needed"), "{error}");
    }
}
