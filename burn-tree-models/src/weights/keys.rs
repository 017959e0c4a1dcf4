//! Checkpoint keys, and the dtypes of parameters in files.

use burn::tensor::DType;

/// Parts of module paths that have another name in keys.
const RENAMED: [(&str, &str); 9] = [
    (".mixer.Attention.", ".self_attn."),
    (".mixer.GatedDeltaNet.", ".linear_attn."),
    (".projections.Grouped.", "."),
    (".projections.Split.", "."),
    (".a_log", ".A_log"),
    (".mlp.Dense.", ".mlp."),
    (".mlp.Sparse.", ".mlp."),
    (".shared_expert.gate", ".shared_expert_gate"),
    (".shared_expert.mlp.", ".shared_expert."),
];

/// The key of the parameter or module at `path`, a module path with the names of enum variants.
pub(crate) fn key_of(path: &str) -> String {
    let mut key = path.to_owned();
    for (part, name) in RENAMED {
        key = key.replace(part, name);
    }
    match key.starts_with("lm_head") {
        true => key,
        false => format!("model.{key}"),
    }
}

/// The dtype of the parameter `key` in a model of `dtype`, in memory and in files: at least f32 for
/// decay rates and the norm of recurrent layers.
pub(crate) fn stored_dtype(key: &str, dtype: DType) -> DType {
    let wide = ["linear_attn.A_log", "linear_attn.norm.weight"];
    match dtype {
        DType::F16 | DType::BF16 if wide.iter().any(|name| key.ends_with(name)) => DType::F32,
        dtype => dtype,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_published_checkpoints() {
        for (path, key) in [
            ("lm_head.weight", "lm_head.weight"),
            ("embed_tokens.weight", "model.embed_tokens.weight"),
            (
                "layers.3.mixer.Attention.q_norm.weight",
                "model.layers.3.self_attn.q_norm.weight",
            ),
            (
                "layers.0.mixer.GatedDeltaNet.a_log",
                "model.layers.0.linear_attn.A_log",
            ),
            (
                "layers.0.mixer.GatedDeltaNet.projections.Grouped.in_proj_ba.weight",
                "model.layers.0.linear_attn.in_proj_ba.weight",
            ),
            (
                "layers.0.mlp.Dense.up_proj.weight",
                "model.layers.0.mlp.up_proj.weight",
            ),
            (
                "layers.0.mlp.Sparse.shared_expert.gate.weight",
                "model.layers.0.mlp.shared_expert_gate.weight",
            ),
            (
                "layers.0.mlp.Sparse.shared_expert.mlp.gate_proj",
                "model.layers.0.mlp.shared_expert.gate_proj",
            ),
        ] {
            assert_eq!(key_of(path), key);
        }
    }

    #[test]
    fn only_decay_and_its_norm_are_kept_wide() {
        let dtype = |key| stored_dtype(key, DType::BF16);
        assert_eq!(dtype("model.layers.0.linear_attn.A_log"), DType::F32);
        assert_eq!(dtype("model.layers.0.linear_attn.norm.weight"), DType::F32);
        assert_eq!(dtype("model.layers.0.linear_attn.dt_bias"), DType::BF16);
        assert_eq!(dtype("model.norm.weight"), DType::BF16);
        let key = "model.layers.0.linear_attn.A_log";
        assert_eq!(stored_dtype(key, DType::F64), DType::F64);
    }
}
