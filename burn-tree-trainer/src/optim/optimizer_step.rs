//! One optimizer step: the gradients of all packs, clipped by their global norm, and the update.

use std::time::Instant;

use burn::backend::ExecutionError;
use burn::module::Module;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Tensor};
use burn_tree_nn::{EntropyOutput, LmHeadOptions};
use burn_tree_train::{
    StepGradients, StepOptions, TreeModel, check_device, check_parameters, step_forward,
    step_gradients,
};
use thiserror::Error;
use tree_pack::PackedStep;

use crate::loss::{Metrics, StepLoss, TrainingLoss};
use crate::optim::clip::{GlobalNorm, clip_global_norm, global_norm};
use burn_tree_models::Precision;

/// The result of an optimizer step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepOutcome {
    /// Loss of the step before the update.
    pub loss: f64,
    /// Metrics of the loss.
    pub metrics: Metrics,
    /// Global norm of the gradients before clipping.
    pub gradient_norm: f64,
    /// Wall time in seconds.
    pub seconds: f64,
    /// Module paths of trained parameters that got no gradient.
    pub without_gradient: Vec<String>,
}

/// A failed optimizer step. Model and optimizer are unchanged.
#[derive(Debug, Error)]
pub enum OptimizerStepError {
    /// The forward or backward pass failed.
    #[error(transparent)]
    Passes(#[from] burn_tree_train::StepError),
    /// The loss or the gradient norm is infinite or NaN.
    #[error(
        "the loss is {loss} and the gradient norm {gradient_norm}: the parameters were not updated"
    )]
    NotFinite {
        /// Loss of the step.
        loss: f64,
        /// Global norm of the gradients.
        gradient_norm: f64,
    },
    /// The device failed while it updated the parameters.
    #[error("the device failed: {reason}; the parameters were not updated")]
    Device {
        /// The error of the device.
        reason: String,
    },
}

/// A model and its optimizer.
#[derive(Clone)]
pub struct Trainer<M> {
    /// The model, on an autodiff device.
    pub model: M,
    /// The optimizer.
    pub optimizer: ModuleOptimizer,
    /// Largest global norm of the gradients; not clipped if `None`.
    pub max_gradient_norm: Option<f64>,
    /// Dtypes of the forward and backward pass.
    pub precision: Precision,
    /// How the forward and backward passes are computed.
    pub options: StepOptions,
    /// The device of the model.
    pub device: Device,
}

impl<M: Module + TreeModel> Trainer<M> {
    /// Computes one optimizer step. The weights of the packs contain the denominator of the whole
    /// step, so the losses and gradients of the packs are summed.
    ///
    /// # Errors
    /// [`OptimizerStepError`] if the packs are inconsistent, the loss or the gradients are not
    /// finite, or the device fails.
    pub fn step(
        &mut self,
        step: &PackedStep,
        loss: &impl TrainingLoss,
        learning_rate: ModuleLearningRate,
    ) -> Result<StepOutcome, OptimizerStepError> {
        let start = Instant::now();
        let worker = self.precision.shadow(&self.model);
        let options = &self.options;
        let mut step_loss = loss.step_loss(step);
        collect_first(&mut step_loss, &worker, step, options, &self.device)?;
        let StepGradients {
            losses,
            gradients,
            without_gradient,
        } = step_gradients(
            &worker,
            step,
            options,
            &self.device,
            |_, log_probs, occurrences| step_loss.of_pack(log_probs, occurrences),
        )?;
        drop(worker);
        // All work is submitted before the first wait, so that the device is never idle. If the
        // loss or the norm is not finite, the old parameters are restored.
        let before = (self.model.clone(), self.optimizer.clone());
        let norm = self.update(gradients, learning_rate);
        let read = self.read(losses, norm);
        let (loss, gradient_norm) = match read {
            Ok((loss, norm)) if loss.is_finite() && norm.is_finite() => (loss, norm),
            failed => {
                (self.model, self.optimizer) = before;
                return Err(match failed {
                    Ok((loss, gradient_norm)) => OptimizerStepError::NotFinite {
                        loss,
                        gradient_norm,
                    },
                    Err(error) => OptimizerStepError::Device {
                        reason: error.to_string(),
                    },
                });
            }
        };
        Ok(StepOutcome {
            loss,
            metrics: step_loss.metrics(),
            gradient_norm,
            seconds: start.elapsed().as_secs_f64(),
            without_gradient,
        })
    }

