//! How a unit walks down the rows of which it makes the gradients.

use burn_tree_kit::cube::{RowGroups, group_sum};
use cubecl::prelude::*;

use super::backward::BLOCK_ROWS;
use super::readers::{Readers, listed_gradient};
use super::walk::{
    Convolution, Sources, activation_gradient, advance, convolve, is_token, load_weights,
    read_source, shift,
};

/// The rows of which a unit makes the gradients, and its channels.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Place {
    /// Block of rows of the cube.
    pub block: usize,
    pub first: usize,
    /// One past the last of the rows.
    pub last: usize,
    /// One past the last row that has taps that read these.
    pub end: usize,
    /// Column of the part.
    pub column: usize,
    /// Column of all channels.
    pub channel: usize,
    /// Units beyond the last channel do as that one does, but store nothing.
    pub stores: bool,
}

/// The place of the unit in block `block`.
#[cube]
pub(super) fn place<F: Float, N: Size>(
    sources: &Sources<F, N>,
    block: usize,
    #[comptime] groups: RowGroups,
    #[comptime] convolution: Convolution,
) -> Place {
    let sizes = &sources.sizes;
    let lanes = comptime!(groups.lanes as usize);
    let columns = sizes.part.div_ceil(lanes);
    let own_column = CUBE_POS % columns * lanes + UNIT_POS as usize % lanes;
    let column = min(own_column, sizes.part - 1);
    let rows_per_group = comptime!(BLOCK_ROWS / groups.groups());
    let first = block * BLOCK_ROWS + UNIT_POS as usize / lanes * rows_per_group;
    let first = min(first, sizes.rows);
    let last = min(first + rows_per_group, sizes.rows);
    let mut end = last;
    if last > first {
        end = last + comptime!(convolution.taps - 1);
    }
    Place {
        block,
        first,
        last,
        end,
        column,
        channel: sizes.first + column,
        stores: own_column < sizes.part,
    }
}

/// What a unit keeps while it walks down its rows.
#[derive(CubeType)]
pub(super) struct Walk<N: Size> {
    pub weights: Array<Vector<f32, N>>,
    /// What the taps of the row read.
    pub taps: Array<Vector<f32, N>>,
    /// What the row `tap` rows above has got so far.
    pub row_sums: Array<Vector<f32, N>>,
    /// Gradients of the weights.
    pub weight_sums: Array<Vector<f32, N>>,
}

/// The start of a walk, as if the row before the first one were its parent and had been walked
/// over.
#[cube]
pub(super) fn walk<F: Float, W: Float, N: Size>(
    sources: &Sources<F, N>,
    weight: &[Vector<W, N>],
    place: &Place,
    #[comptime] convolution: Convolution,
) -> Walk<N> {
    let n_taps = convolution.taps;
    let weights = load_weights::<W, N>(weight, place.channel, convolution);
    let mut taps = Array::<Vector<f32, N>>::new(n_taps);
    let mut weight_sums = Array::<Vector<f32, N>>::new(n_taps);
    let mut row_sums = Array::<Vector<f32, N>>::new(n_taps);
    #[unroll]
    for tap in 0..n_taps {
        taps[tap] = Vector::zeroed();
        weight_sums[tap] = Vector::zeroed();
        row_sums[tap] = Vector::zeroed();
    }
    #[unroll]
    for tap in 1..n_taps {
        let row = min(place.first, sources.sizes.rows - 1);
        let source = sources.lists[row * n_taps + tap] as usize;
        taps[comptime!(tap - 1)] = read_source::<F, N>(sources, source, place.channel, convolution);
    }
    Walk::<N> {
        weights,
        taps,
        row_sums,
        weight_sums,
    }
}

/// Walks over a row that follows the one before, as the rows above it do.
#[cube]
pub(super) fn walk_plain_row<F: Float, N: Size>(
    walk: &mut Walk<N>,
    own: Vector<F, N>,
    grad: Vector<F, N>,
    #[comptime] convolution: Convolution,
) {
    shift::<N>(&mut walk.taps, convolution);
    shift::<N>(&mut walk.row_sums, convolution);
    walk.taps[0] = Vector::cast_from(own);
    let y = convolve::<N>(&walk.taps, &walk.weights, convolution);
    let grad = Vector::<f32, N>::cast_from(grad);
    let grad_y = activation_gradient::<N>(y, grad, convolution);
    walk.row_sums[0] = grad_y * walk.weights[0];
    walk.weight_sums[0] += grad_y * walk.taps[0];
    #[unroll]
    for tap in 1..convolution.taps {
        walk.row_sums[tap] += grad_y * walk.weights[tap];
        walk.weight_sums[tap] += grad_y * walk.taps[tap];
    }
}

