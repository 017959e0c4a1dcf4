//! Sources of the parameters of a new model.

use std::convert::Infallible;

use burn::module::Param;
use burn::nn::Linear;
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use rand::SeedableRng;
use rand::distr::{Distribution, Uniform};
use rand_chacha::ChaCha8Rng;
use rand_distr::Normal;

use crate::weights::stored_dtype;

/// Supplies parameters by their key in a Hugging Face checkpoint, in the layout of the model.
pub(crate) trait ParameterSource {
    /// The error of the source.
    type Error;

    /// A matrix `[input, output]`, stored as `[output, input]`.
    fn matrix(&mut self, key: &str, input: usize, output: usize) -> Result<Tensor<2>, Self::Error>;

    /// A table `[rows, columns]`, stored in the same layout.
    fn table(&mut self, key: &str, rows: usize, columns: usize) -> Result<Tensor<2>, Self::Error>;

    /// The weight `[channels, kernel]` of a depthwise convolution, stored as `[channels, 1,
    /// kernel]`.
    fn convolution(
        &mut self,
        key: &str,
        channels: usize,
        kernel: usize,
    ) -> Result<Tensor<2>, Self::Error>;

    /// A vector, such as the weight of a norm.
    fn vector(
        &mut self,
        key: &str,
        size: usize,
        initial: Initial,
    ) -> Result<Tensor<1>, Self::Error>;

    /// The matrices of all experts of a layer; `key` is the common prefix of their keys.
    fn experts(
        &mut self,
        key: &str,
        experts: usize,
        hidden: usize,
        intermediate: usize,
    ) -> Result<ExpertTensors, Self::Error>;
}

/// Initial values of a vector in a random model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Initial {
    /// Zeros.
    Zeros,
    /// Ones.
    Ones,
    /// Logarithms of decay rates between 0 and 16.
    LogRates,
}

/// The matrices of experts, as in [`super::Experts`].
pub(crate) struct ExpertTensors {
    /// `[E, hidden, 2 * intermediate]`
    pub gate_up: Tensor<3>,
    /// `[E, intermediate, hidden]`
    pub down: Tensor<3>,
}

/// The linear layer whose parameters have the keys `{prefix}.weight` and `{prefix}.bias`.
pub(super) fn linear<S: ParameterSource>(
    source: &mut S,
    prefix: &str,
    [input, output]: [usize; 2],
    bias: bool,
) -> Result<Linear, S::Error> {
    let weight = source.matrix(&format!("{prefix}.weight"), input, output)?;
    let bias = match bias {
        true => Some(source.vector(&format!("{prefix}.bias"), output, Initial::Zeros)?),
        false => None,
    };
    Ok(Linear {
        weight: Param::from_tensor(weight),
        bias: bias.map(Param::from_tensor),
    })
}

/// Random weights. Each tensor is drawn on the host from a random stream of its own, so that it
/// depends on the seed only.
pub(crate) struct RandomSource {
    normal: Normal<f32>,
    seed: u64,
    tensors: u64,
    dtype: DType,
    device: Device,
}

impl RandomSource {
    pub(crate) fn new(
        standard_deviation: f64,
        seed: u64,
        dtype: FloatDType,
        device: &Device,
    ) -> Self {
        Self {
            normal: Normal::new(0.0, standard_deviation as f32)
                .expect("a standard deviation is finite"),
            seed,
            tensors: 0,
            dtype: dtype.into(),
            device: device.clone(),
        }
    }

    fn generator(&mut self) -> ChaCha8Rng {
        let mut generator = ChaCha8Rng::seed_from_u64(self.seed);
        generator.set_stream(self.tensors);
        self.tensors += 1;
        generator
    }

    fn normal<const D: usize>(&mut self, shape: [usize; D]) -> Tensor<D> {
        let generator = self.generator();
        let values: Vec<f32> = self
            .normal
            .sample_iter(generator)
            .take(shape.iter().product())
            .collect();
        Tensor::from_data(TensorData::new(values, shape), (&self.device, self.dtype))
    }
}

impl ParameterSource for RandomSource {
    type Error = Infallible;

    fn matrix(&mut self, _: &str, input: usize, output: usize) -> Result<Tensor<2>, Infallible> {
        Ok(self.normal([input, output]))
    }

    fn table(&mut self, _: &str, rows: usize, columns: usize) -> Result<Tensor<2>, Infallible> {
        Ok(self.normal([rows, columns]))
    }

    fn convolution(
        &mut self,
        _: &str,
        channels: usize,
        kernel: usize,
    ) -> Result<Tensor<2>, Infallible> {
        Ok(self.normal([channels, kernel]))
    }

    fn vector(
        &mut self,
        key: &str,
        size: usize,
        initial: Initial,
    ) -> Result<Tensor<1>, Infallible> {
        let target = (&self.device.clone(), stored_dtype(key, self.dtype));
        Ok(match initial {
            Initial::Zeros => Tensor::zeros([size], target),
            Initial::Ones => Tensor::ones([size], target),
            Initial::LogRates => {
                let rates = Uniform::new_inclusive(0.01_f32, 16.0).expect("a range");
                let rates = rates.sample_iter(self.generator()).take(size);
                let values: Vec<f32> = rates.map(f32::ln).collect();
                Tensor::from_data(TensorData::new(values, [size]), target)
            }
        })
    }

    fn experts(
        &mut self,
        _: &str,
        experts: usize,
        hidden: usize,
        intermediate: usize,
    ) -> Result<ExpertTensors, Infallible> {
        Ok(ExpertTensors {
            gate_up: self.normal([experts, hidden, 2 * intermediate]),
            down: self.normal([experts, intermediate, hidden]),
        })
    }
}
