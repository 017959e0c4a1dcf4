//! The loss and the gradients of an optimizer step, packed and of separate sequences.

use burn::module::Module;
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData, activation};
use burn_tree_nn::{LmHeadOptions, TokenLogProbs};
use burn_tree_train::{BlockContext, TreeModel};
use tree_pack::{OccurrenceBatch, Pack, PackedStep, Segment, Trajectory, TreeBatch, TreeLayout};

/// Log-probability of one prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Index of the trajectory.
    pub trajectory: usize,
    /// Index of the predicted token in it.
    pub token: usize,
    /// Its log-probability.
    pub log_prob: f64,
}

/// The results of a step.
pub struct Step {
    /// Sum over the batches.
    pub loss: f64,
    /// In ascending order of trajectory and token.
    pub predictions: Vec<Prediction>,
    /// Sum over the batches.
    pub gradients: GradientsParams,
}

/// The batches of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batching {
    /// Each pack is a batch of one; gradients are accumulated.
    OneByOne,
    /// All packs are rows of one padded batch.
    Together,
}

/// The settings of a packed step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunOptions {
    /// Batches of one, or one batch.
    pub batching: Batching,
    /// Rows that the head projects at a time; `None` for the default.
    pub chunk_rows: Option<usize>,
}

impl From<Batching> for RunOptions {
    fn from(batching: Batching) -> Self {
        Self {
            batching,
            chunk_rows: None,
        }
    }
}

/// The hidden states after the final norm, `[B, N, hidden]`.
pub fn hidden_states<M: TreeModel>(
    model: &M,
    tokens: Tensor<2, Int>,
    context: &BlockContext,
) -> Tensor<3> {
    let hidden = model.hidden_states(tokens, context);
    hidden.unwrap_or_else(|error| panic!("a block failed: {error}"))
}

/// Log-probabilities of the occurrences of a batch.
pub fn log_probs<M: TreeModel>(
    model: &M,
    batch: &TreeBatch,
    options: LmHeadOptions,
) -> TokenLogProbs {
    let context = BlockContext::new(batch);
    let hidden = hidden_states(model, batch.tokens.clone(), &context);
    context.token_log_probs(hidden, model.head_weight(), &batch.occurrences, options)
}

/// Runs the packs of a step, with `loss` of the log-probabilities of each batch.
pub fn packed_step<M: TreeModel + Module>(
    model: &M,
    packed: &PackedStep,
    run: impl Into<RunOptions>,
    dtype: DType,
    device: &Device,
    loss: impl Fn(TokenLogProbs, &OccurrenceBatch) -> Tensor<1>,
) -> Step {
    let RunOptions {
        batching,
        chunk_rows,
    } = run.into();
    let options = LmHeadOptions {
        chunk_rows,
        ..LmHeadOptions::default()
    };
    let size = if batching == Batching::Together {
        packed.packs.len()
    } else {
        1
    };
    let mut accumulator = GradientsAccumulator::new();
    let mut step = Step {
        loss: 0.0,
        predictions: Vec::new(),
        gradients: GradientsParams::new(),
    };
    for packs in packed.packs.chunks(size.max(1)) {
        let batch = TreeBatch::with_dtype(packs, device, FloatDType::from(dtype));
        let output = log_probs(model, &batch, options);
        let log_probs = output.log_probs.clone();
        let loss = loss(output, &batch.occurrences);
        step.loss += read(&loss)[0];
        let columns = packs.iter().flat_map(|pack| {
            let columns = &pack.occurrences;
            columns.trajectories.iter().zip(&columns.token_indices)
        });
        let values = read(&log_probs);
        assert_eq!(
            values.len(),
            columns.clone().count(),
            "one log-probability per occurrence"
        );
        step.predictions.extend(
            columns
                .zip(values)
                .map(|((&trajectory, &token), log_prob)| {
                    let trajectory = packed.trajectories[trajectory as usize].data_index as usize;
                    Prediction {
                        trajectory,
                        token: token as usize,
                        log_prob,
                    }
                }),
        );
        let gradients = GradientsParams::from_grads(loss.backward(), model);
        accumulator.accumulate(model, gradients);
    }
    step.predictions
        .sort_by_key(|prediction| (prediction.trajectory, prediction.token));
    step.gradients = accumulator.grads();
    step
}

/// Runs every trajectory separately, as an unpadded batch of one through the same model, with all
/// logits and Burn's softmax. The loss is `sum weights[r][t] * nll` of token `t + 1`.
///
/// [`Step::predictions`] has no predictions of weight 0.
pub fn separate_step<M: TreeModel + Module>(
    model: &M,
    trajectories: &[Trajectory],
    weights: &[Vec<f64>],
    dtype: DType,
    device: &Device,
) -> Step {
    separate_step_with(model, trajectories, device, |index| {
        let (tokens, weights) = nonzero(&weights[index]);
        let weights = TensorData::new(weights, [tokens.len()]);
        let weights = Tensor::<1>::from_data(weights, (device, dtype));
        (tokens, move |log_probs: Tensor<1>| {
            -(log_probs * weights).sum()
        })
    })
}

/// Indices of the predicted tokens with a weight, and the weights.
fn nonzero(weights: &[f64]) -> (Vec<usize>, Vec<f64>) {
    let entries = weights
        .iter()
        .enumerate()
        .filter(|(_, weight)| **weight != 0.0);
    entries.map(|(t, &weight)| (t + 1, weight)).unzip()
}