    /// The loss and the gradient norm, after waiting for all results including the parameters.
    fn read(
        &self,
        losses: Vec<Tensor<1>>,
        norm: Option<GlobalNorm>,
    ) -> Result<(f64, f64), burn_tree_train::StepError> {
        check_device(&self.device)?;
        let loss = sum_on_host(losses)?;
        let norm = norm.map_or(Ok(0.0), GlobalNorm::read)?;
        check_parameters(&self.model)?;
        Ok((loss, norm))
    }

    /// The loss of a step and its metrics without gradients, in the dtypes of training.
    ///
    /// # Errors
    /// As [`step_forward`].
    pub fn evaluate(
        &self,
        step: &PackedStep,
        loss: &impl TrainingLoss,
    ) -> Result<(f64, Metrics), burn_tree_train::StepError> {
        let worker = self.precision.shadow(&self.model);
        let options = &self.options;
        let mut step_loss = loss.step_loss(step);
        collect_first(&mut step_loss, &worker, step, options, &self.device)?;
        let losses = step_forward(
            &worker,
            step,
            options,
            &self.device,
            |_, log_probs, occurrences| step_loss.of_pack(log_probs, occurrences),
        )?;
        check_device(&self.device)?;
        Ok((sum_on_host(losses)?, step_loss.metrics()))
    }

    /// Clips the gradients and updates the parameters; returns the norm before clipping.
    pub fn update(
        &mut self,
        gradients: GradientsParams,
        learning_rate: ModuleLearningRate,
    ) -> Option<GlobalNorm> {
        let norm = global_norm(&self.model, &gradients);
        let gradients = match (self.max_gradient_norm, &norm) {
            (Some(max), Some(norm)) => clip_global_norm(&self.model, gradients, &norm.norm, max),
            _ => gradients,
        };
        self.model = self
            .optimizer
            .step(learning_rate, self.model.clone(), gradients);
        norm
    }
}

/// Log-probabilities of the occurrences of every pack, without gradients.
///
/// # Errors
/// As [`step_forward`].
pub fn log_probs<M: Module + TreeModel>(
    model: &M,
    step: &PackedStep,
    options: &StepOptions,
    device: &Device,
) -> Result<Vec<Tensor<1>>, burn_tree_train::StepError> {
    let options = without_entropy(options);
    step_forward(model, step, &options, device, |_, output, _| {
        output.log_probs
    })
}

/// Runs the additional forward pass over all packs, if the loss needs one.
fn collect_first<M: Module + TreeModel>(
    loss: &mut impl StepLoss,
    model: &M,
    step: &PackedStep,
    options: &StepOptions,
    device: &Device,
) -> Result<(), burn_tree_train::StepError> {
    if loss.needs_first_pass() {
        let options = without_entropy(options);
        step_forward(model, step, &options, device, |_, output, occurrences| {
            loss.collect(&output, occurrences);
        })?;
    }
    Ok(())
}

fn without_entropy(options: &StepOptions) -> StepOptions {
    StepOptions {
        head: LmHeadOptions {
            entropy: EntropyOutput::None,
            ..options.head
        },
        ..options.clone()
    }
}

