//! Pieces of nodes and their layout in a pack.

use crate::forest::PrefixForest;
use crate::layout::{Segment, TreeLayout};

/// Consecutive tokens of a node in one part.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// First row of the forest.
    pub start: u32,
    /// One past the last row.
    pub end: u32,
    /// The piece before it on its paths.
    pub parent: Option<u32>,
    /// Number of tokens before it on its paths.
    pub position: u32,
    /// Its part.
    pub part: u32,
    /// Number of trajectories through it.
    pub trajectories: u32,
}

impl Piece {
    pub fn token_count(&self) -> u32 {
        self.end - self.start
    }
}

/// The layout of the given pieces, in ascending order. Pieces whose parents are not given are
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
