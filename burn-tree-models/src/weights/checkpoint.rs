//! The tensors of a model folder, memory-mapped.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Component, Path, PathBuf};

use memmap2::Mmap;
use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensors};

use super::{INDEX_FILE, SINGLE_FILE, WeightsError, io};

/// The tensors of one or several files, by key.
pub(super) struct Checkpoint {
    path: PathBuf,
    files: Vec<MappedFile>,
    /// The file of each key.
    keys: BTreeMap<String, usize>,
}

struct MappedFile {
    path: PathBuf,
    map: Mmap,
    metadata: Metadata,
    /// Offset of the tensor data.
    data_start: usize,
}

/// One tensor of a checkpoint.
#[derive(Clone, Copy)]
pub(super) struct StoredTensor<'a> {
    pub(super) key: &'a str,
    pub(super) path: &'a Path,
    pub(super) dtype: Dtype,
    pub(super) shape: &'a [usize],
    pub(super) data: &'a [u8],
}

impl Checkpoint {
    /// Opens `model.safetensors`, or the files that `model.safetensors.index.json` lists.
    pub(super) fn open(folder: &Path) -> Result<Self, WeightsError> {
        let index = folder.join(INDEX_FILE);
        let single = folder.join(SINGLE_FILE);
        if single.is_file() {
            let file = MappedFile::open(single)?;
            let keys = file.metadata.offset_keys();
            return Ok(Self {
                path: folder.to_owned(),
                keys: keys.into_iter().map(|key| (key, 0)).collect(),
                files: vec![file],
            });
        }
        if !index.is_file() {
            return Err(WeightsError::NoWeights {
                folder: folder.to_owned(),
            });
        }
        let mut files = Vec::new();
        let mut file_of_name = BTreeMap::new();
        let mut keys = BTreeMap::new();
        for (key, name) in read_index(&index)? {
            let file = match file_of_name.get(&name) {
                Some(&file) => file,
                None => {
                    files.push(MappedFile::open(folder.join(&name))?);
                    file_of_name.insert(name, files.len() - 1);
                    files.len() - 1
                }
            };
            if files[file].metadata.info(&key).is_none() {
                return Err(WeightsError::MissingTensor {
                    path: files[file].path.clone(),
                    key,
                });
            }
            keys.insert(key, file);
        }
        Ok(Self {
            path: folder.to_owned(),
            files,
            keys,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.keys.keys().map(String::as_str)
    }

    pub(super) fn contains(&self, key: &str) -> bool {
        self.keys.contains_key(key)
    }

    pub(super) fn dtype(&self, key: &str) -> Option<Dtype> {
        let file = &self.files[*self.keys.get(key)?];
        Some(file.metadata.info(key)?.dtype)
    }

    /// The tensor of `key`, checked against `expected`.
    pub(super) fn tensor(
        &self,
        key: &str,
        expected: &[usize],
    ) -> Result<StoredTensor<'_>, WeightsError> {
        let missing = || WeightsError::MissingTensor {
            path: self.path.clone(),
            key: key.to_owned(),
        };
        let (key, &file) = self.keys.get_key_value(key).ok_or_else(missing)?;
        let file = &self.files[file];
        let TensorInfo {
            dtype,
            shape,
            data_offsets: (start, end),
        } = file.metadata.info(key).ok_or_else(missing)?;
        if shape != expected {
            return Err(WeightsError::Shape {
                path: file.path.clone(),
                key: key.clone(),
                found: shape.clone(),
                expected: expected.to_vec(),
            });
        }
        Ok(StoredTensor {
            key,
            path: &file.path,
            dtype: *dtype,
            shape,
            data: &file.map[file.data_start + start..file.data_start + end],
        })
    }
}

impl MappedFile {
    fn open(path: PathBuf) -> Result<Self, WeightsError> {
        let file = File::open(&path).map_err(io(&path))?;
        // SAFETY: the map is only read. As for every memory-mapped file, nobody may truncate it
        // meanwhile.
        let map = unsafe { Mmap::map(&file) }.map_err(io(&path))?;
        // Checks that header and tensors fill the file exactly.
        let (header, metadata) =
            SafeTensors::read_metadata(&map).map_err(|source| WeightsError::Format {
                path: path.clone(),
                source,
            })?;
        Ok(Self {
            path,
            data_start: size_of::<u64>() + header,
            metadata,
            map,
        })
    }
}

/// `weight_map` of the index: the file name of each key.
fn read_index(path: &Path) -> Result<Vec<(String, String)>, WeightsError> {
    let problem = |problem: String| WeightsError::Index {
        path: path.to_owned(),
        problem,
    };
    let text = std::fs::read_to_string(path).map_err(io(path))?;
    let json: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| problem(format!("not valid JSON: {error}")))?;
    let map = json
        .get("weight_map")
        .and_then(|map| map.as_object())
        .ok_or_else(|| problem("`weight_map` must be an object".to_owned()))?;
    map.iter()
        .map(|(key, name)| {
            let name = name
                .as_str()
                .ok_or_else(|| problem(format!("the file of `{key}` is {name}, not a string")))?;
            // The index must not refer to files outside of the folder.
            let mut components = Path::new(name).components();
            match (components.next(), components.next()) {
                (Some(Component::Normal(_)), None) => Ok((key.clone(), name.to_owned())),
                _ => Err(problem(format!(
                    "the file of `{key}` is `{name}`, not a file of this folder"
                ))),
            }
        })
        .collect()
}
