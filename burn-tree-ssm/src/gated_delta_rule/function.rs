//! The public function.

use burn::backend::Dispatch;
use burn::tensor::{DType, Tensor};
use burn_tree_kit::check::ArgumentError;
use burn_tree_kit::dtype::at_least_f32;

use super::check;
use super::settings::{GatedDeltaRuleOptions, GatedDeltaRuleOutput};
use super::tensors::GatedDeltaRuleInputs;
use crate::ops::TreeSsmOps;
use crate::recurrence::TreeRecurrence;

/// The gated delta rule over the paths of a tree: each row continues the state of its parent row.
///
/// With the state `S [DK, DV]` of a head, a row `i` with parent `p` computes
/// ```text
/// S_i = exp(g_i) S_p + k_i u_i^T      u_i = beta_i (v_i - exp(g_i) S_p^T k_i)
/// o_i = scale S_i^T q_i
/// ```
/// * `query`, `key`: `[B, N, HK, DK]`. The model decides about their length, which is usually one.
/// * `value`: `[B, N, HV, DV]`, `HV` a multiple of `HK`. Value head `h` uses query and key head
///   `h / (HV / HK)`.
/// * `log_decay`: `[B, N, HV]`, the `g` of the equations, in f32 (f64 if the value is f64). A
///   narrower dtype would lose slow decays. The operation sums log decays over at most a window and
///   takes exponentials of differences of these sums, so that each decay has an error of about
///   `2^-24` (`2^-53`) of the magnitude of the sum. Values below -104 (-750), `-inf` included,
///   count as that: there `exp(g)` is 0, and the row forgets the state.
/// * `beta`: `[B, N, HV]` in any of the supported dtypes.
/// * `recurrence`: for `B` rows of `N`.
/// * `initial_states`: `[G, HV, DK, DV]` in f32 (f64), the `S_p` of the roots that start from one.
///   Required if the recurrence names initial states, and refused otherwise.
///
/// Query, key and value share one of f64, f32, f16, bf16. The operation keeps states and sums in
/// f32 (f64 for f64). All other inputs must be finite: siblings and small trees may share a window,
/// and with it a NaN. Padding gets exact zeros and passes no gradient. The operation is
/// differentiable in all tensors, through the output and through the returned states.
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
/// If shapes, dtypes or devices do not match, if initial states are missing or not wanted, if an
/// option is out of its range, or if the implementation asked for does not run these tensors.
pub fn try_tree_gated_delta_rule(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    log_decay: Tensor<3>,
    beta: Tensor<3>,
    recurrence: &TreeRecurrence,
    initial_states: Option<Tensor<4>>,
    options: GatedDeltaRuleOptions,
) -> Result<GatedDeltaRuleOutput, ArgumentError> {
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
    let inputs = GatedDeltaRuleInputs {
        query: flat(query, key_heads, key_dim),
        key: flat(key, key_heads, key_dim),
        value: flat(value, heads, value_dim),
        log_decay: log_decay.reshape([rows, heads]).into_dispatch(),
        beta: beta.cast(wide).reshape([rows, heads]).into_dispatch(),
        initial_states: initial_states.into_dispatch(),
    };
    let (output, saved) =
        <Dispatch as TreeSsmOps>::gated_delta_rule(inputs, recurrence.clone(), settings);
    let requested = recurrence.requested_rows().len();
    Ok(GatedDeltaRuleOutput {
        output: Tensor::<3>::from_dispatch(output).reshape([batch, length, heads, value_dim]),
        states: (requested > 0)
            .then(|| Tensor::<4>::from_dispatch(saved.states).slice_dim(0, 0..requested)),
    })
}
