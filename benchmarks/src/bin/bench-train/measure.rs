//! Times of steps, and of their parts.

use anyhow::Result;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Tensor};
use burn_tree_attn::TreeMask;
use burn_tree_models::LinearAttentionConfig;
use burn_tree_ssm::TreeRecurrence;
use burn_tree_train::{ModelCost, StepBound, StepCounts, StepWork, TreeModel, step_index_memory};
use burn_tree_trainer::loss::Supervised;
use burn_tree_trainer::optim::optimizer_step::Trainer;
use burn_tree_trainer::report::timing::{Repetitions, median, seconds};
use burn_tree_trainer::run::variant::TimePrediction;
use serde::Serialize;
use tree_pack::{Pack, PackedStep, TreeLayout};
use tree_training_benchmarks::attention::{AttentionInputs, Heads};
use tree_training_benchmarks::delta_rule::{DeltaRuleHeads, DeltaRuleInputs};
use tree_training_benchmarks::products::ProductTimes;

use crate::args::Args;
use crate::steps::BenchStep;

/// So small that no parameter changes: every step has the same input.
const LEARNING_RATE: f64 = 1e-12;

/// A step on trees or on separate trajectories.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Number of packs.
    pub packs: usize,
    /// Tokens, without padding.
    pub tokens: u64,
    /// Visible (query, key) pairs.
    pub visible_pairs: u64,
    /// Rows projected on the vocabulary.
    pub projected_rows: u64,
    /// Model FLOPs.
    pub flops: f64,
    /// Median wall time.
    pub seconds: f64,
    /// Predicted seconds, if available.
    pub predicted_seconds: Option<f64>,
    /// Past keys of all packs.
    pub past_rows: u64,
    /// Bytes of masks, plans and indices of the pack with most of them, in the forward pass.
    pub index_bytes: u64,
    /// Wall times of all timed steps.
    pub samples: Vec<f64>,
    /// Seconds of the matrix products at their separately measured rates.
    pub product_seconds: f64,
    /// Seconds of attention at its separately measured rate.
    pub attention_seconds: f64,
    /// Seconds of the delta rule of recurrent layers at its separately measured rate.
    pub recurrence_seconds: f64,
    /// Peak memory reserved on the device, if it reports it.
    pub reserved_bytes: Option<u64>,
    /// Loss.
    pub loss: f64,
}

/// A step on trees and on separate trajectories.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Name of the step.
    pub name: String,
    /// On trees.
    pub tree: Measured,
    /// On separate trajectories.
    pub flat: Measured,
    /// Prefix overlap ratio.
    pub overlap: f64,
    /// Flat tokens over tree tokens.
    pub token_bound: f64,
    /// Flat FLOPs over tree FLOPs.
    pub step_bound: f64,
    /// The step bound for the part of the flat step that depends on tokens.
    pub step_bound_with_constants: f64,
    /// Measured speed-up: flat seconds over tree seconds.
    pub achieved: f64,
    /// Original tokens per second, on trees.
    pub original_tokens_per_second: f64,
    /// Relative deviation of the loss on trees from that on separate trajectories; `None` if the
    /// flat step was timed on other tokens.
    pub loss_deviation: Option<f64>,
}

/// Rates of this machine, to which steps are compared.
pub struct Rates {
    /// Matrix products.
    pub products: ProductTimes,
    /// Seconds of the compute copy of the parameters.
    pub shadow_seconds: f64,
    /// Seconds of gradient norm, clipping and optimizer.
    pub update_seconds: f64,
    /// Heads and layers of attention.
    pub attention: (Heads, usize),
    /// Sizes and number of the recurrent layers, if there are any.
    pub recurrence: Option<(LinearAttentionConfig, usize)>,
}

impl Rates {
    /// The fixed time of a step, measured with a wait after each part.
    pub fn constant_seconds(&self) -> f64 {
        self.shadow_seconds + self.update_seconds
    }
}

