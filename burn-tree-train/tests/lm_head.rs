//! Chunked log-probabilities against `log_softmax` of all logits, values and gradients.

use std::sync::Arc;

use burn::tensor::{DType, Device, Distribution, Int, Tensor, TensorData, Tolerance};
use burn_tree_train::lm_head::reference;
use burn_tree_train::{LmHeadError, LmHeadOptions, sft_loss, token_log_probs, try_token_log_probs};
use tree_pack::OccurrenceBatch;

const HIDDEN: usize = 24;
const VOCAB: usize = 37;
/// Rows 3 and 9 predict several tokens, one of them twice; rows 0, 5 and 11 predict nothing.
const ROWS: [u32; 14] = [1, 2, 3, 3, 3, 4, 6, 7, 8, 9, 9, 9, 9, 10];
const TARGETS: [i32; 14] = [0, 36, 5, 6, 7, 5, 5, 12, 1, 8, 8, 30, 2, 36];

fn device() -> Device {
    Device::flex().autodiff()
}

fn occurrences(rows: &[u32], targets: &[i32], dtype: DType, device: &Device) -> OccurrenceBatch {
    let count = rows.len();
    let integers = |values: Vec<i32>| -> Tensor<1, Int> {
        Tensor::from_data(TensorData::new(values, [count]), device)
    };
    let weights: Vec<f64> = (0..count).map(|index| 0.1 + 0.03 * index as f64).collect();
    OccurrenceBatch {
        rows: integers(rows.iter().map(|&row| row as i32).collect()),
        targets: integers(targets.to_vec()),
        weights: Tensor::from_data(TensorData::new(weights, [count]), (device, dtype)),
        trajectories: integers(vec![0; count]),
        token_indices: integers(vec![0; count]),
        advantages: None,
        old_log_probs: None,
        ref_log_probs: None,
        host_rows: Arc::new(rows.to_vec()),
    }
}

/// `[2, 6, HIDDEN]` states and `[VOCAB, HIDDEN]` head with logits of a few units.
fn inputs(dtype: DType, device: &Device) -> (Tensor<3>, Tensor<2>) {
    let random = |rows: usize, seed: usize| {
        let values: Vec<f64> = (0..rows * HIDDEN)
            .map(|index| ((index * 7919 + seed * 104729) % 1009) as f64 / 504.5 - 1.0)
            .collect();
        Tensor::<2>::from_data(TensorData::new(values, [rows, HIDDEN]), (device, dtype))
    };
    (
        random(12, 1).reshape([2, 6, HIDDEN]).require_grad(),
        random(VOCAB, 2).require_grad(),
    )
}

struct Outcome {
    log_probs: TensorData,
    entropy: Option<TensorData>,
    grad_hidden: TensorData,
    grad_head: TensorData,
}

fn chunked(dtype: DType, chunk_rows: Option<usize>) -> Outcome {
    let device = device();
    let (hidden, head) = inputs(dtype, &device);
    let occurrences = occurrences(&ROWS, &TARGETS, dtype, &device);
    let options = LmHeadOptions {
        chunk_rows,
        entropy: true,
    };
    let output = token_log_probs(hidden.clone(), head.clone(), &occurrences, options);
    let gradients = sft_loss(output.log_probs.clone(), &occurrences).backward();
    Outcome {
        log_probs: output.log_probs.into_data(),
        entropy: output.entropy.map(Tensor::into_data),
        grad_hidden: hidden.grad(&gradients).unwrap().into_data(),
        grad_head: head.grad(&gradients).unwrap().into_data(),
    }
}

fn all_at_once(dtype: DType) -> Outcome {
    let device = device();
    let (hidden, head) = inputs(dtype, &device);
    let occurrences = occurrences(&ROWS, &TARGETS, dtype, &device);
    let flat = hidden.clone().reshape([12, HIDDEN]);
    let log_probs = reference::token_log_probs(
        flat.clone(),
        head.clone(),
        occurrences.rows.clone(),
        occurrences.targets.clone(),
    );
    let entropy = reference::entropy(flat, head.clone(), occurrences.rows.clone());
    let gradients = sft_loss(log_probs.clone(), &occurrences).backward();
    Outcome {
        log_probs: log_probs.into_data(),
        entropy: Some(entropy.into_data()),
        grad_hidden: hidden.grad(&gradients).unwrap().into_data(),
        grad_head: head.grad(&gradients).unwrap().into_data(),
    }
}

