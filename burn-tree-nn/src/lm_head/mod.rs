//! Log-probabilities of trained tokens from hidden states, without `[rows, vocab]` logits.

mod autodiff;
mod function;
pub(crate) mod generic;
#[cfg(feature = "cubecl-backend")]
pub(crate) mod kernel;
#[cfg(feature = "flex")]
pub(crate) mod native;
mod plan;
pub mod reference;

pub(crate) use autodiff::forward as autodiff_forward;
pub use function::{
    EntropyOutput, LmHeadOptions, TokenLogProbs, token_log_probs, try_token_log_probs,
};
#[cfg(feature = "flex")]
pub(crate) use plan::LmHeadChunk;
pub use plan::{HeadGradients, LmHeadError, LmHeadPlan};
