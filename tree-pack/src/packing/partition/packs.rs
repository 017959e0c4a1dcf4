//! The packs of a partitioned tree.

use super::{Partition, Piece};
use crate::counting_sort::counting_sort;
use crate::forest::PrefixForest;
use crate::gateway::Gateway;
use crate::layout::{Segment, TreeLayout};
use crate::occurrence::Occurrences;
use crate::pack::Pack;

/// The packs of a tree in parts, in order. `occurrences` are those of the whole tree, whose first
/// row is `first_row` of the forest; `first_pack` is the number of the first pack in the step.
pub fn packs_of(
    partition: &Partition,
    forest: &PrefixForest,
    first_row: u32,
    occurrences: &Occurrences,
    first_pack: u32,
    pad_to_multiple: usize,
) -> Vec<Pack> {
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

/// The layout of the given pieces, in ascending order; those whose parent is not among them are
/// roots.
pub fn layout_of(pieces: &[Piece], own: &[u32], forest: &PrefixForest) -> TreeLayout {
    let mut layout = TreeLayout {
        segments: Vec::with_capacity(own.len()),
        ..TreeLayout::default()
    };
    for &number in own {
        let piece = &pieces[number as usize];
        let start = layout.tokens.len() as u32;
        let end = start + piece.token_count();
        let parent = piece
            .parent
            .and_then(|parent| own.binary_search(&parent).ok())
            .map(|parent| parent as u32);
        let before = parent.map_or(-1, |parent| layout.segments[parent as usize].end as i32 - 1);
        layout.parents.push(before);
        layout.parents.extend(start as i32..end as i32 - 1);
        layout
            .position_ids
            .extend(piece.position..piece.position + piece.token_count());
        layout
            .tokens
            .extend_from_slice(&forest.tokens()[piece.start as usize..piece.end as usize]);
        layout.segments.push(Segment { start, end, parent });
    }
    let mut subtree_ends: Vec<u32> = layout.segments.iter().map(|segment| segment.end).collect();
    for index in (0..layout.segments.len()).rev() {
        if let Some(parent) = layout.segments[index].parent {
            let end = subtree_ends[index];
            let above = &mut subtree_ends[parent as usize];
            *above = end.max(*above);
        }
    }
    for (segment, end) in layout.segments.iter().zip(subtree_ends) {
        let count = (segment.end - segment.start) as usize;
        layout.subtree_ends.extend(std::iter::repeat_n(end, count));
    }
    layout
}

/// Number of trajectories through each row of the given pieces.
pub fn trajectory_counts(pieces: &[Piece], own: &[u32]) -> Vec<u32> {
    let pieces = own.iter().map(|&piece| &pieces[piece as usize]);
    let counts =
        pieces.map(|piece| std::iter::repeat_n(piece.trajectories, piece.token_count() as usize));
    counts.flatten().collect()
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
