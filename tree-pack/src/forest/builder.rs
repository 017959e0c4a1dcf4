//! Builds a compressed prefix tree, one sequence at a time.

use rustc_hash::FxHashMap;

use super::node::{Node, Tree};
use super::prefix_forest::PrefixForest;
use crate::counting_sort::counting_sort;

const NO_NODE: u32 = u32::MAX;

/// A node of an unfinished forest: tokens `start..end` of `source`, the first sequence through it.
struct DraftNode {
    source: u32,
    start: u32,
    end: u32,
    parent: u32,
}

/// Inserts sequences one by one, in time linear in the number of tokens.
pub(super) struct Builder<'a> {
    sequences: Vec<&'a [u32]>,
    nodes: Vec<DraftNode>,
    /// `(parent, first token)` -> node.
    children: FxHashMap<(u32, u32), u32>,
    end_nodes: Vec<u32>,
    rows: usize,
}

impl<'a> Builder<'a> {
    pub(super) fn new(sequences: usize) -> Self {
        Self {
            sequences: Vec::with_capacity(sequences),
            nodes: Vec::new(),
            children: FxHashMap::default(),
            end_nodes: Vec::with_capacity(sequences),
            rows: 0,
        }
    }

    /// Number of distinct prefixes so far.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn insert(&mut self, sequence: &'a [u32]) {
        let source = self.sequences.len() as u32;
        self.sequences.push(sequence);
        let (mut parent, mut position) = (NO_NODE, 0);
        while position < sequence.len() {
            let key = (parent, sequence[position]);
            let Some(&node) = self.children.get(&key) else {
                parent = self.push(source, position as u32, sequence.len() as u32, parent);
                self.children.insert(key, parent);
                self.rows += sequence.len() - position;
                break;
            };
            let DraftNode {
                source, start, end, ..
            } = self.nodes[node as usize];
            let label = &self.sequences[source as usize][start as usize..end as usize];
            let common = common_prefix(label, &sequence[position..]);
            parent = if common == label.len() {
                node
            } else {
                self.split(key, node, common)
            };
            position += common;
        }
        self.end_nodes.push(parent);
    }

    fn push(&mut self, source: u32, start: u32, end: u32, parent: u32) -> u32 {
        self.nodes.push(DraftNode {
            source,
            start,
            end,
            parent,
        });
        (self.nodes.len() - 1) as u32
    }

    /// Moves the first `length` tokens of `node` into a new node above it. The lower part keeps its
    /// number, so that its children and the sequences that end there remain valid.
    fn split(&mut self, key: (u32, u32), node: u32, length: usize) -> u32 {
        let DraftNode {
            source,
            start,
            parent,
            ..
        } = self.nodes[node as usize];
        let middle = start + length as u32;
        let upper = self.push(source, start, middle, parent);
        self.nodes[node as usize].start = middle;
        self.nodes[node as usize].parent = upper;
        self.children.insert(key, upper);
        let token = self.sequences[source as usize][middle as usize];
        self.children.insert((upper, token), node);
        upper
    }

    /// Numbers the nodes in depth-first order, without recursion, since paths may be very deep.
    pub(super) fn finish(self, task_id: String, trajectories: Vec<u32>) -> PrefixForest {
        let Self {
            sequences,
            nodes: drafts,
            children,
            mut end_nodes,
            rows,
        } = self;
        drop(children);
        let children = ChildLists::new(&drafts, sequences.len());
        let mut forest = PrefixForest {
            task_id,
            trajectories,
            tokens: Vec::with_capacity(rows),
            nodes: Vec::with_capacity(drafts.len()),
            trees: Vec::new(),
            end_nodes: Vec::new(),
            merged: None,
        };
        let mut numbers = vec![NO_NODE; drafts.len()];
        let mut stack: Vec<u32> = children.of(NO_NODE).iter().rev().copied().collect();
        while let Some(draft) = stack.pop() {
            let DraftNode {
                source,
                start,
                end,
                parent,
            } = drafts[draft as usize];
            let label = &sequences[source as usize][start as usize..end as usize];
            let number = forest.nodes.len() as u32;
            numbers[draft as usize] = number;
            let first_row = forest.tokens.len() as u32;
            forest.tokens.extend_from_slice(label);
            let end_row = forest.tokens.len() as u32;
            forest.nodes.push(Node {
                start: first_row,
                end: end_row,
                subtree_end: end_row,
                subtree_end_node: number + 1,
                parent: (parent != NO_NODE).then(|| numbers[parent as usize]),
                position: start,
                source,
            });
            stack.extend(children.of(draft).iter().rev());
        }
        // Descendants follow their ancestors, so each subtree is complete in a backward pass.
        for number in (0..forest.nodes.len()).rev() {
            let Node {
                parent,
                subtree_end,
                subtree_end_node,
                ..
            } = forest.nodes[number];
            if let Some(parent) = parent {
                let parent = &mut forest.nodes[parent as usize];
                parent.subtree_end = parent.subtree_end.max(subtree_end);
                parent.subtree_end_node = parent.subtree_end_node.max(subtree_end_node);
            }
        }
        let mut root = 0;
        while let Some(node) = forest.nodes.get(root) {
            let end = node.subtree_end_node;
            forest.trees.push(Tree {
                nodes: root as u32..end,
                rows: node.start..node.subtree_end,
            });
            root = end as usize;
        }
        end_nodes
            .iter_mut()
            .for_each(|node| *node = numbers[*node as usize]);
        forest.end_nodes = end_nodes;
        forest
    }
}

/// Children of every draft node, in order of their first sequences, in one array with offsets.
struct ChildLists {
    offsets: Vec<u32>,
    children: Vec<u32>,
}

impl ChildLists {
    fn new(nodes: &[DraftNode], sequences: usize) -> Self {
        let by_source = counting_sort(nodes.len(), sequences, 0..nodes.len() as u32, |node| {
            nodes[node as usize].source as usize
        });
        // Siblings have different first sequences; the sort is stable.
        let slot = |node: u32| list_of(nodes[node as usize].parent);
        let children = counting_sort(
            nodes.len(),
            nodes.len() + 1,
            by_source.1.iter().copied(),
            slot,
        );
        Self {
            offsets: children.0,
            children: children.1,
        }
    }

    fn of(&self, node: u32) -> &[u32] {
        let list = list_of(node);
        &self.children[self.offsets[list] as usize..self.offsets[list + 1] as usize]
    }
}

/// List 0 contains the roots.
fn list_of(node: u32) -> usize {
    if node == NO_NODE {
        0
    } else {
        node as usize + 1
    }
}

fn common_prefix(left: &[u32], right: &[u32]) -> usize {
    left.iter()
        .zip(right)
        .take_while(|(left, right)| left == right)
        .count()
}
