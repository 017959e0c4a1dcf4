//! The packs of a tree in parts.

use super::parts::Partition;
use super::piece::{Piece, layout_of, trajectory_counts};
use crate::counting_sort::counting_sort;
use crate::occurrences::Occurrences;
use crate::packing::counted::TreeNodes;
use crate::packs::{Gateway, Pack};

/// One pack for each part, in order. `occurrences` are those of the whole tree; `first_pack` is the
/// index of the first pack in the step.
pub fn packs_of_parts(
    partition: &Partition,
    tree: &TreeNodes,
    occurrences: &Occurrences,
    first_pack: u32,
    pad_to_multiple: usize,
) -> Vec<Pack> {
    let forest = tree.forest;
    let first_row = tree.nodes[0].start;
    let Partition { pieces, parents } = partition;
    let (offsets, order) = counting_sort(
        pieces.len(),
        parents.len(),
        0..pieces.len() as u32,
        |piece| pieces[piece as usize].part as usize,
    );
    // Row of the first token of each piece in its pack.
    let mut starts = vec![0u32; pieces.len()];
    let mut lengths = vec![0u32; parents.len()];
    for (start, piece) in starts.iter_mut().zip(pieces) {
        let length = &mut lengths[piece.part as usize];
        *start = *length;
        *length += piece.token_count();
    }

    let occurrences = by_part(partition, &starts, first_row, occurrences);
    let mut packs: Vec<Pack> = Vec::with_capacity(parents.len());
    for (part, occurrences) in occurrences.into_iter().enumerate() {
        let own = &order[offsets[part] as usize..offsets[part + 1] as usize];
        let layout = layout_of(pieces, own, forest);
        let gateway = parents[part].map(|parent| {
            let before = own.iter().filter_map(|&piece| {
                let before = pieces[piece as usize].parent? as usize;
                let is_root = pieces[before].part as usize != part;
                is_root.then(|| starts[before] + pieces[before].token_count() - 1)
            });
            let before: Vec<u32> = before.collect();
            Gateway::derive(&packs, first_pack, first_pack + parent, &before, &layout)
                .expect("parts are in depth-first order and continue ends of segments")
        });
        packs.push(Pack {
            padded_len: layout.len().next_multiple_of(pad_to_multiple),
            task_ids: vec![forest.task_id().to_owned(); layout.roots().count()],
            trajectory_counts: trajectory_counts(pieces, own),
            occurrences,
            gateway,
            step: None,
            layout,
        });
    }
    packs
}

/// The occurrences of a tree by the part that owns their rows.
fn by_part(
    partition: &Partition,
    starts: &[u32],
    first_row: u32,
    occurrences: &Occurrences,
) -> Vec<Occurrences> {
    let mut parts = vec![occurrences.without_entries(); partition.len()];
    let mut piece = 0;
    for entry in 0..occurrences.len() {
        let row = first_row + occurrences.rows[entry];
        // Rows ascend.
        while partition.pieces[piece].end <= row {
            piece += 1;
        }
        let Piece { start, part, .. } = partition.pieces[piece];
        let row = starts[piece] + (row - start);
        parts[part as usize].push_entry_of(occurrences, entry, row);
    }
    parts
}
