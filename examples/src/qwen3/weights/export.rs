//! Parameters and gradients of a model in the layout of a checkpoint.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, FloatDType, Tensor, TensorData};

use super::WeightsError;
use crate::qwen3::Qwen3;

/// One tensor as a checkpoint stores it; its values are fetched when asked for.
pub struct HfTensor {
    key: String,
    shape: Vec<usize>,
    dtype: DType,
    read: Box<dyn Fn(FloatDType) -> TensorData>,
}

impl HfTensor {
    /// Key in the checkpoint.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Shape in the checkpoint.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The dtype it has in the model.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The values, rounded to `dtype`.
    pub fn to_data(&self, dtype: FloatDType) -> TensorData {
        (self.read)(dtype)
    }

    /// The transpose of `tensor`, as linear layers are stored.
    pub(crate) fn transposed(key: String, tensor: Tensor<2>) -> Self {
        let [input, output] = tensor.dims();
        Self::new(key, tensor, Tensor::transpose, vec![output, input])
    }

    fn new<const D: usize>(
        key: String,
        tensor: Tensor<D>,
        arrange: impl Fn(Tensor<D>) -> Tensor<2> + 'static,
        shape: Vec<usize>,
    ) -> Self {
        Self {
            key,
            dtype: tensor.dtype(),
            shape: shape.clone(),
            read: Box::new(move |dtype| {
                let data = arrange(tensor.clone()).cast(dtype).into_data();
                TensorData::from_bytes(data.into_bytes(), shape.clone(), dtype.into())
            }),
        }
    }
}

/// All parameters of `model`, sorted by layer.
///
/// Experts are written one by one, as published checkpoints have them.
pub fn hf_parameters(model: &Qwen3) -> Result<Vec<HfTensor>, WeightsError> {
    collect(model, Values)
}

/// The gradients of the parameters of `model`; parameters without a gradient are left out.
pub fn hf_gradients(
    model: &Qwen3,
    gradients: &GradientsParams,
) -> Result<Vec<HfTensor>, WeightsError> {
    collect(model, Gradients(gradients))
}

/// Which tensor of a parameter is meant.
trait Select {
    fn select<const D: usize>(&self, param: &Param<Tensor<D>>) -> Option<Tensor<D>>;
}

struct Values;

impl Select for Values {
    fn select<const D: usize>(&self, param: &Param<Tensor<D>>) -> Option<Tensor<D>> {
        Some(param.val().without_autodiff())
    }
}

struct Gradients<'a>(&'a GradientsParams);

impl Select for Gradients<'_> {
    fn select<const D: usize>(&self, param: &Param<Tensor<D>>) -> Option<Tensor<D>> {
        self.0.get(param.id)
    }
}

fn collect<S: Select>(model: &Qwen3, select: S) -> Result<Vec<HfTensor>, WeightsError> {
    let mut visitor = Collector {
        select,
        path: Vec::new(),
        tensors: Vec::new(),
        adapter: None,
    };
    model.visit(&mut visitor);
    match visitor.adapter {
        Some(path) => Err(WeightsError::Adapter { path }),
        None => Ok(visitor.tensors),
    }
}

struct Collector<S> {
    select: S,
    path: Vec<String>,
    tensors: Vec<HfTensor>,
    adapter: Option<String>,
}

impl<S: Select> ModuleVisitor for Collector<S> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        if container_type == "Reparameterization" {
            self.adapter.get_or_insert_with(|| self.path.join("."));
        }
        if !container_type.starts_with("Enum:") {
            self.path.push(name.to_owned());
        }
    }

    fn exit_module(&mut self, _: &str, container_type: &str) {
        if !container_type.starts_with("Enum:") {
            self.path.pop();
        }
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(tensor) = self.select.select(param) else {
            return;
        };
        let path = self.path.join(".");
        let key = match path.as_str() {
            "lm_head.weight" => path,
            _ => format!("model.{path}"),
        };
        let dims = tensor.dims();
        match key
            .strip_suffix("gate_up_proj")
            .or(key.strip_suffix("down_proj"))
        {
            Some(prefix) => self.push_experts(prefix, tensor.reshape([dims[0], dims[1], dims[2]])),
            None if key.ends_with("_proj.weight") || key.ends_with("mlp.gate.weight") => {
                let tensor = tensor.reshape([dims[0], dims[1]]);
                self.tensors.push(HfTensor::transposed(key, tensor));
            }
            None => {
                let flat = |tensor: Tensor<D>| {
                    let elements = tensor.shape().num_elements();
                    tensor.reshape([1, elements])
                };
                self.tensors
                    .push(HfTensor::new(key, tensor, flat, dims.to_vec()));
            }
        }
    }
}

impl<S> Collector<S> {
    /// `stacked [E, input, output]` holds one matrix per expert, or two side by side.
    fn push_experts(&mut self, prefix: &str, stacked: Tensor<3>) {
        let names: &[&str] = match self.path.last().map(String::as_str) {
            Some("gate_up_proj") => &["gate_proj", "up_proj"],
            _ => &["down_proj"],
        };
        let [experts, input, width] = stacked.dims();
        let output = width / names.len();
        for expert in 0..experts {
            for (index, name) in names.iter().enumerate() {
                let arrange = move |stacked: Tensor<3>| {
                    let columns = index * output..(index + 1) * output;
                    let matrix: Tensor<2> = stacked
                        .slice([expert..expert + 1, 0..input, columns])
                        .squeeze_dim(0);
                    matrix.transpose()
                };
                self.tensors.push(HfTensor::new(
                    format!("{prefix}{expert}.{name}.weight"),
                    stacked.clone(),
                    arrange,
                    vec![output, input],
                ));
            }
        }
    }
}
