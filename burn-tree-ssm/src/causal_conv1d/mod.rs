//! Causal depthwise convolution along the paths of trees.

mod autodiff;
pub(crate) mod generic;
#[cfg(feature = "cubecl-backend")]
pub(crate) mod kernel;
pub mod reference;

use std::sync::Arc;

use burn::backend::Dispatch;
use burn::tensor::Tensor;

pub(crate) use autodiff::forward as autodiff_forward;

use crate::{ArgumentError, ConvolutionPlan, TreeRecurrence, TreeSsmOps};
use burn_tree_kit::check::Check;

/// What [`tree_causal_conv1d`] does besides the convolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CausalConv1dOptions {
    /// Whether the result goes through `silu(y) = y / (1 + e^-y)`.
    pub silu: bool,
}

/// Result of [`tree_causal_conv1d`].
#[derive(Clone, Debug)]
pub struct CausalConv1dOutput {
    /// `[B, N, C]`, dtype of `x`; zeros in padding.
    pub output: Tensor<3>,
    /// `[X, K-1, C]`, dtype of `x`: the inputs of the last `K - 1` tokens of the paths that end
    /// with the requested rows, oldest first. `None` without requested rows, or if `K` is 1.
    pub tails: Option<Tensor<3>>,
}

/// Result of [`tree_causal_conv1d_split`].
#[derive(Clone, Debug)]
pub struct SplitCausalConv1dOutput {
    /// The channels in three parts, each `[B, N, part]`.
    pub outputs: [Tensor<3>; 3],
    /// As in [`CausalConv1dOutput`], of all channels.
    pub tails: Option<Tensor<3>>,
}

/// Convolves each channel along the path of each row: `x [B, N, C]`, `weight [C, K]` -> `[B, N, C]`
/// with `y_i = sum_t weight[K-1-t] * x_above(i, t)`, where `above(i, t)` is the token `t` steps above
/// row `i` on its path; then `silu` if asked for.
///
/// Where a path is shorter than the kernel, the tree continues into its incoming tail out of
/// `initial_tails [G, K-1, C]` (the inputs of the `K - 1` tokens before it, oldest first), if
/// `recurrence` gives it one, or else into zeros. Computed in at least f32; `initial_tails` have the
/// dtype of `x`, the weight may have another. Differentiable in all tensors; gradients arrive
/// through `output` and `tails`, and are summed in a fixed order.
///
/// `initial_tails` must be given exactly if the recurrence names any. CubeCL runtimes have kernels
/// for f32, f16 and bf16 and for at most 8 taps; what they do not take, and other backends, run
/// Burn's primitives (`tracing` says which, target `burn_tree_ssm`, level debug).
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

/// What a backend needs to know besides the tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvolutionSettings {
    /// Whether `silu` follows.
    pub silu: bool,
    /// Channels of the three outputs. Those of 0 channels are not computed.
    pub parts: [usize; 3],
}

impl ConvolutionSettings {
    /// The parts that there are, each with the channels before it.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
        let mut end = 0;
        let ranges = self.parts.map(|part| {
            end += part;
            end - part..end
        });
        let parts = ranges.into_iter().enumerate();
        parts.filter(|(_, channels)| !channels.is_empty())
    }
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
    let plan = checked(check, &x, &weight, recurrence, initial_tails.as_ref())?;
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
    let (first, second, third, tails) = <Dispatch as TreeSsmOps>::causal_conv1d(
        x.reshape([batch * rows, channels]).into_dispatch(),
        weight.into_dispatch(),
        initial_tails.into_dispatch(),
        plan,
        settings,
    );
    let mut outputs = [first, second, third].into_iter().zip(parts);
    let outputs = std::array::from_fn(|_| {
        let (output, part) = outputs.next().expect("three of each");
        let output = Tensor::<2>::from_dispatch(output);
        match part {
            0 => output.unsqueeze(),
            part => output.reshape([batch, rows, part]),
        }
    });
    let tails = (requested > 0 && above > 0)
        .then(|| Tensor::<2>::from_dispatch(tails).reshape([requested, above, channels]));
    Ok(SplitCausalConv1dOutput { outputs, tails })
}

fn checked(
    check: Check,
    x: &Tensor<3>,
    weight: &Tensor<2>,
    recurrence: &TreeRecurrence,
    initial_tails: Option<&Tensor<3>>,
) -> Result<Arc<ConvolutionPlan>, ArgumentError> {
    let ([_, _, channels], [_, kernel_size]) = (x.dims(), weight.dims());
    let (batch, rows) = (recurrence.batch_size(), recurrence.row_length());
    let reason = "batch and rows of the recurrence";
    check.shape("x", &x.dims(), &[batch, rows, channels], reason)?;
    check.not_empty("x", &x.dims())?;
    check.not_empty("weight", &weight.dims())?;
    let reason = "a kernel for each channel of x";
    check.shape("weight", &weight.dims(), &[channels, kernel_size], reason)?;
    check.float("x", x.dtype())?;
    check.float("weight", weight.dtype())?;
    check.same_device("weight", weight.device(), "x", x.device())?;

    let states = recurrence.n_initial_states();
    let expected = [states, kernel_size - 1, channels];
    match initial_tails {
        Some(tails) => {
            let reason = "initial states of the recurrence, kernel size - 1, channels of x";
            check.shape("initial_tails", &tails.dims(), &expected, reason)?;
            check.same_dtype("initial_tails", tails.dtype(), "x", x.dtype())?;
            check.same_device("initial_tails", tails.device(), "x", x.device())?;
        }
        None if states > 0 && kernel_size > 1 => {
            return Err(ArgumentError::Missing {
                op: check.op,
                tensor: "initial_tails",
                expected: format!("{expected:?}: roots of the recurrence have initial states"),
            });
        }
        None => {}
    }
    check.plan(recurrence.convolution(kernel_size))
}
