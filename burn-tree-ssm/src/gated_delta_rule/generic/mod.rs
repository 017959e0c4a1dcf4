//! Implementation from Burn's primitives, for every backend: the chunked form (Yang et al.,
//! *Gated Delta Networks*, 2024, after the WY representation of Householder products) on the
//! windows of a tree.
//!
//! Inside a window, `m_ij` says whether row `j` is row `i` or an ancestor of it; `H` is the state
//! with which the window starts. With the sum `G` of log decays along the path inside the window,
//! `E_ij = m_ij exp(G_i - G_j)`, and products of matrices without a sign:
//! ```text
//! T = (I + diag(beta) (K K^T strictly below m))^-1        Ag = E . T . beta_j
//! U = Ag (V - exp(G) K H)                                 P  = E . (Q K^T)
//! O = exp(G) Q H + P U                                    H' = exp(G_last) H + K^T diag(E_last) U
//! ```
//! What does not need `H` is computed for all windows at once, the rest level by level and, along
//! paths, window by window.

mod array;
mod backward;
mod forward;
mod inverse;
mod step_gradients;
mod tiles;
mod window_gradients;
mod windows;

pub(crate) use backward::backward;
pub(crate) use forward::forward;
