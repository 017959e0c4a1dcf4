//! Mixture-of-experts feed-forward layer without token dropping.

use std::sync::Arc;

use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::tensor::activation::{sigmoid, softmax};
use burn::tensor::{DType, Int, Tensor, TensorData};
use burn_tree_nn::{GatherPlan, gather_rows, grouped_linear, swiglu};
use burn_tree_train::{BlockError, RouterOutput};

use super::mlp::Mlp;
use super::source::ParameterSource;
use super::{linear, project};
use crate::config::{ExpertStorage, ModelConfig, MoeConfig};

/// Each token passes through its `K` most probable experts, and through the shared expert if there
/// is one.
#[derive(Module, Debug)]
pub struct SparseMoe {
    /// Router, `[hidden, E]`.
    pub gate: Linear,
    /// The experts.
    pub experts: Experts,
    /// The shared expert, if there is one.
    pub shared_expert: Option<SharedExpert>,
    experts_per_token: usize,
    norm_topk_prob: bool,
}

/// The matrices of all routed experts.
#[derive(Module, Debug)]
pub struct Experts {
    /// `[E, hidden, 2 * intermediate]`: gate, then up projection.
    pub gate_up_proj: Param<Tensor<3>>,
    /// `[E, intermediate, hidden]`
    pub down_proj: Param<Tensor<3>>,
    /// Their layout in checkpoints.
    #[module(skip)]
    pub(crate) storage: ExpertStorage,
}

/// An expert for all tokens, scaled by the sigmoid of its gate.
#[derive(Module, Debug)]
pub struct SharedExpert {
    /// The feed-forward layer.
    pub mlp: Mlp,
    /// `[hidden, 1]`
    pub gate: Linear,
}

impl SharedExpert {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        self.mlp.forward(x.clone()) * sigmoid(project(&self.gate, x))
    }
}

impl SparseMoe {
    pub(super) fn new<S: ParameterSource>(
        config: &ModelConfig,
        moe: &MoeConfig,
        prefix: &str,
        source: &mut S,
    ) -> Result<Self, S::Error> {
        let (hidden, inner) = (config.hidden_size, moe.moe_intermediate_size);
        let key = |name: &str| format!("{prefix}.{name}");
        let experts = source.experts(&key("experts"), moe.num_experts, hidden, inner)?;
        let shared_expert = match moe.shared_expert_intermediate_size {
            None => None,
            Some(inner) => Some(SharedExpert {
                mlp: Mlp::new([hidden, inner], false, &key("shared_expert"), source)?,
                gate: linear(source, &key("shared_expert_gate"), [hidden, 1], false)?,
            }),
        };
        Ok(Self {
            gate: linear(source, &key("gate"), [hidden, moe.num_experts], false)?,
            experts: Experts {
                gate_up_proj: Param::from_tensor(experts.gate_up),
                down_proj: Param::from_tensor(experts.down),
                storage: moe.storage,
            },
            shared_expert,
            experts_per_token: moe.num_experts_per_tok,
            norm_topk_prob: moe.norm_topk_prob,
        })
    }

    /// Runs the layer on `x [B, N, hidden]`, with the `chosen` experts `[B * N, K]` if given, else
    /// with the most probable ones.
    ///
    /// # Errors
    /// If the experts cannot be read from the device, or a chosen expert does not exist.
    pub(super) fn forward(
        &self,
        x: Tensor<3>,
        chosen: Option<Tensor<2, Int>>,
    ) -> Result<(Tensor<3>, RouterOutput), BlockError> {
        let [batch, rows, hidden] = x.dims();
        let tokens = batch * rows;
        let per_token = self.experts_per_token;
        let shared = self.shared_expert.as_ref();
        let shared = shared.map(|expert| expert.forward(x.clone()));
        let x = x.reshape([tokens, hidden]);

        let logits = project(&self.gate, x.clone());
        let wide = match logits.dtype() {
            DType::F64 => DType::F64,
            _ => DType::F32,
        };
        let probabilities = softmax(logits.cast(wide), 1);
        let (experts, on_host) = match chosen {
            Some(experts) => {
                let on_host = experts.clone().try_into_data()?.iter::<i32>().collect();
                (experts, on_host)
            }
            None => {
                let on_host = largest(probabilities.clone().try_into_data()?, per_token);
                let data = TensorData::new(on_host.clone(), [tokens, per_token]);
                (Tensor::from_data(data, &probabilities.device()), on_host)
            }
        };
        let dispatch = Dispatch::new(&on_host, tokens, probabilities.dims()[1])?;
        let mut weights = probabilities.clone().gather(1, experts.clone());
        if self.norm_topk_prob {
            weights = weights.clone() / weights.sum_dim(1);
        }

        let routed = gather_rows(x.clone(), &dispatch.tokens);
        let gate_up = grouped_linear(
            routed,
            self.experts.gate_up_proj.val(),
            &dispatch.group_sizes,
        );
        let [gate, up] = halves(gate_up);
        let routed = grouped_linear(
            swiglu(gate, up),
            self.experts.down_proj.val(),
            &dispatch.group_sizes,
        );
        let per_choice: Tensor<3> =
            gather_rows(routed, &dispatch.positions).reshape([tokens, per_token, hidden]);
        let weights = weights.cast(x.dtype()).unsqueeze_dim(2);
        let routed = (per_choice * weights)
            .sum_dim(1)
            .reshape([batch, rows, hidden]);
        let output = match shared {
            Some(shared) => routed + shared,
            None => routed,
        };
        let router = RouterOutput {
            probabilities,
            experts,
        };
        Ok((output, router))
    }
}

