//! Trees larger than a pack, in parts.

mod connected;
mod packs;
mod shared;

use crate::forest::{Node, PrefixForest};

pub(super) use self::packs::packs_of;

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
    /// Cuts a tree into parts of at most `budget` tokens.
    pub fn new(forest: &PrefixForest, tree: usize, budget: u32, share: bool) -> Self {
        let nodes = &forest.trees()[tree].nodes;
        let nodes = &forest.nodes()[nodes.start as usize..nodes.end as usize];
        let partition = Self::cut(nodes, forest.trees()[tree].nodes.start, budget);
        match share {
            true => shared::share(partition, budget),
            false => partition,
        }
    }

    /// Number of parts.
    pub fn len(&self) -> usize {
        self.parents.len()
    }

    /// As few connected parts as possible.
    fn cut(nodes: &[Node], first_node: u32, budget: u32) -> Self {
        let cuts = connected::fewest_cuts(nodes, budget);
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
}
