//! The definition: all logits at once.

use burn::tensor::{Int, Tensor, activation::log_softmax};

/// `log_softmax(hidden head^T)[row, target]` for each `(row, target)`: hidden `[R, H]`, head
/// `[V, H]`, rows and targets `[n]` -> `[n]`. Builds `[n, V]`.
pub fn token_log_probs(
    hidden: Tensor<2>,
    head_weight: Tensor<2>,
    rows: Tensor<1, Int>,
    targets: Tensor<1, Int>,
) -> Tensor<1> {
    let logits = hidden.select(0, rows).matmul(head_weight.transpose());
    let log_probs = log_softmax(logits, 1);
    log_probs.gather(1, targets.unsqueeze_dim(1)).squeeze_dim(1)
}

/// Entropy `-sum_v p_v log p_v` of each of `rows`, `[n]`.
pub fn entropy(hidden: Tensor<2>, head_weight: Tensor<2>, rows: Tensor<1, Int>) -> Tensor<1> {
    let logits = hidden.select(0, rows).matmul(head_weight.transpose());
    let log_probs = log_softmax(logits, 1);
    let sum: Tensor<2> = (log_probs.clone().exp() * log_probs).sum_dim(1);
    sum.neg().squeeze_dim(1)
}
