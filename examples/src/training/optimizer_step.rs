//! One optimizer step: gradients of all its packs, clipped together, and AdamW's update.

use std::time::Instant;

use burn::module::Module;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::optim::{GradientsAccumulator, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, FloatDType, Tensor};
use burn_tree_train::{
    BlockContext, LmHeadOptions, TokenLogProbs, TreeModel, shadow, token_log_probs, widen_gradients,
};
use thiserror::Error;
use tree_pack::{OccurrenceBatch, Pack, PackedStep, TreeBatch};

use super::clip::{clip_global_norm, global_norm};
use super::objective::{Metrics, Objective, StepLoss};
use crate::qwen3::Qwen3;

/// What an optimizer step reports.
#[derive(Clone, Debug, PartialEq)]
pub struct StepOutcome {
    /// Loss of the step before the update.
    pub loss: f64,
    /// What the objective measured.
    pub metrics: Metrics,
    /// Global norm of the gradients before clipping.
    pub gradient_norm: f64,
    /// Wall time in seconds.
    pub seconds: f64,
}

/// A step that was not made; the model is unchanged.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum StepError {
    /// The loss or the gradients overflowed or are undefined.
    #[error("the loss is {loss} and the gradients' norm {gradient_norm}: no step was made")]
    NotFinite {
        /// Loss of the step.
        loss: f64,
        /// Global norm of the gradients.
        gradient_norm: f64,
    },
    /// The device failed while it updated the parameters.
    #[error("the device failed: {reason}; no step was made")]
    Device {
        /// What it reports.
        reason: String,
    },
}

/// Dtypes in which a model computes; its norms, the vectors of its gates, parameters and optimizer
/// stay as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Precision {
    /// The blocks.
    pub blocks: FloatDType,
    /// Embedding and head, which may be one matrix.
    pub head: FloatDType,
}

impl Precision {
    /// Everything in f32.
    pub const F32: Self = Self {
        blocks: FloatDType::F32,
        head: FloatDType::F32,
    };

    /// The copy of `master` that computes; nothing is copied for what has its dtype already.
    pub fn shadow<M: Module>(self, master: &M) -> M {
        let vector = Qwen3::is_vector;
        let head = |path: &str| path.contains("lm_head") || path.contains("embed_tokens");
        let blocks = shadow(master, self.blocks, |path| vector(path) || head(path));
        shadow(&blocks, self.head, |path| vector(path) || !head(path))
    }
}

/// A model in training with its optimizer.
#[derive(Clone)]
pub struct Trainer<M> {
    /// The model, on an autodiff device.
    pub model: M,
    /// Its optimizer.
    pub optimizer: ModuleOptimizer,
    /// Largest global norm of the gradients; not clipped if `None`.
    pub max_gradient_norm: Option<f64>,
    /// Dtypes of the forward and backward pass.
    pub precision: Precision,
    /// How rows are projected on the vocabulary.
    pub head: LmHeadOptions,
    /// The device of the model.
    pub device: Device,
}

impl<M: Module + TreeModel> Trainer<M> {
    /// Makes one optimizer step on the packs that [`tree_pack`] planned for it. Their weights
    /// contain the denominator of the whole step, so losses and gradients of the packs are added.
    ///
    /// # Errors
    /// [`StepError`] if the loss or the gradients are not finite, or the device fails.
    pub fn step(
        &mut self,
        step: &PackedStep,
        objective: &impl Objective,
        learning_rate: ModuleLearningRate,
    ) -> Result<StepOutcome, StepError> {
        let start = Instant::now();
        let worker = self.precision.shadow(&self.model);
        let (packs, head) = (&step.packs, self.head);
        let first_pass = objective
            .needs_first_pass(step)
            .then(|| log_probs(&worker, packs, head, &self.device));
        let mut loss_of_step = objective.loss(step, first_pass);
        let loss_of_pack = |pack, log_probs, occurrences: &OccurrenceBatch| {
            loss_of_step.of_pack(pack, log_probs, occurrences)
        };
        let (losses, gradients) = gradients(&worker, packs, head, &self.device, loss_of_pack);
        drop(worker);
        // Everything is submitted before anything is waited for: the device computes without a
        // break. If the numbers turn out not to be finite, the step is taken back.
        let before = (self.model.clone(), self.optimizer.clone());
        let norm = self.update(gradients, learning_rate);
        let loss = sum_on_host(losses);
        let gradient_norm = norm.map_or(0.0, |norm| norm.into_scalar::<f64>());
        if !loss.is_finite() || !gradient_norm.is_finite() {
            (self.model, self.optimizer) = before;
            return Err(StepError::NotFinite {
                loss,
                gradient_norm,
            });
        }
        if let Err(error) = self.device.sync() {
            (self.model, self.optimizer) = before;
            return Err(StepError::Device {
                reason: error.to_string(),
            });
        }
        Ok(StepOutcome {
            loss,
            metrics: loss_of_step.metrics(),
            gradient_norm,
            seconds: start.elapsed().as_secs_f64(),
        })
    }

