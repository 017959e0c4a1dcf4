//! Gradients that sources get from the rows in their lists of readers.

use cubecl::prelude::*;

use super::walk::{Convolution, Sources, activation_gradient, load_weights, read_source};

/// Gradients of outputs, and the rows that read each source.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Readers<F: Float, N: Size> {
    /// `[R, part]` gradients of the outputs.
    pub grad: Box<[Vector<F, N>]>,
    /// Where the offsets of readers are in the lists.
    pub offsets: usize,
    /// Where the readers are in the lists.
    pub readers: usize,
    /// Row of the sums of the first part.
    pub parts: usize,
}

/// The sum of the gradients that source `source` gets from the readers in its list.
#[cube]
pub(super) fn listed_gradient<F: Float, N: Size>(
    sources: &Sources<F, N>,
    readers: &Readers<F, N>,
    sums: &[Vector<f32, N>],
    weights: &Array<Vector<f32, N>>,
    source: usize,
    column: usize,
    #[comptime] convolution: Convolution,
) -> Vector<f32, N> {
    let sizes = &sources.sizes;
    let channel = sizes.first + column;
    let kinds = comptime!(convolution.taps + 2);
    let mut sum = Vector::<f32, N>::zeroed();
    let begin = sources.lists[readers.offsets + source];
    let end = sources.lists[readers.offsets + source + 1];
    for index in begin..end {
        let reader = sources.lists[readers.readers + index as usize] as usize;
        let row = reader / kinds;
        let kind = reader % kinds;
        if kind == convolution.taps {
            // Gradients of the outgoing tails follow the incoming ones.
            let at = (sizes.tail_rows + row) * sizes.width + channel;
            sum += Vector::<f32, N>::cast_from(sources.tails[at]);
        } else if kind == comptime!(convolution.taps + 1) {
            sum += sums[(readers.parts + row) * sizes.width + channel];
        } else {
            let own = Vector::<f32, N>::cast_from(sources.x[row * sizes.width + channel]);
            let mut y = own * weights[0];
            #[unroll]
            for tap in 1..convolution.taps {
                let source = sources.lists[row * convolution.taps + tap] as usize;
                y += read_source::<F, N>(sources, source, channel, convolution) * weights[tap];
            }
            let grad = Vector::<f32, N>::cast_from(readers.grad[row * sizes.part + column]);
            let grad_y = activation_gradient::<N>(y, grad, convolution);
            #[unroll]
            for tap in 0..convolution.taps {
                if kind == tap {
                    sum += grad_y * weights[tap];
                }
            }
        }
    }
    sum
}

/// [`listed_gradient`] of the source and column number `ABSOLUTE_POS`.
#[cube]
pub(super) fn gradient_of_unit<F: Float, W: Float, N: Size>(
    sources: &Sources<F, N>,
    weight: &[Vector<W, N>],
    readers: &Readers<F, N>,
    sums: &[Vector<f32, N>],
    #[comptime] convolution: Convolution,
) -> Vector<f32, N> {
    let column = ABSOLUTE_POS % sources.sizes.part;
    let source = ABSOLUTE_POS / sources.sizes.part;
    let weights = load_weights::<W, N>(weight, sources.sizes.first + column, convolution);
    listed_gradient::<F, N>(
        sources,
        readers,
        sums,
        &weights,
        source,
        column,
        convolution,
    )
}
