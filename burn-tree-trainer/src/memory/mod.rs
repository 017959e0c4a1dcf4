//! Estimates of the memory of a run.

mod indices;
mod sampled;
mod step_rows;
mod system;

use burn_tree_models::size::BlockWidths;
use burn_tree_models::{ModelConfig, ModelSize};

pub use indices::index_memory;
pub use sampled::{BytesInUse, bytes_in_use};
pub use step_rows::{PackRows, StepRows};
pub use system::{available_memory, format_bytes, peak_memory};

/// Peak bytes of a run on the device, by purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// Master parameters in f32, and their copy in the compute dtype if it differs.
    pub parameters: u64,
    /// Gradients of a pack, and their sum over packs if a step has several.
    pub gradients: u64,
    /// AdamW's two moments.
    pub optimizer: u64,
    /// Activations that the packs in memory keep for their backward passes, and the largest
    /// intermediate results of a forward or backward pass.
    pub activations: u64,
    /// Keys, values and states that parts of trees provide to each other, with the sums of their
    /// gradients.
    pub gateways: u64,
    /// The old parameters and moments, kept until the loss of the step is known to be finite. The
    /// activations are freed before.
    pub replaced: u64,
}

/// The inputs of an estimate besides the model and the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryOptions {
    /// Rows projected on the vocabulary at a time, if set.
    pub head_chunk_rows: Option<u64>,
    /// Bytes of one value in the forward and backward pass.
    pub compute_bytes: u64,
    /// Number of models trained side by side.
    pub models: u64,
    /// Whether blocks are recomputed in the backward pass (activation checkpointing).
    pub recompute: bool,
    /// Whether tensors that are not in use are in host memory (host offload).
    pub offload: bool,
}

impl MemoryOptions {
    /// One model in f32 without activation checkpointing or offload.
    pub const F32: Self = Self {
        head_chunk_rows: None,
        compute_bytes: 4,
        models: 1,
        recompute: false,
        offload: false,
    };
}

/// Logits in memory at a time, if the number of rows is not set.
const HEAD_LOGITS: u64 = 3 << 24;
/// Copies of past keys (and values), gathered from the packs that own them.
const PAST_COPIES: u64 = 1;
/// Gradients of one block in memory at a time: of its input and output, and of the two projections
/// that a feed-forward network multiplies.
const GRADIENTS_HIDDEN: u64 = 2;
const GRADIENTS_INNER: u64 = 2;

/// Bytes of an f32: sums of gradients, and states.
const F32: u64 = 4;

impl MemoryEstimate {
    /// Estimates a run whose largest step is `step`.
    pub fn new(
        config: &ModelConfig,
        size: &ModelSize,
        run: &MemoryOptions,
        step: &StepRows,
    ) -> Self {
        let copies = if run.compute_bytes == 4 {
            0
        } else {
            run.compute_bytes
        };
        let gradients = if run.recompute {
            // The gradients of one block or of the head are added to the sum immediately.
            let largest = size.parameters - size.cost.head_parameters;
            let block = largest / config.num_hidden_layers.max(1) as u64;
            let head = match size.cost.head_trained {
                true => size.cost.head_parameters,
                false => 0,
            };
            size.trained_parameters + block.max(head).min(size.trained_parameters)
        } else {
            size.trained_parameters * if step.packs.len() > 1 { 2 } else { 1 }
        };
        let packs = Packs { config, run };
        let peak = (0..step.packs.len()).map(|index| packs.at_once(step, index));
        let (activations, gateways) = peak
            .max_by_key(|(activations, gateways)| activations + gateways)
            .unwrap_or_default();
        Self {
            parameters: run.models * size.parameters * 4 + size.parameters * copies,
            gradients: gradients * 4,
            optimizer: run.models * size.trained_parameters * 8,
            activations,
            gateways,
            replaced: size.trained_parameters * 12,
        }
    }

    /// The largest of the estimates of several steps.
    pub fn of_steps(
        config: &ModelConfig,
        size: &ModelSize,
        run: &MemoryOptions,
        steps: impl IntoIterator<Item = StepRows>,
    ) -> Self {
        let estimates = steps
            .into_iter()
            .map(|step| Self::new(config, size, run, &step));
        estimates
            .max_by_key(Self::total)
            .unwrap_or_else(|| Self::new(config, size, run, &StepRows::default()))
    }

    /// Peak bytes in total.
    pub fn total(&self) -> u64 {
        let passes = self.activations + self.gateways;
        self.parameters + self.gradients + self.optimizer + passes.max(self.replaced)
    }
}

/// The largest number of rows of a pack for which a run fits in `memory` bytes, if `parts` packs
/// are in memory at the same time: 1, or the number of parts on a path of a partitioned tree. All
/// rows are assumed to predict a token. `None` if no row fits.
pub fn largest_budget(
    config: &ModelConfig,
    size: &ModelSize,
    run: &MemoryOptions,
    parts: u64,
    memory: u64,
) -> Option<u64> {
    let fits = |rows: u64| {
        let step = StepRows::chain(parts, rows);
        MemoryEstimate::new(config, size, run, &step).total() <= memory
    };
    if !fits(1) {
        return None;
    }
    // The estimate is monotonic in the rows.
    let (mut fitting, mut too_many) = (1, tree_pack::MAX_ROWS as u64);
    while fitting + 1 < too_many {
        let middle = fitting + (too_many - fitting) / 2;
        match fits(middle) {
            true => fitting = middle,
            false => too_many = middle,
        }
    }
    Some(fitting)
}