/// Walks over any row, or past the last.
#[cube]
pub(super) fn walk_row<F: Float, N: Size>(
    walk: &mut Walk<N>,
    own: Vector<F, N>,
    grad: Vector<F, N>,
    row: usize,
    sources: &Sources<F, N>,
    place: &Place,
    #[comptime] convolution: Convolution,
) {
    let n_taps = convolution.taps;
    shift::<N>(&mut walk.row_sums, convolution);
    walk.row_sums[0] = Vector::zeroed();
    if row < min(place.end, sources.sizes.rows) {
        if row == place.first {
            shift::<N>(&mut walk.taps, convolution);
        } else {
            advance::<F, N>(&mut walk.taps, sources, row, place.channel, convolution);
        }
        walk.taps[0] = Vector::zeroed();
        // Padding reads nothing, whatever its gradient is.
        if is_token(&sources.lists, row, convolution) {
            walk.taps[0] = Vector::cast_from(own);
            let y = convolve::<N>(&walk.taps, &walk.weights, convolution);
            let grad = Vector::<f32, N>::cast_from(grad);
            let grad_y = activation_gradient::<N>(y, grad, convolution);
            walk.row_sums[0] = grad_y * walk.weights[0];
            #[unroll]
            for tap in 1..n_taps {
                if sources.lists[row * n_taps + tap] as usize + tap == row {
                    walk.row_sums[tap] += grad_y * walk.weights[tap];
                }
            }
            if row < place.last {
                #[unroll]
                for tap in 0..n_taps {
                    walk.weight_sums[tap] += grad_y * walk.taps[tap];
                }
            }
        }
    }
}

/// Writes the gradient of the row to which no row after `row` can add, if that is one of the
/// unit's.
#[cube]
pub(super) fn finish_row<F: Float, N: Size>(
    walk: &Walk<N>,
    row: usize,
    sources: &Sources<F, N>,
    readers: &Readers<F, N>,
    sums: &[Vector<f32, N>],
    grad_x: &mut [Vector<F, N>],
    place: &Place,
    #[comptime] convolution: Convolution,
) {
    let n_taps = convolution.taps;
    if row + 1 >= place.first + n_taps && row < place.end {
        let done = row + 1 - n_taps;
        let listed = listed_gradient::<F, N>(
            sources,
            readers,
            sums,
            &walk.weights,
            done,
            place.column,
            convolution,
        );
        let sum = walk.row_sums[comptime!(n_taps - 1)] + listed;
        if place.stores {
            grad_x[done * sources.sizes.width + place.channel] = Vector::cast_from(sum);
        }
    }
}

/// Writes the gradients of the weights, summed over the groups of the cube.
#[cube]
pub(super) fn store_weight_sums<N: Size>(
    walk: &mut Walk<N>,
    sums: &mut [Vector<f32, N>],
    place: &Place,
    width: usize,
    #[comptime] groups: RowGroups,
    #[comptime] convolution: Convolution,
) {
    let n_taps = convolution.taps;
    let mut shared = Shared::<[Vector<f32, N>]>::new_slice(comptime!(groups.units as usize));
    #[unroll]
    for tap in 0..n_taps {
        walk.weight_sums[tap] = group_sum::<N>(walk.weight_sums[tap], &mut shared, groups);
    }
    if place.stores && UNIT_POS < groups.lanes {
        let numbers = N::value();
        let at = (place.block * width + place.channel) * n_taps;
        #[unroll]
        for i in 0..n_taps {
            let mut values = Vector::<f32, N>::zeroed();
            #[unroll]
            for n in 0..numbers {
                let number = comptime!(i * numbers + n);
                let tap = comptime!(n_taps - 1 - number % n_taps);
                let of_tap = walk.weight_sums[tap];
                values.insert(n, of_tap.extract(comptime!(number / n_taps)));
            }
            sums[at + i] = values;
        }
    }
}
