//! Forward kernels.

use burn_tree_kit::cube::RowGroups;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::walk::{
    Convolution, Sources, activate, advance, convolve, is_token, load_weights, read_source, reload,
    shift,
};

/// Rows that a unit walks down. It loads its inputs at once.
pub(super) const ROWS_PER_UNIT: usize = 8;

/// The convolution of one part of the channels.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn convolution_kernel<F: Float, W: Float, N: Size>(
    sources: &Sources<F, N>,
    weight: &[Vector<W, N>],
    output: &mut [Vector<F, N>],
    #[comptime] groups: RowGroups,
    #[comptime] convolution: Convolution,
    #[define(F, W)] _dtypes: [ElemType; 2],
) {
    let sizes = &sources.sizes;
    let lanes = comptime!(groups.lanes as usize);
    let columns = sizes.part.div_ceil(lanes);
    let column = CUBE_POS % columns * lanes + UNIT_POS as usize % lanes;
    let group = CUBE_POS / columns * comptime!(groups.groups()) + UNIT_POS as usize / lanes;
    let first = group * ROWS_PER_UNIT;
    if column >= sizes.part || first >= sizes.rows {
        terminate!();
    }
    let channel = sizes.first + column;

    let weights = load_weights::<W, N>(weight, channel, convolution);
    let mut own = Array::<Vector<F, N>>::new(ROWS_PER_UNIT);
    #[unroll]
    for step in 0..ROWS_PER_UNIT {
        let row = min(first + step, sizes.rows - 1);
        own[step] = sources.x[row * sizes.width + channel];
    }
    let mut taps = Array::<Vector<f32, N>>::new(convolution.taps);
    reload::<F, N>(&mut taps, sources, first, channel, convolution);
    let plain = sources.lists[sizes.plain_runs + first + 1] as usize;
    // One walk without branches for rows that follow each other, so that all loads come first.
    if plain + 1 >= ROWS_PER_UNIT && is_token(&sources.lists, first, convolution) {
        #[unroll]
        for step in 0..ROWS_PER_UNIT {
            if comptime!(step > 0) {
                shift::<N>(&mut taps, convolution);
            }
            taps[0] = Vector::cast_from(own[step]);
            let y = activate::<N>(convolve::<N>(&taps, &weights, convolution), convolution);
            output[(first + step) * sizes.part + column] = Vector::cast_from(y);
        }
    } else {
        #[unroll]
        for step in 0..ROWS_PER_UNIT {
            let row = first + step;
            if row < sizes.rows {
                if comptime!(step > 0) {
                    advance::<F, N>(&mut taps, sources, row, channel, convolution);
                }
                taps[0] = Vector::zeroed();
                if is_token(&sources.lists, row, convolution) {
                    taps[0] = Vector::cast_from(own[step]);
                }
                let y = activate::<N>(convolve::<N>(&taps, &weights, convolution), convolution);
                output[row * sizes.part + column] = Vector::cast_from(y);
            }
        }
    }
}

/// Tails after requested rows: copies of their sources, whose list begins at `start`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn tails_kernel<F: Float, N: Size>(
    sources: &Sources<F, N>,
    output: &mut [Vector<F, N>],
    start: usize,
    total: usize,
    #[comptime] convolution: Convolution,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= total {
        terminate!();
    }
    let width = sources.sizes.width;
    let channel = ABSOLUTE_POS % width;
    let source = sources.lists[start + ABSOLUTE_POS / width] as usize;
    output[ABSOLUTE_POS] =
        Vector::cast_from(read_source::<F, N>(sources, source, channel, convolution));
}