/// The references for the times of a step.
pub struct Yardsticks<'a> {
    /// Model FLOPs.
    pub cost: ModelCost,
    /// Seconds of products and attention at their separate rates.
    pub rates: &'a Rates,
    /// Predicted seconds.
    pub prediction: Option<TimePrediction>,
}

/// Times a step on trees and on separate trajectories. `timed_flat` is the result for a flat step
/// of the same shape, if there is one.
pub fn compare<M: Module + TreeModel>(
    step: &BenchStep,
    timed_flat: Option<&Measured>,
    trainer: &mut Trainer<M>,
    yardsticks: &Yardsticks<'_>,
    args: &Args,
) -> Result<Comparison> {
    let [tree_counts, flat_counts] = step.counts();
    let tree = measure(&step.tree, &tree_counts, trainer, yardsticks, args)?;
    let flat = match timed_flat {
        Some(flat) => flat.clone(),
        None => measure(&step.flat, &flat_counts, trainer, yardsticks, args)?,
    };
    let bound =
        StepBound::new(&yardsticks.cost, &tree_counts, &flat_counts).expect("a step has tokens");
    let constant = yardsticks.rates.constant_seconds();
    let tree_at_best = (flat.seconds - constant) / bound.step_bound + constant;
    Ok(Comparison {
        name: step.name.clone(),
        overlap: bound.por,
        token_bound: bound.token_bound,
        step_bound: bound.step_bound,
        step_bound_with_constants: flat.seconds / tree_at_best,
        achieved: flat.seconds / tree.seconds,
        original_tokens_per_second: flat.tokens as f64 / tree.seconds,
        loss_deviation: timed_flat
            .is_none()
            .then(|| (tree.loss - flat.loss).abs() / flat.loss.abs()),
        tree,
        flat,
    })
}

fn measure<M: Module + TreeModel>(
    step: &PackedStep,
    counts: &StepCounts,
    trainer: &mut Trainer<M>,
    yardsticks: &Yardsticks<'_>,
    args: &Args,
) -> Result<Measured> {
    let Yardsticks {
        cost,
        rates,
        prediction,
    } = yardsticks;
    let device = trainer.device.clone().inner();
    device.memory_cleanup();
    let mut outcomes = Vec::new();
    for _ in 0..args.warm_up + args.repetitions.get() {
        outcomes.push(trainer.step(step, &Supervised, LEARNING_RATE.into())?);
    }
    let timed = &outcomes[args.warm_up..];
    let samples: Vec<f64> = timed.iter().map(|outcome| outcome.seconds).collect();
    let reserved_bytes = device.memory_pool_usage().map(|usage| usage.bytes_reserved);
    let (heads, layers) = rates.attention;
    let attention = attention_rate(step, heads, trainer.precision.blocks.into(), &device)?;
    let dtype = trainer.precision.blocks.into();
    let recurrence_seconds = match &rates.recurrence {
        Some((linear, layers)) => {
            let one_layer = recurrence_seconds_per_token(step, linear, dtype, &device)?;
            one_layer * (counts.tokens * *layers as u64) as f64
        }
        None => 0.0,
    };
    let attention_flops = 3.5 * heads.forward_flops(counts.visible_pairs) * layers as f64;
    Ok(Measured {
        packs: step.packs.len(),
        predicted_seconds: prediction.map(|TimePrediction { time, recurrent }| {
            time.seconds(&StepWork::of_step(&step.packs, recurrent))
        }),
        past_rows: step
            .packs
            .iter()
            .filter_map(|pack| pack.gateway.as_ref())
            .map(|gateway| gateway.past_keys() as u64)
            .sum(),
        index_bytes: largest_index_memory(step, trainer)?,
        tokens: counts.tokens,
        visible_pairs: counts.visible_pairs,
        projected_rows: counts.projected_rows,
        flops: cost.step_flops(counts),
        seconds: median(samples.clone()),
        samples,
        product_seconds: rates.products.seconds(counts),
        attention_seconds: attention_flops / attention,
        recurrence_seconds,
        reserved_bytes,
        loss: outcomes[0].loss,
    })
}

