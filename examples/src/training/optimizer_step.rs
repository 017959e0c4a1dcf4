//! One optimizer step: gradients of all its packs, clipped together, and AdamW's update.

use std::time::Instant;

use burn::module::{Module, ModuleVisitor, Param, ParamGroup};
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, FloatDType, Tensor};
use burn_tree_train::{
    BlockContext, LmHeadOptions, TreeModel, sft_loss, shadow, token_log_probs, widen_gradients,
};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tree_pack::{Pack, TreeBatch};

use super::clip::{clip_global_norm, global_norm};

/// AdamW's settings.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamWOptions {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Decoupled weight decay of matrices. Norm weights are not decayed.
    pub weight_decay: f64,
}

/// Burn's AdamW for the parameters of `model`, as they are identified now.
pub fn adamw<M: Module>(model: &M, options: &AdamWOptions) -> ModuleOptimizer {
    let config = AdamWConfig::new()
        .with_beta_1(options.beta1 as f32)
        .with_beta_2(options.beta2 as f32)
        .with_epsilon(options.epsilon as f32);
    let decayed = config
        .clone()
        .with_weight_decay(options.weight_decay as f32);
    let mut vectors = Vectors(Vec::new());
    model.visit(&mut vectors);
    decayed.init().with_group(
        ParamGroup::from_ids(vectors.0),
        config.with_weight_decay(0.0).build(),
        None,
    )
}

/// Collects the parameters that are not matrices.
struct Vectors(Vec<burn::module::ParamId>);

impl ModuleVisitor for Vectors {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if D < 2 {
            self.0.push(param.id);
        }
    }
}

/// What an optimizer step reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepOutcome {
    /// Loss of the step before the update.
    pub loss: f64,
    /// Global norm of the gradients before clipping.
    pub gradient_norm: f64,
    /// Wall time in seconds.
    pub seconds: f64,
}

/// A step that was not made; the model is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum StepError {
    /// The loss or the gradients overflowed or are undefined.
    #[error("the loss is {loss} and the gradients' norm {gradient_norm}: no step was made")]
    NotFinite {
        /// Loss of the step.
        loss: f64,
        /// Global norm of the gradients.
        gradient_norm: f64,
    },
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
    /// Dtype of the forward and backward pass; norms and the head stay as they are.
    pub compute_dtype: FloatDType,
    /// The device of the model.
    pub device: Device,
}

impl<M: Module + TreeModel> Trainer<M> {
    /// Makes one optimizer step on the packs that [`tree_pack`] planned for it. Their weights
    /// contain the denominator of the whole step, so losses and gradients of the packs are added.
    ///
    /// # Errors
    /// [`StepError`] if the loss or the gradients are not finite.
    pub fn step(
        &mut self,
        packs: &[Pack],
        learning_rate: ModuleLearningRate,
    ) -> Result<StepOutcome, StepError> {
        let start = Instant::now();
        // Does nothing if the parameters have that dtype already.
        let worker = shadow(&self.model, self.compute_dtype, stays_wide);
        let (loss, gradients) = gradients(&worker, packs, &self.device);
        let gradient_norm = global_norm(&self.model, &gradients);
        if !loss.is_finite() || !gradient_norm.is_finite() {
            return Err(StepError::NotFinite {
                loss,
                gradient_norm,
            });
        }
        let gradients = match self.max_gradient_norm {
            Some(max) => clip_global_norm(&self.model, gradients, gradient_norm, max),
            None => gradients,
        };
        self.model = self
            .optimizer
            .step(learning_rate, self.model.clone(), gradients);
        let _ = self.device.sync();
        Ok(StepOutcome {
            loss,
            gradient_norm,
            seconds: start.elapsed().as_secs_f64(),
        })
    }
}

/// Norms, the head and the embedding (which may be the head) are not rounded.
fn stays_wide(path: &str) -> bool {
    ["norm", "lm_head", "embed_tokens"]
        .iter()
        .any(|name| path.contains(name))
}

/// Loss and gradients of one optimizer step, pack by pack; the gradients in at least f32.
pub fn gradients<M: Module + TreeModel>(
    model: &M,
    packs: &[Pack],
    device: &Device,
) -> (f64, GradientsParams) {
    let mut accumulator = GradientsAccumulator::new();
    let mut losses = Vec::with_capacity(packs.len());
    for pack in packs {
        let loss = loss_of_pack(model, pack, device);
        losses.push(loss.clone().inner());
        let gradients = GradientsParams::from_grads(loss.backward(), model);
        accumulator.accumulate(model, widen_gradients(gradients, model));
    }
    (sum_on_host(losses), accumulator.grads())
}

/// Loss of packs without gradients.
pub fn evaluate<M: Module + TreeModel>(model: &M, packs: &[Pack], device: &Device) -> f64 {
    let model = model.valid();
    let device = device.clone().inner();
    sum_on_host(
        packs
            .iter()
            .map(|pack| loss_of_pack(&model, pack, &device))
            .collect(),
    )
}

