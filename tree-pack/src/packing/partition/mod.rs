//! Trees larger than a pack, in parts.

mod connected;
mod packs;
mod repeated;
mod shared;

use self::connected::Cut;
use crate::forest::{Node, PrefixForest};

pub(super) use self::packs::packs_of;
pub(super) use self::repeated::SmallerTrees;

/// What becomes of a tree with more tokens than fit a pack.
///
/// A tree in parts has packs of its own, in depth-first order of the parts; each but the first
/// has a [`crate::Gateway`] to the packs before it. Nothing is computed twice, and losses and
/// gradients are those of the whole tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Partitioning {
    /// It is an error.
    #[default]
    Refuse,
    /// Parts are connected: each has one root. As few of them as possible, cut wherever that
    /// takes the fewest, inside of nodes, too.
    Connected,
    /// Parts that continue rows of the same part may become one, which has several roots. Never
    /// more parts than connected, and often far fewer: filling them is bin packing, done by a
    /// heuristic.
    Shared,
    /// Every node of every tree is a part of its own, also of trees within the budget. To measure
    /// what larger parts save.
    PerNode,
    /// Smaller trees without gateways: each repeats the rows of the prefixes that it has in common
    /// with those before, and every prediction is made in the first that has its target. Computes
    /// the same losses and gradients with more tokens; a path over the budget is an error. To
    /// measure what gateways save.
    RepeatedPrefixes,
}

/// Consecutive tokens of a node that are in one part.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// First row of the forest.
    start: u32,
    /// One past the last row.
    end: u32,
    /// The piece before it on its paths.
    parent: Option<u32>,
    /// Number of tokens before it on its paths.
    position: u32,
    /// Its part.
    part: u32,
}

impl Piece {
    fn token_count(&self) -> u32 {
        self.end - self.start
    }
}

/// A tree in parts.
pub(super) struct Partition {
    /// In order of rows.
    pieces: Vec<Piece>,
    /// For each part, the part that its roots continue. Parts are in depth-first order.
    parents: Vec<Option<u32>>,
}

impl Partition {
    /// Cuts a tree into parts of at most `budget` tokens, with gateways.
    pub fn new(
        forest: &PrefixForest,
        tree: usize,
        budget: u32,
        partitioning: Partitioning,
    ) -> Self {
        let numbers = &forest.trees()[tree].nodes;
        let nodes = &forest.nodes()[numbers.start as usize..numbers.end as usize];
        let cut = |cuts: Vec<Cut>| Self::cut(nodes, numbers.start, budget, &cuts);
        let connected = || cut(connected::fewest_cuts(nodes, budget));
        match partitioning {
            Partitioning::PerNode => cut(nodes
                .iter()
                .map(|node| Cut {
                    above: true,
                    top: (node.end - node.start - 1) % budget + 1,
                })
                .collect()),
            Partitioning::Shared => {
                let one = shared::share(connected(), budget);
                let other = cut(connected::all_or_none_cuts(nodes, budget));
                let other = shared::share(other, budget);
                let order = |partition: &Self| (partition.len(), partition.retained_tokens());
                if order(&other) < order(&one) {
                    other
                } else {
                    one
                }
            }
            _ => connected(),
        }
    }

    /// Number of parts.
    pub fn len(&self) -> usize {
        self.parents.len()
    }

    /// Connected parts.
    fn cut(nodes: &[Node], first_node: u32, budget: u32, cuts: &[Cut]) -> Self {
        let mut pieces: Vec<Piece> = Vec::with_capacity(nodes.len());
        let mut parents = Vec::new();
        let mut last_pieces = Vec::with_capacity(nodes.len());
        for (node, cut) in nodes.iter().zip(cuts) {
            let mut parent = node
                .parent
                .map(|parent| last_pieces[(parent - first_node) as usize]);
            let mut begins_part = cut.above;
            let mut rows = node.start..node.end.min(node.start + cut.top);
            loop {
                let part_above = parent.map(|parent: u32| pieces[parent as usize].part);
                let part = match part_above {
                    Some(part) if !begins_part => part,
                    _ => {
                        parents.push(part_above);
                        parents.len() as u32 - 1
                    }
                };
                let position = node.position + (rows.start - node.start);
                pieces.push(Piece {
                    start: rows.start,
                    end: rows.end,
                    parent,
                    position,
                    part,
                });
                parent = Some(pieces.len() as u32 - 1);
                if rows.end == node.end {
                    break;
                }
                begins_part = true;
                rows = rows.end..node.end.min(rows.end + budget);
            }
            last_pieces.push(pieces.len() as u32 - 1);
        }
        Self { pieces, parents }
    }

    /// Tokens of each part.
    fn sizes(&self) -> Vec<usize> {
        let mut sizes = vec![0; self.len()];
        for piece in &self.pieces {
            sizes[piece.part as usize] += piece.token_count() as usize;
        }
        sizes
    }

    /// Most tokens of a part and all that it continues.
    fn retained_tokens(&self) -> usize {
        let mut chains = self.sizes();
        for (part, parent) in self.parents.iter().enumerate() {
            chains[part] += parent.map_or(0, |parent| chains[parent as usize]);
        }
        chains.into_iter().max().unwrap_or(0)
    }
}
