//! LoRA on the projections of a model, and its export in PEFT's layout.

use std::collections::BTreeSet;
use std::path::Path;

use burn::module::{Lora, Module, ModuleVisitor, Param, ParamGroup};
use burn::tensor::{FloatDType, Tensor};
use serde_json::json;

use crate::model::CausalLm;
use crate::weights::{HfTensor, WeightsError, key_of, write_adapter};

/// Which adapters a model gets. There is no dropout: it would draw other masks for a packed tree
/// than for its trajectories one by one.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraSettings {
    /// Rank of the factors.
    pub rank: usize,
    /// Factors are scaled by `alpha / rank`.
    pub alpha: f64,
    /// Names of the adapted linear layers, such as `q_proj`; all of the model's projections
    /// (`*_proj` and `in_proj_*`) if `None`.
    pub target_modules: Option<Vec<String>>,
}

/// Settings that cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoraError {
    /// The rank is 0.
    #[error("the rank of LoRA is 0, expected at least 1")]
    Rank,
    /// A name is not that of a linear layer of the model.
    #[error(
        "the model has no linear layer `{name}`; LoRA can adapt {}",
        found.join(", ")
    )]
    Target {
        /// The name.
        name: String,
        /// Layers the model has.
        found: Vec<String>,
    },
}

impl LoraSettings {
    /// Adapters of `rank` on all projections.
    pub fn new(rank: usize, alpha: f64) -> Self {
        Self {
            rank,
            alpha,
            target_modules: None,
        }
    }

    /// Freezes `model` and attaches adapters that leave its outputs unchanged at first.
    ///
    /// The factors are drawn from the random numbers of the device: seed it for reproducible runs.
    /// Experts are stored as one tensor per layer and stay frozen without adapters.
    pub fn apply(&self, model: CausalLm) -> Result<CausalLm, LoraError> {
        if self.rank == 0 {
            return Err(LoraError::Rank);
        }
        let mut layers = LinearLayers::default();
        model.visit(&mut layers);
        let found: BTreeSet<&str> = layers.found.iter().map(|(_, name)| name.as_str()).collect();
        let names: Vec<&str> = match &self.target_modules {
            Some(names) => names.iter().map(String::as_str).collect(),
            None => found
                .iter()
                .copied()
                .filter(|name| name.ends_with("_proj") || name.starts_with("in_proj_"))
                .collect(),
        };
        if let Some(name) = names.iter().find(|name| !found.contains(*name)) {
            return Err(LoraError::Target {
                name: (*name).to_owned(),
                found: found.into_iter().map(str::to_owned).collect(),
            });
        }
        let paths = layers
            .found
            .iter()
            .filter(|(_, name)| names.contains(&name.as_str()))
            .map(|(path, _)| path.as_str())
            .collect();
        let lora = Lora::new(self.rank, self.alpha).set_param_group(ParamGroup::from_paths(paths));
        Ok(model.apply_lora(lora))
    }

    /// Writes the adapters of `model` as a PEFT folder: `adapter_config.json` and
    /// `adapter_model.safetensors` in f32. `base_model` is the name or folder of the model they
    /// belong to. `folder` must not exist, or be empty.
    pub fn save_adapter(
        &self,
        model: &CausalLm,
        base_model: &str,
        folder: &Path,
    ) -> Result<(), WeightsError> {
        let mut factors = Factors::default();
        model.visit(&mut factors);
        let config = json!({
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base_model,
            "r": self.rank,
            "lora_alpha": self.alpha,
            "lora_dropout": 0.0,
            "target_modules": factors.modules,
            "bias": "none",
            "fan_in_fan_out": false,
            "use_rslora": false,
            "inference_mode": true,
        });
        write_adapter(folder, factors.tensors, FloatDType::F32, &config)
    }
}

/// The model with its adapters added to the weights they adapt, for export or inference.
pub fn merged(model: &CausalLm) -> CausalLm {
    model.valid().materialize()
}

/// Module path of the weight, and name, of each linear layer.
#[derive(Default)]
struct LinearLayers {
    path: Vec<(String, bool)>,
    found: Vec<(String, String)>,
}

impl ModuleVisitor for LinearLayers {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        let in_linear = container_type == "Struct:Linear";
        self.path.push((name.to_owned(), in_linear));
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, _: &Param<Tensor<D>>) {
        // A bias stays as it is.
        if let [.., (layer, _), (_, true)] = self.path.as_slice()
            && D == 2
        {
            let path: Vec<&str> = self.path.iter().map(|(name, _)| name.as_str()).collect();
            self.found.push((path.join("."), layer.clone()));
        }
    }
}

/// Factors of all adapters, in PEFT's layout.
#[derive(Default)]
struct Factors {
    path: Vec<String>,
    modules: BTreeSet<String>,
    tensors: Vec<HfTensor>,
}

impl ModuleVisitor for Factors {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        // The reparameterization of a weight is named between it and its factors.
        let (module, factor) = match path.as_slice() {
            [module @ .., "weight", "lora", "a"] => (module, "lora_A"),
            [module @ .., "weight", "lora", "b"] => (module, "lora_B"),
            _ => return,
        };
        let module = key_of(&module.join("."));
        let name = module.rsplit('.').next();
        self.modules.extend(name.map(str::to_owned));
        let key = format!("base_model.model.{module}.{factor}.weight");
        let factor = param.val().without_autodiff();
        let dims = factor.dims();
        self.tensors.push(HfTensor::transposed(
            key,
            factor.reshape([dims[0], dims[1]]),
        ));
    }
}
