//! Attention over a tree.

use burn::backend::Dispatch;
#[cfg(feature = "cubecl-backend")]
use burn::backend::DispatchDevice;
use burn::tensor::Tensor;

use super::{is_supported, same_device};
#[cfg(feature = "cubecl-backend")]
use crate::kernels::attention::{self, Dims};
use crate::ops::{AttentionImplementation, AttentionSettings, TreeAttentionOps};
use crate::{TreeAttentionError, TreeMask};

/// Options of [`tree_attention`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TreeAttentionOptions {
    /// Factor of the scores; `head_dim^-1/2` if `None`.
    pub scale: Option<f64>,
    /// Scores become `softcap * tanh(score / softcap)`.
    pub softcap: Option<f64>,
    /// A query at path position `p` sees keys at positions `> p - sliding_window`.
    pub sliding_window: Option<usize>,
    /// Which implementation runs: the fastest available unless told otherwise.
    pub implementation: AttentionImplementation,
}

/// Attention over a tree: each query row attends to the keys that its mask shows it.
///
/// * `query`: `[B, Hq, N, D]`
/// * `key`: `[B, Hkv, M, D]`, `Hq` a multiple of `Hkv`: query head `h` uses key/value head
///   `h / (Hq / Hkv)`
/// * `value`: `[B, Hkv, M, Dv]`
/// * `mask`: for `B` rows, `N` queries and `M` keys
///
/// Returns `[B, Hq, N, Dv]` in the dtype of the inputs, which share one of f64, f32, f16, bf16.
/// Sums are kept in f32 (f64 for f64). Rows that see nothing are exactly zero and pass no
/// gradient. Differentiable in query, key and value; the backward pass recomputes the
/// probabilities, so that memory is linear in `N`.
///
/// Softmax and gradients follow Dao et al., *FlashAttention* (2022); soft capping is that of
/// Gemma 2.
///
/// Devices may compute later. If one fails then (it has too little memory, or refuses a kernel),
/// that is an error of whoever reads the output or what depends on it:
/// [`try_into_data`](Tensor::try_into_data) returns it. Nothing else is read in its place.
///
/// # Panics
/// With the text of the error if [`try_tree_attention`] refuses the arguments.
///
/// # Example
/// ```
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_tree_attn::{KeyIntervals, TreeAttentionOptions, TreeMask, tree_attention};
///
/// let device = Device::flex();
/// // Row 0 is a shared prompt token; rows 1 and 2 are two answers that do not see each other.
/// let tree = KeyIntervals {
///     key_start: vec![0, 1, 2],
///     key_end: vec![3, 2, 3],
///     key_position: vec![0, 1, 1],
///     query_position: vec![0, 1, 1],
/// };
/// let mask = TreeMask::from_intervals(&[tree], &device)?;
/// let query = Tensor::<4>::random([1, 4, 3, 8], Distribution::Default, &device);
/// let key = Tensor::<4>::random([1, 2, 3, 8], Distribution::Default, &device);
/// let value = Tensor::<4>::random([1, 2, 3, 8], Distribution::Default, &device);
/// let output = tree_attention(query, key, value, &mask, TreeAttentionOptions::default());
/// assert_eq!(output.dims(), [1, 4, 3, 8]);
/// # Ok::<(), burn_tree_attn::TreeMaskError>(())
/// ```
pub fn tree_attention(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    mask: &TreeMask,
    options: TreeAttentionOptions,
) -> Tensor<4> {
    try_tree_attention(query, key, value, mask, options).unwrap_or_else(|error| panic!("{error}"))
}

/// As [`tree_attention`], with an error for arguments that do not fit.
///
/// # Errors
/// If shapes, dtypes or devices differ from what the query and the mask ask for, an option is out
/// of its range, or the implementation asked for does not run these tensors.
pub fn try_tree_attention(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    mask: &TreeMask,
    options: TreeAttentionOptions,
) -> Result<Tensor<4>, TreeAttentionError> {
    check_shapes(query.dims(), key.dims(), value.dims(), mask)?;
    check_tensors(&query, &key, &value, mask)?;
    let settings = resolve(options, query.dims()[3])?;
    check_implementation(&query, &key, &value, mask, settings)?;
    let tensors = mask.tensors();
    let (output, _log_sum_exp) = <Dispatch as TreeAttentionOps>::tree_attention(
        query.into_dispatch(),
        key.into_dispatch(),
        value.into_dispatch(),
        tensors.key_start.into_dispatch(),
        tensors.key_end.into_dispatch(),
        tensors.key_position.into_dispatch(),
        tensors.query_position.into_dispatch(),
        mask.visibility().clone(),
        settings,
    );
    Ok(Tensor::from_dispatch(output))
}

