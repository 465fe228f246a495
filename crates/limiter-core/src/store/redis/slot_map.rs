//! Slots and their nodes at one moment; a new map replaces it as a whole.

use std::collections::HashMap;
use std::sync::Arc;

use super::address::HostPort;
use super::node::Node;
use super::slots::{Range, SLOTS};

/// More nodes than any Cluster has; what is named beyond it is not believed.
const NODES_MAX: usize = 1_024;
const NOBODY: u16 = u16::MAX;

/// What it needs to know of a node; so that it can be tested without servers.
pub(super) trait Answering {
    fn is_answering(&self) -> bool;
}

impl Answering for Node {
    fn is_answering(&self) -> bool {
        Node::is_answering(self)
    }
}

/// The map.
pub(super) struct SlotMap<N = Node> {
    nodes: Vec<(HostPort, Arc<N>)>,
    slots: Box<[Slot]>,
    /// Whether the slots are where the last answer said, all of them.
    agreed: bool,
}

#[derive(Clone, Copy)]
struct Slot {
    owner: u16,
    /// When the owner changed last.
    epoch: u64,
}

impl<N> Default for SlotMap<N> {
    fn default() -> SlotMap<N> {
        let slots = vec![Slot { owner: NOBODY, epoch: 0 }; SLOTS].into_boxed_slice();
        SlotMap { nodes: Vec::new(), slots, agreed: false }
    }
}

impl<N> SlotMap<N> {
    fn owner_entry(&self, slot: u16) -> Option<&(HostPort, Arc<N>)> {
        let slot = self.slots.get(usize::from(slot))?;
        self.nodes.get(usize::from(slot.owner))
    }

    pub(super) fn owner(&self, slot: u16) -> Option<&Arc<N>> {
        Some(&self.owner_entry(slot)?.1)
    }

    pub(super) fn owner_address(&self, slot: u16) -> Option<&HostPort> {
        Some(&self.owner_entry(slot)?.0)
    }

    pub(super) fn epoch(&self, slot: u16) -> u64 {
        self.slots.get(usize::from(slot)).map_or(0, |slot| slot.epoch)
    }

    /// When any owner changed last.
    pub(super) fn newest_epoch(&self) -> u64 {
        self.slots.iter().map(|slot| slot.epoch).max().unwrap_or(0)
    }

    pub(super) fn node(&self, address: &HostPort) -> Option<&Arc<N>> {
        Some(&self.nodes.iter().find(|(at, _)| at == address)?.1)
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = (&HostPort, &Arc<N>)> {
        self.nodes.iter().map(|(at, node)| (at, node))
    }

    /// This map with one slot given to a node of it.
    pub(super) fn moved(&self, slot: u16, to: &HostPort, epoch: u64) -> Option<SlotMap<N>> {
        let owner = self.nodes.iter().position(|(at, _)| at == to)?;
        let mut slots = self.slots.clone();
        let entry = slots.get_mut(usize::from(slot))?;
        *entry = Slot { owner: u16::try_from(owner).ok()?, epoch };
        Some(SlotMap { nodes: self.nodes.clone(), slots, agreed: self.agreed })
    }
}

impl<N: Answering> SlotMap<N> {
    /// Whether every slot has a node that answers, and the one that was named last.
    pub(super) fn is_settled(&self) -> bool {
        let answering: Vec<bool> = self.nodes.iter().map(|(_, node)| node.is_answering()).collect();
        let served = |slot: &Slot| answering.get(usize::from(slot.owner)) == Some(&true);
        self.agreed && self.slots.iter().all(served)
    }

    /// This map after an answer. A slot that it does not name stays where it is, and so does one
    /// whose node answers while the one named instead of it does not. `hints` are nodes to have
    /// links to although no slot is known to be theirs. Nodes without slots go.
    pub(super) fn merged(
        &self,
        ranges: &[Range],
        hints: &[HostPort],
        epoch: u64,
        new_node: impl Fn(&HostPort) -> Arc<N>,
    ) -> SlotMap<N> {
        let mut nodes = self.nodes.clone();
        let mut index: HashMap<HostPort, u16> = HashMap::new();
        for (number, (at, _)) in nodes.iter().enumerate() {
            index.insert(at.clone(), u16::try_from(number).unwrap_or(NOBODY));
        }
        for at in ranges.iter().map(|range| &range.primary).chain(hints) {
            if !index.contains_key(at) && nodes.len() < NODES_MAX {
                index.insert(at.clone(), u16::try_from(nodes.len()).unwrap_or(NOBODY));
                nodes.push((at.clone(), new_node(at)));
            }
        }
        let answering: Vec<bool> = nodes.iter().map(|(_, node)| node.is_answering()).collect();
        let answers = |owner: u16| answering.get(usize::from(owner)) == Some(&true);
        let mut slots = self.slots.clone();
        let (mut agreed, mut named) = (true, 0);
        let mut wanted = vec![false; nodes.len()];
        for range in ranges {
            let Some(owner) = index.get(&range.primary).copied() else { continue };
            let (first, last) = (usize::from(range.first), usize::from(range.last));
            for slot in slots.get_mut(first..=last).unwrap_or_default() {
                named += 1;
                if slot.owner == owner {
                    continue;
                }
                if answers(slot.owner) && !answers(owner) {
                    agreed = false;
                } else {
                    *slot = Slot { owner, epoch };
                }
            }
            mark(&mut wanted, owner);
        }
        for slot in &slots {
            mark(&mut wanted, slot.owner);
        }
        for hint in hints {
            index.get(hint).iter().for_each(|owner| mark(&mut wanted, **owner));
        }
        SlotMap { nodes, slots, agreed: agreed && named >= SLOTS }.without_idle(&wanted)
    }

