//! Shape of a model, as in a Hugging Face `config.json`.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

/// Shape and constants of a Qwen3 or Qwen3-MoE model.
#[derive(Clone, Debug, PartialEq)]
pub struct Qwen3Config {
    /// Number of token ids.
    pub vocab_size: usize,
    /// Features of the residual stream.
    pub hidden_size: usize,
    /// Features inside the dense feed-forward layers.
    pub intermediate_size: usize,
    /// Number of blocks.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; divides the query heads.
    pub num_key_value_heads: usize,
    /// Features of one head.
    pub head_dim: usize,
    /// Added to the mean square in norms.
    pub rms_norm_eps: f64,
    /// Base of the rotary angles.
    pub rope_theta: f64,
    /// Whether the head is the embedding.
    pub tie_word_embeddings: bool,
    /// Standard deviation of random weights.
    pub initializer_range: f64,
    /// For each block the number of positions a query looks back, itself included, if limited.
    pub sliding_windows: Vec<Option<usize>>,
    /// Mixture-of-experts settings; `None` for a dense model.
    pub moe: Option<MoeConfig>,
    /// Fields of the JSON file that do not change the computation; they are written back.
    pub other: Map<String, Value>,
}

/// Mixture-of-experts settings.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeConfig {
    /// Number of experts `E`.
    pub num_experts: usize,
    /// Experts per token `K`.
    pub num_experts_per_tok: usize,
    /// Features inside one expert.
    pub moe_intermediate_size: usize,
    /// Whether the weights of the chosen experts are scaled to sum to one.
    pub norm_topk_prob: bool,
    /// Every how many blocks the feed-forward layer is a mixture.
    pub decoder_sparse_step: usize,
    /// Blocks that stay dense all the same.
    pub mlp_only_layers: Vec<usize>,
    /// Factor of the load-balancing loss; 0 if it is off.
    pub router_aux_loss_coef: f64,
}

/// A configuration that cannot be read or is not supported.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The file is not JSON.
    #[error("{}: not valid JSON: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Cause, with line and column.
        source: serde_json::Error,
    },
    /// The file is JSON, but no object.
    #[error("the configuration must be a JSON object")]
    NotAnObject,
    /// A field is absent.
    #[error("field `{field}` is missing")]
    Missing {
        /// Name of the field.
        field: &'static str,
    },
    /// A field has a value that makes no sense.
    #[error("field `{field}` is {value}, expected {expected}")]
    Invalid {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
    /// A field asks for something that is not implemented.
    #[error("field `{field}` is {value}, which is not supported: {reason}")]
    Unsupported {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: String,
        /// What is supported instead.
        reason: &'static str,
    },
    /// There is no built-in configuration of that name.
    #[error("no built-in model `{0}`; there are {list}", list = NAMED.join(", "))]
    UnknownName(String),
}

const NAMED: [&str; 4] = ["tiny", "tiny-moe", "small", "0.6b"];

impl Qwen3Config {
    /// A built-in configuration: `tiny` (hidden 256, 4 blocks, for demonstrations on a CPU),
    /// `tiny-moe` (the same with 8 experts, 2 per token), `small` (hidden 512, 4 blocks, for
    /// measurements on a CPU) or `0.6b` (Qwen3-0.6B).
    pub fn named(name: &str, vocab_size: usize) -> Result<Self, ConfigError> {
        let moe = MoeConfig {
            num_experts: 8,
            num_experts_per_tok: 2,
            moe_intermediate_size: 256,
            norm_topk_prob: true,
            decoder_sparse_step: 1,
            mlp_only_layers: Vec::new(),
            router_aux_loss_coef: 0.0,
        };
        let tiny = Self {
            vocab_size,
            hidden_size: 256,
            intermediate_size: 768,
            num_hidden_layers: 4,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            head_dim: 64,
            rms_norm_eps: 1e-6,
            rope_theta: 1e6,
            tie_word_embeddings: true,
            initializer_range: 0.02,
            sliding_windows: vec![None; 4],
            moe: None,
            other: Map::new(),
        };
        match name {
            "tiny" => Ok(tiny),
            "tiny-moe" => Ok(Self {
                moe: Some(moe),
                ..tiny
            }),
            "small" => Ok(Self {
                hidden_size: 512,
                intermediate_size: 1536,
                num_attention_heads: 8,
                num_key_value_heads: 4,
                ..tiny
            }),
            "0.6b" => Ok(Self {
                hidden_size: 1024,
                intermediate_size: 3072,
                num_hidden_layers: 28,
                num_attention_heads: 16,
                num_key_value_heads: 8,
                head_dim: 128,
                sliding_windows: vec![None; 28],
                ..tiny
            }),
            _ => Err(ConfigError::UnknownName(name.to_owned())),
        }
    }

