//! Statistics of the windows of trees: padding rows and sequential dependencies of recurrent
//! kernels.

use burn_tree_ssm::TreeRecurrence;
use serde::Serialize;
use tree_pack::{Pack, TreeLayout};

/// Rows of a full window.
pub const WINDOW_ROWS: usize = 64;

/// Rows of the tiles of a window.
pub const TILE_ROWS: usize = 16;

/// Windows of some packs, each with its own recurrence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct WindowStats {
    /// Tokens of all packs.
    pub tokens: usize,
    /// Tree nodes.
    pub nodes: usize,
    /// Windows.
    pub windows: usize,
    /// Launches of the forward scan of the pack that needs most.
    pub levels: usize,
    /// Longest chain of dependent windows, over all levels.
    pub longest_chain: usize,
    /// Rows of whole windows per token, if each window held a piece of one node only.
    pub node_windows: f64,
    /// Rows of whole tiles per token, if each window held a piece of one node only.
    pub node_tiles: f64,
    /// Rows of whole windows per token.
    pub bundle_windows: f64,
    /// Rows of whole tiles per token: the rows that kernels compute.
    pub bundle_tiles: f64,
}

impl WindowStats {
    /// The windows of every pack.
    pub fn of_packs(packs: &[Pack]) -> Self {
        let mut stats = Self::default();
        let mut rows = [0; 4];
        for pack in packs {
            let layout = &pack.layout;
            let recurrence =
                TreeRecurrence::from_layouts(std::slice::from_ref(layout), pack.padded_len.max(1));
            stats.tokens += layout.len();
            stats.nodes += layout.segments.len();
            stats.windows += recurrence.n_windows();
            stats.levels = stats.levels.max(recurrence.levels().len());
            stats.longest_chain = stats.longest_chain.max(recurrence.longest_chain());
            for (rows, unit) in rows.chunks_mut(2).zip([WINDOW_ROWS, TILE_ROWS]) {
                rows[0] += in_node_pieces(layout, unit);
                let lengths = recurrence.window_lengths().iter();
                rows[1] += lengths
                    .map(|&length| (length as usize).next_multiple_of(unit))
                    .sum::<usize>();
            }
        }
        let by_token = |rows: usize| rows as f64 / stats.tokens.max(1) as f64;
        Self {
            node_windows: by_token(rows[0]),
            bundle_windows: by_token(rows[1]),
            node_tiles: by_token(rows[2]),
            bundle_tiles: by_token(rows[3]),
            ..stats
        }
    }
}

/// Rows in units of `unit`, if every window held a piece of one node only.
fn in_node_pieces(layout: &TreeLayout, unit: usize) -> usize {
    let lengths = layout.segments.iter().map(|node| node.end - node.start);
    lengths
        .map(|length| (length as usize).next_multiple_of(unit))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trees::TreeShape;
    use tree_pack::{PackOptions, build_forests, pack_step};

    fn stats(name: &str, rows: usize) -> WindowStats {
        let trajectories = TreeShape::named(name, rows)
            .unwrap()
            .trajectories(name, 1000);
        let forests = build_forests(&trajectories).unwrap();
        let step = pack_step(&trajectories, &forests, &PackOptions::new(rows)).unwrap();
        WindowStats::of_packs(&step.packs)
    }

    #[test]
    fn one_path_has_no_padding_and_one_level() {
        let stats = stats("causal", 1024);
        assert_eq!((stats.windows, stats.levels), (16, 1));
        assert_eq!(stats.longest_chain, 16);
        assert_eq!(stats.node_windows, 1.0);
        assert_eq!(stats.bundle_tiles, 1.0);
    }

    /// A prompt of 128 and 16 answers of 56: all answers depend on the two windows of the prompt,
    /// and whole windows of 64 rows hold 56 tokens of one node.
    #[test]
    fn answers_wait_for_the_prompt_only() {
        let stats = stats("star16", 1024);
        assert_eq!(stats.levels, 2);
        assert_eq!(stats.longest_chain, 3);
        assert_eq!(stats.node_windows, (128.0 + 16.0 * 64.0) / 1024.0);
    }

    /// Leaves of 40 have a window of 64 rows each, with three tiles.
    #[test]
    fn tiles_pad_less_than_windows() {
        let stats = stats("leaf40", 1024);
        assert_eq!(stats.tokens, 512 + 12 * 40);
        assert_eq!(stats.bundle_windows, (512.0 + 12.0 * 64.0) / 992.0);
        assert_eq!(stats.bundle_tiles, (512.0 + 12.0 * 48.0) / 992.0);
    }
}
