//! Reading and writing the JSON form.

use serde_json::{Map, Value, json};

use super::fields::Fields;
use super::{Architecture, ConfigError, LayerType, LinearAttentionConfig, MoeConfig, Qwen3Config};

/// `model_type` of each architecture, dense and as a mixture of experts. The last is the language
/// model of a multimodal one, whose `model_type` has no `_text`.
const MODEL_TYPES: [(Architecture, [&str; 2]); 3] = [
    (Architecture::Qwen3, ["qwen3", "qwen3_moe"]),
    // Without experts it has the same name.
    (Architecture::Qwen3Next, ["qwen3_next", "qwen3_next"]),
    (Architecture::Qwen3_5, ["qwen3_5_text", "qwen3_5_moe_text"]),
];

/// Of one block in so many Qwen3-Next and Qwen3.5 is the last with attention, if not given.
const DEFAULT_ATTENTION_INTERVAL: usize = 4;

/// Share of a head that Qwen3-Next and Qwen3.5 rotate, if not given.
const DEFAULT_PARTIAL_ROTARY_FACTOR: f64 = 0.25;

impl Qwen3Config {
    /// Reads the fields of a `config.json`. Of a multimodal model it is the language model that
    /// `text_config` describes.
    pub fn from_json(value: Value) -> Result<Self, ConfigError> {
        let Value::Object(map) = value else {
            return Err(ConfigError::NotAnObject);
        };
        let mut fields = Fields(map);
        let mut model_type = fields.string("model_type")?.ok_or(ConfigError::Missing {
            field: "model_type",
        })?;
        let mut tied = None;
        if ["qwen3_5", "qwen3_5_moe"].contains(&model_type.as_str()) {
            tied = fields.flag("tie_word_embeddings")?;
            fields = fields.object("text_config")?.ok_or(ConfigError::Missing {
                field: "text_config",
            })?;
            fields.take("model_type");
            model_type += "_text";
        }
        let known = MODEL_TYPES
            .iter()
            .find(|(_, names)| names.contains(&model_type.as_str()));
        let Some(&(architecture, [dense, _])) = known else {
            return Err(ConfigError::Unsupported {
                field: "model_type",
                value: model_type,
                reason: "supported are qwen3, qwen3_moe, qwen3_next, qwen3_5, qwen3_5_moe and the \
                         last two with _text",
            });
        };
        let is_moe = model_type != dense || architecture == Architecture::Qwen3Next;
        fields.refuse_unsupported()?;

        let num_hidden_layers = fields.size("num_hidden_layers")?;
        let num_attention_heads = fields.size("num_attention_heads")?;
        let hidden_size = fields.size("hidden_size")?;
        let head_dim = match fields.optional_size("head_dim")? {
            Some(head_dim) => head_dim,
            None if architecture.is_hybrid() => 256,
            None if is_moe => hidden_size / num_attention_heads,
            None => 128,
        };
        let rope = fields.rope(architecture)?;
        let config = Self {
            architecture,
            vocab_size: fields.size("vocab_size")?,
            hidden_size,
            intermediate_size: fields.optional_size("intermediate_size")?.unwrap_or(0),
            num_hidden_layers,
            num_attention_heads,
            num_key_value_heads: fields
                .optional_size("num_key_value_heads")?
                .unwrap_or(num_attention_heads),
            head_dim,
            rotary_dim: (head_dim as f64 * rope.partial_rotary_factor) as usize,
            attention_output_gate: fields
                .flag("attn_output_gate")?
                .unwrap_or(architecture.is_hybrid()),
            rms_norm_eps: fields.number("rms_norm_eps")?.unwrap_or(1e-6),
            rope_theta: rope.theta,
            tie_word_embeddings: {
                let own = fields.flag("tie_word_embeddings")?;
                tied.or(own).unwrap_or(false)
            },
            initializer_range: fields.number("initializer_range")?.unwrap_or(0.02),
            layer_types: match architecture.is_hybrid() {
                true => fields.hybrid_layers(num_hidden_layers)?,
                false => fields.attention_layers(num_hidden_layers, is_moe)?,
            },
            moe: match is_moe {
                true => fields.moe(architecture)?,
                false => None,
            },
            other: Map::new(),
        };
        config.check()?;
        // The head for predicting several tokens is not loaded.
        fields.take("mtp_num_hidden_layers");
        fields.take("mtp_use_dedicated_embeddings");
        Ok(Self {
            other: fields.0,
            ..config
        })
    }