/// Runs every trajectory separately. `part` returns the indices of the trained tokens of a
/// trajectory and the loss of their log-probabilities.
pub fn separate_step_with<M: TreeModel + Module, L: FnOnce(Tensor<1>) -> Tensor<1>>(
    model: &M,
    trajectories: &[Trajectory],
    device: &Device,
    part: impl Fn(usize) -> (Vec<usize>, L),
) -> Step {
    let mut accumulator = GradientsAccumulator::new();
    let mut step = Step {
        loss: 0.0,
        predictions: Vec::new(),
        gradients: GradientsParams::new(),
    };
    for (trajectory, sequence) in trajectories.iter().enumerate() {
        let (tokens, loss) = part(trajectory);
        if tokens.is_empty() {
            continue;
        }
        let rows: Vec<i32> = tokens.iter().map(|&token| token as i32 - 1).collect();
        let rows = Tensor::<1, Int>::from_data(TensorData::new(rows, [tokens.len()]), device);
        let log_probs = separate_log_probs(model, sequence, device).select(0, rows);
        let loss = loss(log_probs.clone());
        step.loss += read(&loss)[0];
        let predictions = tokens.into_iter().zip(read(&log_probs));
        step.predictions
            .extend(predictions.map(|(token, log_prob)| Prediction {
                trajectory,
                token,
                log_prob,
            }));
        let gradients = GradientsParams::from_grads(loss.backward(), model);
        accumulator.accumulate(model, gradients);
    }
    step.gradients = accumulator.grads();
    step
}

/// `[T - 1]` log-probabilities of the tokens of a trajectory after the first, run separately.
pub fn separate_log_probs<M: TreeModel>(
    model: &M,
    trajectory: &Trajectory,
    device: &Device,
) -> Tensor<1> {
    let length = trajectory.tokens.len();
    let batch = TreeBatch::new(&[sequence_pack(&trajectory.tokens)], device);
    let context = BlockContext::new(&batch);
    let hidden = hidden_states(model, batch.tokens.clone(), &context).squeeze_dim::<2>(0);
    let logits = hidden.matmul(model.head_weight().transpose());
    let log_probs = activation::log_softmax(logits, 1).slice_dim(0, 0..length - 1);
    let targets = batch
        .tokens
        .slice([0..1, 1..length])
        .reshape([length - 1, 1]);
    log_probs.gather(1, targets).squeeze_dim(1)
}

/// Smallest difference between the router probabilities of the last chosen and the first rejected
/// expert, over all tokens and blocks of the separate trajectories; infinite for dense models.
pub fn smallest_router_gap<M: TreeModel>(
    model: &M,
    trajectories: &[Trajectory],
    device: &Device,
) -> f64 {
    let mut smallest = f64::INFINITY;
    for trajectory in trajectories {
        let batch = TreeBatch::new(&[sequence_pack(&trajectory.tokens)], device);
        let context = BlockContext::new(&batch);
        let mut x = model.embed(batch.tokens.clone(), &context);
        for index in 0..model.n_blocks() {
            let block = model.block(index, x, &context, None);
            let (y, outputs) = block.expect("a block of a sequence");
            x = y;
            let Some(router) = outputs.router else {
                continue;
            };
            let [_, n_experts] = router.probabilities.dims();
            let [_, chosen] = router.experts.dims();
            let probabilities = router.probabilities.into_data().convert::<f64>();
            let probabilities = probabilities
                .try_into_vec::<f64>()
                .expect("just converted to f64");
            for row in probabilities
                .chunks(n_experts)
                .filter(|_| chosen < n_experts)
            {
                let mut row = row.to_vec();
                row.sort_by(|a, b| b.total_cmp(a));
                smallest = smallest.min(row[chosen - 1] - row[chosen]);
            }
        }
    }
    smallest
}

/// The layout of one sequence: a tree without forks.
pub fn sequence_layout(tokens: &[u32]) -> TreeLayout {
    let length = tokens.len() as u32;
    TreeLayout {
        tokens: tokens.to_vec(),
        position_ids: (0..length).collect(),
        parents: (-1..length as i32 - 1).collect(),
        subtree_ends: vec![length; tokens.len()],
        segments: vec![Segment {
            start: 0,
            end: length,
            parent: None,
        }],
    }
}

fn sequence_pack(tokens: &[u32]) -> Pack {
    Pack {
        layout: sequence_layout(tokens),
        padded_len: tokens.len(),
        ..Pack::default()
    }
}

/// The values of a tensor as f64.
pub fn read(tensor: &Tensor<1>) -> Vec<f64> {
    tensor
        .clone()
        .into_data()
        .convert::<f64>()
        .try_into_vec()
        .expect("just converted to f64")
}

/// Checks that the predictions are the same, with log-probabilities that differ by at most
/// `tolerance`.
///
/// # Errors
/// The worst difference.
pub fn check_predictions(
    found: &[Prediction],
    expected: &[Prediction],
    tolerance: f64,
) -> Result<f64, String> {
    let keys = |list: &[Prediction]| -> Vec<_> {
        list.iter()
            .map(|prediction| (prediction.trajectory, prediction.token))
            .collect()
    };
    if keys(found) != keys(expected) {
        return Err(format!(
            "predictions {:?}, expected {:?}",
            keys(found),
            keys(expected)
        ));
    }
    let mut worst = 0.0;
    for (found, expected) in found.iter().zip(expected) {
        let difference = (found.log_prob - expected.log_prob).abs();
        if difference.is_nan() || difference > tolerance {
            return Err(format!("{found:?}, expected {}", expected.log_prob));
        }
        worst = difference.max(worst);
    }
    Ok(worst)
}
