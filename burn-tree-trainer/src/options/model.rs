//! What is trained, and in which dtypes.

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
    /// A folder with config.json and safetensors files; or a config.json, or the name of a built-in
    /// shape, for random weights. An unknown name lists them.
    #[arg(long, short, value_name = "FOLDER|FILE|NAME", default_value = "tiny")]
    pub model: String,
    /// Renumber the token ids to those that occur in the data, so that the language-model head of a
    /// model with random weights does not dominate.
    #[arg(long)]
    pub compact_vocab: bool,
    /// Dtype of the blocks in the forward and backward pass; parameters, norms and the optimizer
    /// stay f32.
    #[arg(long, value_enum, default_value_t = ComputeDtype::F32)]
    pub compute_dtype: ComputeDtype,
    /// Dtype of embedding and head in the forward and backward pass.
    #[arg(long, value_enum, default_value_t = ComputeDtype::F32)]
    pub head_dtype: ComputeDtype,
    /// Rows projected on the vocabulary at a time; about 16 million logits if not given. A GPU
    /// wants thousands.
    #[arg(long, value_name = "ROWS")]
    pub head_chunk_rows: Option<NonZeroUsize>,
    /// Train low-rank adapters of this rank on all projections of the blocks, and nothing else.
    #[arg(long, value_name = "RANK")]
    pub lora_rank: Option<NonZeroUsize>,
    /// Adapters are scaled by alpha / rank.
    #[arg(long, value_name = "ALPHA", default_value_t = 16.0)]
    pub lora_alpha: f64,
    /// Of a run with adapters, --export writes them alone, or merged into the model.
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

    /// How rows are projected on the vocabulary.
    pub fn head(&self) -> LmHeadOptions {
        LmHeadOptions {
            chunk_rows: self.head_chunk_rows.map(NonZeroUsize::get),
            ..Default::default()
        }
    }

    /// The adapters, if adapters are trained.
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
    /// The dtype of tensors.
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

/// What is exported of a run with adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LoraExport {
    /// The adapters alone, as PEFT reads them.
    Peft,
    /// The whole model with the adapters added to its weights.
    Merged,
}
