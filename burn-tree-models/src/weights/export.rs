//! Parameters and gradients of a model in the layout of a checkpoint.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, FloatDType, Tensor, TensorData};

use super::{WeightsError, key_of};
use crate::config::ExpertStorage;
use crate::layers::FeedForward;
use crate::model::CausalLm;

/// One tensor in the layout of a checkpoint. Its values are copied from the device on demand.
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

    /// The dtype in the model.
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

    /// A tensor whose values are in the same order in a checkpoint.
    fn flat<const D: usize>(key: String, tensor: Tensor<D>, shape: Vec<usize>) -> Self {
        let arrange = |tensor: Tensor<D>| {
            let elements = tensor.shape().num_elements();
            tensor.reshape([1, elements])
        };
        Self::new(key, tensor, arrange, shape)
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

/// All parameters of `model`, sorted by layer, in the layout of its published checkpoints.
///
/// Experts are written one by one or fused, as the configuration says.
pub fn hf_parameters(model: &CausalLm) -> Result<Vec<HfTensor>, WeightsError> {
    collect(model, Values)
}

/// The gradients of the parameters of `model`, without parameters that have none.
pub fn hf_gradients(
    model: &CausalLm,
    gradients: &GradientsParams,
) -> Result<Vec<HfTensor>, WeightsError> {
    collect(model, Gradients(gradients))
}

/// The parameter or its gradient.
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

fn collect<S: Select>(model: &CausalLm, select: S) -> Result<Vec<HfTensor>, WeightsError> {
    let storage = model.layers.iter().find_map(|block| match &block.mlp {
        FeedForward::Sparse(moe) => Some(moe.experts.storage),
        FeedForward::Dense(_) => None,
    });
    let mut visitor = Collector {
        select,
        storage: storage.unwrap_or(ExpertStorage::Single),
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
    storage: ExpertStorage,
    /// Path of module names, each with the type of its container.
    path: Vec<(String, String)>,
    tensors: Vec<HfTensor>,
    adapter: Option<String>,
}

impl<S> Collector<S> {
    fn path(&self) -> String {
        let names: Vec<&str> = self.path.iter().map(|(name, _)| name.as_str()).collect();
        names.join(".")
    }

    /// Type of the module of the visited parameter.
    fn container(&self) -> &str {
        self.path
            .last()
            .map_or("", |(_, container)| container.as_str())
    }
}

impl<S: Select> ModuleVisitor for Collector<S> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        if container_type == "Reparameterization" && self.adapter.is_none() {
            self.adapter = Some(self.path());
        }
        self.path.push((name.to_owned(), container_type.to_owned()));
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(tensor) = self.select.select(param) else {
            return;
        };
        let key = key_of(&self.path());
        let dims = tensor.dims();
        let tensors = match self.container() {
            "Struct:Experts" => {
                let tensor = tensor.reshape([dims[0], dims[1], dims[2]]);
                expert_tensors(&key, tensor, self.storage)
            }
            "Struct:Linear" if D == 2 => {
                let tensor = tensor.reshape([dims[0], dims[1]]);
                vec![HfTensor::transposed(key, tensor)]
            }
            "Struct:DepthwiseConv" => vec![HfTensor::flat(key, tensor, vec![dims[0], 1, dims[1]])],
            _ => vec![HfTensor::flat(key, tensor, dims.to_vec())],
        };
        self.tensors.extend(tensors);
    }
}

/// The checkpoint tensors of `stacked [E, input, output]`, with one matrix per expert or two side
/// by side.
fn expert_tensors(key: &str, stacked: Tensor<3>, storage: ExpertStorage) -> Vec<HfTensor> {
    let (prefix, names): (_, &[&str]) = match key.strip_suffix("gate_up_proj") {
        Some(prefix) => (prefix, &["gate_proj", "up_proj"]),
        None => (key.trim_end_matches("down_proj"), &["down_proj"]),
    };
    let [experts, input, width] = stacked.dims();
    if storage == ExpertStorage::Fused {
        let arrange =
            move |stacked: Tensor<3>| stacked.swap_dims(1, 2).reshape([experts * width, input]);
        let shape = vec![experts, width, input];
        return vec![HfTensor::new(key.to_owned(), stacked, arrange, shape)];
    }
    let output = width / names.len();
    let mut tensors = Vec::with_capacity(experts * names.len());
    for expert in 0..experts {
        for (index, name) in names.iter().enumerate() {
            let arrange = move |stacked: Tensor<3>| {
                let columns = index * output..(index + 1) * output;
                let matrix: Tensor<2> = stacked
                    .slice([expert..expert + 1, 0..input, columns])
                    .squeeze_dim(0);
                matrix.transpose()
            };
            tensors.push(HfTensor::new(
                format!("{prefix}{expert}.{name}.weight"),
                stacked.clone(),
                arrange,
                vec![output, input],
            ));
        }
    }
    tensors
}
