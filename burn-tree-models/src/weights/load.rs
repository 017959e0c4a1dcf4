//! Loads a model from a checkpoint.

use std::collections::BTreeSet;
use std::path::Path;

use burn::tensor::{DType, Device, Element, FloatDType, Tensor, TensorData};
use bytemuck::Pod;
use half::{bf16, f16};
use safetensors::Dtype;

use super::checkpoint::{Checkpoint, StoredTensor};
use super::{WeightsError, stored_dtype};
use crate::config::ModelConfig;
use crate::layers::source::{ExpertTensors, Initial, ParameterSource};
use crate::model::CausalLm;

impl CausalLm {
    /// Loads a model folder (`config.json`, weights) with parameters of `dtype`.
    ///
    /// Files are memory-mapped and tensors converted one at a time, so that at most one tensor is
    /// in memory in addition to the model.
    pub fn load(
        folder: &Path,
        dtype: FloatDType,
        device: &Device,
    ) -> Result<(Self, ModelConfig), WeightsError> {
        let config = ModelConfig::from_file(folder)?;
        let model = Self::load_weights(&config, folder, dtype, device)?;
        Ok((model, config))
    }

    /// Loads the weights of a model folder with a given configuration.
    pub fn load_weights(
        config: &ModelConfig,
        folder: &Path,
        dtype: FloatDType,
        device: &Device,
    ) -> Result<Self, WeightsError> {
        let checkpoint = Checkpoint::open(folder)?;
        let multimodal = checkpoint
            .keys()
            .any(|key| key.starts_with(LANGUAGE_MODEL_PREFIX));
        let mut source = CheckpointSource {
            checkpoint,
            prefix: if multimodal {
                LANGUAGE_MODEL_PREFIX
            } else {
                MODEL_PREFIX
            },
            used: BTreeSet::new(),
            dtype: dtype.into(),
            device: device.clone(),
        };
        let model = Self::build(config, &mut source)?;
        if config.tie_word_embeddings {
            // Some checkpoints store the tied head a second time.
            source.used.insert("lm_head.weight".to_owned());
        }
        source.check_all_used(config.family.skipped_keys)?;
        Ok(model)
    }
}

/// Prefix of the keys of a language model, except its head.
const MODEL_PREFIX: &str = "model.";
/// The prefix in a multimodal checkpoint.
const LANGUAGE_MODEL_PREFIX: &str = "model.language_model.";

/// Parameters from a checkpoint.
struct CheckpointSource {
    checkpoint: Checkpoint,
    /// The prefix in this checkpoint in place of [`MODEL_PREFIX`].
    prefix: &'static str,
    used: BTreeSet<String>,
    dtype: DType,
    device: Device,
}

impl CheckpointSource {
    fn check_all_used(&self, skipped: &[&str]) -> Result<(), WeightsError> {
        let unexpected: Vec<String> = self
            .checkpoint
            .keys()
            .filter(|key| !self.used.contains(*key) && !key.ends_with("rotary_emb.inv_freq"))
            .filter(|key| !skipped.iter().any(|prefix| key.starts_with(prefix)))
            .map(str::to_owned)
            .collect();
        match unexpected.is_empty() {
            true => Ok(()),
            false => Err(WeightsError::UnexpectedTensors {
                path: self.checkpoint.path().to_owned(),
                keys: unexpected,
            }),
        }
    }

    /// The key in this checkpoint.
    fn own_key(&self, key: &str) -> String {
        match key.strip_prefix(MODEL_PREFIX) {
            Some(rest) => format!("{}{rest}", self.prefix),
            None => key.to_owned(),
        }
    }