fn check_shapes(
    query: [usize; 4],
    key: [usize; 4],
    value: [usize; 4],
    mask: &TreeMask,
) -> Result<(), TreeAttentionError> {
    let expect = |tensor, dimension, found, expected, reason| {
        if found == expected {
            Ok(())
        } else {
            Err(TreeAttentionError::Shape {
                tensor,
                dimension,
                found,
                expected,
                reason,
            })
        }
    };
    let [batch, query_heads, queries, head_dim] = query;
    let (of_mask, of_query, of_key) = ("of the mask", "of the query", "of the key");
    expect("query", "batch size", batch, mask.batch_size(), of_mask)?;
    expect("query", "row count", queries, mask.n_queries(), of_mask)?;
    expect("key", "batch size", key[0], batch, of_query)?;
    expect("key", "row count", key[2], mask.n_keys(), of_mask)?;
    expect("key", "head dimension", key[3], head_dim, of_query)?;
    expect("value", "batch size", value[0], batch, of_query)?;
    expect("value", "head count", value[1], key[1], of_key)?;
    expect("value", "row count", value[2], key[2], of_key)?;
    if key[1] == 0 || query_heads == 0 || !query_heads.is_multiple_of(key[1]) {
        return Err(TreeAttentionError::Heads {
            query_heads,
            kv_heads: key[1],
        });
    }
    for (tensor, dim) in [("query", head_dim), ("value", value[3])] {
        if dim == 0 {
            return Err(TreeAttentionError::EmptyHead { tensor });
        }
    }
    Ok(())
}

fn check_tensors(
    query: &Tensor<4>,
    key: &Tensor<4>,
    value: &Tensor<4>,
    mask: &TreeMask,
) -> Result<(), TreeAttentionError> {
    let (dtype, device) = (query.dtype(), query.device());
    if !is_supported(dtype) {
        return Err(TreeAttentionError::UnsupportedDType { found: dtype });
    }
    for (tensor, other) in [("key", key), ("value", value)] {
        if other.dtype() != dtype {
            let found = other.dtype();
            return Err(TreeAttentionError::DType {
                tensor,
                found,
                expected: dtype,
            });
        }
    }
    let devices = [
        ("key", key.device()),
        ("value", value.device()),
        ("mask", mask.device().clone()),
    ];
    for (argument, other) in devices {
        if !same_device(&other, &device) {
            return Err(TreeAttentionError::Device {
                argument,
                found: format!("{other:?}"),
                expected: format!("{device:?}"),
            });
        }
    }
    Ok(())
}

/// Refuses a requested implementation that does not run these tensors.
#[cfg_attr(not(feature = "cubecl-backend"), allow(unused_variables))]
fn check_implementation(
    query: &Tensor<4>,
    key: &Tensor<4>,
    value: &Tensor<4>,
    mask: &TreeMask,
    settings: AttentionSettings,
) -> Result<(), TreeAttentionError> {
    use AttentionImplementation::{Automatic, Generic};
    let requested = settings.implementation;
    if matches!(requested, Automatic | Generic) {
        return Ok(());
    }
    let refuse = |reason| Err(TreeAttentionError::Implementation { requested, reason });
    let device = query.device().inner();
    match device.as_dispatch() {
        #[cfg(feature = "cubecl-backend")]
        DispatchDevice::Cube(device) => {
            let dims = Dims::of_shapes(query.dims(), key.dims(), value.dims());
            let with_backward = [query, key, value].iter().any(|it| it.is_autodiff());
            attention::check(
                device,
                query.dtype(),
                dims,
                mask.visibility(),
                settings,
                with_backward,
            )
            .or_else(|unavailable| refuse(unavailable.0))
        }
        #[allow(unreachable_patterns, reason = "there may be no other backend")]
        _ => refuse(format!("{device:?} is not a CubeCL device")),
    }
}

fn resolve(
    options: TreeAttentionOptions,
    head_dim: usize,
) -> Result<AttentionSettings, TreeAttentionError> {
    let scale = options
        .scale
        .unwrap_or_else(|| (head_dim as f64).sqrt().recip());
    let refuse = |option, value, expected| {
        Err(TreeAttentionError::Option {
            option,
            value,
            expected,
        })
    };
    if !scale.is_finite() {
        return refuse("scale", scale, "a finite number");
    }
    if let Some(cap) = options.softcap
        && !(cap.is_finite() && cap > 0.0)
    {
        return refuse("softcap", cap, "a positive finite number");
    }
    if options.sliding_window == Some(0) {
        return refuse("sliding_window", 0.0, "at least 1 (a query sees itself)");
    }
    Ok(AttentionSettings {
        scale,
        softcap: options.softcap,
        sliding_window: options.sliding_window,
        implementation: options.implementation,
    })
}
