//! The packs of smaller trees with repeated prefixes.

use super::piece::{Piece, layout_of, trajectory_counts};
use super::smaller_trees::SmallerTrees;
use crate::forest::Node;
use crate::occurrences::Occurrences;
use crate::packing::counted::TreeNodes;
use crate::packs::Pack;

/// One pack for each smaller tree. `occurrences` are those of the whole tree; the first pack that
/// has the target of a prediction makes it.
pub fn packs_of_smaller_trees(
    trees: &SmallerTrees,
    tree: &TreeNodes,
    occurrences: &Occurrences,
    pad_to_multiple: usize,
) -> Vec<Pack> {
    let &TreeNodes {
        forest,
        nodes,
        first_node,
        ..
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
    let mut packs: Vec<Pack> = Vec::with_capacity(trees.len());
    // For each node, the first pack that contains it and its first row in this pack.
    let mut places: Vec<(u32, u32)> = Vec::with_capacity(nodes.len());
    for new in &trees.new_nodes {
        let above = std::iter::successors(pieces[new.start].parent, |&node| {
            pieces[node as usize].parent
        });
        let mut own: Vec<u32> = above.collect();
        own.reverse();
        let repeated = own.len();
        own.extend(new.start as u32..new.end as u32);
        let layout = layout_of(&pieces, &own, forest);
        let mut counts = trajectory_counts(&pieces, &own);
        // The earlier pack with these rows already counts their trajectories.
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
    distribute(occurrences, tree, &places, &mut packs);
    packs
}

/// Puts each prediction of a tree into the first pack that contains its target.
fn distribute(
    occurrences: &Occurrences,
    tree: &TreeNodes,
    places: &[(u32, u32)],
    packs: &mut [Pack],
) {
    let &TreeNodes {
        forest,
        nodes,
        first_node,
        ..
    } = tree;
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
            // Entries of a row are in the order of the children.
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
