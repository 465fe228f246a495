//! The corridor's side door: requests whose connection may leave HTTP.

use std::borrow::Cow;
use std::sync::Arc;

use edge::limiter::store::BucketStore;
use edge::{Presented, Ticket, prefix_of};
use http::Response;

use super::{Head, Pipeline, Refused, dress};
use crate::body::ReplyBody;
use crate::reply::Problem;
use crate::route::Route;
use crate::upgrade::{self, Unasked, Upgrade, Wish};
use crate::upstream::{Answer, Failed, Way};

impl<S: BucketStore> Pipeline<S> {
    /// A wish to leave HTTP takes its place among its client's, or its address's. Services that
    /// are spoken to in HTTP/2 cannot be asked: there it is ignored.
    pub(super) fn upgrade(
        &self,
        wish: Option<Wish>,
        way: &Way,
        ticket: &Ticket,
        presented: Presented<'_>,
        head: &Head<'_>,
    ) -> Result<Option<Upgrade>, Problem> {
        let config = &way.upstream.config;
        let Some(wish) = wish.filter(|_| !config.http2) else { return Ok(None) };
        let holder = match (presented, ticket.client()) {
            (Presented::Key(_), Some(client)) => Cow::Borrowed(client),
            (Presented::Address(address), _) => Cow::Owned(format!("[{}]", prefix_of(address))),
            (Presented::Key(_) | Presented::Nothing, _) => {
                Cow::Owned(format!("[{}]", prefix_of(head.peer.address)))
            }
        };
        let pass = self.edge.pass(presented);
        self.upgrades.take_in(wish, &holder, head.peer, pass, config.idle_timeout).map(Some)
    }

    /// A service has answered: its response is passed on, and perhaps its connection.
    pub(super) fn answered<'a>(
        &self,
        mut answer: Answer,
        upgrade: Option<Upgrade>,
        way: &Way,
        route: &'a Route,
        ticket: Ticket,
        head: &Head<'_>,
    ) -> Result<Response<ReplyBody>, Box<Refused<'a>>> {
        let switch = match upgrade::settled(&answer.response, upgrade) {
            Ok(switch) => switch,
            Err(Unasked) => {
                way.upstream.metrics.broken.inc();
                return Err(Box::new(self.not_answered(Failed::Unreachable, None, route, ticket)));
            }
        };
        head.learns(|note| note.is_answered(answer.instance));
        let out = answer.switched.take();
        let mut response = self.pass_on(answer, way, route, ticket, head.id);
        dress(&mut response, Some(route), head);
        Ok(match switch {
            None => response,
            Some((upgrade, protocol)) => {
                upgrade.begin(response, protocol, out, Arc::clone(&self.edge))
            }
        })
    }
}
