//! Which tiles, and which steps of them, a cube computes.

use cubecl::prelude::*;

use super::arguments::Problem;
use crate::product::plan::{Ending, TILE_ROWS};

/// Row tiles whose right operands are used together: tiles follow each other down a group.
const GROUP: u32 = 16;

/// A range of steps of a tile.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Item {
    pub tile: u32,
    pub begin: u32,
    pub end: u32,
}

/// The items of this cube.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Items {
    pub count: u32,
    /// Items with steps of divided tiles. They come first, the last of their steps first, so that
    /// what other cubes wait for is computed first.
    split: u32,
    /// Steps of the divided tiles, counted over all of them.
    begin: u32,
    end: u32,
    last_tile: u32,
}

/// The items of this cube.
#[cube]
pub(super) fn items(problem: &Problem, #[comptime] ending: Ending) -> Items {
    let tiles = problem.row_tiles * problem.column_tiles;
    if comptime!(ending == Ending::Split) {
        let steps = problem.divided * problem.steps;
        let begin = CUBE_POS_X * steps / CUBE_COUNT_X;
        let end = (CUBE_POS_X + 1) * steps / CUBE_COUNT_X;
        let last_tile = (max(end, 1u32) - 1) / problem.steps;
        let split = select(end > begin, last_tile + 1 - begin / problem.steps, 0u32);
        let whole = (tiles - problem.divided + CUBE_COUNT_X - 1 - CUBE_POS_X) / CUBE_COUNT_X;
        Items {
            count: split + whole,
            split,
            begin,
            end,
            last_tile,
        }
    } else {
        let whole = if comptime!(ending == Ending::Narrow) {
            tiles - problem.divided
        } else {
            tiles
        };
        Items {
            count: (whole + CUBE_COUNT_X - 1 - CUBE_POS_X) / CUBE_COUNT_X,
            split: 0u32,
            begin: 0u32,
            end: 0u32,
            last_tile: 0u32,
        }
    }
}

/// Item number `index`.
#[cube]
pub(super) fn item(
    items: &Items,
    problem: &Problem,
    index: u32,
    #[comptime] ending: Ending,
) -> Item {
    let steps = problem.steps;
    if comptime!(ending == Ending::Split) {
        let is_split = index < items.split;
        // Of no meaning for whole tiles, which do not take them.
        let tile = items.last_tile - min(index, items.last_tile);
        let base = tile * steps;
        let whole = problem.divided + CUBE_POS_X + (index - items.split) * CUBE_COUNT_X;
        Item {
            tile: select(is_split, tile, whole),
            begin: select(is_split, max(items.begin, base) - base, 0u32),
            end: select(is_split, min(items.end - base, steps), steps),
        }
    } else {
        Item {
            tile: CUBE_POS_X + index * CUBE_COUNT_X,
            begin: 0u32,
            end: steps,
        }
    }
}

/// The first row of a tile, and the number of its column tile.
#[cube]
pub(super) fn place(tile: u32, problem: &Problem) -> (u32, u32) {
    let group_tiles = GROUP * problem.column_tiles;
    let group = tile / group_tiles;
    let within = tile % group_tiles;
    let height = min(GROUP, problem.row_tiles - group * GROUP);
    let row = (group * GROUP + within % height) * TILE_ROWS as u32;
    (row, within / height)
}