    /// Reads `config.json` of a model folder, or a JSON file.
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let path = match path.is_dir() {
            true => path.join("config.json"),
            false => path.to_owned(),
        };
        let text = std::fs::read_to_string(&path).map_err(|source| ConfigError::Io {
            path: path.clone(),
            source,
        })?;
        let value = serde_json::from_str(&text).map_err(|source| ConfigError::Json {
            path: path.clone(),
            source,
        })?;
        Self::from_json(value)
    }

    /// Whether the feed-forward layer of block `layer` is a mixture of experts.
    pub fn is_moe_layer(&self, layer: usize) -> bool {
        self.moe.as_ref().is_some_and(|moe| {
            !moe.mlp_only_layers.contains(&layer)
                && (layer + 1).is_multiple_of(moe.decoder_sparse_step)
        })
    }
}

/// The JSON form.
impl Qwen3Config {
    /// Reads the fields of a `config.json`.
    pub fn from_json(value: Value) -> Result<Self, ConfigError> {
        let Value::Object(map) = value else {
            return Err(ConfigError::NotAnObject);
        };
        let mut fields = Fields(map);
        let is_moe = match fields.string("model_type")?.as_deref() {
            Some("qwen3") => false,
            Some("qwen3_moe") => true,
            Some(other) => {
                return Err(ConfigError::Unsupported {
                    field: "model_type",
                    value: other.to_owned(),
                    reason: "supported are qwen3 and qwen3_moe",
                });
            }
            None => {
                return Err(ConfigError::Missing {
                    field: "model_type",
                });
            }
        };
        fields.refuse_unsupported()?;

        let num_hidden_layers = fields.size("num_hidden_layers")?;
        let num_attention_heads = fields.size("num_attention_heads")?;
        let hidden_size = fields.size("hidden_size")?;
        let config = Self {
            vocab_size: fields.size("vocab_size")?,
            hidden_size,
            intermediate_size: fields.size("intermediate_size")?,
            num_hidden_layers,
            num_attention_heads,
            num_key_value_heads: fields
                .optional_size("num_key_value_heads")?
                .unwrap_or(num_attention_heads),
            head_dim: match fields.optional_size("head_dim")? {
                Some(head_dim) => head_dim,
                None if is_moe => hidden_size / num_attention_heads,
                None => 128,
            },
            rms_norm_eps: fields.number("rms_norm_eps")?.unwrap_or(1e-6),
            rope_theta: fields.rope_theta()?,
            tie_word_embeddings: fields.flag("tie_word_embeddings")?.unwrap_or(false),
            initializer_range: fields.number("initializer_range")?.unwrap_or(0.02),
            sliding_windows: fields.sliding_windows(num_hidden_layers, is_moe)?,
            moe: match is_moe {
                true => fields.moe()?,
                false => None,
            },
            other: Map::new(),
        };
        config.check()?;
        Ok(Self {
            other: fields.0,
            ..config
        })
    }

