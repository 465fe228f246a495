//! Tally cells: exact counts by minute, client, service, phase and the revision that began it.
//!
//! Every thread adds to its own part of the table, so the lock it takes is practically always
//! free. Nothing is dropped: once the table is full a request is counted in its service's cell
//! without a client, which no acknowledgement can ever excuse.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use wire::batch::{CELLS_MAX, COST_ALLOWED_MAX, TallyCell};
use wire::policy::ClientValue;
use wire::rollout::Phase;

use crate::call::RouteTerms;
use crate::ticket::Decided;

/// Parts of the table; threads beyond this share.
const PARTS: usize = 64;
/// Room that is kept for the cells without a client: a few for each service.
const OTHERS_ROOM: usize = 1_024;

/// Which cell.
#[derive(Debug, Clone)]
pub(super) struct CellName {
    minute: u64,
    /// Absent: whoever did not fit.
    client: Option<Arc<ClientValue>>,
    route: Arc<RouteTerms>,
    phase: Phase,
    since_revision: u64,
}

impl CellName {
    pub(super) fn new(decided: &Decided, at_us: u64) -> CellName {
        CellName {
            minute: at_us / 60_000_000,
            client: Some(Arc::clone(&decided.known.client)),
            route: Arc::clone(&decided.route),
            phase: decided.rule.phase,
            since_revision: decided.rule.since_revision,
        }
    }

    fn client(&self) -> &str {
        self.client.as_ref().map_or("", |client| &client.id)
    }

    fn parts(&self) -> (u64, &str, &str, Phase, u64) {
        (self.minute, self.client(), &self.route.service, self.phase, self.since_revision)
    }
}

impl PartialEq for CellName {
    fn eq(&self, other: &CellName) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for CellName {}

impl Hash for CellName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

/// The table.
#[derive(Debug)]
pub(super) struct Tally {
    parts: [Mutex<HashMap<CellName, TallyCell>>; PARTS],
    open: AtomicUsize,
    most: usize,
}

impl Default for Tally {
    fn default() -> Tally {
        Tally::bounded(CELLS_MAX - OTHERS_ROOM)
    }
}

thread_local! {
    static PART: Cell<Option<usize>> = const { Cell::new(None) };
}
static THREADS: AtomicUsize = AtomicUsize::new(0);

fn own_part() -> usize {
    PART.with(|part| {
        let own = part.get().unwrap_or_else(|| THREADS.fetch_add(1, Ordering::Relaxed) % PARTS);
        part.set(Some(own));
        own
    })
}

impl Tally {
    fn bounded(most: usize) -> Tally {
        Tally { parts: std::array::from_fn(|_| Mutex::default()), open: AtomicUsize::new(0), most }
    }

    /// Adds `counts` to a cell. Whether it could keep its client's name; if not, `since_of_all`
    /// tells which evidence the cell without a client belongs to.
    pub(super) fn add(
        &self,
        name: CellName,
        counts: &TallyCell,
        since_of_all: impl FnOnce() -> u64,
    ) -> bool {
        let part = self.parts.get(own_part()).expect("a part is reduced modulo their number");
        let mut cells = part.lock();
        if let Some(cell) = cells.get_mut(&name) {
            cell.add(counts);
            return true;
        }
        let fits = self.open.fetch_add(1, Ordering::Relaxed) < self.most;
        if fits {
            cells.insert(name, counts.clone());
            return true;
        }
        self.open.fetch_sub(1, Ordering::Relaxed);
        let other = CellName { client: None, since_revision: since_of_all(), ..name };
        cells.entry(other).or_default().add(counts);
        false
    }