    fn without_idle(mut self, wanted: &[bool]) -> SlotMap<N> {
        let mut renumbered = vec![NOBODY; wanted.len()];
        let mut nodes = Vec::new();
        for ((entry, wanted), number) in self.nodes.into_iter().zip(wanted).zip(&mut renumbered) {
            if *wanted {
                *number = u16::try_from(nodes.len()).unwrap_or(NOBODY);
                nodes.push(entry);
            }
        }
        for slot in &mut self.slots {
            slot.owner = renumbered.get(usize::from(slot.owner)).copied().unwrap_or(NOBODY);
        }
        SlotMap { nodes, ..self }
    }
}

fn mark(wanted: &mut [bool], owner: u16) {
    if let Some(wanted) = wanted.get_mut(usize::from(owner)) {
        *wanted = true;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    struct Fake(AtomicBool);

    impl Answering for Fake {
        fn is_answering(&self) -> bool {
            self.0.load(Ordering::Relaxed)
        }
    }

    fn at(port: u16) -> HostPort {
        HostPort { host: "a".into(), port }
    }

    fn range(first: u16, last: u16, port: u16) -> Range {
        Range { first, last, primary: at(port) }
    }

    fn silent(_: &HostPort) -> Arc<Fake> {
        Arc::new(Fake(AtomicBool::new(false)))
    }

    fn owners(map: &SlotMap<Fake>, slots: &[u16]) -> Vec<u16> {
        slots.iter().map(|slot| map.owner_address(*slot).map_or(0, |at| at.port)).collect()
    }

    fn answer(map: &SlotMap<Fake>, port: u16, answers: bool) {
        map.node(&at(port)).unwrap().0.store(answers, Ordering::Relaxed);
    }

    /// Node 1 has the lower half, node 2 the upper; both answer.
    fn halves() -> SlotMap<Fake> {
        let halves = [range(0, 8_191, 1), range(8_192, 16_383, 2)];
        let map = SlotMap::default().merged(&halves, &[], 1, silent);
        assert!(!map.is_settled(), "nobody answers yet");
        answer(&map, 1, true);
        answer(&map, 2, true);
        assert!(map.is_settled());
        assert_eq!(owners(&map, &[0, 8_191, 8_192, 16_383]), [1, 1, 2, 2]);
        map
    }

    #[test]
    fn an_empty_or_partial_answer_takes_nothing_away() {
        let map = halves().merged(&[], &[], 2, silent);
        assert_eq!(owners(&map, &[0, 16_383]), [1, 2]);
        let map = map.merged(&[range(0, 9, 2)], &[], 3, silent);
        assert_eq!(owners(&map, &[0, 9, 10, 16_383]), [2, 2, 1, 2]);
        assert!(!map.is_settled(), "it named too few slots to be believed for long");
        assert_eq!((map.epoch(0), map.epoch(10)), (3, 1));
    }

    #[test]
    fn a_wrong_answer_takes_no_slot_from_a_node_that_answers() {
        let map = halves().merged(&[range(0, 16_383, 666)], &[], 2, silent);
        assert_eq!(owners(&map, &[0, 16_383]), [1, 2]);
        assert!(!map.is_settled());
        assert_eq!(map.epoch(0), 1);
        let healed = [range(0, 8_191, 1), range(8_192, 16_383, 2)];
        let map = map.merged(&healed, &[], 3, silent);
        assert!(map.is_settled());
        assert!(map.node(&at(666)).is_none(), "nobody names it any more");
    }

    #[test]
    fn a_slot_goes_over_once_the_new_node_answers_or_the_old_one_does_not() {
        let answer_now = [range(0, 8_191, 3), range(8_192, 16_383, 2)];
        let map = halves().merged(&answer_now, &[], 2, silent);
        assert_eq!(owners(&map, &[0]), [1]);
        answer(&map, 3, true);
        let map = map.merged(&answer_now, &[], 3, silent);
        assert_eq!((owners(&map, &[0]), map.epoch(0), map.epoch(9_000)), (vec![3], 3, 1));
        assert!(map.is_settled());

        let map = halves();
        answer(&map, 1, false);
        let map = map.merged(&answer_now, &[], 2, silent);
        assert_eq!(owners(&map, &[0]), [3], "it cannot be worse there");
        assert!(!map.is_settled());
    }

    #[test]
    fn one_slot_moves_by_itself_and_hints_get_links() {
        let map = halves().moved(5, &at(2), 9).unwrap();
        assert_eq!((owners(&map, &[4, 5, 6]), map.epoch(5)), (vec![1, 2, 1], 9));
        assert!(map.moved(5, &at(7), 9).is_none(), "not a node of this map");
        let map = map.merged(&[], &[at(7)], 10, silent);
        assert!(map.node(&at(7)).is_some());
        assert_eq!(owners(&map, &[5]), [2]);
    }
}