    /// The `config.json` of the model, with the fields that were read but not used.
    pub fn to_json(&self) -> Value {
        let window = self.sliding_windows.iter().flatten().next();
        let layer_types: Vec<&str> = self
            .sliding_windows
            .iter()
            .map(|window| match window {
                Some(_) => "sliding_attention",
                None => "full_attention",
            })
            .collect();
        let (architecture, model_type) = match self.moe {
            Some(_) => ("Qwen3MoeForCausalLM", "qwen3_moe"),
            None => ("Qwen3ForCausalLM", "qwen3"),
        };
        let mut json = serde_json::json!({
            "architectures": [architecture],
            "model_type": model_type,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
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
            "sliding_window": window,
            "use_sliding_window": window.is_some(),
            "layer_types": layer_types,
        });
        let object = json.as_object_mut().expect("built as an object");
        if let Some(moe) = &self.moe {
            let moe = serde_json::json!({
                "num_experts": moe.num_experts,
                "num_experts_per_tok": moe.num_experts_per_tok,
                "moe_intermediate_size": moe.moe_intermediate_size,
                "norm_topk_prob": moe.norm_topk_prob,
                "decoder_sparse_step": moe.decoder_sparse_step,
                "mlp_only_layers": moe.mlp_only_layers,
                "output_router_logits": moe.router_aux_loss_coef != 0.0,
                "router_aux_loss_coef": moe.router_aux_loss_coef,
            });
            object.extend(moe.as_object().expect("built as an object").clone());
        }
        for (field, value) in &self.other {
            object.entry(field.clone()).or_insert_with(|| value.clone());
        }
        json
    }

    fn check(&self) -> Result<(), ConfigError> {
        let invalid = |field, value: &dyn ToString, expected| {
            Err(ConfigError::Invalid {
                field,
                value: value.to_string(),
                expected,
            })
        };
        if !self
            .num_attention_heads
            .is_multiple_of(self.num_key_value_heads)
        {
            return invalid(
                "num_key_value_heads",
                &self.num_key_value_heads,
                "a divisor of num_attention_heads",
            );
        }
        if !self.head_dim.is_multiple_of(2) {
            return invalid("head_dim", &self.head_dim, "an even number");
        }
        if self.rms_norm_eps <= 0.0 {
            return invalid("rms_norm_eps", &self.rms_norm_eps, "a positive number");
        }
        if self.rope_theta <= 0.0 {
            return invalid("rope_theta", &self.rope_theta, "a positive number");
        }
        if let Some(moe) = &self.moe
            && moe.num_experts_per_tok > moe.num_experts
        {
            return invalid(
                "num_experts_per_tok",
                &moe.num_experts_per_tok,
                "at most the number of experts",
            );
        }
        Ok(())
    }
}

/// Fields of a JSON object; those that are taken out are understood, the rest is kept.
struct Fields(Map<String, Value>);

impl Fields {
    /// Takes a field out; JSON null counts as absent.
    fn take(&mut self, field: &'static str) -> Option<Value> {
        self.0.shift_remove(field).filter(|value| !value.is_null())
    }