    /// The `config.json` of the model, with the fields that were read but not used.
    pub fn to_json(&self) -> Value {
        let window = self.layer_types.iter().find_map(|layer| match layer {
            LayerType::SlidingAttention(window) => Some(*window),
            _ => None,
        });
        let layer_types: Vec<&str> = self.layer_types.iter().map(LayerType::name).collect();
        let rotary_factor = self.rotary_dim as f64 / self.head_dim as f64;
        let mut json = json!({
            "architectures": [self.class_name()],
            "model_type": self.model_type(),
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "attention_bias": false,
            "attention_dropout": 0.0,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "tie_word_embeddings": self.tie_word_embeddings,
            "initializer_range": self.initializer_range,
            "layer_types": layer_types,
        });
        let object = json.as_object_mut().expect("built as an object");
        let mut extend = |fields: Value| {
            object.extend(fields.as_object().expect("built as an object").clone());
        };
        if self.intermediate_size > 0 {
            extend(json!({ "intermediate_size": self.intermediate_size }));
        }
        // Both spellings of the rotary embedding: readers of either age find theirs.
        let mut rope = json!({ "rope_type": "default", "rope_theta": self.rope_theta });
        if self.architecture.is_hybrid() {
            rope["partial_rotary_factor"] = json!(rotary_factor);
            extend(json!({
                "attn_output_gate": self.attention_output_gate,
                "partial_rotary_factor": rotary_factor,
            }));
        } else {
            extend(json!({ "sliding_window": window, "use_sliding_window": window.is_some() }));
        }
        if let Some(Value::Object(kept)) = self.other.get("rope_parameters") {
            let rope = rope.as_object_mut().expect("built as an object");
            rope.extend(kept.clone());
        }
        extend(json!({ "rope_parameters": rope }));
        if let Some(linear) =
            (0..self.num_hidden_layers).find_map(|layer| self.linear_attention(layer))
        {
            extend(json!({
                "linear_num_key_heads": linear.num_key_heads,
                "linear_num_value_heads": linear.num_value_heads,
                "linear_key_head_dim": linear.key_head_dim,
                "linear_value_head_dim": linear.value_head_dim,
                "linear_conv_kernel_dim": linear.conv_kernel_dim,
            }));
        }
        if let Some(moe) = &self.moe {
            extend(json!({
                "num_experts": moe.num_experts,
                "num_experts_per_tok": moe.num_experts_per_tok,
                "moe_intermediate_size": moe.moe_intermediate_size,
                "norm_topk_prob": moe.norm_topk_prob,
                "decoder_sparse_step": moe.decoder_sparse_step,
                "mlp_only_layers": moe.mlp_only_layers,
                "output_router_logits": moe.router_aux_loss_coef != 0.0,
                "router_aux_loss_coef": moe.router_aux_loss_coef,
            }));
            if let Some(size) = moe.shared_expert_intermediate_size {
                extend(json!({ "shared_expert_intermediate_size": size }));
            }
        } else if self.architecture == Architecture::Qwen3Next {
            extend(json!({ "num_experts": 0 }));
        }
        for (field, value) in &self.other {
            object.entry(field.clone()).or_insert_with(|| value.clone());
        }
        json
    }

    fn model_type(&self) -> &'static str {
        let names = MODEL_TYPES
            .iter()
            .find(|(architecture, _)| *architecture == self.architecture);
        let (_, names) = names.expect("all architectures are listed");
        names[usize::from(self.moe.is_some())]
    }

    /// Name of the class in Hugging Face's library.
    fn class_name(&self) -> &'static str {
        match (self.architecture, &self.moe) {
            (Architecture::Qwen3, None) => "Qwen3ForCausalLM",
            (Architecture::Qwen3, Some(_)) => "Qwen3MoeForCausalLM",
            (Architecture::Qwen3Next, _) => "Qwen3NextForCausalLM",
            (Architecture::Qwen3_5, None) => "Qwen3_5ForCausalLM",
            (Architecture::Qwen3_5, Some(_)) => "Qwen3_5MoeForCausalLM",
        }
    }
}

