//! Cuts the visible spans of a tile into blocks of keys worth one matrix product each.

use std::ops::Range;

use crate::mask::{KeySpan, Visibility};

/// Most keys of a block: its scores stay in the second-level cache.
const MAX_KEYS: usize = 512;

/// Keys of a piece in which visibility begins row by row: half of its scores are not used.
const DIAGONAL_KEYS: usize = 64;

/// Scores that cost as much time as starting another matrix product.
const CALL_COST: usize = 1024;

/// Keys and query rows that are multiplied together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyBlock {
    /// Query rows.
    pub rows: Range<usize>,
    /// Ascending ranges of keys.
    pub keys: Vec<Range<usize>>,
    /// Their number.
    pub n_keys: usize,
    /// Whether all rows see all keys.
    pub full: bool,
}

impl KeyBlock {
    fn try_join(&mut self, piece: &KeyBlock) -> bool {
        let n_keys = self.n_keys + piece.n_keys;
        let rows = self.rows.start.min(piece.rows.start)..self.rows.end.max(piece.rows.end);
        let scores = |block: &KeyBlock| block.rows.len() * block.n_keys;
        let wasted = rows.len() * n_keys - scores(self) - scores(piece);
        if n_keys > MAX_KEYS || wasted > CALL_COST || self.n_keys.max(piece.n_keys) > MAX_KEYS / 2 {
            return false;
        }
        self.full &= piece.full && self.rows == rows && piece.rows == rows;
        self.rows = rows;
        self.n_keys = n_keys;
        match (self.keys.last_mut(), piece.keys.as_slice()) {
            (Some(last), [keys]) if last.end == keys.start => last.end = keys.end,
            _ => self.keys.extend_from_slice(&piece.keys),
        }
        true
    }
}

/// Blocks that cover the spans of one tile.
pub(super) fn key_blocks(
    spans: &[KeySpan],
    tile_start: usize,
    batch: usize,
    visibility: &Visibility,
) -> Vec<KeyBlock> {
    let key_start = &visibility.key_start()[batch * visibility.n_keys()..];
    let mut blocks: Vec<KeyBlock> = Vec::new();
    for span in spans {
        let keys = span.key_start as usize..span.key_end as usize;
        let diagonal = key_start[keys.start] < key_start[keys.end - 1];
        let largest = if diagonal && !span.full {
            DIAGONAL_KEYS
        } else {
            MAX_KEYS
        };
        let size = keys.len().div_ceil(keys.len().div_ceil(largest));
        for start in keys.clone().step_by(size) {
            let keys = start..(start + size).min(keys.end);
            // Within a span the intervals begin later and later, and end together.
            let rows = tile_start.max(key_start[start] as usize)..span.row_end as usize;
            let piece = KeyBlock {
                rows,
                n_keys: keys.len(),
                keys: vec![keys],
                full: span.full,
            };
            if !blocks
                .last_mut()
                .is_some_and(|block| block.try_join(&piece))
            {
                blocks.push(piece);
            }
        }
    }
    blocks
}
