//! Steps on parts of trees.

use burn::module::Module;
use burn::tensor::{DType, Device, Tensor};
use burn_tree_models::CausalLm;
use burn_tree_nn::TokenLogProbs;
use burn_tree_train::{StepGradients, StepOptions, TreeModel, sft_loss, step_gradients};
use proptest::prelude::*;
use tree_pack::{
    Aggregation, LossForm, Objective, OccurrenceBatch, PackOptions, PackedStep, Partitioning,
    Trajectory, build_forests, pack_step,
};

use crate::equality::bars;
use crate::step::{Batching, Prediction, Step, check_predictions, packed_step, read};
use crate::tensors::{NamedTensors, Tolerance, Worst};

/// The partitioning of trees.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// Largest number of tokens of a part.
    pub budget: usize,
    /// Rows of parts are padded to a multiple of this.
    pub multiple: usize,
    /// The kind of partitioning.
    pub partitioning: Partitioning,
}

impl Cut {
    /// Parts of at most `budget` tokens without padding.
    pub const fn new(budget: usize, partitioning: Partitioning) -> Self {
        Self {
            budget,
            multiple: 1,
            partitioning,
        }
    }

    /// Small parts.
    pub fn strategy() -> impl Strategy<Value = Self> {
        let partitioning = prop_oneof![
            3 => Just(Partitioning::Connected),
            3 => Just(Partitioning::Shared),
            1 => Just(Partitioning::PerNode),
            1 => Just(Partitioning::RepeatedPrefixes),
        ];
        let multiple = prop_oneof![2 => Just(1), 1 => 2_usize..20];
        (1_usize..30, multiple, partitioning).prop_map(|(budget, multiple, partitioning)| Self {
            budget,
            multiple,
            partitioning,
        })
    }

    /// Packs the trajectories as one optimizer step, with a separate occurrence for every
    /// prediction. With repeated prefixes, the budget is at least the longest path.
    ///
    /// # Panics
    /// If packing fails.
    pub fn pack(
        self,
        trajectories: &[Trajectory],
        objective: Objective,
        aggregation: Aggregation,
    ) -> PackedStep {
        self.pack_for(
            trajectories,
            objective,
            aggregation,
            LossForm::PerTrajectory,
        )
    }

    /// Packs the trajectories as one optimizer step for a loss form, which determines whether
    /// occurrences are merged.
    ///
    /// # Panics
    /// If packing fails.
    pub fn pack_for(
        self,
        trajectories: &[Trajectory],
        objective: Objective,
        aggregation: Aggregation,
        loss: LossForm,
    ) -> PackedStep {
        let forests = build_forests(trajectories).expect("valid trajectories");
        let longest = trajectories.iter().map(Trajectory::len).max().unwrap_or(1);
        let options = PackOptions {
            pad_to_multiple: self.multiple,
            objective,
            aggregation,
            loss,
            partitioning: self.partitioning,
            ..PackOptions::new(match self.partitioning {
                Partitioning::RepeatedPrefixes => self.budget.max(longest),
                _ => self.budget,
            })
        };
        pack_step(trajectories, &forests, &options).expect("a valid step")
    }
}

/// Options of a step.
pub fn step_options() -> impl Strategy<Value = StepOptions> {
    any::<(bool, bool)>().prop_map(|(recompute, offload)| StepOptions {
        recompute,
        offload,
        ..StepOptions::default()
    })
}

/// All four combinations of options.
pub fn all_step_options() -> [StepOptions; 4] {
    [(false, false), (false, true), (true, false), (true, true)].map(|(recompute, offload)| {
        StepOptions {
            recompute,
            offload,
            ..StepOptions::default()
        }
    })
}

/// Runs a step whose packs may continue each other, with the supervised loss.
///
/// # Panics
/// If the step fails.
pub fn parts_step<M: TreeModel + Module>(
    model: &M,
    packed: &PackedStep,
    options: &StepOptions,
    device: &Device,
) -> Step {
    parts_step_with(model, packed, options, device, sft_loss)
}

/// Runs a step whose packs may continue each other, with `loss` of the log-probabilities of each
/// pack.
///
/// # Panics
/// If the step fails.
pub fn parts_step_with<M: TreeModel + Module>(
    model: &M,
    packed: &PackedStep,
    options: &StepOptions,
    device: &Device,
    loss: impl Fn(TokenLogProbs, &OccurrenceBatch) -> Tensor<1>,
) -> Step {
    let mut predictions = Vec::new();
    let StepGradients {
        losses, gradients, ..
    } = step_gradients(
        model,
        packed,
        options,
        device,
        |pack, output, occurrences| {
            let columns = &packed.packs[pack].occurrences;
            let names = columns.trajectories.iter().zip(&columns.token_indices);
            let values = read(&output.log_probs);
            assert_eq!(values.len(), columns.len());
            predictions.extend(names.zip(values).map(|((&trajectory, &token), log_prob)| {
                Prediction {
                    trajectory: packed.trajectories[trajectory as usize].data_index as usize,
                    token: token as usize,
                    log_prob,
                }
            }));
            loss(output, occurrences)
        },
    )
    .expect("packs of one step");
    predictions.sort_by_key(|prediction| (prediction.trajectory, prediction.token));
    Step {
        loss: losses.iter().map(|loss| read(loss)[0]).sum(),
        predictions,
        gradients,
    }
}

/// All trajectories in one pack, with a plain forward and backward pass.
pub fn whole_step(
    model: &CausalLm,
    trajectories: &[Trajectory],
    objective: Objective,
    aggregation: Aggregation,
    dtype: DType,
    device: &Device,
) -> Step {
    let whole = Cut::new(1 << 20, Partitioning::Refuse).pack(trajectories, objective, aggregation);
    packed_step(model, &whole, Batching::OneByOne, dtype, device, sft_loss)
}

/// Compares loss, log-probabilities and gradients of two steps; returns the worst tensor.
///
/// # Errors
/// The first difference.
pub fn compare(
    model: &CausalLm,
    found: &Step,
    expected: &Step,
    dtype: DType,
    gradient: Tolerance,
) -> Result<Worst, String> {
    let (log_prob, _) = bars(dtype);
    check_predictions(&found.predictions, &expected.predictions, log_prob)?;
    let difference = (found.loss - expected.loss).abs();
    // A sum of terms with this tolerance each.
    if difference.is_nan() || difference > log_prob * (1.0 + expected.loss) {
        return Err(format!("loss {} expected {}", found.loss, expected.loss));
    }
    let found = NamedTensors::gradients(model, &found.gradients);
    let expected = NamedTensors::gradients(model, &expected.gradients);
    found.check_untouched_rows(&expected)?;
    found.check(&expected, gradient)
}