/// The two halves of the last dimension.
fn halves(x: Tensor<2>) -> [Tensor<2>; 2] {
    let width = x.dims()[1] / 2;
    [
        x.clone().slice_dim(1, 0..width),
        x.slice_dim(1, width..2 * width),
    ]
}

/// Column indices of the `k` largest values of each row, largest first; the lower index wins a tie.
fn largest(probabilities: TensorData, k: usize) -> Vec<i32> {
    let columns = probabilities.shape()[1];
    let values: Vec<f64> = probabilities.iter::<f64>().collect();
    let mut order: Vec<i32> = Vec::with_capacity(columns);
    let mut result = Vec::with_capacity(values.len() / columns * k);
    for row in values.chunks(columns) {
        order.clear();
        order.extend(0..columns as i32);
        let by_value = |&a: &i32, &b: &i32| {
            let (a, b) = (a as usize, b as usize);
            row[b].total_cmp(&row[a]).then(a.cmp(&b))
        };
        if k < columns {
            order.select_nth_unstable_by(k, by_value);
        }
        order[..k].sort_unstable_by(by_value);
        result.extend_from_slice(&order[..k]);
    }
    result
}

/// A chosen expert that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a token was routed to expert {expert}, of {experts}")]
struct RoutingError {
    expert: i32,
    experts: usize,
}

/// Tokens sorted by expert, and the inverse permutation.
struct Dispatch {
    /// Token of each routed row. Routed rows are sorted by expert, then by token.
    tokens: Arc<GatherPlan>,
    /// Routed row of each (token, choice).
    positions: Arc<GatherPlan>,
    /// Routed rows of each expert.
    group_sizes: Arc<Vec<usize>>,
}

impl Dispatch {
    /// `choices [tokens * K]` are expert indices.
    ///
    /// # Errors
    /// If an index is not below `experts`.
    fn new(choices: &[i32], tokens: usize, experts: usize) -> Result<Self, BlockError> {
        let mut group_sizes = vec![0; experts];
        for &expert in choices {
            let known = usize::try_from(expert).ok();
            match known.and_then(|expert| group_sizes.get_mut(expert)) {
                Some(size) => *size += 1,
                None => return Err(RoutingError { expert, experts }.into()),
            }
        }
        let mut next: Vec<usize> = Vec::with_capacity(experts);
        let mut start = 0;
        for &size in &group_sizes {
            next.push(start);
            start += size;
        }
        let per_token = choices.len() / tokens.max(1);
        let mut token_of_row = vec![0; choices.len()];
        let mut row_of_choice = vec![0; choices.len()];
        for (choice, &expert) in choices.iter().enumerate() {
            let row = next[expert as usize];
            next[expert as usize] += 1;
            token_of_row[row] = (choice / per_token) as u32;
            row_of_choice[choice] = row as u32;
        }
        let plan = |indices, rows| GatherPlan::new(indices, rows).map(Arc::new);
        Ok(Self {
            tokens: plan(token_of_row, tokens)?,
            positions: plan(row_of_choice, choices.len())?,
            group_sizes: Arc::new(group_sizes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_that_the_layer_does_not_have_are_refused() {
        assert!(Dispatch::new(&[0, 3, 1, 2], 2, 4).is_ok());
        for expert in [-1, 4, i32::MIN] {
            let error = Dispatch::new(&[0, expert], 1, 4)
                .err()
                .map(|error| error.to_string());
            let expected = format!("a token was routed to expert {expert}, of 4");
            assert_eq!(error, Some(expected));
        }
    }
}