    fn stored(&mut self, key: &str, shape: &[usize]) -> Result<StoredTensor<'_>, WeightsError> {
        let key = self.own_key(key);
        self.used.insert(key.clone());
        self.checkpoint.tensor(&key, shape)
    }

    fn upload<const D: usize>(&self, data: TensorData) -> Tensor<D> {
        Tensor::from_data(data, (&self.device, self.dtype))
    }

    /// Whether `key` is stored in f64, which f32 would round.
    fn is_f64(&self, key: &str) -> bool {
        self.checkpoint.dtype(&self.own_key(key)) == Some(Dtype::F64)
    }

    /// The transposes of the matrices `[output, input]` of each group of keys, concatenated, group
    /// after group: `[groups, input, keys in a group * output]`.
    fn transposed<T: Number>(
        &mut self,
        groups: &[Vec<String>],
        output: usize,
        input: usize,
    ) -> Result<TensorData, WeightsError> {
        let width = output * groups.first().map_or(1, Vec::len);
        let mut values = vec![T::default(); groups.len() * input * width];
        for (group, values) in groups.iter().zip(values.chunks_mut(input * width)) {
            for (index, key) in group.iter().enumerate() {
                let stored = self.stored(key, &[output, input])?;
                read_transposed(&stored, input, values, width, index * output)?;
            }
        }
        Ok(TensorData::new(values, [groups.len(), input, width]))
    }

    /// All matrices of `[groups, output, input]`, each transposed.
    fn transposed_fused<T: Number>(
        &mut self,
        key: &str,
        [groups, output, input]: [usize; 3],
    ) -> Result<TensorData, WeightsError> {
        let stored = self.stored(key, &[groups, output, input])?;
        let mut values = vec![T::default(); groups * output * input];
        let size = stored.data.len() / groups.max(1);
        for (matrix, values) in values.chunks_mut(input * output).enumerate() {
            let matrix = StoredTensor {
                data: &stored.data[matrix * size..(matrix + 1) * size],
                ..stored
            };
            read_transposed(&matrix, input, values, output, 0)?;
        }
        Ok(TensorData::new(values, [groups, input, output]))
    }
}

impl ParameterSource for CheckpointSource {
    type Error = WeightsError;

    fn matrix(
        &mut self,
        key: &str,
        input: usize,
        output: usize,
    ) -> Result<Tensor<2>, WeightsError> {
        let keys = [vec![key.to_owned()]];
        let data = match self.is_f64(key) {
            true => self.transposed::<f64>(&keys, output, input)?,
            false => self.transposed::<f32>(&keys, output, input)?,
        };
        Ok(self.upload::<3>(data).squeeze_dim(0))
    }

    fn table(&mut self, key: &str, rows: usize, columns: usize) -> Result<Tensor<2>, WeightsError> {
        let data = read(&self.stored(key, &[rows, columns])?)?;
        Ok(self.upload(data))
    }

    fn convolution(
        &mut self,
        key: &str,
        channels: usize,
        kernel: usize,
    ) -> Result<Tensor<2>, WeightsError> {
        let data = read(&self.stored(key, &[channels, 1, kernel])?)?;
        Ok(self.upload::<3>(data).squeeze_dim(1))
    }

    fn vector(&mut self, key: &str, size: usize, _: Initial) -> Result<Tensor<1>, WeightsError> {
        let data = read(&self.stored(key, &[size])?)?;
        let dtype = stored_dtype(key, self.dtype);
        Ok(Tensor::from_data(data, (&self.device, dtype)))
    }

    /// Per expert (`{key}.{e}.gate_proj.weight` ..) or fused (`{key}.gate_up_proj` `[E, 2F, D]`,
    /// `{key}.down_proj` `[E, D, F]`).
    fn experts(
        &mut self,
        key: &str,
        experts: usize,
        hidden: usize,
        intermediate: usize,
    ) -> Result<ExpertTensors, WeightsError> {
        let fused = ["gate_up_proj", "down_proj"].map(|name| format!("{key}.{name}"));
        let (gate_up, down) = if self.checkpoint.contains(&self.own_key(&fused[0])) {
            let shapes = [
                [experts, 2 * intermediate, hidden],
                [experts, hidden, intermediate],
            ];
            let mut load = |index: usize| match self.is_f64(&fused[index]) {
                true => self.transposed_fused::<f64>(&fused[index], shapes[index]),
                false => self.transposed_fused::<f32>(&fused[index], shapes[index]),
            };
            (load(0)?, load(1)?)
        } else {
            let mut load = |names: &[&str], output, input| {
                let keys: Vec<Vec<String>> = (0..experts)
                    .map(|expert| {
                        let key = |name| format!("{key}.{expert}.{name}.weight");
                        names.iter().map(key).collect()
                    })
                    .collect();
                match keys.iter().flatten().any(|key| self.is_f64(key)) {
                    true => self.transposed::<f64>(&keys, output, input),
                    false => self.transposed::<f32>(&keys, output, input),
                }
            };
            (
                load(&["gate_proj", "up_proj"], intermediate, hidden)?,
                load(&["down_proj"], hidden, intermediate)?,
            )
        };
        Ok(ExpertTensors {
            gate_up: self.upload(gate_up),
            down: self.upload(down),
        })
    }
}

