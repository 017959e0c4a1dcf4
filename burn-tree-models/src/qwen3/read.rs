//! Reads the `config.json` of the Qwen3 family.

use super::{QWEN3, QWEN3_5, QWEN3_NEXT};
use crate::config::{
    AttentionBias, ConfigError, Defaults, ExpertStorage, Fields, LayerType, LinearAttentionConfig,
    ModelConfig, MoeConfig, ProjectionLayout, attention_layers, layer_types,
};

/// Default interval of attention blocks in the hybrid models.
const DEFAULT_ATTENTION_INTERVAL: usize = 4;

/// Defaults of the hybrid models for absent fields.
const HYBRID: Defaults = Defaults {
    head_dim: Some(256),
    rope_theta: None,
    partial_rotary_factor: 0.25,
};

pub(super) fn qwen3(mut fields: Fields, model_type: &str) -> Result<ModelConfig, ConfigError> {
    let is_moe = model_type == "qwen3_moe";
    let defaults = Defaults {
        head_dim: if is_moe { None } else { Some(128) },
        rope_theta: None,
        partial_rotary_factor: 1.0,
    };
    let config = ModelConfig::common(&QWEN3, &mut fields, defaults)?;
    let config = ModelConfig {
        query_key_norm: true,
        attention_bias: attention_bias(&mut fields)?,
        // Without `layer_types`, the first layers of the dense model have full attention.
        layer_types: attention_layers(&mut fields, config.num_hidden_layers, !is_moe)?,
        moe: match is_moe {
            true => experts(&mut fields, ExpertStorage::Single, false, false)?,
            false => None,
        },
        ..config
    };
    config.checked(fields)
}

pub(super) fn qwen3_next(mut fields: Fields, _: &str) -> Result<ModelConfig, ConfigError> {
    let config = ModelConfig::common(&QWEN3_NEXT, &mut fields, HYBRID)?;
    let moe = experts(&mut fields, ExpertStorage::Single, true, true)?;
    let config = ModelConfig { moe, ..config };
    hybrid(config, fields, ProjectionLayout::Grouped)
}

/// In a multimodal model, the fields of the language model are in `text_config`.
pub(super) fn qwen3_5(mut fields: Fields, model_type: &str) -> Result<ModelConfig, ConfigError> {
    let mut tied = None;
    if !model_type.ends_with("_text") {
        tied = fields.flag("tie_word_embeddings")?;
        fields = fields
            .object("text_config")?
            .ok_or_else(|| ConfigError::missing("text_config"))?;
        fields.take("model_type");
    }
    let mut config = ModelConfig::common(&QWEN3_5, &mut fields, HYBRID)?;
    if let Some(tied) = tied {
        config.tie_word_embeddings = tied;
    }
    if model_type.starts_with("qwen3_5_moe") {
        config.moe = experts(&mut fields, ExpertStorage::Fused, true, true)?;
        if let Some(moe) = &mut config.moe {
            // The reference implementation always normalises and ignores the field.
            moe.norm_topk_prob = true;
        }
    }
    hybrid(config, fields, ProjectionLayout::Split)
}

/// The fields of both hybrid models.
fn hybrid(
    config: ModelConfig,
    mut fields: Fields,
    projections: ProjectionLayout,
) -> Result<ModelConfig, ConfigError> {
    let config = ModelConfig {
        query_key_norm: true,
        zero_centered_norms: true,
        attention_bias: attention_bias(&mut fields)?,
        attention_output_gate: fields.flag("attn_output_gate")?.unwrap_or(true),
        layer_types: hybrid_layers(&mut fields, config.num_hidden_layers, projections)?,
        ..config
    };
    // The multi-token-prediction head is not loaded.
    fields.take("mtp_num_hidden_layers");
    fields.take("mtp_use_dedicated_embeddings");
    config.checked(fields)
}