/// The part of the step's loss that comes from one pack, `[1]`.
pub fn loss_of_pack<M: TreeModel>(model: &M, pack: &Pack, device: &Device) -> Tensor<1> {
    let batch = TreeBatch::new(std::slice::from_ref(pack), device);
    let context = BlockContext::new(&batch);
    let hidden = model.hidden_states(batch.tokens, &context);
    let options = LmHeadOptions::default();
    let log_probs = token_log_probs(hidden, model.head_weight(), &batch.occurrences, options);
    sft_loss(log_probs.log_probs, &batch.occurrences)
}

fn sum_on_host(losses: Vec<Tensor<1>>) -> f64 {
    losses
        .into_iter()
        .map(|loss| loss.into_scalar::<f64>())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qwen3::{Qwen3, Qwen3Config};
    use burn::nn::LinearConfig;
    use tree_pack::{PackOptions, Trajectory, build_forests, pack_step};

    const ADAMW: AdamWOptions = AdamWOptions {
        beta1: 0.9,
        beta2: 0.95,
        epsilon: 1e-8,
        weight_decay: 0.5,
    };

    #[test]
    fn matrices_decay_and_vectors_do_not() {
        let device = Device::flex().autodiff();
        let layer = LinearConfig::new(1, 1).init(&device);
        let mut gradients = GradientsParams::new();
        let plain = device.clone().inner();
        let bias = layer.bias.as_ref().unwrap();
        gradients.register(layer.weight.id, Tensor::<2>::zeros([1, 1], &plain));
        gradients.register(bias.id, Tensor::<1>::zeros([1], &plain));
        let before = (layer.weight.val(), bias.val());
        let layer = adamw(&layer, &ADAMW).step(0.1, layer, gradients);
        let ratio = (layer.weight.val() / before.0).into_scalar::<f64>();
        assert!((ratio - 0.95).abs() < 1e-6, "{ratio}");
        assert_eq!(
            layer.bias.unwrap().val().into_scalar::<f64>(),
            before.1.into_scalar::<f64>()
        );
    }

    fn config(initializer_range: f64) -> Qwen3Config {
        Qwen3Config {
            hidden_size: 16,
            intermediate_size: 24,
            num_hidden_layers: 1,
            num_attention_heads: 2,
            num_key_value_heads: 1,
            head_dim: 8,
            sliding_windows: vec![None],
            initializer_range,
            ..Qwen3Config::named("tiny", 20).unwrap()
        }
    }

    fn packs(token_budget: usize) -> Vec<Pack> {
        let trajectories: Vec<_> = (0..4u32)
            .map(|task| {
                let tokens = (0..9).map(|index| (3 * index + 5 * task) % 20).collect();
                Trajectory::new(format!("t{task}"), "0", tokens, vec![true; 9])
            })
            .collect();
        let forests = build_forests(&trajectories).unwrap();
        pack_step(&trajectories, &forests, &PackOptions::new(token_budget))
            .unwrap()
            .packs
    }

    #[test]
    fn a_step_of_several_packs_is_that_of_one() {
        let device = Device::flex().autodiff();
        let model = Qwen3::random(&config(0.2), 1, FloatDType::F32, &device);
        let (one, four) = (packs(64), packs(9));
        assert_eq!((one.len(), four.len()), (1, 4));
        let (loss_of_one, gradients_of_one) = gradients(&model, &one, &device);
        let (loss_of_four, gradients_of_four) = gradients(&model, &four, &device);
        // Sums in f32 in another order.
        assert!((loss_of_one - loss_of_four).abs() < 1e-6 * loss_of_one);
        let norms = [&gradients_of_one, &gradients_of_four].map(|g| global_norm(&model, g));
        assert!((norms[0] - norms[1]).abs() < 1e-5 * norms[0], "{norms:?}");
        let loss = evaluate(&model, &four, &device);
        assert!((loss - loss_of_four).abs() < 1e-6 * loss);
    }

    #[test]
    fn a_step_that_is_not_finite_changes_nothing() {
        let device = Device::flex().autodiff();
        let model = Qwen3::random(&config(1e30), 1, FloatDType::F32, &device);
        let before = model.embed_tokens.weight.val().into_data();
        let optimizer = adamw(&model, &ADAMW);
        let mut trainer = Trainer {
            model,
            optimizer,
            max_gradient_norm: Some(1.0),
            compute_dtype: FloatDType::F32,
            device,
        };
        let error = trainer.step(&packs(64), 1e-3.into()).unwrap_err();
        assert!(error.to_string().contains("no step was made"), "{error}");
        assert_eq!(trainer.model.embed_tokens.weight.val().into_data(), before);
    }
}