impl LayerType {
    fn name(&self) -> &'static str {
        match self {
            Self::FullAttention => "full_attention",
            Self::SlidingAttention(_) => "sliding_attention",
            Self::LinearAttention(_) => "linear_attention",
        }
    }
}

/// The rotary embedding.
struct Rope {
    theta: f64,
    partial_rotary_factor: f64,
}

/// What several fields say together.
impl Fields {
    fn refuse_unsupported(&mut self) -> Result<(), ConfigError> {
        let unsupported = |field, value: &dyn ToString, reason| {
            Err(ConfigError::Unsupported {
                field,
                value: value.to_string(),
                reason,
            })
        };
        self.take("architectures");
        if self.flag("attention_bias")? == Some(true) {
            return unsupported("attention_bias", &true, "projections have no bias");
        }
        match self.number("attention_dropout")? {
            Some(dropout) if dropout != 0.0 => {
                return unsupported(
                    "attention_dropout",
                    &dropout,
                    "dropout would make packed and separate trajectories differ",
                );
            }
            _ => {}
        }
        match self.string("hidden_act")? {
            Some(activation) if activation != "silu" => {
                unsupported("hidden_act", &activation, "only silu is")
            }
            _ => Ok(()),
        }
    }

    /// `rope_parameters {rope_type, rope_theta, partial_rotary_factor, ..}`, or `rope_theta`,
    /// `partial_rotary_factor` and `rope_scaling`.
    fn rope(&mut self, architecture: Architecture) -> Result<Rope, ConfigError> {
        let mut theta = self.number("rope_theta")?;
        let mut factor = self.number("partial_rotary_factor")?;
        for field in ["rope_scaling", "rope_parameters"] {
            let Some(mut fields) = self.object(field)? else {
                continue;
            };
            let kind = match fields.string("rope_type")? {
                Some(kind) => Some(kind),
                None => fields.string("type")?,
            };
            if let Some(kind) = kind.filter(|kind| kind != "default") {
                return Err(ConfigError::Unsupported {
                    field,
                    value: kind,
                    reason: "only the default rotary embedding is",
                });
            }
            theta = fields.number("rope_theta")?.or(theta);
            factor = fields.number("partial_rotary_factor")?.or(factor);
            // How positions of images are interleaved: of text it is the plain embedding.
            if field == "rope_parameters" && !fields.0.is_empty() {
                self.0.insert(field.to_owned(), Value::Object(fields.0));
            }
        }
        let default = match architecture.is_hybrid() {
            true => DEFAULT_PARTIAL_ROTARY_FACTOR,
            false => 1.0,
        };
        let partial_rotary_factor = factor.unwrap_or(default);
        if !architecture.is_hybrid() && partial_rotary_factor != 1.0 {
            return Err(ConfigError::Unsupported {
                field: "partial_rotary_factor",
                value: partial_rotary_factor.to_string(),
                reason: "Qwen3 rotates the whole head",
            });
        }
        Ok(Rope {
            theta: theta.ok_or(ConfigError::Missing {
                field: "rope_theta",
            })?,
            partial_rotary_factor,
        })
    }

    /// `layer_types` with an entry for each layer, if given.
    fn layer_types(&mut self, layers: usize) -> Result<Option<Vec<String>>, ConfigError> {
        let names = self.strings("layer_types")?;
        match names {
            Some(names) if names.len() != layers => Err(ConfigError::Invalid {
                field: "layer_types",
                value: format!("a list of {}", names.len()),
                expected: "one entry per layer",
            }),
            names => Ok(names),
        }
    }

