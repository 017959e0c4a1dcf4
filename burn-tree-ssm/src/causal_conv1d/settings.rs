//! What a call is asked for, and what it returns.

use std::ops::Range;

use burn::tensor::Tensor;

/// What [`tree_causal_conv1d`](crate::tree_causal_conv1d) does besides the convolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CausalConv1dOptions {
    /// Whether the result goes through `silu(y) = y / (1 + e^-y)`.
    pub silu: bool,
}

/// Result of [`tree_causal_conv1d`](crate::tree_causal_conv1d).
#[derive(Clone, Debug)]
pub struct CausalConv1dOutput {
    /// `[B, N, C]`, dtype of `x`; zeros in padding.
    pub output: Tensor<3>,
    /// `[X, K-1, C]`, dtype of `x`: the inputs of the last `K - 1` tokens of the paths that end
    /// with the requested rows, oldest first. `None` without requested rows, or if `K` is 1.
    pub tails: Option<Tensor<3>>,
}

/// Result of [`tree_causal_conv1d_split`](crate::tree_causal_conv1d_split).
#[derive(Clone, Debug)]
pub struct SplitCausalConv1dOutput {
    /// The channels in three parts, each `[B, N, part]`.
    pub outputs: [Tensor<3>; 3],
    /// As in [`CausalConv1dOutput`], of all channels.
    pub tails: Option<Tensor<3>>,
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
    /// The parts that have channels, each with its channels among all.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let parts = self.ranges().into_iter().enumerate();
        parts.filter(|(_, channels)| !channels.is_empty())
    }

    /// The channels of each part among all; empty for parts without channels.
    pub(crate) fn ranges(&self) -> [Range<usize>; 3] {
        let mut end = 0;
        self.parts.map(|part| {
            end += part;
            end - part..end
        })
    }
}
