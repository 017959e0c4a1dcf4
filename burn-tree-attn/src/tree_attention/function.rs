//! The public functions.

use burn::backend::Dispatch;
use burn::tensor::Tensor;
use burn_tree_kit::check::ArgumentError;

use super::check::Arguments;
use super::options::{AttentionSettings, TreeAttentionOptions};
use crate::mask::TreeMask;
use crate::ops::TreeAttentionOps;

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
) -> Result<Tensor<4>, ArgumentError> {
    let arguments = Arguments {
        query: &query,
        past: None,
        own: [&key, &value],
        mask,
        options,
    };
    let settings = arguments.check()?;
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
) -> Result<Tensor<4>, ArgumentError> {
    let arguments = Arguments {
        query: &query,
        past: Some([&past.key, &past.value]),
        own: [&own.key, &own.value],
        mask,
        options,
    };
    let settings = arguments.check()?;
    let (past_key, past_value) = (past.key, past.value);
    let (key, value) = (own.key, own.value);
    // Backends do not join empty tensors.
    match [past_key.dims()[2], key.dims()[2]] {
        [0, _] => return Ok(attend(query, key, value, mask, settings)),
        [_, 0] => return Ok(attend(query, past_key, past_value, mask, settings)),
        _ => {}
    }
    let (output, _log_sum_exp) = <Dispatch as TreeAttentionOps>::tree_attention_with_past(
        query.into_dispatch(),
        past_key.into_dispatch(),
        past_value.into_dispatch(),
        key.into_dispatch(),
        value.into_dispatch(),
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
    let (output, _log_sum_exp) = <Dispatch as TreeAttentionOps>::tree_attention(
        query.into_dispatch(),
        key.into_dispatch(),
        value.into_dispatch(),
        mask.visibility().clone(),
        settings,
    );
    Tensor::from_dispatch(output)
}
