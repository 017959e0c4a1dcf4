//! Gated DeltaNet's recurrence over the paths of a tree.
//!
//! Equations and derivation: Yang et al., *Gated Delta Networks* (2024), of which
//! [`mod@reference`] is the token recurrence and `generic` the chunked form on tree windows.

mod autodiff;
mod check;
mod error;
pub(crate) mod generic;
#[cfg(feature = "cubecl-backend")]
pub(crate) mod kernels;
#[cfg(feature = "flex")]
pub(crate) mod native;
pub mod reference;

use burn::backend::Dispatch;
use burn::tensor::{DType, FloatDType, Tensor};
use burn_tree_kit::implementation::Implementation;

use crate::{TreeRecurrence, TreeSsmOps};
use burn_tree_kit::dtype::at_least_f32;

pub(crate) use autodiff::forward as autodiff_forward;
pub use error::GatedDeltaRuleError;

/// Options of [`tree_gated_delta_rule`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GatedDeltaRuleOptions {
    /// Factor of the query, in the range of f32 (f64 if the value is); `DK^-1/2` if `None`.
    pub scale: Option<f64>,
    /// Which implementation runs: the fastest available unless told otherwise.
    pub implementation: Implementation,
}

/// Resolved options of one call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedDeltaRuleSettings {
    /// Factor of the query.
    pub scale: f64,
    /// What is to run; checked before dispatch.
    pub implementation: Implementation,
}

/// What [`tree_gated_delta_rule`] returns.
#[derive(Clone, Debug)]
pub struct GatedDeltaRuleOutput {
    /// `[B, N, HV, DV]` in the dtype of the value; zero in padding.
    pub output: Tensor<4>,
    /// `[X, HV, DK, DV]` the states after the requested rows, in f32 (f64 if the value is);
    /// `None` if there are none.
    pub states: Option<Tensor<4>>,
}

/// The gated delta rule over the paths of a tree: each row continues the state of its parent row.
///
/// With the state `S [DK, DV]` of a head, a row `i` with parent `p` computes
/// ```text
/// S_i = exp(g_i) S_p + k_i u_i^T      u_i = beta_i (v_i - exp(g_i) S_p^T k_i)
/// o_i = scale S_i^T q_i
/// ```
/// * `query`, `key`: `[B, N, HK, DK]`; of the length that the model gives them (usually one)
/// * `value`: `[B, N, HV, DV]`, `HV` a multiple of `HK`: value head `h` uses query and key head
///   `h / (HV / HK)`
/// * `log_decay`: `[B, N, HV]` the `g` of the equations, in f32 (f64 if the value is): in less,
///   slow decays are lost. Decays are exponentials of differences of its sums over at most a window,
///   so that the error of each is about `2^-24` (`2^-53`) of the magnitude summed there. A row can
///   forget the state with a `g` as low as it likes, `-inf` included: below -104 (-750), where
///   `exp(g)` is 0, it counts as that
/// * `beta`: `[B, N, HV]` in any of the supported dtypes
/// * `recurrence`: for `B` rows of `N`
/// * `initial_states`: `[G, HV, DK, DV]` in f32 (f64), the `S_p` of the roots that start from one;
///   exactly if the recurrence names any
///
/// Query, key and value share one of f64, f32, f16, bf16; states and sums are kept in f32 (f64 for
/// f64). All other inputs must be finite: siblings and small trees may share a window, and with it a NaN.
/// Padding gives exact zeros and passes no gradient. Differentiable in all tensors; so are
/// the states that are returned.
///
/// # Panics
/// With the text of the error if [`try_tree_gated_delta_rule`] refuses the arguments.
///
/// # Example
/// ```
/// use burn::tensor::{Device, Distribution, Tensor, activation::sigmoid};
/// use burn_tree_ssm::{GatedDeltaRuleOptions, TreeRecurrence, tree_gated_delta_rule};
/// use tree_pack::{PrefixForest, Trajectory, TreeLayout};
///
/// // Two answers to a prompt of two tokens.
/// let answers = [vec![1, 2, 3], vec![1, 2, 4, 5]];
/// let trajectories = answers.map(|tokens| {
///     let mask = vec![true; tokens.len()];
///     Trajectory::new("task", "answer", tokens, mask)
/// });
/// let layout = TreeLayout::from_forest(&PrefixForest::build(&trajectories)?);
/// let rows = layout.len();
/// let recurrence = TreeRecurrence::from_layouts(&[layout], rows);
///
/// let device = Device::flex();
/// let random = |width| Tensor::<4>::random([1, rows, 2, width], Distribution::Default, &device);
/// let beta = sigmoid(Tensor::<3>::random([1, rows, 2], Distribution::Default, &device));
/// let log_decay = beta.clone() * -0.1;
/// let result = tree_gated_delta_rule(
///     random(8),
///     random(8),
///     random(16),
///     log_decay,
///     beta,
///     &recurrence,
///     None,
///     GatedDeltaRuleOptions::default(),
/// );
/// assert_eq!(result.output.dims(), [1, 5, 2, 16]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn tree_gated_delta_rule(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    log_decay: Tensor<3>,
    beta: Tensor<3>,
    recurrence: &TreeRecurrence,
    initial_states: Option<Tensor<4>>,
    options: GatedDeltaRuleOptions,
) -> GatedDeltaRuleOutput {
    try_tree_gated_delta_rule(
        query,
        key,
        value,
        log_decay,
        beta,
        recurrence,
        initial_states,
        options,
    )
    .unwrap_or_else(|error| panic!("{error}"))
}

