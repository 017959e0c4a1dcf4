//! How much memory a run will need, before it takes any.

use burn_tree_ssm::MAX_WINDOW_ROWS;

use crate::qwen3::Qwen3Config;

use super::cost::ModelSize;

/// Bytes of a run at its peak, by what they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// Master parameters in f32, and their copies in the dtype of the computation if another.
    pub parameters: u64,
    /// Gradients: those of a pack, and the sum over packs where a step has several.
    pub gradients: u64,
    /// AdamW's two moments.
    pub optimizer: u64,
    /// What the forward pass of the largest pack keeps for the backward pass, and the
    /// largest intermediate results of either.
    pub activations: u64,
}

/// What an estimate depends on besides the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunSize {
    /// Tokens of the largest pack.
    pub pack_tokens: u64,
    /// Rows of it that predict something.
    pub projected_rows: u64,
    /// Rows projected on the vocabulary at a time, if given.
    pub head_chunk_rows: Option<u64>,
    /// States that a recurrent layer keeps for the largest pack.
    pub kept_states: u64,
    /// Most packs in a step.
    pub packs_per_step: u64,
    /// Bytes of one value in the forward and backward pass.
    pub compute_bytes: u64,
    /// Models trained side by side.
    pub models: u64,
}

/// Tensors of `[tokens, width]` that autodiff keeps of one block, by width, and the head's logits
/// alive at once. Counted from the operations of a block; those of attention checked against
/// measured peaks.
const KEPT_HIDDEN: u64 = 5;
const KEPT_QUERY: u64 = 4;
/// The gate, its sigmoid, and what it scales.
const KEPT_GATED_QUERY: u64 = 3;
const KEPT_KEY: u64 = 4;
/// Inputs and outputs of the convolution.
const KEPT_CONVOLUTION: u64 = 2;
/// Queries and keys before and after their norms.
const KEPT_LINEAR_KEY: u64 = 4;
/// Values, their mixture, its gate, and the gated norm.
const KEPT_LINEAR_VALUE: u64 = 4;
/// A row of the inverse by value head, as wide as a window; its two gates before and after.
const KEPT_LINEAR_HEAD: u64 = MAX_WINDOW_ROWS as u64 + 4;
const KEPT_INNER: u64 = 3;
const HEAD_LOGITS: u64 = 3 << 24;

impl MemoryEstimate {
    /// Estimates a run.
    pub fn new(config: &Qwen3Config, size: &ModelSize, run: &RunSize) -> Self {
        let layers = 0..config.num_hidden_layers;
        let per_token: u64 = layers
            .clone()
            .map(|layer| kept_by_block(config, layer))
            .sum();
        let states: usize = layers
            .filter_map(|layer| config.linear_attention(layer))
            .map(|linear| linear.key_head_dim * linear.value_dim())
            .sum();
        let logits = |rows| 3 * rows * config.vocab_size as u64;
        let logits = match run.head_chunk_rows {
            Some(rows) => logits(rows.min(run.projected_rows)),
            None => logits(run.projected_rows).min(HEAD_LOGITS),
        };
        let copies = if run.compute_bytes == 4 {
            0
        } else {
            run.compute_bytes
        };
        let sums = if run.packs_per_step > 1 { 2 } else { 1 };
        Self {
            parameters: run.models * size.parameters * 4 + size.parameters * copies,
            gradients: size.trained_parameters * 4 * sums,
            optimizer: run.models * size.trained_parameters * 8,
            activations: run.compute_bytes * run.pack_tokens * per_token
                + 4 * run.kept_states * states as u64
                + 4 * logits,
        }
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.parameters + self.gradients + self.optimizer + self.activations
    }
}

