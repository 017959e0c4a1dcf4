//! Gated DeltaNet's recurrence over the paths of a tree.
//!
//! Equations and derivation: Yang et al., *Gated Delta Networks* (2024), of which
//! [`mod@reference`] is the token recurrence and `generic` the chunked form on tree windows.

pub(crate) mod autodiff;
mod check;
mod function;
#[cfg(feature = "fusion")]
pub(crate) mod fusion;
pub(crate) mod generic;
#[cfg(feature = "cubecl-backend")]
pub(crate) mod kernels;
#[cfg(feature = "flex")]
pub(crate) mod native;
pub mod reference;
pub(crate) mod settings;
pub(crate) mod tensors;

pub use function::{tree_gated_delta_rule, try_tree_gated_delta_rule};
pub use settings::{GatedDeltaRuleOptions, GatedDeltaRuleOutput, GatedDeltaRuleSettings};
pub use tensors::{GatedDeltaRuleGradients, GatedDeltaRuleInputs, GatedDeltaRuleSaved};
