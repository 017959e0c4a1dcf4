//! Chunked log-probabilities against `log_softmax` of all logits in f64, values and gradients.

use std::sync::Arc;

use crate::support::{device, exact, in_each_dtype, reference_device, rounding, widest};
use burn::tensor::{DType, Device, Distribution, FloatDType, Int, Tensor, TensorData, Tolerance};
use burn_tree_nn::lm_head::reference;
use burn_tree_nn::{
    EntropyOutput, LmHeadError, LmHeadOptions, TokenLogProbs, token_log_probs, try_token_log_probs,
};
use tree_pack::{LossForm, OccurrenceBatch};

const HIDDEN: usize = 24;

/// The loss of supervised training: a weighted sum.
fn sft_loss(output: TokenLogProbs, occurrences: &OccurrenceBatch) -> Tensor<1> {
    let weights = occurrences.weights.clone().cast(output.log_probs.dtype());
    (output.log_probs * weights).sum().neg()
}

/// An odd size, with which logits are read one by one; and a size that is read in vectors, some of
/// which contain several targets.
const VOCABS: [usize; 2] = [37, 64];
const VOCAB: usize = VOCABS[0];
/// Rows 3 and 9 predict several tokens, one of them twice; rows 0, 5 and 11 predict nothing.
const ROWS: [u32; 14] = [1, 2, 3, 3, 3, 4, 6, 7, 8, 9, 9, 9, 9, 10];
const TARGETS: [i32; 14] = [0, 36, 5, 6, 7, 5, 5, 12, 1, 8, 8, 30, 2, 36];

fn occurrences(rows: &[u32], targets: &[i32], dtype: DType, device: &Device) -> OccurrenceBatch {
    let count = rows.len();
    let integers = |values: Vec<i32>| -> Tensor<1, Int> {
        Tensor::from_data(TensorData::new(values, [count]), device)
    };
    let weights: Vec<f64> = (0..count).map(|index| 0.1 + 0.03 * index as f64).collect();
    OccurrenceBatch {
        batch: None,
        loss_form: LossForm::default(),
        rows: integers(rows.iter().map(|&row| row as i32).collect()),
        targets: integers(targets.to_vec()),
        weights: Tensor::from_data(TensorData::new(weights, [count]), (device, dtype)),
        multiplicities: Tensor::ones([count], device),
        trajectories: integers(vec![0; count]),
        token_indices: integers(vec![0; count]),
        advantages: None,
        old_log_probs: None,
        ref_log_probs: None,
        sampling_log_probs: None,
        host_rows: Arc::new(rows.to_vec()),
        host_targets: Arc::new(targets.iter().map(|&target| target as u32).collect()),
        host_trajectories: Arc::new(vec![0; count]),
    }
}

/// `[2, 6, HIDDEN]` states and `[vocab, HIDDEN]` head with logits of a few units.
fn inputs(vocab: usize, dtype: DType) -> (Tensor<3>, Tensor<2>) {
    let random = |rows: usize, seed: usize| {
        let values: Vec<f64> = (0..rows * HIDDEN)
            .map(|index| ((index * 7919 + seed * 104729) % 1009) as f64 / 504.5 - 1.0)
            .collect();
        let data = TensorData::new(values, [rows, HIDDEN]);
        Tensor::<2>::from_data(data, (&device(), dtype))
    };
    (
        random(12, 1).reshape([2, 6, HIDDEN]).require_grad(),
        random(vocab, 2).require_grad(),
    )
}

struct Outcome {
    log_probs: TensorData,
    entropy: TensorData,
    grad_hidden: TensorData,
    grad_head: TensorData,
}

/// Supervised loss, and a bonus for the entropy of each occurrence if it has a gradient.
fn loss(output: TokenLogProbs, occurrences: &OccurrenceBatch, entropy: EntropyOutput) -> Tensor<1> {
    let loss = sft_loss(output.clone(), occurrences);
    if entropy != EntropyOutput::Differentiable {
        return loss;
    }
    let values = output.entropy.expect("asked for");
    // Different for the occurrences of a row, and of both signs.
    let factors = occurrences.weights.clone().cast(values.dtype()) - 0.25;
    loss + (values * factors).sum()
}