/// Numbers that block `layer` keeps of a token for the backward pass.
fn kept_by_block(config: &Qwen3Config, layer: usize) -> u64 {
    let mixer = match config.linear_attention(layer) {
        None => {
            let query = (config.num_attention_heads * config.head_dim) as u64;
            let key = (config.num_key_value_heads * config.head_dim) as u64;
            let gated = if config.attention_output_gate {
                query
            } else {
                0
            };
            KEPT_QUERY * query + KEPT_GATED_QUERY * gated + KEPT_KEY * key
        }
        Some(linear) => {
            KEPT_CONVOLUTION * linear.conv_dim() as u64
                + KEPT_LINEAR_KEY * linear.key_dim() as u64
                + KEPT_LINEAR_VALUE * linear.value_dim() as u64
                + KEPT_LINEAR_HEAD * linear.num_value_heads as u64
        }
    };
    let inner = match &config.moe {
        Some(moe) if config.is_moe_layer(layer) => {
            let shared = moe.shared_expert_intermediate_size.unwrap_or(0);
            moe.num_experts_per_tok * moe.moe_intermediate_size + shared
        }
        _ => config.intermediate_size,
    };
    KEPT_HIDDEN * config.hidden_size as u64 + mixer + KEPT_INNER * inner as u64
}

/// Memory in GiB with as many digits as are of use.
pub fn format_bytes(bytes: u64) -> String {
    let gib = bytes as f64 / (1u64 << 30) as f64;
    if gib >= 1.0 {
        format!("{gib:.1} GiB")
    } else {
        format!("{:.0} MiB", gib * 1024.0)
    }
}

/// Memory that the system can give to this process, where it says so (Linux).
pub fn available_memory() -> Option<u64> {
    kibibytes("/proc/meminfo", "MemAvailable:")
}

/// Most memory this process has held, where the system says so (Linux).
pub fn peak_memory() -> Option<u64> {
    kibibytes("/proc/self/status", "VmHWM:")
}

fn kibibytes(file: &str, field: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()
        .map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: RunSize = RunSize {
        pack_tokens: 1000,
        projected_rows: 10,
        head_chunk_rows: None,
        kept_states: 0,
        packs_per_step: 1,
        compute_bytes: 4,
        models: 1,
    };

    #[test]
    fn what_is_kept_for_the_whole_run_is_exact() {
        let config = Qwen3Config::named("tiny", 100).unwrap();
        let size = ModelSize::new(&config, None);
        let one = MemoryEstimate::new(&config, &size, &RUN);
        assert_eq!(one.parameters, 4 * size.parameters);
        assert_eq!(one.gradients, 4 * size.parameters);
        assert_eq!(one.optimizer, 8 * size.parameters);
        let run = RunSize {
            models: 2,
            packs_per_step: 3,
            ..RUN
        };
        let two = MemoryEstimate::new(&config, &size, &run);
        assert_eq!(two.parameters, 2 * one.parameters);
        assert_eq!(two.gradients, 2 * one.gradients);
        assert_eq!(two.optimizer, 2 * one.optimizer);
        assert_eq!(two.activations, one.activations);
    }

    #[test]
    fn adapters_need_few_gradients_and_bfloat16_a_second_copy() {
        let config = Qwen3Config::named("tiny", 100).unwrap();
        let size = ModelSize::new(&config, Some(4));
        let run = RunSize {
            compute_bytes: 2,
            ..RUN
        };
        let estimate = MemoryEstimate::new(&config, &size, &run);
        assert_eq!(estimate.parameters, 6 * size.parameters);
        assert_eq!(estimate.gradients, 4 * size.trained_parameters);
        assert_eq!(estimate.optimizer, 8 * size.trained_parameters);
    }

    #[test]
    fn recurrent_layers_keep_states() {
        let config = Qwen3Config::named("tiny-hybrid", 100).unwrap();
        let size = ModelSize::new(&config, None);
        let none = MemoryEstimate::new(&config, &size, &RUN);
        let run = RunSize {
            kept_states: 7,
            ..RUN
        };
        let seven = MemoryEstimate::new(&config, &size, &run);
        // Three layers of four heads with 64 x 64 numbers in f32.
        assert_eq!(seven.total() - none.total(), 7 * 3 * 4 * 64 * 64 * 4);
    }

    #[test]
    fn sizes_are_readable() {
        assert_eq!(format_bytes(3 << 29), "1.5 GiB");
        assert_eq!(format_bytes(400 << 20), "400 MiB");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_system_tells_what_is_used_and_available() {
        assert!(peak_memory().unwrap() > 1 << 20);
        assert!(available_memory().unwrap() > 1 << 20);
    }
}
