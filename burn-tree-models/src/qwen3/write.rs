//! Writes the fields of `config.json` that are specific to the Qwen3 family.

use serde_json::{Map, Value, json};

use crate::config::{
    AttentionBias, ModelConfig, MoeConfig, extend, write_layer_types, write_name as name,
    write_windows,
};

pub(super) fn qwen3(config: &ModelConfig, json: &mut Map<String, Value>) {
    write_windows(config, json);
    write_bias(config, json);
    match &config.moe {
        None => name(json, "qwen3", "Qwen3ForCausalLM"),
        Some(moe) => {
            name(json, "qwen3_moe", "Qwen3MoeForCausalLM");
            write_experts(moe, json);
        }
    }
}

pub(super) fn qwen3_next(config: &ModelConfig, json: &mut Map<String, Value>) {
    // The dense model has the same class name.
    name(json, "qwen3_next", "Qwen3NextForCausalLM");
    write_hybrid(config, json);
    match &config.moe {
        None => extend(json, json!({ "num_experts": 0 })),
        Some(moe) => write_experts(moe, json),
    }
}

pub(super) fn qwen3_5(config: &ModelConfig, json: &mut Map<String, Value>) {
    write_hybrid(config, json);
    match &config.moe {
        None => name(json, "qwen3_5_text", "Qwen3_5ForCausalLM"),
        Some(moe) => {
            name(json, "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM");
            write_experts(moe, json);
        }
    }
}

fn write_bias(config: &ModelConfig, json: &mut Map<String, Value>) {
    let bias = config.attention_bias != AttentionBias::None;
    extend(json, json!({ "attention_bias": bias }));
}

fn write_hybrid(config: &ModelConfig, json: &mut Map<String, Value>) {
    write_layer_types(config, json);
    write_bias(config, json);
    let rotary_factor = json!(config.rotary_dim as f64 / config.head_dim as f64);
    if let Some(Value::Object(rope)) = json.get_mut("rope_parameters") {
        rope.insert("partial_rotary_factor".to_owned(), rotary_factor.clone());
    }
    extend(
        json,
        json!({
            "attn_output_gate": config.attention_output_gate,
            "partial_rotary_factor": rotary_factor,
        }),
    );
    let linear = (0..config.num_hidden_layers).find_map(|layer| config.linear_attention(layer));
    if let Some(linear) = linear {
        extend(
            json,
            json!({
                "linear_num_key_heads": linear.num_key_heads,
                "linear_num_value_heads": linear.num_value_heads,
                "linear_key_head_dim": linear.key_head_dim,
                "linear_value_head_dim": linear.value_head_dim,
                "linear_conv_kernel_dim": linear.conv_kernel_dim,
            }),
        );
    }
}

fn write_experts(moe: &MoeConfig, json: &mut Map<String, Value>) {
    extend(
        json,
        json!({
            "num_experts": moe.num_experts,
            "num_experts_per_tok": moe.num_experts_per_tok,
            "moe_intermediate_size": moe.moe_intermediate_size,
            "norm_topk_prob": moe.norm_topk_prob,
            "decoder_sparse_step": moe.decoder_sparse_step,
            "mlp_only_layers": moe.mlp_only_layers,
            "output_router_logits": moe.router_aux_loss_coef != 0.0,
            "router_aux_loss_coef": moe.router_aux_loss_coef,
        }),
    );
    if let Some(size) = moe.shared_expert_intermediate_size {
        extend(json, json!({ "shared_expert_intermediate_size": size }));
    }
}
