//! Log-probabilities of trained tokens from hidden states, without all `[rows, vocab]` logits at
//! once.

mod autodiff;
mod check;
mod error;
mod function;
pub(crate) mod generic;
#[cfg(feature = "cubecl-backend")]
pub(crate) mod kernels;
#[cfg(feature = "flex")]
pub(crate) mod native;
mod options;
mod output;
mod plan;
pub mod reference;
mod tensors;

pub(crate) use autodiff::forward as autodiff_forward;
pub use error::LmHeadError;
pub use function::{token_log_probs, try_token_log_probs};
pub use options::{EntropyOutput, LmHeadOptions};
pub use output::TokenLogProbs;
pub use plan::{HeadGradients, LmHeadPlan};
pub use tensors::{LmHeadInputs, LmHeadOutputGradients};
#[cfg(feature = "fusion")]
pub use tensors::{LmHeadInputsMetadata, LmHeadOutputGradientsMetadata};
