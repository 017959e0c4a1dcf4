//! The Qwen3 family: Qwen3 and Qwen3-MoE, Qwen3-Next, Qwen3.5 and Qwen3.5-MoE (language models
//! only).
//!
//! Attention has query and key norms. Qwen3-Next and Qwen3.5 have Gated DeltaNets in most blocks,
//! attention with an output gate in the others, RoPE on a part of the head, and zero-centred norm
//! weights.

mod presets;
mod read;
mod write;

use crate::registry::Family;

/// Qwen3 and Qwen3-MoE: attention in every block.
pub static QWEN3: Family = Family {
    name: "Qwen3",
    model_types: &["qwen3", "qwen3_moe"],
    presets: &presets::QWEN3,
    skipped_keys: &[],
    read: read::qwen3,
    write: write::qwen3,
};

/// Qwen3-Next. The input projections of its recurrent layers are grouped by key head.
pub static QWEN3_NEXT: Family = Family {
    name: "Qwen3-Next",
    model_types: &["qwen3_next"],
    presets: &[],
    skipped_keys: &SKIPPED_KEYS,
    read: read::qwen3_next,
    write: write::qwen3_next,
};

/// The language model of Qwen3.5 and Qwen3.5-MoE. The input projections of its recurrent layers are
/// separate tensors; its experts are fused.
pub static QWEN3_5: Family = Family {
    name: "Qwen3.5",
    model_types: &["qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text"],
    presets: &presets::QWEN3_5,
    skipped_keys: &SKIPPED_KEYS,
    read: read::qwen3_5,
    write: write::qwen3_5,
};

/// The vision encoder and the multi-token-prediction head.
const SKIPPED_KEYS: [&str; 2] = ["model.visual.", "mtp."];
