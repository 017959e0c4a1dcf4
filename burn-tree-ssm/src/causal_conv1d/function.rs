//! The public functions.

use burn::backend::{Dispatch, DispatchTensor};
use burn::tensor::Tensor;
use burn_tree_kit::check::{ArgumentError, Check};

use super::check;
use super::settings::{
    CausalConv1dOptions, CausalConv1dOutput, ConvolutionSettings, SplitCausalConv1dOutput,
};
use super::tensors::ConvolutionInputs;
use crate::ops::TreeSsmOps;
use crate::recurrence::TreeRecurrence;

/// Convolves each channel along the path of each row: `x [B, N, C]`, `weight [C, K]` -> `[B, N, C]`
/// with `y_i = sum_t weight[K-1-t] * x_above(i, t)`, where `above(i, t)` is the token `t` steps
/// above row `i` on its path. The option `silu` applies `silu` to the result.
///
/// Where a path is shorter than the kernel, the taps read the tree's incoming tail if `recurrence`
/// gives it one, and zeros if not. `initial_tails [G, K-1, C]` holds the tails: the inputs of the
/// `K - 1` tokens before the tree, oldest first, in the dtype of `x`. It is required if the
/// recurrence names initial states and the kernel has more than one tap.
///
/// The operation computes in at least f32; the weight may have another dtype than `x`. It is
/// differentiable in all tensors, through `output` and `tails`, and sums gradients in a fixed
/// order.
///
/// CubeCL runtimes have kernels for f32, f16 and bf16 and for at most 8 taps. Other arguments, and
/// other backends, run Burn's primitives. A `tracing` event of level debug says which one runs.
///
/// Dao and Gu, *Mamba* (2023), for sequences; the tree form keeps the raw input of tokens before a
/// branching, not their output.
///
/// # Panics
/// With the text of the error if [`try_tree_causal_conv1d`] refuses the arguments.
///
/// # Example
/// ```
/// use burn::tensor::{Device, Tensor};
/// use burn_tree_ssm::{CausalConv1dOptions, TreeRecurrence, tree_causal_conv1d};
/// use tree_pack::{Segment, TreeLayout};
///
/// // A token with two children.
/// let layout = TreeLayout {
///     tokens: vec![7, 8, 9],
///     position_ids: vec![0, 1, 1],
///     parents: vec![-1, 0, 0],
///     subtree_ends: vec![3, 2, 3],
///     segments: vec![
///         Segment { start: 0, end: 1, parent: None },
///         Segment { start: 1, end: 2, parent: Some(0) },
///         Segment { start: 2, end: 3, parent: Some(0) },
///     ],
/// };
/// let recurrence = TreeRecurrence::from_layouts(&[layout], 3);
/// let device = Device::flex();
/// let x = Tensor::<3>::from_floats([[[1.0], [10.0], [100.0]]], &device);
/// let weight = Tensor::<2>::from_floats([[2.0, 3.0]], &device);
/// let y = tree_causal_conv1d(x, weight, &recurrence, None, CausalConv1dOptions::default());
/// // Both children read their parent, not each other.
/// assert_eq!(y.output.into_data().to_vec::<f32>().unwrap(), [3.0, 32.0, 302.0]);
/// ```
pub fn tree_causal_conv1d(
    x: Tensor<3>,
    weight: Tensor<2>,
    recurrence: &TreeRecurrence,
    initial_tails: Option<Tensor<3>>,
    options: CausalConv1dOptions,
) -> CausalConv1dOutput {
    try_tree_causal_conv1d(x, weight, recurrence, initial_tails, options)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// As [`tree_causal_conv1d`], with an error for arguments that do not fit.
///
/// # Errors
/// If a tensor's shape, dtype or device does not fit the others or `recurrence`, or there is no
/// plan for kernels of this size.
pub fn try_tree_causal_conv1d(
    x: Tensor<3>,
    weight: Tensor<2>,
    recurrence: &TreeRecurrence,
    initial_tails: Option<Tensor<3>>,
    options: CausalConv1dOptions,
) -> Result<CausalConv1dOutput, ArgumentError> {
    let parts = [x.dims()[2], 0, 0];
    let check = Check {
        op: "tree_causal_conv1d",
    };
    let SplitCausalConv1dOutput {
        outputs: [output, _, _],
        tails,
    } = run(check, x, weight, recurrence, initial_tails, parts, options)?;
    Ok(CausalConv1dOutput { output, tails })
}

/// [`tree_causal_conv1d`] whose output channels come in three parts of `parts` channels after one
/// another, as the queries, keys and values of a Gated DeltaNet: each part is a tensor of its own,
/// and so is its gradient, so that nothing is copied to take them apart or put them together.
///
/// # Panics
/// With the text of the error if [`try_tree_causal_conv1d_split`] refuses the arguments.
pub fn tree_causal_conv1d_split(
    x: Tensor<3>,
    weight: Tensor<2>,
    recurrence: &TreeRecurrence,
    initial_tails: Option<Tensor<3>>,
    parts: [usize; 3],
    options: CausalConv1dOptions,
) -> SplitCausalConv1dOutput {
    try_tree_causal_conv1d_split(x, weight, recurrence, initial_tails, parts, options)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// As [`tree_causal_conv1d_split`], with an error for arguments that do not fit.
///
/// # Errors
/// As [`try_tree_causal_conv1d`], and if a part has no channels or the parts are not all channels.
pub fn try_tree_causal_conv1d_split(
    x: Tensor<3>,
    weight: Tensor<2>,
    recurrence: &TreeRecurrence,
    initial_tails: Option<Tensor<3>>,
    parts: [usize; 3],
    options: CausalConv1dOptions,
) -> Result<SplitCausalConv1dOutput, ArgumentError> {
    let check = Check {
        op: "tree_causal_conv1d_split",
    };
    let channels = parts
        .iter()
        .try_fold(0usize, |sum, &part| sum.checked_add(part));
    if channels != Some(x.dims()[2]) || parts.contains(&0) {
        return Err(ArgumentError::Shape {
            op: check.op,
            tensor: "x",
            found: x.dims().to_vec(),
            expected: format!("as many channels as the parts {parts:?}, each of at least 1"),
        });
    }
    run(check, x, weight, recurrence, initial_tails, parts, options)
}

fn run(
    check: Check,
    x: Tensor<3>,
    weight: Tensor<2>,
    recurrence: &TreeRecurrence,
    initial_tails: Option<Tensor<3>>,
    parts: [usize; 3],
    options: CausalConv1dOptions,
) -> Result<SplitCausalConv1dOutput, ArgumentError> {
    let plan = check::check(check, &x, &weight, recurrence, initial_tails.as_ref())?;
    let [batch, rows, channels] = x.dims();
    let above = plan.kernel_size() - 1;
    let initial_tails = match initial_tails {
        Some(tails) if above > 0 => tails.reshape([plan.tail_rows(), channels]),
        // Not read.
        _ => Tensor::zeros([1, channels], (&x.device(), x.dtype())),
    };
    let requested = recurrence.requested_rows().len();
    let settings = ConvolutionSettings {
        silu: options.silu,
        parts,
    };
    let inputs = ConvolutionInputs {
        x: x.reshape([batch * rows, channels]).into_dispatch(),
        weight: weight.into_dispatch(),
        initial_tails: initial_tails.into_dispatch(),
    };
    let results = <Dispatch as TreeSsmOps>::causal_conv1d(inputs, plan, settings);
    let output = |part: DispatchTensor, channels: usize| {
        let output = Tensor::<2>::from_dispatch(part);
        match channels {
            0 => output.unsqueeze(),
            channels => output.reshape([batch, rows, channels]),
        }
    };
    let outputs = [
        output(results.first, parts[0]),
        output(results.second, parts[1]),
        output(results.third, parts[2]),
    ];
    let tails = (requested > 0 && above > 0)
        .then(|| Tensor::<2>::from_dispatch(results.tails).reshape([requested, above, channels]));
    Ok(SplitCausalConv1dOutput { outputs, tails })
}
