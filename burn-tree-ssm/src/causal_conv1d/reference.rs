//! The definition, token by token, written to be read.

use burn::tensor::{DType, Tensor, activation::silu};
use burn_tree_kit::check::Check;

use super::check;
use super::settings::{CausalConv1dOptions, CausalConv1dOutput};
use crate::recurrence::TreeRecurrence;

/// See [`super::tree_causal_conv1d`].
///
/// # Panics
/// With the text of the error if [`super::try_tree_causal_conv1d`] refuses the arguments.
pub fn tree_causal_conv1d(
    x: Tensor<3>,
    weight: Tensor<2>,
    recurrence: &TreeRecurrence,
    initial_tails: Option<Tensor<3>>,
    options: CausalConv1dOptions,
) -> CausalConv1dOutput {
    let check = Check {
        op: "tree_causal_conv1d",
    };
    check::check(check, &x, &weight, recurrence, initial_tails.as_ref())
        .unwrap_or_else(|error| panic!("{error}"));
    let dtype = x.dtype();
    let wide = match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    let ([batch, rows, channels], [_, width]) = (x.dims(), weight.dims());
    let x: Tensor<2> = x.cast(wide).reshape([batch * rows, channels]);
    let tails = initial_tails.map(|tails| tails.cast(wide));
    let weight: Tensor<2> = weight.cast(wide).transpose();

    let zeros = x.clone().slice_dim(0, 0..1).zeros_like();

    // The token `steps` above `row` on its path.
    let above = |mut row: usize, steps: usize| -> Tensor<2> {
        for taken in 0..steps {
            let parent = recurrence.parents()[row];
            if parent < 0 {
                // Of the tokens before the root, as many steps up as are left.
                let root = recurrence
                    .roots()
                    .iter()
                    .position(|&root| root as usize == row);
                let state = root.and_then(|root| recurrence.root_states()[root]);
                return match (state, &tails) {
                    (Some(state), Some(tails)) => {
                        let (state, position) = (state as usize, width - 1 - (steps - taken));
                        let token = tails
                            .clone()
                            .slice([state..state + 1, position..position + 1]);
                        token.reshape([1, channels])
                    }
                    _ => zeros.clone(),
                };
            }
            row = parent as usize;
        }
        x.clone().slice_dim(0, row..row + 1)
    };

    let convolve = |row: usize| {
        if recurrence.is_padding(row) {
            return zeros.clone();
        }
        let mut sum = zeros.clone();
        for steps in 0..width {
            let tap = width - 1 - steps;
            sum = sum + weight.clone().slice_dim(0, tap..tap + 1) * above(row, steps);
        }
        if options.silu { silu(sum) } else { sum }
    };
    let output = Tensor::cat((0..batch * rows).map(convolve).collect(), 0);

    let requested = recurrence.requested_rows();
    let tail = |row: usize| {
        let tokens = (0..width - 1).rev().map(|steps| above(row, steps));
        Tensor::<2>::cat(tokens.collect(), 0)
    };
    CausalConv1dOutput {
        output: output.reshape([batch, rows, channels]).cast(dtype),
        tails: (!requested.is_empty() && width > 1).then(|| {
            let tails = requested.iter().map(|&row| tail(row as usize));
            Tensor::stack::<3>(tails.collect(), 0).cast(dtype)
        }),
    }
}