    fn typed<T>(
        &mut self,
        field: &'static str,
        expected: &'static str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.take(field) else {
            return Ok(None);
        };
        match read(&value) {
            Some(read) => Ok(Some(read)),
            None => Err(ConfigError::Invalid {
                field,
                value: value.to_string(),
                expected,
            }),
        }
    }

    fn string(&mut self, field: &'static str) -> Result<Option<String>, ConfigError> {
        self.typed(field, "a string", |value| value.as_str().map(str::to_owned))
    }

    fn flag(&mut self, field: &'static str) -> Result<Option<bool>, ConfigError> {
        self.typed(field, "true or false", Value::as_bool)
    }

    fn number(&mut self, field: &'static str) -> Result<Option<f64>, ConfigError> {
        self.typed(field, "a finite number", |value| {
            value.as_f64().filter(|number| number.is_finite())
        })
    }

    fn optional_size(&mut self, field: &'static str) -> Result<Option<usize>, ConfigError> {
        // Sizes index tensors with 32 bits.
        self.typed(field, "a whole number from 1 to 2^31 - 1", |value| {
            let size = value.as_u64()?;
            (1..=i32::MAX as u64)
                .contains(&size)
                .then_some(size as usize)
        })
    }

    fn size(&mut self, field: &'static str) -> Result<usize, ConfigError> {
        self.optional_size(field)?
            .ok_or(ConfigError::Missing { field })
    }

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

    /// `rope_parameters {rope_type, rope_theta, ..}`, or `rope_theta` and `rope_scaling`.
    fn rope_theta(&mut self) -> Result<f64, ConfigError> {
        let top_level = self.number("rope_theta")?;
        let mut theta = None;
        for field in ["rope_parameters", "rope_scaling"] {
            let object = self.typed(field, "an object", |value| value.as_object().cloned())?;
            let Some(object) = object else { continue };
            let mut fields = Fields(object);
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
            match fields.number("partial_rotary_factor")? {
                Some(factor) if factor != 1.0 => {
                    return Err(ConfigError::Unsupported {
                        field: "partial_rotary_factor",
                        value: factor.to_string(),
                        reason: "these models rotate the whole head",
                    });
                }
                _ => theta = theta.or(fields.number("rope_theta")?),
            }
        }
        theta.or(top_level).ok_or(ConfigError::Missing {
            field: "rope_theta",
        })
    }

    fn sliding_windows(
        &mut self,
        layers: usize,
        is_moe: bool,
    ) -> Result<Vec<Option<usize>>, ConfigError> {
        let used = self.flag("use_sliding_window")?.unwrap_or(false);
        let window = self.optional_size("sliding_window")?.filter(|_| used);
        let full_layers = self
            .typed("max_window_layers", "a whole number", Value::as_u64)?
            .unwrap_or(28);
        let layer_types = self.typed("layer_types", "an array of strings", |value| {
            let names = value.as_array()?.iter();
            names
                .map(|name| name.as_str().map(str::to_owned))
                .collect::<Option<Vec<String>>>()
        })?;
        let Some(layer_types) = layer_types else {
            // Without a list the dense model keeps full attention in its first layers.
            return Ok((0..layers as u64)
                .map(|layer| window.filter(|_| is_moe || layer >= full_layers))
                .collect());
        };
        if layer_types.len() != layers {
            return Err(ConfigError::Invalid {
                field: "layer_types",
                value: format!("a list of {}", layer_types.len()),
                expected: "one entry per layer",
            });
        }
        layer_types
            .into_iter()
            .map(|name| match (name.as_str(), window) {
                ("full_attention", _) => Ok(None),
                ("sliding_attention", Some(window)) => Ok(Some(window)),
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

    fn moe(&mut self) -> Result<Option<MoeConfig>, ConfigError> {
        let experts = |fields: &mut Self, field| {
            fields.typed(field, "a whole number", |value| {
                value.as_u64().filter(|&experts| experts <= i32::MAX as u64)
            })
        };
        let num_experts = experts(self, "num_experts")?.or(experts(self, "num_local_experts")?);
        let num_experts = num_experts.ok_or(ConfigError::Missing {
            field: "num_experts",
        })? as usize;
        let mlp_only_layers = self.typed("mlp_only_layers", "a list of layers", |value| {
            let layers = value.as_array()?.iter();
            layers
                .map(|layer| layer.as_u64().map(|layer| layer as usize))
                .collect::<Option<Vec<usize>>>()
        })?;
        let moe = MoeConfig {
            num_experts,
            num_experts_per_tok: self.size("num_experts_per_tok")?,
            moe_intermediate_size: self.size("moe_intermediate_size")?,
            norm_topk_prob: self.flag("norm_topk_prob")?.unwrap_or(false),
            decoder_sparse_step: self.optional_size("decoder_sparse_step")?.unwrap_or(1),
            mlp_only_layers: mlp_only_layers.unwrap_or_default(),
            router_aux_loss_coef: {
                let used = self.flag("output_router_logits")?.unwrap_or(false);
                let factor = self.number("router_aux_loss_coef")?.unwrap_or(0.001);
                if used { factor } else { 0.0 }
            },
        };
        Ok((num_experts > 0).then_some(moe))
    }
}