    /// The layers of a model in which all attend.
    fn attention_layers(
        &mut self,
        layers: usize,
        is_moe: bool,
    ) -> Result<Vec<LayerType>, ConfigError> {
        let used = self.flag("use_sliding_window")?.unwrap_or(false);
        let window = self.optional_size("sliding_window")?.filter(|_| used);
        let full_layers = self
            .typed("max_window_layers", "a whole number", Value::as_u64)?
            .unwrap_or(28);
        let sliding = |window: Option<usize>| match window {
            Some(window) => LayerType::SlidingAttention(window),
            None => LayerType::FullAttention,
        };
        let Some(names) = self.layer_types(layers)? else {
            // Without a list the dense model keeps full attention in its first layers.
            return Ok((0..layers as u64)
                .map(|layer| sliding(window.filter(|_| is_moe || layer >= full_layers)))
                .collect());
        };
        names
            .into_iter()
            .map(|name| match (name.as_str(), window) {
                ("full_attention", _) => Ok(LayerType::FullAttention),
                ("sliding_attention", Some(window)) => Ok(LayerType::SlidingAttention(window)),
                ("sliding_attention", None) => Err(ConfigError::Missing {
                    field: "sliding_window",
                }),
                _ => Err(ConfigError::Unsupported {
                    field: "layer_types",
                    value: name,
                    reason: "only full_attention and sliding_attention are",
                }),
            })
            .collect()
    }

    /// The layers of a hybrid model: `layer_types`, or every `full_attention_interval`-th attends.
    fn hybrid_layers(&mut self, layers: usize) -> Result<Vec<LayerType>, ConfigError> {
        let interval = self.optional_size("full_attention_interval")?;
        if let Some(interval) = interval {
            // Kept for readers that know no `layer_types`.
            self.0
                .insert("full_attention_interval".to_owned(), interval.into());
        }
        let interval = interval.unwrap_or(DEFAULT_ATTENTION_INTERVAL);
        let names = match self.layer_types(layers)? {
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
                num_key_heads: self.size("linear_num_key_heads")?,
                num_value_heads: self.size("linear_num_value_heads")?,
                key_head_dim: self.size("linear_key_head_dim")?,
                value_head_dim: self.size("linear_value_head_dim")?,
                conv_kernel_dim: self.size("linear_conv_kernel_dim")?,
            }),
            false => None,
        };
        names
            .into_iter()
            .map(|name| match (name.as_str(), linear) {
                ("full_attention", _) => Ok(LayerType::FullAttention),
                ("linear_attention", Some(linear)) => Ok(LayerType::LinearAttention(linear)),
                _ => Err(ConfigError::Unsupported {
                    field: "layer_types",
                    value: name,
                    reason: "only full_attention and linear_attention are",
                }),
            })
            .collect()
    }

    fn moe(&mut self, architecture: Architecture) -> Result<Option<MoeConfig>, ConfigError> {
        let experts = |fields: &mut Self, field| {
            fields.typed(field, "a whole number", |value| {
                value.as_u64().filter(|&experts| experts <= i32::MAX as u64)
            })
        };
        let num_experts = experts(self, "num_experts")?.or(experts(self, "num_local_experts")?);
        let num_experts = num_experts.ok_or(ConfigError::Missing {
            field: "num_experts",
        })? as usize;
        if num_experts == 0 {
            return Ok(None);
        }
        let mlp_only_layers = self.typed("mlp_only_layers", "a list of layers", |value| {
            let layers = value.as_array()?.iter();
            layers
                .map(|layer| layer.as_u64().map(|layer| layer as usize))
                .collect::<Option<Vec<usize>>>()
        })?;
        let norm_topk_prob = self.flag("norm_topk_prob")?;
        Ok(Some(MoeConfig {
            num_experts,
            num_experts_per_tok: self.size("num_experts_per_tok")?,
            moe_intermediate_size: self.size("moe_intermediate_size")?,
            shared_expert_intermediate_size: match architecture.is_hybrid() {
                true => Some(self.size("shared_expert_intermediate_size")?),
                false => None,
            },
            norm_topk_prob: match architecture {
                // The reference always does, and does not read the field.
                Architecture::Qwen3_5 => true,
                Architecture::Qwen3Next => norm_topk_prob.unwrap_or(true),
                Architecture::Qwen3 => norm_topk_prob.unwrap_or(false),
            },
            decoder_sparse_step: self.optional_size("decoder_sparse_step")?.unwrap_or(1),
            mlp_only_layers: mlp_only_layers.unwrap_or_default(),
            router_aux_loss_coef: {
                let used = self.flag("output_router_logits")?.unwrap_or(false);
                let factor = self.number("router_aux_loss_coef")?.unwrap_or(0.001);
                if used { factor } else { 0.0 }
            },
        }))
    }
}
