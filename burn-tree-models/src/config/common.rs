//! The fields of `config.json` that all families share.

use serde_json::{Map, Value, json};

use super::{AttentionBias, ConfigError, Fields, LayerType, ModelConfig, rope};
use crate::registry::Family;

/// Defaults of a family for absent fields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Defaults {
    /// Features of a head; `None` divides the hidden size by the number of heads.
    pub(crate) head_dim: Option<usize>,
    /// Base of the rotary angles; `None` if the field is required.
    pub(crate) rope_theta: Option<f64>,
    /// Default share of a head that is rotated; families that rotate the whole head refuse other
    /// values.
    pub(crate) partial_rotary_factor: f64,
}

impl Defaults {
    /// The defaults of families with plain attention.
    pub(crate) const PLAIN: Self = Self {
        head_dim: None,
        rope_theta: Some(10_000.0),
        partial_rotary_factor: 1.0,
    };
}

impl ModelConfig {
    /// Takes the fields that all families share and returns the configuration of a dense model with
    /// full attention, without biases and without query and key norms.
    pub(crate) fn common(
        family: &'static Family,
        fields: &mut Fields,
        defaults: Defaults,
    ) -> Result<Self, ConfigError> {
        refuse_unsupported(fields)?;
        let num_hidden_layers = fields.size("num_hidden_layers")?;
        let num_attention_heads = fields.size("num_attention_heads")?;
        let hidden_size = fields.size("hidden_size")?;
        let head_dim = match fields.optional_size("head_dim")?.or(defaults.head_dim) {
            Some(head_dim) => head_dim,
            None if hidden_size.is_multiple_of(num_attention_heads) => {
                hidden_size / num_attention_heads
            }
            None => {
                let expected = "a multiple of num_attention_heads, or head_dim beside it";
                return Err(ConfigError::invalid("hidden_size", hidden_size, expected));
            }
        };
        let rope = rope::read(fields)?;
        let share = rope
            .partial_rotary_factor
            .unwrap_or(defaults.partial_rotary_factor);
        if defaults.partial_rotary_factor == 1.0 && share != 1.0 {
            let reason = format!("{} rotates the whole head", family.name);
            let field = "partial_rotary_factor";
            return Err(ConfigError::unsupported(field, share, reason));
        }
        Ok(Self {
            family,
            vocab_size: fields.size("vocab_size")?,
            hidden_size,
            intermediate_size: fields.optional_size("intermediate_size")?.unwrap_or(0),
            num_hidden_layers,
            num_attention_heads,
            num_key_value_heads: fields
                .optional_size("num_key_value_heads")?
                .unwrap_or(num_attention_heads),
            head_dim,
            rotary_dim: (head_dim as f64 * share) as usize,
            rope_theta: match rope.theta.or(defaults.rope_theta) {
                Some(theta) => theta,
                None => return Err(ConfigError::missing("rope_theta")),
            },
            rope_scaling: rope.scaling,
            attention_bias: AttentionBias::None,
            query_key_norm: false,
            attention_output_gate: false,
            mlp_bias: false,
            rms_norm_eps: fields.number("rms_norm_eps")?.unwrap_or(1e-6),
            zero_centered_norms: false,
            tie_word_embeddings: fields.flag("tie_word_embeddings")?.unwrap_or(false),
            initializer_range: fields.number("initializer_range")?.unwrap_or(0.02),
            layer_types: vec![LayerType::FullAttention; num_hidden_layers],
            moe: None,
            other: Map::new(),
        })
    }
}

fn refuse_unsupported(fields: &mut Fields) -> Result<(), ConfigError> {
    fields.take("architectures");
    if let Some(dropout) = fields.number("attention_dropout")?
        && dropout != 0.0
    {
        let reason = "dropout would make packed and separate trajectories differ";
        return Err(ConfigError::unsupported(
            "attention_dropout",
            dropout,
            reason,
        ));
    }
    if let Some(activation) = fields.string("hidden_act")?
        && activation != "silu"
    {
        return Err(ConfigError::unsupported(
            "hidden_act",
            activation,
            "only silu is",
        ));
    }
    if fields.take("quantization_config").is_some() {
        let reason = "weights are read in F64, F32, F16 and BF16";
        let field = "quantization_config";
        return Err(ConfigError::unsupported(field, "given", reason));
    }
    Ok(())
}

