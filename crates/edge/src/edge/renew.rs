//! What an edge is told anew while it runs, besides its policy.

use limiter_core::store::BucketStore;

use super::Edge;
use crate::anonymous::Anonymous;
use crate::kill_switch::KillSwitch;

impl<S: BucketStore> Edge<S> {
    /// From now on these are the routes, and this is the plan of callers that are known by their
    /// address alone. A file's plans come first, with [`Edge::load_file`].
    pub fn renew(&self, routes: Vec<String>, anonymous: Option<String>) {
        self.shelf.set_anonymous(anonymous.map(|plan| Anonymous::new(plan, self.versions)));
        self.feed.set_routes(routes);
    }

    /// A successor keeps the state folder from now on.
    pub fn leave_state(&self) {
        if let Some(keeper) = &self.keeper {
            keeper.leave();
        }
    }

    /// Flips it for every request that is identified from then on.
    pub fn kill_switch(&self) -> &KillSwitch {
        self.shelf.kill_switch()
    }
}
