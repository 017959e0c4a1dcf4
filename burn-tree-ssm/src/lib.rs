//! Gated DeltaNet and causal convolution on trees of sequences, as Burn operations.
//!
//! A tree of sequences with shared prefixes is laid out as one row of tokens in depth-first order.
//! A [`TreeRecurrence`] says which token continues which; [`tree_gated_delta_rule`] then gives each
//! token the state and the output that it would have alone on its path.
//!
//! All are operations of a backend extension, [`TreeSsmOps`]: any Burn backend runs them from its
//! primitives, and some have faster implementations of their own.
//!
//! # A Gated DeltaNet layer between its projections
//! ```
//! use burn::tensor::{Device, Distribution, Tensor, activation::sigmoid};
//! use burn_tree_nn::{decay_gate, gated_rms_norm, l2_norm};
//! use burn_tree_ssm::{
//!     CausalConv1dOptions, GatedDeltaRuleOptions, TreeRecurrence, tree_causal_conv1d_split,
//!     tree_gated_delta_rule,
//! };
//! use tree_pack::{PrefixForest, Trajectory, TreeLayout};
//!
//! // Two answers to a prompt of two tokens: five tokens instead of seven.
//! let answers = [vec![1, 2, 3], vec![1, 2, 4, 5]];
//! let trajectories = answers.map(|tokens| {
//!     let mask = vec![true; tokens.len()];
//!     Trajectory::new("task", "answer", tokens, mask)
//! });
//! let layout = TreeLayout::from_forest(&PrefixForest::build(&trajectories)?);
//! let rows = layout.len();
//! let recurrence = TreeRecurrence::from_layouts(&[layout], rows); // Once, for all layers.
//!
//! // What the projections give: queries, keys and values, output gates, decays and betas.
//! let (heads, dim) = (2, 8);
//! let device = Device::flex();
//! let random = |width| Tensor::<3>::random([1, rows, width], Distribution::Default, &device);
//! let (qkv, z) = (random(3 * heads * dim), random(heads * dim));
//! let (a, b) = (random(heads), random(heads));
//! let conv_weight = Tensor::<2>::ones([3 * heads * dim, 4], &device);
//! let [a_log, dt_bias] = [Tensor::<1>::zeros([heads], &device), Tensor::ones([heads], &device)];
//! let norm_weight = Tensor::<1>::ones([dim], &device);
//!
//! let silu = CausalConv1dOptions { silu: true };
//! let parts = [heads * dim; 3];
//! let convolved = tree_causal_conv1d_split(qkv, conv_weight, &recurrence, None, parts, silu);
//! let by_head = |x: Tensor<3>| x.reshape([1, rows, heads, dim]);
//! let [query, key, value] = convolved.outputs.map(by_head);
//! let mixed = tree_gated_delta_rule(
//!     l2_norm(query, 1e-6),
//!     l2_norm(key, 1e-6),
//!     value,
//!     decay_gate(a, a_log, dt_bias),
//!     sigmoid(b),
//!     &recurrence,
//!     None,
//!     GatedDeltaRuleOptions::default(),
//! );
//! let y = gated_rms_norm(mixed.output, by_head(z), norm_weight, 1e-6);
//! assert_eq!(y.dims(), [1, rows, heads, dim]); // On to the output projection.
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(any(feature = "tch", feature = "ndarray"), allow(deprecated))]

mod backends;
pub mod causal_conv1d;
pub mod gated_delta_rule;
mod ops;
mod recurrence;

pub use burn_tree_kit::check::ArgumentError;
pub use burn_tree_kit::implementation::Implementation;
pub use causal_conv1d::{
    CausalConv1dOptions, CausalConv1dOutput, ConvolutionGradients, ConvolutionInputs,
    ConvolutionOutputs, ConvolutionSettings, SplitCausalConv1dOutput, tree_causal_conv1d,
    tree_causal_conv1d_split, try_tree_causal_conv1d, try_tree_causal_conv1d_split,
};
pub use gated_delta_rule::{
    GatedDeltaRuleGradients, GatedDeltaRuleInputs, GatedDeltaRuleOptions, GatedDeltaRuleOutput,
    GatedDeltaRuleSaved, GatedDeltaRuleSettings, tree_gated_delta_rule, try_tree_gated_delta_rule,
};
pub use ops::TreeSsmOps;
pub use recurrence::{
    ConvolutionPlan, ENTRY_ZERO, MAX_ROWS, MAX_WINDOW_ROWS, Readers, RecurrenceError,
    TreeRecurrence,
};