/// `layer_types` with one entry per layer, if present.
pub(crate) fn layer_types(
    fields: &mut Fields,
    layers: usize,
) -> Result<Option<Vec<String>>, ConfigError> {
    match fields.strings("layer_types")? {
        Some(names) if names.len() != layers => Err(ConfigError::invalid(
            "layer_types",
            format!("a list of {}", names.len()),
            "one entry per layer",
        )),
        names => Ok(names),
    }
}

/// The mixers of a model with attention in all layers. Layers with a sliding window, if there is
/// one, are those of `layer_types`; without that field all layers, or those from
/// `max_window_layers` on if `later_slide`.
pub(crate) fn attention_layers(
    fields: &mut Fields,
    layers: usize,
    later_slide: bool,
) -> Result<Vec<LayerType>, ConfigError> {
    fields.default_to("sliding_window", 4096);
    let used = fields.flag("use_sliding_window")?.unwrap_or(false);
    let window = fields.optional_size("sliding_window")?.filter(|_| used);
    let full_layers = fields
        .typed("max_window_layers", "a whole number", Value::as_u64)?
        .unwrap_or(28);
    let sliding = |window: Option<usize>| match window {
        Some(window) => LayerType::SlidingAttention(window),
        None => LayerType::FullAttention,
    };
    let Some(names) = layer_types(fields, layers)? else {
        return Ok((0..layers as u64)
            .map(|layer| sliding(window.filter(|_| !later_slide || layer >= full_layers)))
            .collect());
    };
    names
        .into_iter()
        .map(|name| match (name.as_str(), window) {
            ("full_attention", _) => Ok(LayerType::FullAttention),
            ("sliding_attention", Some(window)) => Ok(LayerType::SlidingAttention(window)),
            ("sliding_attention", None) => Err(ConfigError::missing("sliding_window")),
            _ => Err(ConfigError::unsupported(
                "layer_types",
                name,
                "only full_attention and sliding_attention are",
            )),
        })
        .collect()
}

/// Writes the fields that all families share.
pub(crate) fn write_common(config: &ModelConfig) -> Map<String, Value> {
    let mut json = Map::new();
    let mut set = |field: &str, value: Value| json.insert(field.to_owned(), value);
    set("vocab_size", json!(config.vocab_size));
    set("hidden_size", json!(config.hidden_size));
    if config.intermediate_size > 0 {
        set("intermediate_size", json!(config.intermediate_size));
    }
    set("num_hidden_layers", json!(config.num_hidden_layers));
    set("num_attention_heads", json!(config.num_attention_heads));
    set("num_key_value_heads", json!(config.num_key_value_heads));
    set("head_dim", json!(config.head_dim));
    set("hidden_act", json!("silu"));
    set("attention_dropout", json!(0.0));
    set("rms_norm_eps", json!(config.rms_norm_eps));
    set("tie_word_embeddings", json!(config.tie_word_embeddings));
    set("initializer_range", json!(config.initializer_range));
    rope::write(config, &mut json);
    json
}

/// The fields that [`attention_layers`] reads, and `layer_types`.
pub(crate) fn write_windows(config: &ModelConfig, json: &mut Map<String, Value>) {
    let window = config.layer_types.iter().find_map(|layer| match layer {
        LayerType::SlidingAttention(window) => Some(*window),
        _ => None,
    });
    let full = config
        .layer_types
        .iter()
        .take_while(|layer| !matches!(layer, LayerType::SlidingAttention(_)));
    json.insert("max_window_layers".to_owned(), json!(full.count()));
    json.insert("sliding_window".to_owned(), json!(window));
    json.insert("use_sliding_window".to_owned(), json!(window.is_some()));
    write_layer_types(config, json);
}

/// The field `layer_types`.
pub(crate) fn write_layer_types(config: &ModelConfig, json: &mut Map<String, Value>) {
    let names: Vec<&str> = config.layer_types.iter().map(LayerType::name).collect();
    json.insert("layer_types".to_owned(), json!(names));
}

/// Writes the model type; `class` is the class name in Hugging Face's library.
pub(crate) fn write_name(json: &mut Map<String, Value>, model_type: &str, class: &str) {
    let fields = json!({ "model_type": model_type, "architectures": [class] });
    extend(json, fields);
}

/// Adds the fields of an object.
pub(crate) fn extend(json: &mut Map<String, Value>, fields: Value) {
    if let Value::Object(fields) = fields {
        json.extend(fields);
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