    /// Everything since the last cut, in the order of its names.
    pub(super) fn cut(&self) -> Vec<TallyCell> {
        let mut merged: BTreeMap<(u64, String, String, &'static str, u64), TallyCell> =
            BTreeMap::new();
        for part in &self.parts {
            let cells = std::mem::take(&mut *part.lock());
            let named = cells.keys().filter(|name| name.client.is_some()).count();
            self.open.fetch_sub(named, Ordering::Relaxed);
            cells.into_iter().for_each(|(name, counts)| {
                let (minute, client, service, phase, since) = name.parts();
                let key = (minute, client.to_owned(), service.to_owned(), phase.name(), since);
                let fresh = || TallyCell { phase, ..TallyCell::default() };
                merged.entry(key).or_insert_with(fresh).add(&counts);
            });
        }
        merged
            .into_iter()
            .map(|((minute, client, service, _, since_revision), counts)| TallyCell {
                minute,
                client,
                service,
                since_revision,
                // A cell that the other side must refuse would take the whole batch along.
                cost_allowed: counts.cost_allowed.min(COST_ALLOWED_MAX),
                ..counts
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use limiter_core::Cost;
    use wire::policy::ClientState;

    use crate::call::AuthMode;

    fn name(service: &str, minute: u64) -> CellName {
        CellName {
            minute,
            client: Some(Arc::new(ClientValue {
                id: format!("client-{minute}"),
                plan: "plan".to_owned(),
                state: ClientState::Active,
                overridden: None,
                reset_revision: 0,
                revision: 1,
            })),
            route: Arc::new(RouteTerms {
                name: "route".to_owned(),
                service: service.to_owned(),
                cost: Cost::ONE,
                auth: AuthMode::Key,
                failure: None,
                pairing: true,
            }),
            phase: Phase::Shadow,
            since_revision: 7,
        }
    }

    #[test]
    fn a_full_table_still_counts_every_request() {
        let tally = Tally::bounded(3);
        let one = TallyCell { requests: 1, stricter: 1, ..TallyCell::default() };
        for minute in 0..10 {
            assert_eq!(tally.add(name("orders", minute), &one, || 4), minute < 3);
        }
        let cells = tally.cut();
        assert_eq!(cells.len(), 3 + 7, "a cell without a client for each minute");
        assert_eq!(cells.iter().map(|cell| cell.requests).sum::<u64>(), 10);
        let others: Vec<_> = cells.iter().filter(|cell| cell.client.is_empty()).collect();
        assert_eq!(others.iter().map(|cell| cell.stricter).sum::<u64>(), 7);
        assert!(others.iter().all(|cell| cell.since_revision == 4 && cell.service == "orders"));
        // The cut made room.
        assert!(tally.add(name("orders", 11), &one, || 4));
        assert_eq!(tally.cut().len(), 1);
    }

    #[test]
    fn costs_at_their_maximum_do_not_spoil_a_batch() {
        let tally = Tally::default();
        let dear = TallyCell {
            requests: 1,
            both_allow: 1,
            cost_allowed: limiter_core::CAPACITY_MAX,
            ..TallyCell::default()
        };
        for _request in 0..2_000 {
            tally.add(name("orders", 1), &dear, || 0);
        }
        let cells = tally.cut();
        assert_eq!(cells.iter().map(|cell| cell.requests).sum::<u64>(), 2_000);
        assert_eq!(cells.iter().map(|cell| cell.cost_allowed).max(), Some(COST_ALLOWED_MAX));
    }

    #[test]
    fn threads_that_count_at_once_lose_nothing() {
        let tally = Arc::new(Tally::default());
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let tally = Arc::clone(&tally);
                std::thread::spawn(move || {
                    let one = TallyCell { requests: 1, both_allow: 1, ..TallyCell::default() };
                    for request in 0..5_000 {
                        tally.add(name("orders", request % 50), &one, || 0);
                    }
                })
            })
            .collect();
        let mut requests = 0;
        while threads.iter().any(|thread| !thread.is_finished()) {
            requests += tally.cut().iter().map(|cell| cell.requests).sum::<u64>();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        requests += tally.cut().iter().map(|cell| cell.requests).sum::<u64>();
        assert_eq!(requests, 20_000);
    }
}