fn attention_bias(fields: &mut Fields) -> Result<AttentionBias, ConfigError> {
    Ok(match fields.flag("attention_bias")? {
        Some(true) => AttentionBias::All,
        Some(false) | None => AttentionBias::None,
    })
}

/// The mixers of a hybrid model: `layer_types`, or attention in every `full_attention_interval`-th
/// layer.
fn hybrid_layers(
    fields: &mut Fields,
    layers: usize,
    projections: ProjectionLayout,
) -> Result<Vec<LayerType>, ConfigError> {
    let interval = fields.optional_size("full_attention_interval")?;
    if let Some(interval) = interval {
        // Kept for readers that do not support `layer_types`.
        fields.insert("full_attention_interval", interval);
    }
    let interval = interval.unwrap_or(DEFAULT_ATTENTION_INTERVAL);
    let names = match layer_types(fields, layers)? {
        Some(names) => names,
        None => (1..=layers)
            .map(|layer| match layer.is_multiple_of(interval) {
                true => "full_attention".to_owned(),
                false => "linear_attention".to_owned(),
            })
            .collect(),
    };
    let linear = match names.iter().any(|name| name == "linear_attention") {
        true => Some(LinearAttentionConfig {
            num_key_heads: fields.size("linear_num_key_heads")?,
            num_value_heads: fields.size("linear_num_value_heads")?,
            key_head_dim: fields.size("linear_key_head_dim")?,
            value_head_dim: fields.size("linear_value_head_dim")?,
            conv_kernel_dim: fields.size("linear_conv_kernel_dim")?,
            projections,
        }),
        false => None,
    };
    names
        .into_iter()
        .map(|name| match (name.as_str(), linear) {
            ("full_attention", _) => Ok(LayerType::FullAttention),
            ("linear_attention", Some(linear)) => Ok(LayerType::LinearAttention(linear)),
            _ => Err(ConfigError::unsupported(
                "layer_types",
                name,
                "only full_attention and linear_attention are",
            )),
        })
        .collect()
}

/// The mixture of experts, if there is one; `normalised` is the default of `norm_topk_prob`.
fn experts(
    fields: &mut Fields,
    storage: ExpertStorage,
    shared: bool,
    normalised: bool,
) -> Result<Option<MoeConfig>, ConfigError> {
    let count = |fields: &mut Fields, field| {
        fields.typed(field, "a whole number", |value| {
            value.as_u64().filter(|&experts| experts <= i32::MAX as u64)
        })
    };
    let num_experts = count(fields, "num_experts")?.or(count(fields, "num_local_experts")?);
    let num_experts = num_experts.ok_or_else(|| ConfigError::missing("num_experts"))? as usize;
    if num_experts == 0 {
        return Ok(None);
    }
    let mlp_only_layers = fields.typed("mlp_only_layers", "a list of layers", |value| {
        let layers = value.as_array()?.iter();
        layers
            .map(|layer| layer.as_u64().map(|layer| layer as usize))
            .collect::<Option<Vec<usize>>>()
    })?;
    Ok(Some(MoeConfig {
        num_experts,
        num_experts_per_tok: fields.size("num_experts_per_tok")?,
        moe_intermediate_size: fields.size("moe_intermediate_size")?,
        shared_expert_intermediate_size: match shared {
            true => Some(fields.size("shared_expert_intermediate_size")?),
            false => None,
        },
        norm_topk_prob: fields.flag("norm_topk_prob")?.unwrap_or(normalised),
        decoder_sparse_step: fields.optional_size("decoder_sparse_step")?.unwrap_or(1),
        mlp_only_layers: mlp_only_layers.unwrap_or_default(),
        router_aux_loss_coef: {
            let used = fields.flag("output_router_logits")?.unwrap_or(false);
            let factor = fields.number("router_aux_loss_coef")?.unwrap_or(0.001);
            if used { factor } else { 0.0 }
        },
        storage,
    }))
}