/// The bytes of the packs of a step.
struct Packs<'a> {
    config: &'a ModelConfig,
    run: &'a MemoryOptions,
}

impl Packs<'_> {
    /// Activations and gateways during the computation of pack `index`.
    fn at_once(&self, step: &StepRows, index: usize) -> (u64, u64) {
        let pack = &step.packs[index];
        let mut activations = self.working(pack);
        let mut gateways = 0;
        for alive in step.alive(index) {
            activations += self.waiting(alive);
            gateways += self.gateway(alive);
        }
        (activations, gateways)
    }

    /// Bytes that a pack keeps from its forward to its backward pass.
    fn waiting(&self, pack: &PackRows) -> u64 {
        let bytes = self.run.compute_bytes;
        match (self.run.recompute, self.run.offload) {
            (true, true) => 0,
            // The input of every block, and the gradient of the output of the last one.
            (true, false) => {
                let tensors = self.config.num_hidden_layers as u64 + 1;
                bytes * pack.rows * tensors * self.config.hidden_size as u64
            }
            (false, _) => self.layers().map(|layer| self.block(pack, layer)).sum(),
        }
    }

    /// Largest temporary bytes of the passes over a pack.
    fn working(&self, pack: &PackRows) -> u64 {
        let gradients = self
            .layers()
            .map(|layer| {
                let widths = self.widths(layer);
                GRADIENTS_HIDDEN * widths.hidden + GRADIENTS_INNER * widths.inner
            })
            .max();
        let gradients = self.run.compute_bytes * pack.rows * gradients.unwrap_or(0);
        let block = |layer| {
            let again = match self.run.recompute {
                true => self.block(pack, layer) + self.past_of_block(pack, layer),
                false => 0,
            };
            again + self.joined_in_block(pack, layer)
        };
        let block = gradients + self.layers().map(block).max().unwrap_or(0);
        block.max(self.head(pack))
    }

    /// Logits and tensors derived from them.
    fn head(&self, pack: &PackRows) -> u64 {
        let logits = |rows| 3 * rows * self.config.vocab_size as u64;
        let logits = match self.run.head_chunk_rows {
            Some(rows) => logits(rows.min(pack.projected_rows)),
            None => logits(pack.projected_rows).min(HEAD_LOGITS),
        };
        F32 * logits
    }

    /// Activations of one block of a pack.
    fn block(&self, pack: &PackRows, layer: usize) -> u64 {
        let widths = self.widths(layer);
        let states = pack.kept_states * widths.state;
        self.run.compute_bytes * pack.rows * widths.kept + F32 * states
    }

    /// Copies of rows of earlier packs in one block.
    fn past_of_block(&self, pack: &PackRows, layer: usize) -> u64 {
        let numbers = PAST_COPIES * pack.past_rows * self.widths(layer).key_value;
        self.run.compute_bytes * numbers
    }

    /// Past and own keys and values, concatenated for attention.
    fn joined_in_block(&self, pack: &PackRows, layer: usize) -> u64 {
        let rows = match pack.past_rows {
            0 => 0,
            past_rows => past_rows + pack.rows,
        };
        self.run.compute_bytes * rows * self.widths(layer).key_value
    }

    /// Rows that a pack provides to others, and, if graphs are kept, its past context.
    fn gateway(&self, pack: &PackRows) -> u64 {
        let (recompute, offload) = (self.run.recompute, self.run.offload);
        let of_layer = |layer| {
            let widths = self.widths(layer);
            let rows = pack.left_rows * widths.key_value;
            let states = pack.left_states * widths.state;
            let sums = match offload {
                true => 0,
                false => F32 * (rows + states),
            };
            let left = match offload && recompute {
                true => 0,
                false => self.run.compute_bytes * rows + F32 * states,
            };
            let taken = match recompute {
                true => 0,
                false => self.past_of_block(pack, layer),
            };
            sums + left + taken
        };
        self.layers().map(of_layer).sum()
    }

    fn widths(&self, layer: usize) -> BlockWidths {
        BlockWidths::new(self.config, layer)
    }

    fn layers(&self) -> std::ops::Range<usize> {
        0..self.config.num_hidden_layers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(name: &str, run: MemoryOptions, step: &StepRows) -> MemoryEstimate {
        let config = ModelConfig::named(name, 100).unwrap();
        let size = ModelSize::new(&config, None);
        MemoryEstimate::new(&config, &size, &run, step)
    }

    #[test]
    fn what_is_kept_for_the_whole_run_is_exact() {
        let config = ModelConfig::named("tiny", 100).unwrap();
        let size = ModelSize::new(&config, None);
        let one = estimate("tiny", MemoryOptions::F32, &StepRows::one_pack(1000));
        assert_eq!(one.parameters, 4 * size.parameters);
        assert_eq!(one.gradients, 4 * size.parameters);
        assert_eq!(one.optimizer, 8 * size.parameters);
        let two_models = MemoryOptions {
            models: 2,
            ..MemoryOptions::F32
        };
        let mut three_packs = StepRows::one_pack(1000);
        three_packs.packs = vec![three_packs.packs[0]; 3];
        let two = estimate("tiny", two_models, &three_packs);
        assert_eq!(two.parameters, 2 * one.parameters);
        assert_eq!(two.gradients, 2 * one.gradients);
        assert_eq!(two.optimizer, 2 * one.optimizer);
        assert_eq!(two.activations, one.activations);
        assert_eq!((one.gateways, two.gateways), (0, 0));
    }

    #[test]
    fn adapters_need_few_gradients_and_bfloat16_a_second_copy() {
        let config = ModelConfig::named("tiny", 100).unwrap();
        let size = ModelSize::new(&config, Some(4));
        let run = MemoryOptions {
            compute_bytes: 2,
            ..MemoryOptions::F32
        };
        let estimate = MemoryEstimate::new(&config, &size, &run, &StepRows::one_pack(10));
        assert_eq!(estimate.parameters, 6 * size.parameters);
        assert_eq!(estimate.gradients, 4 * size.trained_parameters);
        assert_eq!(estimate.optimizer, 8 * size.trained_parameters);
    }

    #[test]
    fn recurrent_layers_keep_states() {
        let mut step = StepRows::one_pack(1000);
        let none = estimate("tiny-hybrid", MemoryOptions::F32, &step);
        step.packs[0].kept_states = 7;
        let seven = estimate("tiny-hybrid", MemoryOptions::F32, &step);
        // Three layers of four heads with 64 x 64 values in f32.
        assert_eq!(
            seven.activations - none.activations,
            7 * 3 * 4 * 64 * 64 * 4
        );
    }

    #[test]
    fn parts_of_a_path_are_there_together_and_branches_are_not() {
        let one = estimate("tiny", MemoryOptions::F32, &StepRows::one_pack(1000));
        let chain = estimate("tiny", MemoryOptions::F32, &StepRows::chain(4, 1000));
        // Four times the kept activations; temporaries exist for one part at a time.
        assert!(chain.activations > 3 * one.activations);
        assert!(chain.activations < 4 * one.activations);
        assert!(chain.gateways > 0);
        let mut star = StepRows::chain(2, 1000);
        let branch = star.packs[1];
        star.packs.extend([branch; 6]);
        let two = estimate("tiny", MemoryOptions::F32, &StepRows::chain(2, 1000));
        let star = estimate("tiny", MemoryOptions::F32, &star);
        assert_eq!(star.activations, two.activations);
        assert_eq!(star.gateways, two.gateways);
    }

    #[test]
    fn attention_joins_keys_of_one_block_at_a_time() {
        let mut step = StepRows::one_pack(1000);
        let none = estimate("tiny", MemoryOptions::F32, &step);
        step.packs[0].past_rows = 5000;
        let past = estimate("tiny", MemoryOptions::F32, &step);
        let config = ModelConfig::named("tiny", 100).unwrap();
        let width = BlockWidths::new(&config, 0).key_value;
        assert_eq!(past.activations - none.activations, 6000 * width * 4);
        let layers = config.num_hidden_layers as u64;
        assert_eq!(past.gateways, layers * 5000 * width * 4);
    }

    #[test]
    fn recomputation_keeps_inputs_of_blocks_only_and_offload_none() {
        let step = StepRows::chain(3, 4096);
        let keep = estimate("0.6b", MemoryOptions::F32, &step);
        let recompute = MemoryOptions {
            recompute: true,
            ..MemoryOptions::F32
        };
        let again = estimate("0.6b", recompute, &step);
        assert!(
            again.activations < keep.activations / 8,
            "{again:?} {keep:?}"
        );
        let offload = MemoryOptions {
            offload: true,
            ..recompute
        };
        let away = estimate("0.6b", offload, &step);
        // 29 tensors for each of three parts.
        assert_eq!(
            again.activations - away.activations,
            3 * 4096 * 29 * 1024 * 4
        );
        assert_eq!(away.gateways, 0);
    }

    #[test]
    fn the_budget_that_fits_is_the_largest() {
        let config = ModelConfig::named("0.6b", 151_936).unwrap();
        let size = ModelSize::new(&config, None);
        for (parts, recompute) in [(1, false), (1, true), (5, false)] {
            let run = MemoryOptions {
                recompute,
                ..MemoryOptions::F32
            };
            let memory = 24_000_000_000;
            let rows = largest_budget(&config, &size, &run, parts, memory).unwrap();
            let total = |rows| {
                let step = StepRows::chain(parts, rows);
                MemoryEstimate::new(&config, &size, &run, &step).total()
            };
            assert!(total(rows) <= memory && total(rows + 1) > memory, "{rows}");
        }
        // Parameters, gradients and moments alone take 9.5 GB.
        assert_eq!(
            largest_budget(&config, &size, &MemoryOptions::F32, 1, 9_000_000_000),
            None
        );
    }
}
