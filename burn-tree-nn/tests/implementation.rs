//! On CubeCL runtimes the kernels run, also below Fusion if it is built in.

#[path = "operations/support.rs"]
mod support;

use std::collections::BTreeSet;
use std::sync::Arc;

use burn::tensor::{DType, Int, Tensor, TensorData};
use burn_tree_nn::{GatherPlan, LmHeadOptions, gather_rows, rms_norm, swiglu, token_log_probs};
use support::{device, numbers};
use tree_pack::{LossForm, OccurrenceBatch};
use tree_training_devices::Events;

/// Forward and backward of all operations that have kernels.
fn run_all() {
    let x = numbers([12, 16], 1, DType::F32);
    let weight = numbers([16], 2, DType::F32);
    let plan = Arc::new(GatherPlan::new(vec![3, 3, 0, 11], 12).unwrap());
    let gathered = gather_rows(x.clone(), &plan);
    let normed = rms_norm(gathered, weight, 1e-6);
    let states = swiglu(normed.clone(), normed).unsqueeze_dim::<3>(0);
    let integers = |values: [i32; 3]| -> Tensor<1, Int> {
        Tensor::from_data(TensorData::from(values), &device())
    };
    let occurrences = OccurrenceBatch {
        batch: None,
        loss_form: LossForm::default(),
        rows: integers([0, 2, 2]),
        targets: integers([4, 9, 0]),
        weights: Tensor::ones([3], &device()),
        multiplicities: Tensor::ones([3], &device()),
        trajectories: integers([0; 3]),
        token_indices: integers([0; 3]),
        advantages: None,
        old_log_probs: None,
        ref_log_probs: None,
        sampling_log_probs: None,
        host_rows: Arc::new(vec![0, 2, 2]),
        host_targets: Arc::new(vec![4, 9, 0]),
        host_trajectories: Arc::new(vec![0; 3]),
    };
    let head = numbers([10, 16], 3, DType::F32);
    let log_probs = token_log_probs(states, head, &occurrences, LmHeadOptions::default());
    let gradients = log_probs.log_probs.sum().backward();
    let gradient = x.grad(&gradients).unwrap().into_data();
    assert!(gradient.iter::<f32>().any(|value| value != 0.0));
}

#[test]
fn kernels_run_on_cubecl_runtimes() {
    let events = Events::of(burn_tree_kit::implementation::TARGET);
    tracing::subscriber::set_global_default(events.clone()).unwrap();
    run_all();
    let found: BTreeSet<String> = events.take().into_iter().collect();
    let expected: BTreeSet<String> = ["gather_rows", "lm_head_log_probs", "rms_norm", "swiglu"]
        .into_iter()
        .filter(|_| tree_training_devices::is_cubecl())
        .flat_map(|op| ["forward", "backward"].map(|pass| format!("{op} {pass} portable")))
        .collect();
    assert_eq!(found, expected);
}
