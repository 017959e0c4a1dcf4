//! Options of the model and its dtypes.

use std::num::NonZeroUsize;

use burn::tensor::FloatDType;
use burn_tree_nn::LmHeadOptions;
use clap::ValueEnum;
use serde::Serialize;

use burn_tree_models::Precision;
use burn_tree_models::lora::LoraSettings;

/// Options of the model.
#[derive(clap::Args, Debug, Clone)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// A folder with config.json and safetensors files; for random weights a config.json, or the
    /// name of a built-in configuration (an unknown name lists them).
    #[arg(long, short, value_name = "FOLDER|FILE|NAME", default_value = "tiny")]
    pub model: String,
    /// Renumber the token ids to those in the data, so that the head of a random model does not
    /// dominate the time of a step.
    #[arg(long)]
    pub compact_vocab: bool,
    /// Dtype of the blocks in the forward and backward pass; parameters, norms and the optimizer
    /// stay f32.
    #[arg(long, value_enum, default_value_t = ComputeDtype::F32)]
    pub compute_dtype: ComputeDtype,
    /// Dtype of embedding and head in the forward and backward pass.
    #[arg(long, value_enum, default_value_t = ComputeDtype::F32)]
    pub head_dtype: ComputeDtype,
    /// Rows projected on the vocabulary at a time; default: about 16 million logits. GPUs need
    /// thousands of rows for full speed.
    #[arg(long, value_name = "ROWS")]
    pub head_chunk_rows: Option<NonZeroUsize>,
    /// Train only low-rank adapters of this rank on all projections of the blocks.
    #[arg(long, value_name = "RANK")]
    pub lora_rank: Option<NonZeroUsize>,
    /// Adapters are scaled by alpha / rank.
    #[arg(long, value_name = "ALPHA", default_value_t = 16.0)]
    pub lora_alpha: f64,
    /// For a run with adapters: export the adapters alone, or merged into the model.
    #[arg(long, value_enum, default_value_t = LoraExport::Peft)]
    pub lora_export: LoraExport,
}

impl ModelArgs {
    /// Dtypes of the forward and backward pass.
    pub fn precision(&self) -> Precision {
        Precision {
            blocks: self.compute_dtype.dtype(),
            head: self.head_dtype.dtype(),
        }
    }

    /// The options of the projection on the vocabulary.
    pub fn head(&self) -> LmHeadOptions {
        LmHeadOptions {
            chunk_rows: self.head_chunk_rows.map(NonZeroUsize::get),
            ..Default::default()
        }
    }

    /// The adapter options, if adapters are trained.
    pub fn lora(&self) -> Option<LoraSettings> {
        let rank = self.lora_rank?;
        Some(LoraSettings::new(rank.get(), self.lora_alpha))
    }
}

/// Dtype of the forward and backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ComputeDtype {
    /// 32-bit floats.
    F32,
    /// bfloat16 with f32 parameters.
    Bf16,
}

impl ComputeDtype {
    /// The dtype as a tensor dtype.
    pub fn dtype(self) -> FloatDType {
        match self {
            Self::F32 => FloatDType::F32,
            Self::Bf16 => FloatDType::BF16,
        }
    }

    /// Bytes of a value.
    pub fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// The exported weights of a run with adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LoraExport {
    /// The adapters alone, in PEFT's format.
    Peft,
    /// The whole model with the adapters merged into its weights.
    Merged,
}
