//! What kernels are given.

use burn_tree_kit::cube::warpgroup::map_address;
use cubecl::prelude::*;

use crate::product::plan::STEP;

/// One of the products whose sum is the result.
#[derive(CubeType, CubeLaunch)]
pub(in crate::product) struct Term<E: Float> {
    /// Boxes of 128 rows of the result, or of 64 summed numbers.
    pub left: TensorMap<E, Tiled>,
    /// Boxes of 256 columns of the result, or of 64 summed numbers.
    pub right: TensorMap<E, Tiled>,
    /// The same with boxes of 64 columns.
    pub narrow_right: TensorMap<E, Tiled>,
    /// Steps up to the end of this term.
    pub end_step: u32,
}

/// Sizes of the result and its division into tiles.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(in crate::product) struct Problem {
    pub rows: u32,
    pub columns: u32,
    pub row_tiles: u32,
    pub column_tiles: u32,
    /// Of all terms.
    pub steps: u32,
    /// Tiles that are divided: the last ones if they become narrow, the first ones if they are split
    /// along the sums.
    pub divided: u32,
}

/// Where cubes leave parts of sums for others.
#[derive(CubeType, CubeLaunch)]
pub(in crate::product) struct Exchange {
    /// `[cubes, 2, 64 * 256]` sums of a warpgroup, those of a unit 16 bytes after 16 bytes.
    pub parts: Box<[f32]>,
    /// `[cubes, 2]` whether they are there.
    pub flags: Box<[u32]>,
}

/// Where the operands of a step come from.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Source {
    pub left: u64,
    pub right: u64,
    pub narrow_right: u64,
    /// The first summed number.
    pub summed: u32,
}

/// The term that step number `step` is in.
#[cube]
pub(super) fn source<E: Float>(terms: &Sequence<Term<E>>, step: u32) -> Source {
    let mut left = map_address::<E>(&terms.index(0usize).left);
    let mut right = map_address::<E>(&terms.index(0usize).right);
    let mut narrow_right = map_address::<E>(&terms.index(0usize).narrow_right);
    let mut start = 0u32;
    #[unroll]
    for index in 1..terms.len() {
        let before = terms.index(comptime!(index - 1)).end_step;
        if step >= before {
            left = map_address::<E>(&terms.index(index).left);
            right = map_address::<E>(&terms.index(index).right);
            narrow_right = map_address::<E>(&terms.index(index).narrow_right);
            start = before;
        }
    }
    Source {
        left,
        right,
        narrow_right,
        summed: (step - start) * STEP as u32,
    }
}