fn assert_close(found: &Outcome, expected: &Outcome, tolerance: Tolerance<f64>) {
    let pairs = [
        (&found.log_probs, &expected.log_probs),
        (
            found.entropy.as_ref().unwrap(),
            expected.entropy.as_ref().unwrap(),
        ),
        (&found.grad_hidden, &expected.grad_hidden),
        (&found.grad_head, &expected.grad_head),
    ];
    for (found, expected) in pairs {
        assert_eq!(found.dtype(), expected.dtype());
        let convert = |data: &TensorData| data.clone().convert::<f64>();
        convert(found).assert_approx_eq::<f64>(&convert(expected), tolerance);
    }
}

/// Both sides round sums of 24 products and 37 exponentials in another order.
#[test]
fn equals_the_reference_in_f32() {
    let expected = all_at_once(DType::F32);
    for chunk_rows in [Some(1), Some(3), Some(8), Some(100), None] {
        let found = chunked(DType::F32, chunk_rows);
        assert_close(&found, &expected, Tolerance::absolute(4e-6));
    }
}

#[test]
fn stays_in_f64() {
    let expected = all_at_once(DType::F64);
    for chunk_rows in [Some(1), Some(4), None] {
        let found = chunked(DType::F64, chunk_rows);
        assert_eq!(found.log_probs.dtype(), DType::F64);
        assert_close(&found, &expected, Tolerance::absolute(1e-13));
    }
}

/// bf16 states with an f32 head: products and softmax in f32, each gradient in its own dtype.
#[test]
fn narrow_states_and_a_wide_head() {
    let device = device();
    let (hidden, head) = inputs(DType::F32, &device);
    let narrow = hidden.inner().cast(DType::BF16);
    let narrow = narrow.autodiff().require_grad();
    let occurrences = occurrences(&ROWS, &TARGETS, DType::F32, &device);
    let output = token_log_probs(
        narrow.clone(),
        head.clone(),
        &occurrences,
        Default::default(),
    );
    assert_eq!(output.log_probs.dtype(), DType::F32);
    let expected = reference::token_log_probs(
        narrow.clone().cast(DType::F32).reshape([12, HIDDEN]),
        head.clone(),
        occurrences.rows.clone(),
        occurrences.targets.clone(),
    );
    output
        .log_probs
        .to_data()
        .assert_approx_eq::<f32>(&expected.into_data(), Tolerance::absolute(4e-6));
    let gradients = sft_loss(output.log_probs, &occurrences).backward();
    assert_eq!(narrow.grad(&gradients).unwrap().dtype(), DType::BF16);
    assert_eq!(head.grad(&gradients).unwrap().dtype(), DType::F32);
}

#[test]
fn rows_without_targets_get_exactly_zero_gradient() {
    let grad = chunked(DType::F32, Some(4)).grad_hidden;
    let values: Vec<f32> = grad.iter::<f32>().collect();
    for row in [0, 5, 11] {
        let row = &values[row * HIDDEN..(row + 1) * HIDDEN];
        assert!(row.iter().all(|&value| value == 0.0));
    }
    assert!(values[HIDDEN..2 * HIDDEN].iter().any(|&value| value != 0.0));
}

