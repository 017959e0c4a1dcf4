//! Attention over a tree.

use burn::backend::Dispatch;
#[cfg(feature = "cubecl-backend")]
use burn::backend::DispatchDevice;
use burn::tensor::Tensor;

use super::{is_supported, same_device};
#[cfg(feature = "cubecl-backend")]
use crate::kernels::attention::{self, Dims};
use crate::ops::{AttentionSettings, TreeAttentionOps};
use crate::{TreeAttentionError, TreeMask};
use burn_tree_kit::implementation::Implementation;

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
    pub implementation: Implementation,
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
    let settings = check(&query, None, [&key, &value], mask, options)?;
    Ok(attend(query, key, value, mask, settings))
}

/// Keys and values of rows that were computed before: the past of [`tree_attention_with_past`].
///
/// Keys are those that attention took there, after the rotary embedding.
#[derive(Clone, Debug)]
pub struct PastKeyValue {
    /// `[B, Hkv, P, D]`
    pub key: Tensor<4>,
    /// `[B, Hkv, P, Dv]`
    pub value: Tensor<4>,
}

/// Keys and values of the rows that a call of [`tree_attention_with_past`] is for.
///
/// Not the type of the past: with the two exchanged, every shape could fit.
#[derive(Clone, Debug)]
pub struct KeyValue {
    /// `[B, Hkv, M - P, D]`, `M` keys of the mask less `P` past ones.
    pub key: Tensor<4>,
    /// `[B, Hkv, M - P, Dv]`
    pub value: Tensor<4>,
}