const ENTROPIES: [EntropyOutput; 2] = [EntropyOutput::Value, EntropyOutput::Differentiable];

/// The entropy is computed even if the options do not say so.
fn chunked(hidden: &Tensor<3>, head: &Tensor<2>, options: LmHeadOptions) -> Outcome {
    let output_dtype = match hidden.dtype() {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    let occurrences = occurrences(&ROWS, &TARGETS, output_dtype, &device());
    let entropy = match options.entropy {
        EntropyOutput::None => EntropyOutput::Value,
        asked => asked,
    };
    let options = LmHeadOptions { entropy, ..options };
    let output = token_log_probs(hidden.clone(), head.clone(), &occurrences, options);
    assert_eq!(output.log_probs.dtype(), output_dtype);
    let is_tracked = output.entropy.as_ref().expect("asked for").is_tracked();
    assert_eq!(is_tracked, entropy == EntropyOutput::Differentiable);
    let gradients = loss(output.clone(), &occurrences, entropy).backward();
    let (grad_hidden, grad_head) = (
        hidden.grad(&gradients).unwrap(),
        head.grad(&gradients).unwrap(),
    );
    assert_eq!(grad_hidden.dtype(), hidden.dtype());
    assert_eq!(grad_head.dtype(), head.dtype());
    Outcome {
        log_probs: output.log_probs.into_data(),
        entropy: output.entropy.unwrap().into_data(),
        grad_hidden: grad_hidden.into_data(),
        grad_head: grad_head.into_data(),
    }
}

/// The same from the definition, in f64 on Flex.
fn all_at_once(hidden: &Tensor<3>, head: &Tensor<2>, bonus: EntropyOutput) -> Outcome {
    let (hidden, head) = (exact(hidden), exact(head));
    let device = Device::flex().autodiff();
    let occurrences = occurrences(&ROWS, &TARGETS, DType::F64, &device);
    let flat = hidden.clone().reshape([12, HIDDEN]);
    let log_probs = reference::token_log_probs(
        flat.clone(),
        head.clone(),
        occurrences.rows.clone(),
        occurrences.targets.clone(),
    );
    let entropy = reference::entropy(flat, head.clone(), occurrences.rows.clone());
    let output = TokenLogProbs::new(log_probs.clone(), Some(entropy.clone()));
    let gradients = loss(output, &occurrences, bonus).backward();
    Outcome {
        log_probs: log_probs.into_data(),
        entropy: entropy.into_data(),
        grad_hidden: hidden.grad(&gradients).unwrap().into_data(),
        grad_head: head.grad(&gradients).unwrap().into_data(),
    }
}

fn assert_close(found: &Outcome, expected: &Outcome, values: f64, gradients: f64) {
    let pairs = [
        (&found.log_probs, &expected.log_probs, values),
        (&found.entropy, &expected.entropy, values),
        (&found.grad_hidden, &expected.grad_hidden, gradients),
        (&found.grad_head, &expected.grad_head, gradients),
    ];
    for (found, expected, tolerance) in pairs {
        let convert = |data: &TensorData| data.clone().convert::<f64>();
        let tolerance = Tolerance::absolute(tolerance);
        convert(found).assert_approx_eq::<f64>(&convert(expected), tolerance);
    }
}

/// Rounding of sums of 24 products, of 64 exponentials and of 12 rows.
fn equals_the_reference(dtype: DType) {
    let tolerance = 64.0 * rounding(dtype);
    for (vocab, entropy) in VOCABS
        .into_iter()
        .flat_map(|vocab| ENTROPIES.map(|e| (vocab, e)))
    {
        let (hidden, head) = inputs(vocab, dtype);
        let expected = all_at_once(&hidden, &head, entropy);
        for chunk_rows in [Some(1), Some(3), Some(8), Some(100), None] {
            let options = LmHeadOptions {
                chunk_rows,
                entropy,
                ..Default::default()
            };
            let found = chunked(&hidden, &head, options);
            assert_close(&found, &expected, tolerance, tolerance);
        }
    }
}

in_each_dtype!(equals_the_reference: F64 F32);

/// Products of 16-bit numbers: states and head have this dtype, or are rounded before the product.
/// The reference has the same rounded inputs in f64.
fn narrow_products(dtype: DType) {
    let rounding = rounding(dtype);
    // On CubeCL runtimes logits are f32, elsewhere rounded: of a size up to 8.
    let values = if tree_training_devices::is_cubecl() {
        4e-6
    } else {
        16.0 * rounding
    };
    // Gradients are sums of 14 terms of size 1 whose factors are rounded.
    let gradients = 16.0 * rounding;
    for (vocab, entropy) in VOCABS
        .into_iter()
        .flat_map(|vocab| ENTROPIES.map(|e| (vocab, e)))
    {
        let (hidden, head) = inputs(vocab, dtype);
        let expected = all_at_once(&hidden, &head, entropy);
        for chunk_rows in [Some(1), Some(5), None] {
            let options = LmHeadOptions {
                chunk_rows,
                entropy,
                ..Default::default()
            };
            let found = chunked(&hidden, &head, options);
            assert_close(&found, &expected, values, gradients);
            let wide = hidden.clone().inner().cast(DType::F32);
            let wide_head = head.clone().inner().cast(DType::F32);
            let options = LmHeadOptions {
                product_dtype: Some(FloatDType::from(dtype)),
                ..options
            };
            let found = chunked(
                &wide.autodiff().require_grad(),
                &wide_head.autodiff().require_grad(),
                options,
            );
            assert_close(&found, &expected, values, gradients);
        }
    }
}

in_each_dtype!(narrow_products: F16 BF16);

/// Narrow states with an f32 head: products and softmax in f32, each gradient in its own dtype.
fn narrow_states_and_a_wide_head(dtype: DType) {
    let hidden = inputs(VOCAB, dtype).0;
    let head = inputs(VOCAB, DType::F32).1;
    let found = chunked(&hidden, &head, LmHeadOptions::default());
    let expected = all_at_once(&hidden, &head, EntropyOutput::Value);
    // The gradient of the states is rounded, once.
    assert_close(&found, &expected, 4e-6, 4.0 * rounding(dtype));
}

in_each_dtype!(narrow_states_and_a_wide_head: F16 BF16);

#[test]
fn rows_without_targets_get_exactly_zero_gradient() {
    let (hidden, head) = inputs(VOCAB, DType::F32);
    let options = LmHeadOptions {
        chunk_rows: Some(4),
        ..Default::default()
    };
    let grad = chunked(&hidden, &head, options).grad_hidden;
    let values: Vec<f32> = grad.iter::<f32>().collect();
    for row in [0, 5, 11] {
        let row = &values[row * HIDDEN..(row + 1) * HIDDEN];
        assert!(row.iter().all(|&value| value == 0.0));
    }
    assert!(values[HIDDEN..2 * HIDDEN].iter().any(|&value| value != 0.0));
}

/// More columns than one cube processes, and rows with hundreds of occurrences, some of which share
/// a target or its vector.
#[test]
fn a_large_vocabulary_and_many_occurrences() {
    const LARGE: usize = 20_000;
    let rows: Vec<u32> = (0..900).map(|i| i / 300).collect();
    let targets: Vec<i32> = (0..900).map(|i| i * i % 701 * 28 + i % 3).collect();
    let random = |rows: usize, seed: usize| {
        let values: Vec<f32> = (0..rows * 4)
            .map(|index| ((index * 7919 + seed * 104_729) % 1009) as f32 / 504.5 - 1.0)
            .collect();
        TensorData::new(values, [rows, 4])
    };
    let run = |device: &Device, dtype: DType, chunked: bool| {
        let hidden = Tensor::<2>::from_data(random(3, 1), (device, dtype)).require_grad();
        let head = Tensor::<2>::from_data(random(LARGE, 2), (device, dtype)).require_grad();
        let occurrences = occurrences(&rows, &targets, dtype, device);
        let log_probs = if chunked {
            let states = hidden.clone().unsqueeze_dim(0);
            token_log_probs(states, head.clone(), &occurrences, Default::default()).log_probs
        } else {
            let (rows, targets) = (occurrences.rows.clone(), occurrences.targets.clone());
            reference::token_log_probs(hidden.clone(), head.clone(), rows, targets)
        };
        let gradients =
            sft_loss(TokenLogProbs::new(log_probs.clone(), None), &occurrences).backward();
        [
            log_probs.into_data(),
            hidden.grad(&gradients).unwrap().into_data(),
            head.grad(&gradients).unwrap().into_data(),
        ]
    };
    let found = run(&device(), DType::F32, true);
    let expected = run(&Device::flex().autodiff(), DType::F64, false);
    // The weights of the occurrences add up to 12,000: gradients of that size, by sums of 20,000 in
    // the order of the device's product, so 12,000 * sqrt(20,000) * 2^-24 = 0.1.
    for ((found, expected), tolerance) in found.into_iter().zip(expected).zip([1e-5, 1e-1, 1e-3]) {
        found
            .convert::<f64>()
            .assert_approx_eq::<f64>(&expected, Tolerance::absolute(tolerance));
    }
}

/// One tensor as embedding and head: its gradient is the sum of both uses.
#[test]
fn a_tied_head_sums_both_gradients() {
    let device = device();
    let dtype = widest();
    let rounding = rounding(dtype);
    let (hidden, head) = inputs(VOCAB, dtype);
    let occurrences = occurrences(&ROWS, &TARGETS, dtype, &device);
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
        let gradients = sft_loss(output, &occurrences).backward();
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
        let output = TokenLogProbs::new(log_probs, None);
        let gradients = sft_loss(output, &occurrences).backward();
        head.grad(&gradients).unwrap()
    };
    gradient(true)
        .to_data()
        .convert::<f64>()
        .assert_approx_eq::<f64>(
            &reference.into_data().convert::<f64>(),
            Tolerance::absolute(16384.0 * rounding).set_relative(64.0 * rounding),
        );
    let difference = (gradient(true) - gradient(false))
        .abs()
        .max()
        .into_scalar::<f64>();
    assert!(difference > 1e-3);
}