/// The sum of tensors of one element each. They are read one by one: concatenating them would hide
/// a tensor that the device could not compute.
fn sum_on_host(numbers: Vec<Tensor<1>>) -> Result<f64, ExecutionError> {
    let read = |number: Tensor<1>| {
        let data = number.try_into_data()?.convert::<f64>();
        Ok(data.iter::<f64>().sum::<f64>())
    };
    numbers.into_iter().map(read).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::Supervised;
    use crate::optim::adamw::{AdamWOptions, adamw};
    use burn::tensor::FloatDType;
    use burn_tree_models::{CausalLm, ModelConfig};
    use burn_tree_nn::TokenLogProbs;
    use burn_tree_train::sft_loss;
    use tree_pack::{OccurrenceBatch, PackOptions, Trajectory, build_forests, pack_step};

    const ADAMW: AdamWOptions = AdamWOptions {
        beta1: 0.9,
        beta2: 0.95,
        epsilon: 1e-8,
        weight_decay: 0.5,
    };

    fn config(initializer_range: f64) -> ModelConfig {
        ModelConfig {
            hidden_size: 16,
            intermediate_size: 24,
            num_hidden_layers: 1,
            num_attention_heads: 2,
            num_key_value_heads: 1,
            head_dim: 8,
            rotary_dim: 8,
            initializer_range,
            ..ModelConfig::named("tiny", 20).unwrap()
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
        sft_loss(log_probs, occurrences)
    }

    #[test]
    fn a_step_of_several_packs_is_that_of_one() {
        let device = Device::flex().autodiff();
        let model = CausalLm::random(&config(0.2), 1, FloatDType::F32, &device);
        let (one, four) = (packs(64), packs(9));
        assert_eq!((one.packs.len(), four.packs.len()), (1, 4));
        let options = StepOptions::default();
        let gradients = |step: &PackedStep| {
            step_gradients(&model, step, &options, &device, supervised).unwrap()
        };
        let (one, of_four) = (gradients(&one), gradients(&four));
        let [loss_of_one, loss_of_four] =
            [one.losses, of_four.losses].map(|losses| sum_on_host(losses).unwrap());
        // Sums in f32 in another order.
        assert!((loss_of_one - loss_of_four).abs() < 1e-6 * loss_of_one);
        let norms = [&one.gradients, &of_four.gradients].map(|gradients| {
            let norm = global_norm(&model, gradients).unwrap();
            norm.read().unwrap()
        });
        assert!((norms[0] - norms[1]).abs() < 1e-5 * norms[0], "{norms:?}");
        let trainer = Trainer {
            optimizer: adamw(&model, &ADAMW, &device),
            model,
            max_gradient_norm: None,
            precision: Precision::F32,
            options,
            device,
        };
        let (loss, _) = trainer.evaluate(&four, &Supervised).unwrap();
        assert!((loss - loss_of_four).abs() < 1e-6 * loss);
    }

    /// So that the ratio of new to old probabilities is exactly 1 before the first update.
    #[test]
    fn log_probs_without_gradients_are_those_of_a_step() {
        let device = Device::flex().autodiff();
        let model = CausalLm::random(&config(0.2), 1, FloatDType::F32, &device);
        let step = packs(18);
        let options = StepOptions::default();
        let expected = log_probs(&model, &step, &options, &device).unwrap();
        let mut trained = Vec::new();
        let collect = |_, log_probs: TokenLogProbs, occurrences: &OccurrenceBatch| {
            trained.push(log_probs.log_probs.clone().inner());
            sft_loss(log_probs, occurrences)
        };
        step_gradients(&model, &step, &options, &device, collect).unwrap();
        assert_eq!((trained.len(), expected.len()), (2, 2));
        for (trained, expected) in trained.into_iter().zip(expected) {
            assert_eq!(trained.into_data(), expected.into_data());
        }
    }

    #[test]
    fn a_step_that_is_not_finite_changes_nothing() {
        let device = Device::flex().autodiff();
        let model = CausalLm::random(&config(1e30), 1, FloatDType::F32, &device);
        let before = model.embed_tokens.weight.val().into_data();
        let optimizer = adamw(&model, &ADAMW, &device);
        let mut trainer = Trainer {
            model,
            optimizer,
            max_gradient_norm: Some(1.0),
            precision: Precision::F32,
            options: StepOptions::default(),
            device,
        };
        let error = trainer
            .step(&packs(64), &Supervised, 1e-3.into())
            .unwrap_err();
        assert!(error.to_string().contains("not updated"), "{error}");
        assert_eq!(trainer.model.embed_tokens.weight.val().into_data(), before);
    }
}