/// [`tree_attention`] of rows that continue others: keys (and values) of `past` and `own` count as
/// one tensor, the past first.
///
/// * `query`: `[B, Hq, N, D]`
/// * `past`: key `[B, Hkv, P, D]` and value `[B, Hkv, P, Dv]`
/// * `own`: key `[B, Hkv, M - P, D]` and value `[B, Hkv, M - P, Dv]`
/// * `mask`: for `B` rows, `N` queries and `M` keys
///
/// All else is as with [`tree_attention`], which gives the same bits for the joined tensors; but
/// these are temporary, in the forward and in the backward pass: nothing keeps a copy of the past
/// between the two.
///
/// # Panics
/// With the text of the error if [`try_tree_attention_with_past`] refuses the arguments.
///
/// # Example
/// ```
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_tree_attn::{
///     KeyIntervals, KeyValue, PastKeyValue, TreeAttentionOptions, TreeMask,
///     tree_attention_with_past,
/// };
///
/// let device = Device::flex();
/// // Two prompt tokens were computed before; rows 0 and 1 are two answers to them.
/// let tree = KeyIntervals {
///     key_start: vec![0, 0, 0, 1],
///     key_end: vec![2, 2, 1, 2],
///     key_position: vec![0, 1, 2, 2],
///     query_position: vec![2, 2],
/// };
/// let mask = TreeMask::from_intervals(&[tree], &device)?;
/// let random = |heads| Tensor::<4>::random([1, heads, 2, 8], Distribution::Default, &device);
/// let options = TreeAttentionOptions::default();
/// let past = PastKeyValue { key: random(2), value: random(2) };
/// let own = KeyValue { key: random(2), value: random(2) };
/// let output = tree_attention_with_past(random(4), past, own, &mask, options);
/// assert_eq!(output.dims(), [1, 4, 2, 8]);
/// # Ok::<(), burn_tree_attn::TreeMaskError>(())
/// ```
pub fn tree_attention_with_past(
    query: Tensor<4>,
    past: PastKeyValue,
    own: KeyValue,
    mask: &TreeMask,
    options: TreeAttentionOptions,
) -> Tensor<4> {
    try_tree_attention_with_past(query, past, own, mask, options)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// As [`tree_attention_with_past`], with an error for arguments that do not fit.
///
/// # Errors
/// As [`try_tree_attention`], and if `past` differs from `own` in more than its length.
pub fn try_tree_attention_with_past(
    query: Tensor<4>,
    past: PastKeyValue,
    own: KeyValue,
    mask: &TreeMask,
    options: TreeAttentionOptions,
) -> Result<Tensor<4>, TreeAttentionError> {
    let past_tensors = Some([&past.key, &past.value]);
    let settings = check(&query, past_tensors, [&own.key, &own.value], mask, options)?;
    let (past_key, past_value) = (past.key, past.value);
    let (key, value) = (own.key, own.value);
    // Backends do not join empty tensors.
    match [past_key.dims()[2], key.dims()[2]] {
        [0, _] => return Ok(attend(query, key, value, mask, settings)),
        [_, 0] => return Ok(attend(query, past_key, past_value, mask, settings)),
        _ => {}
    }
    let tensors = mask.tensors();
    let (output, _log_sum_exp) = <Dispatch as TreeAttentionOps>::tree_attention_with_past(
        query.into_dispatch(),
        past_key.into_dispatch(),
        past_value.into_dispatch(),
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

fn attend(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    mask: &TreeMask,
    settings: AttentionSettings,
) -> Tensor<4> {
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
    Tensor::from_dispatch(output)
}

/// Refuses what does not fit; `past` and `own` are keys and values.
fn check(
    query: &Tensor<4>,
    past: Option<[&Tensor<4>; 2]>,
    own: [&Tensor<4>; 2],
    mask: &TreeMask,
    options: TreeAttentionOptions,
) -> Result<AttentionSettings, TreeAttentionError> {
    let dims = own.map(|tensor| tensor.dims());
    let past_dims = past.map(|past| past.map(|tensor| tensor.dims()));
    check_shapes(query.dims(), past_dims, dims, mask)?;
    let past = past.into_iter().flatten().zip(["past key", "past value"]);
    let tensors: Vec<_> = past.chain(own.into_iter().zip(["key", "value"])).collect();
    check_tensors(query, &tensors, mask)?;
    let settings = resolve(options, query.dims()[3])?;
    let [key, value] = dims.map(|[batch, heads, _, width]| [batch, heads, mask.n_keys(), width]);
    let tracked = tensors.iter().any(|(tensor, _)| tensor.is_autodiff());
    check_implementation(query, key, value, tracked, mask, settings)?;
    Ok(settings)
}

fn check_shapes(
    query: [usize; 4],
    past: Option<[[usize; 4]; 2]>,
    [key, value]: [[usize; 4]; 2],
    mask: &TreeMask,
) -> Result<(), TreeAttentionError> {
    let expect = |tensor, dimension, found, expected, reason: &str| {
        if found == expected {
            Ok(())
        } else {
            Err(TreeAttentionError::Shape {
                tensor,
                dimension,
                found,
                expected,
                reason: reason.to_owned(),
            })
        }
    };
    let [batch, query_heads, queries, head_dim] = query;
    let (of_mask, of_query, of_key) = ("of the mask", "of the query", "of the key");
    expect("query", "batch size", batch, mask.batch_size(), of_mask)?;
    expect("query", "row count", queries, mask.n_queries(), of_mask)?;
    expect("key", "batch size", key[0], batch, of_query)?;
    let (keys, rows) = match past {
        None => ("key", key[2]),
        Some([past, _]) => ("past and own key", past[2] + key[2]),
    };
    let past_keys = mask.n_keys() - mask.n_queries();
    let with_past = if past.is_none() && past_keys > 0 && rows == mask.n_queries() {
        format!(
            "of the mask, {past_keys} of them past keys of another pack: \
             see tree_attention_with_past"
        )
    } else {
        of_mask.to_owned()
    };
    expect(keys, "row count", rows, mask.n_keys(), &with_past)?;
    expect("key", "head dimension", key[3], head_dim, of_query)?;
    expect("value", "batch size", value[0], batch, of_query)?;
    expect("value", "head count", value[1], key[1], of_key)?;
    expect("value", "row count", value[2], key[2], of_key)?;
    if let Some([past_key, past_value]) = past {
        for (tensor, past, own, reason) in [
            ("past key", past_key, key, of_key),
            ("past value", past_value, value, "of the value"),
        ] {
            expect(tensor, "batch size", past[0], own[0], reason)?;
            expect(tensor, "head count", past[1], own[1], reason)?;
            expect(tensor, "head dimension", past[3], own[3], reason)?;
        }
        let [expected, found] = [past_key[2], past_value[2]];
        let of_past_key = "of the past key";
        expect("past value", "row count", found, expected, of_past_key)?;
    }
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
    tensors: &[(&Tensor<4>, &'static str)],
    mask: &TreeMask,
) -> Result<(), TreeAttentionError> {
    let (dtype, device) = (query.dtype(), query.device());
    if !is_supported(dtype) {
        return Err(TreeAttentionError::UnsupportedDType { found: dtype });
    }
    for &(other, tensor) in tensors {
        if other.dtype() != dtype {
            let found = other.dtype();
            return Err(TreeAttentionError::DType {
                tensor,
                found,
                expected: dtype,
            });
        }
    }
    let devices = tensors.iter().map(|&(other, name)| (other.device(), name));
    for (other, argument) in devices.chain([(mask.device().clone(), "mask")]) {
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
    key: [usize; 4],
    value: [usize; 4],
    tracked: bool,
    mask: &TreeMask,
    settings: AttentionSettings,
) -> Result<(), TreeAttentionError> {
    use Implementation::{Automatic, Generic};
    let requested = settings.implementation;
    if matches!(requested, Automatic | Generic) {
        return Ok(());
    }
    let refuse = |reason| Err(TreeAttentionError::Implementation { requested, reason });
    let device = query.device().inner();
    match device.as_dispatch() {
        #[cfg(feature = "cubecl-backend")]
        DispatchDevice::Cube(device) => {
            let dims = Dims::of_shapes(query.dims(), key, value);
            let with_backward = tracked || query.is_autodiff();
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
