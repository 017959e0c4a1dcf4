//! A variant of a run: a plan (trees or separate trajectories) with its own model and optimizer.
//! With `--compare` a run has two, which train side by side.

use std::time::Instant;

use burn::module::Module;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn_tree_train::{ModelCost, StepBound, StepCounts, StepTime, StepWork, TreeModel};
use thiserror::Error;
use tree_pack::PackError;

use crate::loss::TrainingLoss;
use crate::optim::optimizer_step::{OptimizerStepError, Trainer};
use crate::plan::{Sharing, StepPlan};
use crate::report::metrics::{ComparisonRecord, StepRecord, VariantRecord};
use crate::run::log_probs::{self, LogProbs};

/// A failed step of a variant.
#[derive(Debug, Error)]
pub enum VariantError {
    /// The trajectories cannot be packed.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// The log-probabilities of the trajectories cannot be computed.
    #[error(transparent)]
    LogProbs(#[from] burn_tree_train::StepError),
    /// The optimizer step failed.
    #[error("step {step}: {error}", step = step + 1)]
    Step {
        /// The step, counted from 0.
        step: usize,
        /// The cause.
        error: OptimizerStepError,
    },
}

/// A plan, a loss, and the trainer that runs the steps of the plan.
pub struct Variant<M, L> {
    /// The model, its optimizer and their device.
    pub trainer: Trainer<M>,
    /// The steps and their data.
    pub plan: StepPlan,
    loss: L,
    cost: ModelCost,
    prediction: Option<TimePrediction>,
    /// Result of the last step.
    without_gradient: Vec<String>,
}

/// The inputs of the prediction of step times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimePrediction {
    /// Seconds per unit of each kind of work.
    pub time: StepTime,
    /// Whether the model has recurrent layers.
    pub recurrent: bool,
}

impl<M: Module + TreeModel, L: TrainingLoss> Variant<M, L> {
    /// A pass over the steps of `plan`, whose FLOPs are counted with `cost`.
    pub fn new(plan: StepPlan, loss: L, trainer: Trainer<M>, cost: ModelCost) -> Self {
        Self {
            trainer,
            plan,
            loss,
            cost,
            prediction: None,
            without_gradient: Vec::new(),
        }
    }

    /// Module paths of trained parameters that got no gradient in the last step.
    pub fn without_gradient(&self) -> &[String] {
        &self.without_gradient
    }

    /// The same variant, which also records the predicted time of each step.
    pub fn with_prediction(self, prediction: Option<TimePrediction>) -> Self {
        Self { prediction, ..self }
    }

    /// Whether its steps share prefixes.
    pub fn sharing(&self) -> Sharing {
        self.plan.sharing()
    }

    /// Computes the reference log-probabilities of all data with the model of `reference`. Returns
    /// the elapsed seconds.
    ///
    /// # Errors
    /// [`VariantError`] if the trajectories cannot be packed.
    pub fn compute_reference(&mut self, reference: &Trainer<M>) -> Result<f64, VariantError> {
        let start = Instant::now();
        let steps = self.plan.in_steps();
        log_probs::compute(LogProbs::Reference, &mut self.plan, &steps, reference)?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Packs and computes step `step`, counted from 0. Packing is not timed: it takes milliseconds
    /// and could run during the previous step.
    ///
    /// # Errors
    /// [`VariantError`]. The model is then unchanged.
    pub fn step(
        &mut self,
        step: usize,
        learning_rate: ModuleLearningRate,
    ) -> Result<VariantRecord, VariantError> {
        let position = self.plan.position(step);
        let mut log_prob_seconds = None;
        if position.begins_batch() && self.loss.computes_old_log_probs() {
            let start = Instant::now();
            log_probs::compute(
                LogProbs::Old,
                &mut self.plan,
                &position.batch,
                &self.trainer,
            )?;
            log_prob_seconds = Some(start.elapsed().as_secs_f64());
        }
        let packed = self.plan.packs(step)?;
        let outcome = self
            .trainer
            .step(&packed, &self.loss, learning_rate)
            .map_err(|error| VariantError::Step { step, error })?;
        self.without_gradient = outcome.without_gradient;
        let counts = StepCounts::of_packs(&packed.packs);
        let mut metrics = outcome.metrics;
        metrics.extend(self.loss.data_metrics(&packed, self.plan.trajectories()));
        let pool = self.trainer.device.clone().inner().memory_pool_usage();
        Ok(VariantRecord {
            loss: outcome.loss,
            loss_scale: self.loss.scale(&packed),
            gradient_norm: outcome.gradient_norm,
            seconds: outcome.seconds,
            reserved_bytes: pool.map(|pool| pool.bytes_reserved),
            predicted_seconds: self.prediction.map(|TimePrediction { time, recurrent }| {
                time.seconds(&StepWork::of_step(&packed.packs, recurrent))
            }),
            packs: packed.packs.len(),
            tokens: counts.tokens,
            visible_pairs: counts.visible_pairs,
            projected_rows: counts.projected_rows,
            predictions: counts.predictions,
            flops: self.cost.step_flops(&counts),
            log_prob_seconds,
            metrics,
        })
    }
}

/// Compares the two variants of a step. `None` if the run has only one.
pub fn compare(record: &StepRecord, cost: &ModelCost) -> Option<ComparisonRecord> {
    let (tree, flat) = (record.tree.as_ref()?, record.flat.as_ref()?);
    let scale = flat.loss_scale.unwrap_or(flat.loss.abs());
    let bound = StepBound::new(cost, &tree.counts(), &flat.counts())?;
    Some(ComparisonRecord {
        relative_loss_deviation: relative(tree.loss, flat.loss, scale),
        relative_gradient_deviation: relative(
            tree.gradient_norm,
            flat.gradient_norm,
            flat.gradient_norm,
        ),
        speedup: flat.seconds / tree.seconds,
        token_bound: bound.token_bound,
        step_bound: bound.step_bound,
    })
}

/// `|a - b| / scale`, and 0 for equal numbers, even if the scale is 0.
fn relative(a: f64, b: f64, scale: f64) -> f64 {
    if a == b { 0.0 } else { (a - b).abs() / scale }
}
