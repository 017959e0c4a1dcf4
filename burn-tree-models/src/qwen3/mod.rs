//! The Qwen3 family: Qwen3 and Qwen3-MoE, Qwen3-Next, Qwen3.5 and Qwen3.5-MoE (the language model
//! alone).
//!
//! Queries and keys have norms; Qwen3-Next and Qwen3.5 have Gated DeltaNets in most blocks,
//! attention with an output gate in the others, a rotary embedding of part of the head, and norms
//! whose weights are centred on zero.

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

/// Qwen3-Next. The input projections of its recurrent layers are stored by key head.
pub static QWEN3_NEXT: Family = Family {
    name: "Qwen3-Next",
    model_types: &["qwen3_next"],
    presets: &[],
    skipped_keys: &SKIPPED_KEYS,
    read: read::qwen3_next,
    write: write::qwen3_next,
};

/// The language model of Qwen3.5 and Qwen3.5-MoE. The input projections of its recurrent layers are
/// stored apart, its experts together.
pub static QWEN3_5: Family = Family {
    name: "Qwen3.5",
    model_types: &["qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text"],
    presets: &presets::QWEN3_5,
    skipped_keys: &SKIPPED_KEYS,
    read: read::qwen3_5,
    write: write::qwen3_5,
};

/// The encoder of images, and the head that predicts several tokens.
const SKIPPED_KEYS: [&str; 2] = ["model.visual.", "mtp."];