/// Bytes of masks, plans and indices of the pack with most of them.
fn largest_index_memory<M: Module + TreeModel>(
    step: &PackedStep,
    trainer: &Trainer<M>,
) -> Result<u64> {
    let Trainer {
        options, device, ..
    } = trainer;
    let model = trainer.precision.shadow(&trainer.model);
    let memory = step_index_memory(&model, step, options, device)?;
    let bytes = memory.iter().map(|it| it.host_bytes + it.device_bytes);
    Ok(bytes.max().unwrap_or(0))
}

fn largest_pack(step: &PackedStep) -> &Pack {
    // Of packs that continue no other, because these have masks and recurrences of their own.
    let whole = step.packs.iter().filter(|pack| pack.gateway.is_none());
    let largest = whole.max_by_key(|pack| pack.layout.len());
    largest.expect("a step has packs")
}

/// Seconds per token of the delta rule of one layer, forward and backward, on the largest pack.
fn recurrence_seconds_per_token(
    step: &PackedStep,
    linear: &LinearAttentionConfig,
    dtype: DType,
    device: &Device,
) -> Result<f64> {
    let pack = largest_pack(step);
    let layouts = std::slice::from_ref(&pack.layout);
    let recurrence = TreeRecurrence::from_layouts(layouts, pack.padded_len);
    let heads = DeltaRuleHeads::from(linear);
    let inputs = DeltaRuleInputs::random(&recurrence, heads, dtype, Default::default(), device)?;
    let repetitions = Repetitions {
        warm_up: 2,
        samples: 3,
        runs: 3,
    };
    let both = seconds(device, repetitions, || {
        let forward = inputs.forward();
        inputs.backward(&forward)
    });
    Ok(both / pack.layout.len() as f64)
}

/// FLOP/s of attention on the largest pack of a step, forward and backward together.
fn attention_rate(step: &PackedStep, heads: Heads, dtype: DType, device: &Device) -> Result<f64> {
    let pack = largest_pack(step);
    let mask = mask_of(&pack.layout, pack.padded_len, device);
    let inputs = AttentionInputs::random(&mask, heads, dtype, Default::default())?;
    let repetitions = Repetitions {
        warm_up: 2,
        samples: 3,
        runs: 3,
    };
    let output = inputs.forward();
    let forward = seconds(device, repetitions, || inputs.forward());
    let backward = seconds(device, repetitions, || inputs.backward(&output));
    let pairs = mask.visible_pairs();
    Ok((heads.forward_flops(pairs) + heads.backward_flops(pairs)) / (forward + backward))
}

fn mask_of(layout: &TreeLayout, padded_len: usize, device: &Device) -> TreeMask {
    TreeMask::from_layouts(std::slice::from_ref(layout), padded_len, device)
}

/// Seconds of the fixed parts of a step: the compute copy of the parameters, and the update.
pub fn constants<M: Module + TreeModel>(trainer: &Trainer<M>) -> (f64, f64) {
    let repetitions = Repetitions {
        warm_up: 2,
        samples: 3,
        runs: 1,
    };
    let device = trainer.device.clone().inner();
    let shadow = seconds(&device, repetitions, || {
        trainer.precision.shadow(&trainer.model)
    });
    let mut scratch = trainer.clone();
    let update = seconds(&device, repetitions, || {
        let gradients = any_gradients(&scratch.model);
        scratch.update(gradients, LEARNING_RATE.into())
    });
    (shadow, update)
}

/// Gradients of the right size: the parameters themselves.
fn any_gradients<M: Module>(model: &M) -> GradientsParams {
    struct Copies(GradientsParams);
    impl ModuleVisitor for Copies {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.register(param.id, param.val().inner());
        }
    }
    let mut copies = Copies(GradientsParams::new());
    model.visit(&mut copies);
    copies.0
}
