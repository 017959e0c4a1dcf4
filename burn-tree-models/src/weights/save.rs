//! Saves a model folder.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use burn::tensor::{DType, FloatDType};
use safetensors::{Dtype, View};
use serde_json::{Map, Value, json};

use super::{HfTensor, INDEX_FILE, SINGLE_FILE, WeightsError, hf_parameters, io, stored_dtype};
use crate::config::ModelConfig;
use crate::model::CausalLm;

/// Options of [`CausalLm::save`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveOptions {
    /// Dtype of the file; `None` keeps the dtype of each parameter. Decay rates and the norm of
    /// recurrent layers are at least f32.
    pub dtype: Option<FloatDType>,
    /// Largest size of a file in bytes of tensors.
    pub max_shard_bytes: u64,
}

impl Default for SaveOptions {
    fn default() -> Self {
        Self {
            dtype: None,
            max_shard_bytes: 5_000_000_000,
        }
    }
}

impl CausalLm {
    /// Saves the model as a Hugging Face folder: `config.json` and `model.safetensors`, or several
    /// files and their index. For a model from a multimodal checkpoint, this is the language model
    /// only.
    ///
    /// `folder` must be absent or empty. It is written under a temporary name and renamed when
    /// complete.
    pub fn save(
        &self,
        config: &ModelConfig,
        folder: &Path,
        options: SaveOptions,
    ) -> Result<(), WeightsError> {
        write_folder(folder, |folder| {
            write_tensors(folder, hf_parameters(self)?, options)?;
            let mut json = config.to_json();
            let first = self.embed_tokens.weight.val().dtype();
            let dtype = options.dtype.map_or(first, DType::from);
            json["dtype"] = json!(dtype_name(dtype));
            write_json(&folder.join("config.json"), &json)
        })
    }
}

/// Lets `write` fill a temporary folder and renames it to `folder` on success.
fn write_folder(
    folder: &Path,
    write: impl FnOnce(&Path) -> Result<(), WeightsError>,
) -> Result<(), WeightsError> {
    match std::fs::read_dir(folder) {
        Ok(mut entries) => {
            if entries.next().is_some() {
                return Err(WeightsError::Exists {
                    path: folder.to_owned(),
                });
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(source) => return Err(io(folder)(source)),
    }
    let parent = match folder.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    std::fs::create_dir_all(parent).map_err(io(parent))?;
    let scratch = tempfile::Builder::new()
        .prefix(".writing-")
        .tempdir_in(parent)
        .map_err(io(parent))?;
    let filled = scratch.path().join("model");
    std::fs::create_dir(&filled).map_err(io(&filled))?;
    write(&filled)?;
    // Also replaces an empty folder.
    std::fs::rename(&filled, folder).map_err(io(folder))
}

/// Saves a PEFT folder.
pub(crate) fn write_adapter(
    folder: &Path,
    factors: Vec<HfTensor>,
    dtype: FloatDType,
    config: &Value,
) -> Result<(), WeightsError> {
    write_folder(folder, |folder| {
        let views = factors
            .into_iter()
            .map(|factor| StoredView::new(factor, Some(dtype)))
            .collect();
        write_views(&folder.join("adapter_model.safetensors"), views)?;
        write_json(&folder.join("adapter_config.json"), config)
    })
}

/// Writes indented JSON.
fn write_json(path: &Path, json: &Value) -> Result<(), WeightsError> {
    let text = serde_json::to_string_pretty(json).expect("JSON values can be printed");
    std::fs::write(path, text + "\n").map_err(io(path))
}

/// Writes `tensors` into one file, or several of at most `max_shard_bytes` (at least one tensor
/// each).
fn write_tensors(
    folder: &Path,
    tensors: Vec<HfTensor>,
    options: SaveOptions,
) -> Result<(), WeightsError> {
    let mut shards: Vec<Vec<StoredView>> = Vec::new();
    let mut bytes = 0;
    let mut total = 0;
    for tensor in tensors {
        let view = StoredView::new(tensor, options.dtype);
        let size = view.data_len() as u64;
        match shards.last_mut() {
            Some(shard) if bytes + size <= options.max_shard_bytes => shard.push(view),
            _ => {
                shards.push(vec![view]);
                bytes = 0;
            }
        }
        bytes += size;
        total += size;
    }
    if shards.len() <= 1 {
        let views = shards.pop().unwrap_or_default();
        return write_views(&folder.join(SINGLE_FILE), views);
    }
    let count = shards.len();
    let mut weight_map = Map::new();
    for (index, views) in shards.into_iter().enumerate() {
        let name = format!("model-{:05}-of-{count:05}.safetensors", index + 1);
        for view in &views {
            weight_map.insert(view.tensor.key().to_owned(), name.clone().into());
        }
        write_views(&folder.join(&name), views)?;
    }
    let index = json!({ "metadata": { "total_size": total }, "weight_map": weight_map });
    write_json(&folder.join(INDEX_FILE), &index)
}

/// Writes one file, copying one tensor at a time from the device.
fn write_views(path: &Path, views: Vec<StoredView>) -> Result<(), WeightsError> {
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let named = views
        .into_iter()
        .map(|view| (view.tensor.key().to_owned(), view));
    safetensors::serialize_to_file(named, Some(metadata), path).map_err(|source| {
        WeightsError::Format {
            path: path.to_owned(),
            source,
        }
    })
}

/// A tensor to be written to a file.
struct StoredView {
    tensor: HfTensor,
    dtype: FloatDType,
}

impl StoredView {
    fn new(tensor: HfTensor, dtype: Option<FloatDType>) -> Self {
        let dtype = dtype.map_or(tensor.dtype(), DType::from);
        Self {
            dtype: stored_dtype(tensor.key(), dtype).into(),
            tensor,
        }
    }
}

impl View for StoredView {
    fn dtype(&self) -> Dtype {
        match self.dtype {
            FloatDType::F64 => Dtype::F64,
            FloatDType::F32 | FloatDType::Flex32 => Dtype::F32,
            FloatDType::F16 => Dtype::F16,
            FloatDType::BF16 => Dtype::BF16,
        }
    }

    fn shape(&self) -> &[usize] {
        self.tensor.shape()
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let dtype = match self.dtype {
            FloatDType::Flex32 => FloatDType::F32,
            dtype => dtype,
        };
        self.tensor.to_data(dtype).as_bytes().to_vec().into()
    }

    fn data_len(&self) -> usize {
        self.tensor.shape().iter().product::<usize>() * self.dtype().bitsize() / 8
    }
}

/// The name of a dtype in `config.json`.
fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "float64",
        DType::F16 => "float16",
        DType::BF16 => "bfloat16",
        _ => "float32",
    }
}
