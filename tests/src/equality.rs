//! A step of a model on packed trees compared with the same step on separate sequences.

use burn::tensor::{DType, Device};
use burn_tree_models::CausalLm;
use burn_tree_train::sft_loss;
use proptest::prelude::*;
use tree_pack::{Aggregation, LossForm, Objective, PackedStep, Trajectory};

use crate::device::device_name;
use crate::oracle::loss::prediction_weights;
use crate::packing::Packing;
use crate::step::{Batching, RunOptions, check_predictions, packed_step, separate_step};
use crate::tensors::{NamedTensors, Tolerance};

/// Every pair of objective and aggregation.
pub const LOSSES: [(Objective, Aggregation); 8] = [
    (Objective::PerPath, Aggregation::Sum),
    (Objective::PerPath, Aggregation::SepAvg),
    (Objective::PerPath, Aggregation::TrajectoryMean),
    (Objective::PerOccurrence, Aggregation::TokenMean),
    (Objective::PerPath, Aggregation::WeightedTokenMean),
    (Objective::PerOccurrence, Aggregation::Constant(7.0)),
    (Objective::Unique, Aggregation::UniqueMean),
    (Objective::Unique, Aggregation::Sum),
];

/// The settings of a step.
#[derive(Clone, Debug)]
pub struct StepSetup {
    /// Budget and padding.
    pub packing: Packing,
    /// Batches and chunks.
    pub run: RunOptions,
    /// Objective and aggregation.
    pub loss: (Objective, Aggregation),
    /// Whether occurrences of a row and target are merged.
    pub merged: bool,
    /// Seed of the weights.
    pub seed: u64,
}

impl StepSetup {
    /// Packs the sequences as one step.
    pub fn pack(&self, trajectories: &[Trajectory]) -> PackedStep {
        let (objective, aggregation) = self.loss;
        // Unmerged, so that every prediction can be compared. Trajectory losses are not defined for
        // unique tokens.
        if self.merged || objective == Objective::Unique {
            let form = LossForm::LogLikelihood;
            self.packing
                .pack_for(trajectories, objective, aggregation, form)
        } else {
            self.packing
                .pack(trajectories, Objective::PerOccurrence, aggregation)
        }
    }
}

/// Random settings.
pub fn step_setups() -> impl Strategy<Value = StepSetup> {
    let batching = prop_oneof![Just(Batching::OneByOne), Just(Batching::Together)];
    let run =
        (batching, prop::option::of(1_usize..20)).prop_map(|(batching, chunk_rows)| RunOptions {
            batching,
            chunk_rows,
        });
    let loss = (0..LOSSES.len()).prop_map(|index| LOSSES[index]);
    // Flat forests, the baseline, use the same code.
    let packing = (Packing::strategy(), prop::bool::weighted(0.85))
        .prop_map(|(packing, shared)| Packing { shared, ..packing });
    (packing, run, loss, any::<bool>(), any::<u64>()).prop_map(
        |(packing, run, loss, merged, seed)| StepSetup {
            packing,
            run,
            loss,
            merged,
            seed,
        },
    )
}

/// Tolerances of log-probabilities and of gradients (relative L2 norm of the worst tensor).
///
/// In f32, gradients have the tolerance of models with attention, and log-probabilities that of
/// recurrent layers alone (see `gated_delta_rule`): on paths of 128 tokens, hybrid models differ by
/// 1.2e-5 on LibTorch. On CUDA, Burn's f32 products round their factors to TF32 with 10 bits. In
/// f64, sums of this size have rounding errors of 1e-14.
pub fn bars(dtype: DType) -> (f64, Tolerance) {
    let (log_prob, relative, floor) = match dtype {
        DType::F64 => (1e-10, 1e-10, 1e-3),
        _ if device_name().starts_with("cuda") => (2e-3, 1e-2, 1e-2),
        // 1e-6 of the whole gradient: sums in another order differ by some roundings of 1e-7.
        _ => (2e-5, 1e-4, 1e-2),
    };
    (
        log_prob,
        Tolerance {
            relative,
            floor,
            exact_zeros: false,
        },
    )
}

/// Packs the sequences and compares loss, log-probabilities and gradients with those of the
/// separate sequences.
///
/// # Errors
/// The first difference.
pub fn compare_step(
    model: &CausalLm,
    trajectories: &[Trajectory],
    setup: &StepSetup,
    dtype: DType,
    device: &Device,
) -> Result<(), String> {
    let packed = setup.pack(trajectories);
    compare_packed(model, trajectories, &packed, setup, dtype, device)
}

/// As [`compare_step`], with the given packs of [`StepSetup::pack`].
///
/// # Errors
/// The first difference.
pub fn compare_packed(
    model: &CausalLm,
    trajectories: &[Trajectory],
    packed: &PackedStep,
    setup: &StepSetup,
    dtype: DType,
    device: &Device,
) -> Result<(), String> {
    let (objective, aggregation) = setup.loss;
    let weights = prediction_weights(trajectories, objective, aggregation);
    let expected = separate_step(model, trajectories, &weights, dtype, device);
    let found = packed_step(model, packed, setup.run, dtype, device, sft_loss);

    let (log_prob, gradient) = bars(dtype);
    if !packed.merged {
        check_predictions(&found.predictions, &expected.predictions, log_prob)?;
    }
    // A sum of terms with this tolerance each.
    let difference = (found.loss - expected.loss).abs();
    if difference.is_nan() || difference > log_prob * (1.0 + expected.loss) {
        return Err(format!("loss {} expected {}", found.loss, expected.loss));
    }
    let found = NamedTensors::gradients(model, &found.gradients);
    let expected = NamedTensors::gradients(model, &expected.gradients);
    found.check(&expected, gradient)?;
    found.check_untouched_rows(&expected)
}