/// A frozen head gets no gradient, and none is computed.
#[test]
fn a_frozen_head_has_no_gradient() {
    let device = device();
    let (hidden, head) = inputs(VOCAB, DType::F32);
    let head = head.inner().autodiff();
    let occurrences = occurrences(&ROWS, &TARGETS, DType::F32, &device);
    let output = token_log_probs(
        hidden.clone(),
        head.clone(),
        &occurrences,
        Default::default(),
    );
    let gradients = sft_loss(output, &occurrences).backward();
    assert!(head.grad(&gradients).is_none());
    let trained = inputs(VOCAB, DType::F32);
    hidden
        .grad(&gradients)
        .unwrap()
        .into_data()
        .convert::<f64>()
        .assert_approx_eq::<f64>(
            &all_at_once(&trained.0, &trained.1, EntropyOutput::Value).grad_hidden,
            Tolerance::absolute(4e-6),
        );
}

#[test]
fn nothing_to_predict() {
    let device = device();
    let (hidden, head) = inputs(VOCAB, DType::F32);
    let none = OccurrenceBatch {
        host_rows: Arc::new(Vec::new()),
        host_targets: Arc::new(Vec::new()),
        targets: Tensor::from_data(TensorData::new(Vec::<i32>::new(), [0]), &device),
        ..occurrences(&[0], &[0], DType::F32, &device)
    };
    let options = LmHeadOptions {
        entropy: EntropyOutput::Differentiable,
        ..Default::default()
    };
    let output = token_log_probs(hidden, head, &none, options);
    assert_eq!(output.log_probs.dims(), [0]);
    assert!(output.entropy.expect("asked for").is_tracked());
}

