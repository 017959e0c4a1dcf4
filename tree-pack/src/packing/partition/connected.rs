//! The minimum number of connected parts within a budget. Among such partitions the search prefers
//! those that retain few tokens on the path to a leaf.
//!
//! Every token may begin a part. From the leaves to the root, a token either merges with the
//! **open** part of a child or closes it. Merging as many of the lightest open parts as the budget
//! allows gives the fewest closed parts and, among those, the lightest open part (S. Kundu and J.
//! Misra, "A Linear Tree Partitioning Algorithm", SIAM Journal on Computing 6, 1977). Among the
//! partitions with this number of parts it is often the worst for training: side branches fill the
//! open parts, and are retained for every part below.
//!
//! Each node therefore keeps several states that are Pareto-optimal in the number of closed parts,
//! the tokens of the open part, and the tokens of the heaviest chain of parts below it. A state
//! with two closed parts more than the minimum is never optimal, since closing the open part costs
//! only one. For each of the other two counts at most [`STATES`] states are kept, always including
//! the state of the rule above. The number of parts is therefore exact; the chain is a heuristic. A
//! subtree that fits into one part is not cut. Tokens of a node are merged together.

use super::cut::Cut;
use crate::forest::Node;

/// Maximum number of states of a node with the same number of closed parts.
const STATES: usize = 4;

/// One way to cut the subtree of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    /// Closed parts in excess of the minimum over the states of the node.
    closed: u32,
    /// Tokens of the open part.
    open: u32,
    /// Tokens of the heaviest chain of closed parts below the open one.
    chain: u64,
    /// The last choice that led to the state, as an index of a [`Choice`].
    last: u32,
}

/// How one state of a node handles a child.
#[derive(Clone, Copy, Debug)]
struct Choice {
    /// The choice for the child before, or [`NONE`].
    previous: u32,
    child: u32,
    /// The child's state, as an index in [`States::all`].
    state: u32,
    /// Whether the child's open part is closed.
    is_closed: bool,
}

const NONE: u32 = u32::MAX;

/// One [`Cut`] for each node of a tree. Nodes must come before their children.
pub fn fewest_cuts(nodes: &[Node], budget: u32) -> Vec<Cut> {
    let mut states = States::new(nodes, budget);
    for node in (0..nodes.len()).rev() {
        if nodes[node].subtree_end - nodes[node].start > budget {
            states.enter(node);
        }
    }
    states.cuts()
}

struct States<'a> {
    nodes: &'a [Node],
    /// Number of the first node in its forest.
    first_node: u32,
    budget: u32,
    /// States of all nodes whose subtrees do not fit into one part.
    all: Vec<State>,
    /// For each node, the range of its states in `all`; empty if its subtree fits into one part.
    ranges: Vec<(u32, u32)>,
    choices: Vec<Choice>,
}

impl<'a> States<'a> {
    fn new(nodes: &'a [Node], budget: u32) -> Self {
        Self {
            nodes,
            first_node: nodes[0].subtree_end_node - nodes.len() as u32,
            budget,
            all: Vec::new(),
            ranges: vec![(0, 0); nodes.len()],
            choices: Vec::new(),
        }
    }

    /// Calls `visit` for the children of a node.
    fn for_each_child(&self, node: usize, mut visit: impl FnMut(u32)) {
        let end = (self.nodes[node].subtree_end_node - self.first_node) as usize;
        let mut child = node + 1;
        while child < end {
            visit(child as u32);
            child = (self.nodes[child].subtree_end_node - self.first_node) as usize;
        }
    }

    /// The first index and the states of a node in `all`, or the only state of a subtree that fits
    /// into one part.
    fn of(&self, node: u32) -> (u32, &[State], Option<State>) {
        let (start, end) = self.ranges[node as usize];
        let whole = (start == end).then(|| {
            let Node {
                start, subtree_end, ..
            } = self.nodes[node as usize];
            State {
                closed: 0,
                open: subtree_end - start,
                chain: 0,
                last: NONE,
            }
        });
        (start, &self.all[start as usize..end as usize], whole)
    }

    /// Tokens of the lightest open part among the states with the fewest closed parts.
    fn lightest(&self, node: u32) -> u32 {
        let (_, states, whole) = self.of(node);
        whole.unwrap_or_else(|| states[0]).open
    }