/// f32 or f64, which represent all narrower floats exactly.
trait Number: Element {
    fn from_f32(value: f32) -> Self;
    fn from_f64(value: f64) -> Self;
}

impl Number for f32 {
    fn from_f32(value: f32) -> Self {
        value
    }
    fn from_f64(value: f64) -> Self {
        value as f32
    }
}

impl Number for f64 {
    fn from_f32(value: f32) -> Self {
        value.into()
    }
    fn from_f64(value: f64) -> Self {
        value
    }
}

/// A tensor in its stored layout, as f32, or f64 if stored so.
fn read(stored: &StoredTensor<'_>) -> Result<TensorData, WeightsError> {
    fn numbers<S: Pod>(data: &[u8]) -> impl Iterator<Item = S> + '_ {
        // Tensors in files may be unaligned.
        data.chunks_exact(size_of::<S>())
            .map(bytemuck::pod_read_unaligned)
    }
    let (data, shape) = (stored.data, stored.shape.to_vec());
    Ok(match stored.dtype {
        Dtype::F64 => TensorData::new(numbers::<f64>(data).collect(), shape),
        Dtype::F32 => TensorData::new(numbers::<f32>(data).collect(), shape),
        Dtype::F16 => TensorData::new(numbers::<f16>(data).map(f16::to_f32).collect(), shape),
        Dtype::BF16 => TensorData::new(numbers::<bf16>(data).map(bf16::to_f32).collect(), shape),
        _ => return Err(unsupported(stored)),
    })
}

/// Writes the transpose of a matrix with `input` columns into columns `first..` of a matrix with
/// `width` columns.
fn read_transposed<T: Number>(
    stored: &StoredTensor<'_>,
    input: usize,
    target: &mut [T],
    width: usize,
    first: usize,
) -> Result<(), WeightsError> {
    /// Source and destination of a tile of this size fit in the cache.
    const TILE: usize = 32;
    fn transpose<S: Pod, T>(
        data: &[u8],
        input: usize,
        target: &mut [T],
        width: usize,
        first: usize,
        convert: impl Fn(S) -> T,
    ) {
        let size = size_of::<S>();
        let output = data.len() / size / input;
        for rows in (0..output).step_by(TILE) {
            for columns in (0..input).step_by(TILE) {
                for row in rows..(rows + TILE).min(output) {
                    for column in columns..(columns + TILE).min(input) {
                        let start = (row * input + column) * size;
                        let value = bytemuck::pod_read_unaligned(&data[start..start + size]);
                        target[column * width + first + row] = convert(value);
                    }
                }
            }
        }
    }
    let data = stored.data;
    match stored.dtype {
        Dtype::F64 => transpose(data, input, target, width, first, T::from_f64),
        Dtype::F32 => transpose(data, input, target, width, first, T::from_f32),
        Dtype::F16 => transpose(data, input, target, width, first, |value: f16| {
            T::from_f32(value.to_f32())
        }),
        Dtype::BF16 => transpose(data, input, target, width, first, |value: bf16| {
            T::from_f32(value.to_f32())
        }),
        _ => return Err(unsupported(stored)),
    }
    Ok(())
}

fn unsupported(stored: &StoredTensor<'_>) -> WeightsError {
    WeightsError::Dtype {
        path: stored.path.to_owned(),
        key: stored.key.to_owned(),
        dtype: stored.dtype,
    }
}