    /// Clips the gradients and updates the parameters; returns the norm before clipping, `[1]`.
    pub fn update(
        &mut self,
        gradients: GradientsParams,
        learning_rate: ModuleLearningRate,
    ) -> Option<Tensor<1>> {
        let norm = global_norm(&self.model, &gradients);
        let gradients = match (self.max_gradient_norm, &norm) {
            (Some(max), Some(norm)) => clip_global_norm(&self.model, gradients, norm, max),
            _ => gradients,
        };
        self.model = self
            .optimizer
            .step(learning_rate, self.model.clone(), gradients);
        norm
    }
}

/// Loss of each pack of one optimizer step, and the gradients of their sum in at least f32.
/// `loss_of` makes the loss `[1]` of a pack, given by its index, from its log-probabilities.
pub fn gradients<M: Module + TreeModel>(
    model: &M,
    packs: &[Pack],
    head: LmHeadOptions,
    device: &Device,
    mut loss_of: impl FnMut(usize, TokenLogProbs, &OccurrenceBatch) -> Tensor<1>,
) -> (Vec<Tensor<1>>, GradientsParams) {
    let mut accumulator = GradientsAccumulator::new();
    let mut losses = Vec::with_capacity(packs.len());
    for (index, pack) in packs.iter().enumerate() {
        let (log_probs, occurrences) = forward(model, pack, head, device);
        let loss = loss_of(index, log_probs, &occurrences);
        losses.push(loss.clone().inner());
        let gradients = GradientsParams::from_grads(loss.backward(), model);
        accumulator.accumulate(model, widen_gradients(gradients, model));
    }
    (losses, accumulator.grads())
}

/// Log-probabilities of the occurrences of every pack, without gradients. They are computed by the
/// same operations as those of a training step.
pub fn log_probs<M: Module + TreeModel>(
    model: &M,
    packs: &[Pack],
    head: LmHeadOptions,
    device: &Device,
) -> Vec<Tensor<1>> {
    let model = model.valid();
    let device = device.clone().inner();
    let head = LmHeadOptions {
        entropy: false,
        ..head
    };
    let log_probs = |pack| forward(&model, pack, head, &device).0.log_probs;
    packs.iter().map(log_probs).collect()
}

/// Loss of packs without gradients.
pub fn evaluate<M: Module + TreeModel>(
    model: &M,
    step: &PackedStep,
    objective: &impl Objective,
    head: LmHeadOptions,
    device: &Device,
) -> (f64, Metrics) {
    let first_pass = objective
        .needs_first_pass(step)
        .then(|| log_probs(model, &step.packs, head, device));
    let mut loss = objective.loss(step, first_pass);
    let model = model.valid();
    let device = device.clone().inner();
    let losses = step.packs.iter().enumerate().map(|(index, pack)| {
        let (log_probs, occurrences) = forward(&model, pack, head, &device);
        loss.of_pack(index, log_probs, &occurrences)
    });
    let total = sum_on_host(losses.collect());
    (total, loss.metrics())
}

/// Log-probabilities of the occurrences of a pack.
pub fn forward<M: TreeModel>(
    model: &M,
    pack: &Pack,
    head: LmHeadOptions,
    device: &Device,
) -> (TokenLogProbs, OccurrenceBatch) {
    let batch = TreeBatch::new(std::slice::from_ref(pack), device);
    let context = BlockContext::new(&batch);
    let hidden = model.hidden_states(batch.tokens, &context);
    let log_probs = token_log_probs(hidden, model.head_weight(), &batch.occurrences, head);
    (log_probs, batch.occurrences)
}