    /// Computes the states of a node from those of its children.
    fn enter(&mut self, node: usize) {
        let mut children = Vec::new();
        self.for_each_child(node, |child| children.push(child));
        children.sort_unstable_by_key(|&child| self.lightest(child));
        let rest = Lightest::new(children.iter().map(|&child| self.lightest(child)));
        // The node's last token joins its children.
        let fewest = rest.left_out(0, self.budget - 1);
        let mut front = vec![State {
            closed: 0,
            open: 1,
            chain: 0,
            last: NONE,
        }];
        let mut candidates = Vec::new();
        for (index, &child) in children.iter().enumerate() {
            candidates.clear();
            for &before in &front {
                self.for_each_choice(before, child, |state, choice| {
                    let room = self.budget.checked_sub(state.open);
                    let more = room.map(|room| rest.left_out(index + 1, room));
                    if more.is_some_and(|more| state.closed + more <= fewest + 1) {
                        let more = state.closed + more.unwrap_or(0) - fewest;
                        candidates.push((more, state, choice));
                    }
                });
            }
            keep_best(&mut candidates);
            front.clear();
            for &(_, state, choice) in &candidates {
                self.choices.push(choice);
                let last = self.choices.len() as u32 - 1;
                front.push(State { last, ..state });
            }
        }
        self.close_inside(node, front);
    }

    /// Calls `visit` for every choice for a child.
    fn for_each_choice(&self, before: State, child: u32, mut visit: impl FnMut(State, Choice)) {
        let (first, states, whole) = self.of(child);
        let states = if whole.is_some() {
            whole.as_slice()
        } else {
            states
        };
        let choice = |index: usize, is_closed| Choice {
            previous: before.last,
            child,
            state: first + index as u32,
            is_closed,
        };
        for (index, state) in states.iter().enumerate() {
            let taken_in = State {
                closed: before.closed + state.closed,
                // This is at most twice the budget.
                open: before.open + state.open,
                chain: before.chain.max(state.chain),
                ..before
            };
            visit(taken_in, choice(index, false));
        }
        let closable = states
            .iter()
            .enumerate()
            .filter(|(_, state)| state.closed == 0);
        let lightest = closable.min_by_key(|(_, state)| u64::from(state.open) + state.chain);
        if let Some((index, state)) = lightest {
            let closed = State {
                closed: before.closed + 1,
                chain: before.chain.max(u64::from(state.open) + state.chain),
                ..before
            };
            visit(closed, choice(index, true));
        }
    }

    /// Adds the tokens of a node above its last one.
    fn close_inside(&mut self, node: usize, mut front: Vec<State>) {
        let above = self.nodes[node].token_count() as u64 - 1;
        let budget = u64::from(self.budget);
        for state in &mut front {
            let open = u64::from(state.open) + above;
            let closed = (open - 1) / budget;
            state.closed += closed as u32;
            state.open = (open - closed * budget) as u32;
            state.chain += closed * budget;
        }
        let fewest = front.iter().map(|state| state.closed).min().unwrap_or(0);
        let mut candidates: Vec<_> = front
            .into_iter()
            .map(|state| State {
                closed: state.closed - fewest,
                ..state
            })
            .filter(|state| state.closed <= 1)
            .map(|state| (state.closed, state, ()))
            .collect();
        keep_best(&mut candidates);
        let start = self.all.len() as u32;
        self.all
            .extend(candidates.into_iter().map(|(_, state, ())| state));
        self.ranges[node] = (start, self.all.len() as u32);
    }

    /// Follows the choices from the best state of the root downwards.
    fn cuts(&self) -> Vec<Cut> {
        let mut cuts = vec![Cut::default(); self.nodes.len()];
        // The chosen state of each node that has several.
        let mut chosen = vec![NONE; self.nodes.len()];
        let (start, states, _) = self.of(0);
        let fewest = (start..).zip(states).filter(|(_, state)| state.closed == 0);
        let best = fewest.min_by_key(|(_, state)| u64::from(state.open) + state.chain);
        if let Some((state, _)) = best {
            chosen[0] = state;
        }
        for node in 0..self.nodes.len() {
            let (_, _, whole) = self.of(node as u32);
            let state = whole.unwrap_or_else(|| self.all[chosen[node] as usize]);
            cuts[node].top = state.open;
            let mut next = state.last;
            while next != NONE {
                let choice = self.choices[next as usize];
                cuts[choice.child as usize].above = choice.is_closed;
                chosen[choice.child as usize] = choice.state;
                next = choice.previous;
            }
        }
        cuts
    }
}