/// One tensor as embedding and head: its gradient is the sum of both uses.
#[test]
fn a_tied_head_sums_both_gradients() {
    let device = device();
    let (hidden, head) = inputs(DType::F64, &device);
    let occurrences = occurrences(&ROWS, &TARGETS, DType::F64, &device);
    let gradient = |tied: bool| {
        let head = head.clone().inner().autodiff().require_grad();
        let scale = head.clone().sum_dim(0).unsqueeze::<3>();
        let scale = if tied { scale } else { scale.detach() };
        let output = token_log_probs(
            hidden.clone().inner().autodiff() * scale.clone(),
            head.clone(),
            &occurrences,
            Default::default(),
        );
        let gradients = sft_loss(output.log_probs, &occurrences).backward();
        head.grad(&gradients).unwrap()
    };
    let reference = {
        let head = head.clone().inner().autodiff().require_grad();
        let scaled = hidden.clone().inner().autodiff() * head.clone().sum_dim(0).unsqueeze::<3>();
        let log_probs = reference::token_log_probs(
            scaled.reshape([12, HIDDEN]),
            head.clone(),
            occurrences.rows.clone(),
            occurrences.targets.clone(),
        );
        let gradients = sft_loss(log_probs, &occurrences).backward();
        head.grad(&gradients).unwrap()
    };
    gradient(true)
        .to_data()
        .assert_approx_eq::<f64>(&reference.into_data(), Tolerance::absolute(1e-12));
    let difference = (gradient(true) - gradient(false))
        .abs()
        .max()
        .into_scalar::<f64>();
    assert!(difference > 1e-3);
}

/// A frozen head costs no gradient and gets none.
#[test]
fn a_frozen_head_has_no_gradient() {
    let device = device();
    let (hidden, head) = inputs(DType::F32, &device);
    let head = head.inner().autodiff();
    let occurrences = occurrences(&ROWS, &TARGETS, DType::F32, &device);
    let output = token_log_probs(
        hidden.clone(),
        head.clone(),
        &occurrences,
        Default::default(),
    );
    let gradients = sft_loss(output.log_probs, &occurrences).backward();
    assert!(head.grad(&gradients).is_none());
    hidden
        .grad(&gradients)
        .unwrap()
        .into_data()
        .assert_approx_eq::<f32>(
            &all_at_once(DType::F32).grad_hidden,
            Tolerance::absolute(4e-6),
        );
}

#[test]
fn nothing_to_predict() {
    let device = device();
    let (hidden, head) = inputs(DType::F32, &device);
    let none = OccurrenceBatch {
        host_rows: Arc::new(Vec::new()),
        targets: Tensor::from_data(TensorData::new(Vec::<i32>::new(), [0]), &device),
        ..occurrences(&[0], &[0], DType::F32, &device)
    };
    let output = token_log_probs(hidden, head, &none, Default::default());
    assert_eq!(output.log_probs.dims(), [0]);
}

#[test]
fn extreme_logits_stay_finite() {
    let device = device();
    let (hidden, head) = inputs(DType::F32, &device);
    let hidden = hidden.inner() * 1e4;
    let occurrences = occurrences(&ROWS, &TARGETS, DType::F32, &device);
    let hidden = hidden.autodiff().require_grad();
    let options = LmHeadOptions {
        entropy: true,
        ..Default::default()
    };
    let output = token_log_probs(hidden.clone(), head, &occurrences, options);
    let finite = |data: TensorData| data.iter::<f32>().all(f32::is_finite);
    assert!(finite(output.log_probs.to_data()));
    assert!(finite(output.entropy.unwrap().into_data()));
    let gradients = sft_loss(output.log_probs, &occurrences).backward();
    assert!(finite(hidden.grad(&gradients).unwrap().into_data()));
}

#[test]
fn arguments_that_do_not_fit_are_named() {
    let device = Device::flex();
    let hidden = Tensor::<3>::random([2, 6, HIDDEN], Distribution::Default, &device);
    let head = Tensor::<2>::random([VOCAB, HIDDEN], Distribution::Default, &device);
    let run = |head: &Tensor<2>, rows: &[u32], targets: &[i32]| {
        let batch = occurrences(rows, targets, DType::F32, &device);
        try_token_log_probs(hidden.clone(), head.clone(), &batch, Default::default()).unwrap_err()
    };
    assert_eq!(
        run(&head.clone().slice([0..5, 0..7]), &[0], &[0]),
        LmHeadError::HiddenSize {
            hidden: HIDDEN,
            head: 7
        }
    );
    assert_eq!(
        run(&head, &[0, 12], &[0, 0]),
        LmHeadError::RowOutOfRange {
            occurrence: 1,
            row: 12,
            hidden_rows: 12
        }
    );
    assert_eq!(
        run(&head, &[3, 2], &[0, 0]),
        LmHeadError::RowsNotAscending {
            occurrence: 1,
            row: 2,
            previous: 3
        }
    );
}
