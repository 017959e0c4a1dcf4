//! Smaller trees that repeat the prefixes they have in common: what a tree over the budget costs
//! without gateways.

use super::packs::{layout_of, trajectory_counts};
use super::{Piece, TreeNodes};
use crate::forest::{Node, PrefixForest};
use crate::occurrence::Occurrences;
use crate::pack::Pack;

/// A tree as several: the nodes of each, in depth-first order, after those on the path to the
/// first of them, which it repeats.
pub struct SmallerTrees {
    /// Nodes that are in no tree before, as numbers in the tree.
    nodes: Vec<std::ops::Range<usize>>,
}

impl SmallerTrees {
    /// Puts consecutive root-to-leaf paths together, as many as fit.
    ///
    /// # Errors
    /// The tokens of a path that does not fit.
    pub fn new(nodes: &[Node], budget: usize) -> Result<Self, usize> {
        let mut trees: Vec<std::ops::Range<usize>> = Vec::new();
        let mut first = 0;
        // Tokens of the tree so far.
        let mut tokens = 0;
        for (number, node) in nodes.iter().enumerate() {
            if node.subtree_end != node.end {
                continue;
            }
            // A leaf and the nodes above it that are new.
            let new = (node.end - nodes[first].start) as usize;
            let path = node.position as usize + node.token_count();
            if path > budget {
                return Err(path);
            }
            match trees.last_mut() {
                Some(tree) if tokens + new <= budget => {
                    tree.end = number + 1;
                    tokens += new;
                }
                _ => {
                    trees.push(first..number + 1);
                    tokens = path;
                }
            }
            first = number + 1;
        }
        Ok(Self { nodes: trees })
    }

    /// Number of trees.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// One pack for each. `occurrences` are those of the whole tree; a prediction is made in the
    /// first pack that has its target.
    pub fn packs(
        &self,
        forest: &PrefixForest,
        tree: &TreeNodes,
        occurrences: &Occurrences,
        pad_to_multiple: usize,
    ) -> Vec<Pack> {
        let &TreeNodes {
            nodes, first_node, ..
        } = tree;
        let piece = |(node, &trajectories): (&Node, &u32)| Piece {
            start: node.start,
            end: node.end,
            parent: node.parent.map(|parent| parent - first_node),
            position: node.position,
            part: 0,
            trajectories,
        };
        let pieces: Vec<Piece> = nodes.iter().zip(tree.trajectories).map(piece).collect();
        let mut packs: Vec<Pack> = Vec::with_capacity(self.len());
        // For each node the first pack that has it, and its first row there.
        let mut places: Vec<(u32, u32)> = Vec::with_capacity(nodes.len());
        for new in &self.nodes {
            let above = std::iter::successors(pieces[new.start].parent, |&node| {
                pieces[node as usize].parent
            });
            let mut own: Vec<u32> = above.collect();
            own.reverse();
            let repeated = own.len();
            own.extend(new.start as u32..new.end as u32);
            let layout = layout_of(&pieces, &own, forest);
            let mut counts = trajectory_counts(&pieces, &own);
            // Their trajectories are counted in the pack before that has these rows, too.
            let repeated_rows = layout.segments[repeated].start as usize;
            counts[..repeated_rows].fill(0);
            let number = packs.len() as u32;
            places.extend(
                layout.segments[repeated..]
                    .iter()
                    .map(|own| (number, own.start)),
            );
            packs.push(Pack {
                padded_len: layout.len().next_multiple_of(pad_to_multiple),
                task_ids: vec![forest.task_id().to_owned()],
                occurrences: occurrences.without_entries(),
                trajectory_counts: counts,
                gateway: None,
                step: None,
                layout,
            });
        }
        distribute(occurrences, forest, first_node, nodes, &places, &mut packs);
        packs
    }
}

/// Puts the predictions of a tree into the packs that first have their targets.
fn distribute(
    occurrences: &Occurrences,
    forest: &PrefixForest,
    first_node: u32,
    nodes: &[Node],
    places: &[(u32, u32)],
    packs: &mut [Pack],
) {
    let first_row = nodes[0].start;
    let mut node = 0;
    // The first child that later entries of the row may predict.
    let mut child = 1;
    for entry in 0..occurrences.len() {
        let row = first_row + occurrences.rows[entry];
        while nodes[node].end <= row {
            node += 1;
            child = node + 1;
        }
        let target = if row + 1 < nodes[node].end {
            node
        } else {
            let token = |child: usize| forest.tokens()[nodes[child].start as usize];
            // Entries of a row are in order of the children.
            while token(child) != occurrences.targets[entry] {
                child = (nodes[child].subtree_end_node - first_node) as usize;
            }
            child
        };
        let (number, start) = places[target];
        let pack = &mut packs[number as usize];
        let local = if target == node {
            start + (row - nodes[node].start)
        } else {
            pack.layout.parents[start as usize] as u32
        };
        pack.occurrences.push_entry_of(occurrences, entry, local);
    }
}