/// The sum of losses of one element each, read in one transfer.
fn sum_on_host(losses: Vec<Tensor<1>>) -> f64 {
    if losses.is_empty() {
        return 0.0;
    }
    let losses = Tensor::cat(losses, 0).into_data().convert::<f64>();
    losses.iter::<f64>().sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qwen3::Qwen3Config;
    use crate::training::adamw::{AdamWOptions, adamw};
    use crate::training::objective::Supervised;
    use burn_tree_train::sft_loss;
    use tree_pack::{PackOptions, Trajectory, build_forests, pack_step};

    const ADAMW: AdamWOptions = AdamWOptions {
        beta1: 0.9,
        beta2: 0.95,
        epsilon: 1e-8,
        weight_decay: 0.5,
    };

    fn config(initializer_range: f64) -> Qwen3Config {
        Qwen3Config {
            hidden_size: 16,
            intermediate_size: 24,
            num_hidden_layers: 1,
            num_attention_heads: 2,
            num_key_value_heads: 1,
            head_dim: 8,
            rotary_dim: 8,
            initializer_range,
            ..Qwen3Config::named("tiny", 20).unwrap()
        }
    }

    fn packs(token_budget: usize) -> PackedStep {
        let trajectories: Vec<_> = (0..4u32)
            .map(|task| {
                let tokens = (0..9).map(|index| (3 * index + 5 * task) % 20).collect();
                Trajectory::new(format!("t{task}"), "0", tokens, vec![true; 9])
            })
            .collect();
        let forests = build_forests(&trajectories).unwrap();
        pack_step(&trajectories, &forests, &PackOptions::new(token_budget)).unwrap()
    }

    fn supervised(_: usize, log_probs: TokenLogProbs, occurrences: &OccurrenceBatch) -> Tensor<1> {
        sft_loss(log_probs.log_probs, occurrences)
    }

    #[test]
    fn a_step_of_several_packs_is_that_of_one() {
        let device = Device::flex().autodiff();
        let model = Qwen3::random(&config(0.2), 1, FloatDType::F32, &device);
        let (one, four) = (packs(64), packs(9));
        assert_eq!((one.packs.len(), four.packs.len()), (1, 4));
        let head = LmHeadOptions::default();
        let (losses_of_one, gradients_of_one) =
            gradients(&model, &one.packs, head, &device, supervised);
        let (losses_of_four, gradients_of_four) =
            gradients(&model, &four.packs, head, &device, supervised);
        let [loss_of_one, loss_of_four] = [losses_of_one, losses_of_four].map(sum_on_host);
        // Sums in f32 in another order.
        assert!((loss_of_one - loss_of_four).abs() < 1e-6 * loss_of_one);
        let norms = [&gradients_of_one, &gradients_of_four].map(|gradients| {
            let norm = global_norm(&model, gradients).unwrap();
            norm.into_scalar::<f64>()
        });
        assert!((norms[0] - norms[1]).abs() < 1e-5 * norms[0], "{norms:?}");
        let (loss, _) = evaluate(&model, &four, &Supervised, head, &device);
        assert!((loss - loss_of_four).abs() < 1e-6 * loss);
    }

    /// So that the ratio of new to old probabilities is exactly 1 before the first update.
    #[test]
    fn log_probs_without_gradients_are_those_of_a_step() {
        let device = Device::flex().autodiff();
        let model = Qwen3::random(&config(0.2), 1, FloatDType::F32, &device);
        let step = packs(18);
        let head = LmHeadOptions::default();
        let expected = log_probs(&model, &step.packs, head, &device);
        let mut trained = Vec::new();
        let collect = |_, log_probs: TokenLogProbs, occurrences: &OccurrenceBatch| {
            trained.push(log_probs.log_probs.clone().inner());
            sft_loss(log_probs.log_probs, occurrences)
        };
        gradients(&model, &step.packs, head, &device, collect);
        assert_eq!((trained.len(), expected.len()), (2, 2));
        for (trained, expected) in trained.into_iter().zip(expected) {
            assert_eq!(trained.into_data(), expected.into_data());
        }
    }

    #[test]
    fn a_step_that_is_not_finite_changes_nothing() {
        let device = Device::flex().autodiff();
        let model = Qwen3::random(&config(1e30), 1, FloatDType::F32, &device);
        let before = model.embed_tokens.weight.val().into_data();
        let optimizer = adamw(&model, &ADAMW, &device);
        let mut trainer = Trainer {
            model,
            optimizer,
            max_gradient_norm: Some(1.0),
            precision: Precision::F32,
            head: LmHeadOptions::default(),
            device,
        };
        let error = trainer
            .step(&packs(64), &Supervised, 1e-3.into())
            .unwrap_err();
        assert!(error.to_string().contains("no step was made"), "{error}");
        assert_eq!(trainer.model.embed_tokens.weight.val().into_data(), before);
    }
}