#[test]
fn extreme_logits_stay_finite() {
    let device = device();
    let (hidden, head) = inputs(VOCAB, DType::F32);
    let hidden = hidden.inner() * 1e4;
    let occurrences = occurrences(&ROWS, &TARGETS, DType::F32, &device);
    let hidden = hidden.autodiff().require_grad();
    let options = LmHeadOptions {
        entropy: EntropyOutput::Differentiable,
        ..Default::default()
    };
    let output = token_log_probs(hidden.clone(), head, &occurrences, options);
    let finite = |data: TensorData| data.iter::<f32>().all(f32::is_finite);
    assert!(finite(output.log_probs.to_data()));
    assert!(finite(output.entropy.clone().unwrap().into_data()));
    let gradients = loss(output, &occurrences, options.entropy).backward();
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
    let found = run(&head, &[0, 12], &[0, 0]);
    assert_eq!(
        found,
        LmHeadError::RowOutOfRange {
            occurrence: 1,
            row: 12,
            hidden_rows: 12
        }
    );
    assert_eq!(
        found.to_string(),
        "occurrence 1 reads row 12, but there are 12 rows"
    );
    let found = run(&head, &[3, 2], &[0, 0]);
    assert_eq!(
        found,
        LmHeadError::RowsNotAscending {
            occurrence: 1,
            row: 2,
            previous: 3
        }
    );
    assert_eq!(
        found.to_string(),
        "occurrence 1 reads row 2 after row 3; rows must ascend"
    );
    let found = run(&head, &[1, 2], &[3, VOCAB as i32]);
    assert_eq!(
        found,
        LmHeadError::Target {
            occurrence: 1,
            target: VOCAB as u32,
            vocab: VOCAB
        }
    );
}

