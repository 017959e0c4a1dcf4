//! Which implementation runs: on CubeCL runtimes, below Fusion if that is built in, the kernels.

#[path = "operations/support.rs"]
mod support;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use burn::tensor::{DType, Int, Tensor, TensorData};
use burn_tree_train::{GatherPlan, LmHeadOptions, gather_rows, rms_norm, swiglu, token_log_probs};
use support::{device, numbers};
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};
use tree_pack::OccurrenceBatch;

/// The implementations announced, by operation.
type Announced = Arc<Mutex<BTreeMap<String, String>>>;

/// Collects the events of this crate from all threads: Fusion runs operations on its own.
struct Collector(Announced);

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "burn_tree_train"
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let previous = self
            .0
            .lock()
            .unwrap()
            .insert(fields.op.clone(), fields.implementation.clone());
        if let Some(previous) = previous {
            assert_eq!(previous, fields.implementation, "{}", fields.op);
        }
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct Fields {
    op: String,
    implementation: String,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "op" => self.op = value.to_owned(),
            "implementation" => self.implementation = value.to_owned(),
            _ => {}
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}

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
        rows: integers([0, 2, 2]),
        targets: integers([4, 9, 0]),
        weights: Tensor::ones([3], &device()),
        trajectories: integers([0; 3]),
        token_indices: integers([0; 3]),
        advantages: None,
        old_log_probs: None,
        ref_log_probs: None,
        host_rows: Arc::new(vec![0, 2, 2]),
    };
    let head = numbers([10, 16], 3, DType::F32);
    let log_probs = token_log_probs(states, head, &occurrences, LmHeadOptions::default());
    let gradients = log_probs.log_probs.sum().backward();
    let gradient = x.grad(&gradients).unwrap().into_data();
    assert!(gradient.iter::<f32>().any(|value| value != 0.0));
}

#[test]
fn kernels_run_on_cubecl_runtimes() {
    let announced = Announced::default();
    tracing::subscriber::set_global_default(Collector(announced.clone())).unwrap();
    run_all();
    let found = announced.lock().unwrap().clone();
    let expected: BTreeMap<String, String> = [
        "gather_rows",
        "gather_rows_backward",
        "lm_head_log_probs",
        "lm_head_log_probs_backward",
        "rms_norm",
        "rms_norm_backward",
        "swiglu",
        "swiglu_backward",
    ]
    .into_iter()
    .filter(|_| tree_training_devices::is_cubecl())
    .map(|op| (op.to_owned(), "kernel".to_owned()))
    .collect();
    assert_eq!(found, expected);
}
