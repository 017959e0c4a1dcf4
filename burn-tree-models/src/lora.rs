//! LoRA on the projections of a model, and export in PEFT's format.

use std::collections::BTreeSet;
use std::path::Path;

use burn::module::{Lora, Module, ModuleVisitor, Param, ParamGroup};
use burn::tensor::{FloatDType, Tensor};
use serde_json::json;

use crate::model::CausalLm;
use crate::weights::{HfTensor, WeightsError, key_of, write_adapter};

/// The options of the adapters. There is no dropout, because its masks would differ between a
/// packed tree and separate trajectories.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraSettings {
    /// Rank of the adapters.
    pub rank: usize,
    /// The adapters are scaled by `alpha / rank`.
    pub alpha: f64,
    /// Names of the adapted linear layers, such as `q_proj`; `None` adapts all projections
    /// (`*_proj` and `in_proj_*`).
    pub target_modules: Option<Vec<String>>,
}

/// Options that cannot be applied.
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
        /// The linear layers of the model.
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

    /// Freezes `model` and attaches adapters, which do not change its outputs initially.
    ///
    /// The adapters are drawn from the random generator of the device: seed it for reproducible
    /// runs. Routed experts, which are stored as one tensor per layer, are frozen and get no
    /// adapters.
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
    /// `adapter_model.safetensors` in f32. `base_model` is the name or folder of the base model.
    /// `folder` must be absent or empty.
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

/// The model with its adapters merged into its weights, for export or inference.
pub fn merged(model: &CausalLm) -> CausalLm {
    model.valid().materialize()
}

/// Module path and name of each linear layer.
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
        // Biases have no adapters.
        if let [.., (layer, _), (_, true)] = self.path.as_slice()
            && D == 2
        {
            let path: Vec<&str> = self.path.iter().map(|(name, _)| name.as_str()).collect();
            self.found.push((path.join("."), layer.clone()));
        }
    }
}

/// The factors of all adapters, in PEFT's layout.
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
        // The module path contains the name of the reparameterization between weight and factor.
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
