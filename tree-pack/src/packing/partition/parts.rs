//! A tree in parts.

use super::cut::Cut;
use super::piece::Piece;
use crate::packing::counted::TreeNodes;

/// A tree in parts.
pub struct Partition {
    /// In order of rows.
    pub pieces: Vec<Piece>,
    /// For each part, the part that its roots continue. Parts are in depth-first order.
    pub parents: Vec<Option<u32>>,
}

impl Partition {
    /// Connected parts of at most `budget` tokens that begin at the cuts.
    pub fn new(tree: &TreeNodes, budget: u32, cuts: &[Cut]) -> Self {
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

    /// Number of parts.
    pub fn len(&self) -> usize {
        self.parents.len()
    }

    /// Tokens of each part.
    pub fn sizes(&self) -> Vec<usize> {
        let mut sizes = vec![0; self.len()];
        for piece in &self.pieces {
            sizes[piece.part as usize] += piece.token_count() as usize;
        }
        sizes
    }

    /// Largest number of tokens of a part and all its ancestor parts.
    pub fn retained_tokens(&self) -> usize {
        let mut chains = self.sizes();
        for (part, parent) in self.parents.iter().enumerate() {
            chains[part] += parent.map_or(0, |parent| chains[parent as usize]);
        }
        chains.into_iter().max().unwrap_or(0)
    }
}
