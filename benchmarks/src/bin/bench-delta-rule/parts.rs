//! The single operations around the gated delta rule.

use burn::tensor::activation::sigmoid;
use burn::tensor::{DType, Device, Distribution, Tensor};
use burn_tree_nn::{decay_gate, gated_rms_norm, l2_norm};
use burn_tree_ssm::{CausalConv1dOptions, TreeRecurrence, tree_causal_conv1d};
use burn_tree_trainer::report::timing::{Repetitions, seconds};
use serde::Serialize;
use tree_training_benchmarks::delta_rule::DeltaRuleHeads;

/// Kernel size of the convolution.
const KERNEL_SIZE: usize = 4;

const EPSILON: f64 = 1e-6;

/// The times of an operation.
#[derive(Clone, Debug, Serialize)]
pub struct MeasuredPart {
    /// Name of the operation.
    pub operation: &'static str,
    /// Name of the tree.
    pub tree: String,
    /// Dtype of the inputs.
    pub dtype: String,
    /// Rows.
    pub rows: usize,
    /// Seconds of the forward pass.
    pub forward_seconds: f64,
    /// Seconds of the backward pass: those of both passes, from a gradient of ones, less the
    /// forward pass.
    pub backward_seconds: f64,
    /// Minimum bytes that the forward pass reads and writes.
    pub forward_bytes: f64,
    /// Minimum bytes that the backward pass reads and writes.
    pub backward_bytes: f64,
}

/// The setting of the measurements.
pub struct Setting<'a> {
    /// Name of the tree.
    pub tree: &'a str,
    /// The tree.
    pub recurrence: &'a TreeRecurrence,
    /// Shape of the layer.
    pub heads: DeltaRuleHeads,
    /// Dtype of the inputs.
    pub dtype: DType,
    /// Device.
    pub device: &'a Device,
    /// Repetitions.
    pub repetitions: Repetitions,
}

/// Inputs of all operations.
struct Inputs {
    /// `[B, N, C]`, all queries, keys and values.
    qkv: Tensor<3>,
    /// `[C, K]`
    conv_weight: Tensor<2>,
    /// `[B, N, HK, DK]`
    query: Tensor<4>,
    /// `[B, N, HV]`
    gate: Tensor<3>,
    /// `[HV]`
    a_log: Tensor<1>,
    /// `[HV]`
    dt_bias: Tensor<1>,
    /// `[B, N, HV, DV]`
    value: Tensor<4>,
    /// `[B, N, HV, DV]`
    z: Tensor<4>,
    /// `[DV]`
    norm_weight: Tensor<1>,
}

impl Inputs {
    fn random(setting: &Setting) -> Self {
        let heads = setting.heads;
        let rows = [
            setting.recurrence.batch_size(),
            setting.recurrence.row_length(),
        ];
        let of_keys = [rows[0], rows[1], heads.key, heads.key_dim];
        let of_values = [rows[0], rows[1], heads.value, heads.value_dim];
        let channels = 2 * heads.key * heads.key_dim + heads.value * heads.value_dim;
        let (dtype, device) = (setting.dtype, setting.device);
        Self {
            qkv: normal([rows[0], rows[1], channels], dtype, device),
            conv_weight: normal([channels, KERNEL_SIZE], dtype, device),
            query: normal(of_keys, dtype, device),
            gate: normal([rows[0], rows[1], heads.value], dtype, device),
            a_log: normal([heads.value], DType::F32, device),
            dt_bias: normal([heads.value], DType::F32, device),
            value: normal(of_values, dtype, device),
            z: normal(of_values, dtype, device),
            norm_weight: normal([heads.value_dim], DType::F32, device),
        }
    }

    /// The same inputs with gradients.
    fn tracked(&self) -> Self {
        fn leaf<const D: usize>(tensor: &Tensor<D>) -> Tensor<D> {
            tensor.clone().autodiff().require_grad()
        }
        Self {
            qkv: leaf(&self.qkv),
            conv_weight: leaf(&self.conv_weight),
            query: leaf(&self.query),
            gate: leaf(&self.gate),
            a_log: leaf(&self.a_log),
            dt_bias: leaf(&self.dt_bias),
            value: leaf(&self.value),
            z: leaf(&self.z),
            norm_weight: leaf(&self.norm_weight),
        }
    }
}

fn normal<const D: usize>(shape: [usize; D], dtype: DType, device: &Device) -> Tensor<D> {
    Tensor::<D>::random(shape, Distribution::Normal(0.0, 1.0), device).cast(dtype)
}

/// Times all operations.
pub fn measure(setting: &Setting) -> Vec<MeasuredPart> {
    let plain = Inputs::random(setting);
    let inputs = [plain.tracked(), plain];
    let [_, plain] = &inputs;
    let bytes = |elements: usize| elements as f64 * setting.dtype.size() as f64;
    let channels = bytes(plain.qkv.shape().num_elements());
    let queries = bytes(plain.query.shape().num_elements());
    let gates = bytes(plain.gate.shape().num_elements());
    let wide_gates = (plain.gate.shape().num_elements() * DType::F32.size()) as f64;
    let values = bytes(plain.value.shape().num_elements());
    vec![
        time(
            "convolution and SiLU",
            // The backward pass reads inputs and gradients of outputs, and writes gradients of
            // inputs.
            [2.0 * channels, 3.0 * channels],
            setting,
            &inputs,
            |x| {
                let (input, weight) = (x.qkv.clone(), x.conv_weight.clone());
                let options = CausalConv1dOptions { silu: true };
                tree_causal_conv1d(input, weight, setting.recurrence, None, options).output
            },
        ),
        time(
            "norm of queries (or keys)",
            [2.0 * queries, 3.0 * queries],
            setting,
            &inputs,
            |x| l2_norm(x.query.clone(), EPSILON),
        ),
        time(
            "decay",
            [gates + wide_gates, 2.0 * gates + wide_gates],
            setting,
            &inputs,
            |x| decay_gate(x.gate.clone(), x.a_log.clone(), x.dt_bias.clone()),
        ),
        time("beta", [2.0 * gates, 3.0 * gates], setting, &inputs, |x| {
            sigmoid(x.gate.clone())
        }),
        time(
            "gated norm",
            [3.0 * values, 5.0 * values],
            setting,
            &inputs,
            |x| {
                let (value, z) = (x.value.clone(), x.z.clone());
                gated_rms_norm(value, z, x.norm_weight.clone(), EPSILON)
            },
        ),
    ]
}

fn time<const D: usize>(
    operation: &'static str,
    [forward_bytes, backward_bytes]: [f64; 2],
    setting: &Setting,
    [tracked, plain]: &[Inputs; 2],
    run: impl Fn(&Inputs) -> Tensor<D>,
) -> MeasuredPart {
    let (device, repetitions) = (setting.device, setting.repetitions);
    let forward_seconds = seconds(device, repetitions, || run(plain));
    let both = seconds(device, repetitions, || run(tracked).backward());
    MeasuredPart {
        operation,
        tree: setting.tree.to_owned(),
        dtype: format!("{:?}", setting.dtype).to_lowercase(),
        rows: setting.recurrence.rows(),
        forward_seconds,
        backward_seconds: both - forward_seconds,
        forward_bytes,
        backward_bytes,
    }
}
