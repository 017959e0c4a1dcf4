//! Trees larger than a pack, in parts.

mod connected;
mod packs;
mod repeated;
mod shared;

use self::connected::Cut;
use crate::forest::Node;

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
    /// Number of trajectories through it.
    trajectories: u32,
}

impl Piece {
    fn token_count(&self) -> u32 {
        self.end - self.start
    }
}

/// The nodes of a tree.
pub(super) struct TreeNodes<'a> {
    pub nodes: &'a [Node],
    /// Number of the first one in its forest.
    pub first_node: u32,
    /// Number of trajectories through each.
    pub trajectories: &'a [u32],
}

/// A tree in parts.
pub(super) struct Partition {
    /// In order of rows.
    pieces: Vec<Piece>,
    /// For each part, the part that its roots continue. Parts are in depth-first order.
    parents: Vec<Option<u32>>,
}

impl Partition {
    /// As few connected parts of at most `budget` tokens as possible.
    pub fn connected(tree: &TreeNodes, budget: u32) -> Self {
        Self::cut(tree, budget, &connected::fewest_cuts(tree.nodes, budget))
    }

    /// Parts of at most `budget` tokens that share packs: the better of two attempts.
    pub fn shared(tree: &TreeNodes, budget: u32) -> Self {
        let one = shared::share(Self::connected(tree, budget), budget);
        let other = connected::all_or_none_cuts(tree.nodes, budget);
        let other = shared::share(Self::cut(tree, budget, &other), budget);
        let order = |partition: &Self| (partition.len(), partition.retained_tokens());
        if order(&other) < order(&one) {
            other
        } else {
            one
        }
    }

    /// One part a node, or several if it has more than `budget` tokens.
    pub fn per_node(tree: &TreeNodes, budget: u32) -> Self {
        let cut = |node: &Node| Cut {
            above: true,
            top: (node.end - node.start - 1) % budget + 1,
        };
        let cuts: Vec<Cut> = tree.nodes.iter().map(cut).collect();
        Self::cut(tree, budget, &cuts)
    }

    /// Number of parts.
    pub fn len(&self) -> usize {
        self.parents.len()
    }

    /// Connected parts.
    fn cut(tree: &TreeNodes, budget: u32, cuts: &[Cut]) -> Self {
        let mut pieces: Vec<Piece> = Vec::with_capacity(tree.nodes.len());
        let mut parents = Vec::new();
        let mut last_pieces = Vec::with_capacity(tree.nodes.len());
        for ((node, cut), &trajectories) in tree.nodes.iter().zip(cuts).zip(tree.trajectories) {
            let mut parent = node
                .parent
                .map(|parent| last_pieces[(parent - tree.first_node) as usize]);
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
                    trajectories,
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