/// As [`tree_gated_delta_rule`], with an error for arguments that do not fit.
///
/// # Errors
/// If shapes, dtypes or devices differ from what the other arguments ask for, initial states are
/// given though no root names one or the other way round, an option is out of its range, or the
/// implementation asked for does not run these tensors.
pub fn try_tree_gated_delta_rule(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    log_decay: Tensor<3>,
    beta: Tensor<3>,
    recurrence: &TreeRecurrence,
    initial_states: Option<Tensor<4>>,
    options: GatedDeltaRuleOptions,
) -> Result<GatedDeltaRuleOutput, GatedDeltaRuleError> {
    let settings = check::check(
        &check::Arguments {
            query: &query,
            key: &key,
            value: &value,
            log_decay: &log_decay,
            beta: &beta,
            initial_states: initial_states.as_ref(),
        },
        recurrence,
        options,
    )?;
    let [batch, length, key_heads, key_dim] = query.dims();
    let [_, _, heads, value_dim] = value.dims();
    let wide = at_least_f32(value.dtype());
    let rows = batch * length;
    let initial_states = initial_states.unwrap_or_else(|| {
        let dtype = DType::from(wide);
        Tensor::zeros([1, heads, key_dim, value_dim], (&value.device(), dtype))
    });
    let flat = |tensor: Tensor<4>, heads: usize, width: usize| {
        tensor.reshape([rows, heads, width]).into_dispatch()
    };
    let (output, states, _inverse) = <Dispatch as TreeSsmOps>::gated_delta_rule(
        flat(query, key_heads, key_dim),
        flat(key, key_heads, key_dim),
        flat(value, heads, value_dim),
        log_decay.reshape([rows, heads]).into_dispatch(),
        beta.cast(wide).reshape([rows, heads]).into_dispatch(),
        initial_states.into_dispatch(),
        recurrence.clone(),
        settings,
    );
    let requested = recurrence.requested_rows().len();
    Ok(GatedDeltaRuleOutput {
        output: Tensor::<3>::from_dispatch(output).reshape([batch, length, heads, value_dim]),
        states: (requested > 0)
            .then(|| Tensor::<4>::from_dispatch(states).slice_dim(0, 0..requested)),
    })
}

/// Log decays below this count as this: the exponential is 0 in f32, and sums that hold it keep the
/// digits of other log decays.
pub(crate) const LOWEST_LOG_DECAY: f32 = -104.0;

/// [`LOWEST_LOG_DECAY`] of computations in f32 or f64.
pub(crate) fn lowest_log_decay(dtype: FloatDType) -> f64 {
    match dtype {
        FloatDType::F64 => -750.0,
        _ => LOWEST_LOG_DECAY.into(),
    }
}

/// Tensors of a call, as [`TreeSsmOps::gated_delta_rule`] gets them.
#[derive(Clone, Debug)]
pub(crate) struct Inputs<T> {
    /// `[R, HK, DK]`
    pub(crate) query: T,
    /// `[R, HK, DK]`
    pub(crate) key: T,
    /// `[R, HV, DV]`
    pub(crate) value: T,
    /// `[R, HV]`
    pub(crate) log_decay: T,
    /// `[R, HV]`
    pub(crate) beta: T,
    /// `[max(G, 1), HV, DK, DV]`
    pub(crate) initial_states: T,
}

#[cfg(feature = "cubecl-backend")]
impl<T> Inputs<T> {
    /// The result of a function for each tensor.
    pub(crate) fn map<U>(self, function: impl Fn(T) -> U) -> Inputs<U> {
        Inputs {
            query: function(self.query),
            key: function(self.key),
            value: function(self.value),
            log_decay: function(self.log_decay),
            beta: function(self.beta),
            initial_states: function(self.initial_states),
        }
    }
}

/// What the forward pass keeps for the backward pass.
#[derive(Clone, Debug)]
pub(crate) struct Saved<T> {
    /// `[max(S, 1), HV, DK, DV]`
    pub(crate) states: T,
    /// `[R, HV, C]`
    pub(crate) inverse: T,
}
