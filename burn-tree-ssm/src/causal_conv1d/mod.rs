//! Causal depthwise convolution along the paths of trees.

pub(crate) mod autodiff;
mod check;
mod function;
#[cfg(feature = "fusion")]
pub(crate) mod fusion;
pub(crate) mod generic;
#[cfg(feature = "cubecl-backend")]
pub(crate) mod kernels;
pub mod reference;
pub(crate) mod settings;
pub(crate) mod tensors;

pub use function::{
    tree_causal_conv1d, tree_causal_conv1d_split, try_tree_causal_conv1d,
    try_tree_causal_conv1d_split,
};
pub use settings::{
    CausalConv1dOptions, CausalConv1dOutput, ConvolutionSettings, SplitCausalConv1dOutput,
};
pub use tensors::{ConvolutionGradients, ConvolutionInputs, ConvolutionOutputs};