#[test]
fn columns_and_chunks_that_do_not_fit_are_named() {
    let device = Device::flex();
    let hidden = Tensor::<3>::zeros([1 << 9, 1 << 10, 1], &device);
    let head = Tensor::<2>::zeros([1 << 13, 1], &device);
    let mut batch = occurrences(&[0, 1], &[0, 0], DType::F32, &device);
    let run = |batch: &OccurrenceBatch, options| {
        let output = try_token_log_probs(hidden.clone(), head.clone(), batch, options);
        output.unwrap_err().to_string()
    };
    let options = LmHeadOptions {
        chunk_rows: Some(usize::MAX),
        ..Default::default()
    };
    assert_eq!(
        run(&batch, options),
        "chunks of 524288 rows x 8192 tokens exceed 2^31 - 1 logits"
    );
    batch.host_targets = Arc::new(vec![0]);
    assert_eq!(run(&batch, Default::default()), "2 rows but 1 targets");
}

#[test]
fn dtypes_that_do_not_fit_are_named() {
    let device = Device::flex();
    let batch = occurrences(&[0], &[0], DType::F32, &device);
    let hidden = Tensor::<3>::zeros([1, 2, 3], &device);
    let head = Tensor::<2>::zeros([4, 3], &device);
    let options = LmHeadOptions {
        product_dtype: Some(FloatDType::Flex32),
        ..Default::default()
    };
    let found = try_token_log_probs(hidden, head, &batch, options).unwrap_err();
    assert_eq!(
        found.to_string(),
        "product_dtype is Flex32, expected f64, f32, f16 or bf16"
    );
    let (hidden, head) = (
        Tensor::<3>::zeros([1, 2, 0], &device),
        Tensor::<2>::zeros([4, 0], &device),
    );
    let found = try_token_log_probs(hidden, head, &batch, Default::default()).unwrap_err();
    assert_eq!(
        found.to_string(),
        "the hidden states have 0 features, expected at least 1"
    );
}

/// Two devices exist if a CubeCL runtime is tested and Flex is built in.
#[test]
fn tensors_on_other_devices_are_named() {
    let (here, there) = (device().inner(), reference_device());
    if here == there {
        return;
    }
    let head = |device: &Device| Tensor::<2>::zeros([4, 3], (device, DType::F32));
    let run = |head, targets: &Device| {
        let hidden = Tensor::<3>::zeros([1, 2, 3], (&here, DType::F32));
        let batch = occurrences(&[0], &[0], DType::F32, targets);
        let found = try_token_log_probs(hidden, head, &batch, Default::default());
        found.unwrap_err().to_string()
    };
    assert_eq!(
        run(head(&there), &here),
        format!("head_weight is on {there:?}, expected {here:?}, where hidden is")
    );
    assert_eq!(
        run(head(&here), &there),
        format!("targets is on {there:?}, expected {here:?}, where hidden is")
    );
}

#[test]
#[should_panic(expected = "token_log_probs: the hidden states have 3 features, the head weight 2")]
fn the_function_panics_with_the_text_of_its_error() {
    let device = Device::flex();
    let hidden = Tensor::<3>::zeros([1, 2, 3], &device);
    let batch = occurrences(&[0], &[0], DType::F32, &device);
    let head = Tensor::<2>::zeros([4, 2], &device);
    token_log_probs(hidden, head, &batch, Default::default());
}