/// Items in ascending order of weight, for counting how many fit into a given room.
struct Lightest {
    /// Sums of the weights before each item.
    sums: Vec<u64>,
}

impl Lightest {
    fn new(weights: impl Iterator<Item = u32>) -> Self {
        let mut sums = vec![0];
        for weight in weights {
            sums.push(sums[sums.len() - 1] + u64::from(weight));
        }
        Self { sums }
    }

    /// Number of items from `first` on that do not fit into `room`.
    fn left_out(&self, first: usize, room: u32) -> u32 {
        let most = self.sums[first] + u64::from(room);
        let fitting = self.sums[first..].partition_point(|&sum| sum <= most) - 1;
        (self.sums.len() - 1 - first - fitting) as u32
    }
}

/// Removes dominated states, and keeps at most [`STATES`] of those that end with the fewest closed
/// parts (first field 0) and of those that end with one more (first field 1). The first state kept
/// has the lightest open part among those with the fewest closed parts.
fn keep_best<T: Copy>(candidates: &mut Vec<(u32, State, T)>) {
    candidates.sort_unstable_by_key(|&(_, state, _)| state);
    let mut kept: Vec<(u32, State, T)> = Vec::with_capacity(candidates.len().min(8 * STATES));
    for &candidate in candidates.iter() {
        let (_, state, _) = candidate;
        // Earlier states have no more closed parts.
        let is_no_better = |(_, other, _): &(u32, State, T)| {
            other.open <= state.open && other.chain <= state.chain
        };
        if !kept.iter().any(is_no_better) {
            kept.push(candidate);
        }
    }
    candidates.clear();
    for more in [0, 1] {
        let group: Vec<_> = kept.iter().filter(|entry| entry.0 == more).collect();
        let count = group.len().min(STATES);
        // Evenly spaced, including the first and the last.
        let steps = count.max(2) - 1;
        candidates.extend((0..count).map(|index| *group[index * (group.len() - 1) / steps]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path of single-token nodes, each with one more child that is a leaf: the deepest possible
    /// tree.
    #[test]
    fn depth_of_a_million_nodes() {
        const DEPTH: u32 = 1_000_000;
        const BUDGET: u32 = 1000;
        let node = |number: u32| {
            let is_leaf = number % 2 == 1;
            Node {
                start: number,
                end: number + 1,
                subtree_end: if is_leaf { number + 1 } else { 2 * DEPTH },
                subtree_end_node: if is_leaf { number + 1 } else { 2 * DEPTH },
                parent: match number {
                    0 => None,
                    _ if is_leaf => Some(number - 1),
                    _ => Some(number - 2),
                },
                position: number / 2,
                source: 0,
            }
        };
        let nodes: Vec<Node> = (0..2 * DEPTH).map(node).collect();
        let cuts = fewest_cuts(&nodes, BUDGET);
        let closed = cuts.iter().filter(|cut| cut.above).count() as u32;
        assert_eq!(closed + 1, 2 * DEPTH / BUDGET, "every part is full");
    }

    /// Two leaves of 9 tokens below a path of 12, with a budget of 10. All minimal partitions have
    /// four parts; one with no leaf in the parts of the path retains 21 tokens on the way to a leaf
    /// instead of 30.
    #[test]
    fn branches_are_kept_out_of_the_parts_above_them() {
        let node = |start, end, subtree_end, subtree_end_node, parent: Option<u32>| Node {
            start,
            end,
            subtree_end,
            subtree_end_node,
            parent,
            position: parent.map_or(0, |_| 12),
            source: 0,
        };
        let nodes = [
            node(0, 12, 30, 3, None),
            node(12, 21, 21, 2, Some(0)),
            node(21, 30, 30, 3, Some(0)),
        ];
        let cuts = fewest_cuts(&nodes, 10);
        let cut = |above, top| Cut { above, top };
        assert_eq!(cuts, [cut(false, 2), cut(true, 9), cut(true, 9)]);
    }
}
