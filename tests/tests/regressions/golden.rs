//! The example of the documentation: the sequences ABCD, ABCE and ABFG.

use burn::tensor::{DType, Int, Tensor, TensorData};
use burn_tree_attn::{TreeAttentionOptions, TreeMask, tree_attention};
use burn_tree_train::{LmHeadOptions, token_log_probs};
use tree_pack::{
    Aggregation, LossForm, Objective, Pack, PackedStep, Segment, Trajectory, TreeBatch,
};
use tree_training_tests::device::{autodiff_device, test_dtypes};
use tree_training_tests::numbers::Numbers;
use tree_training_tests::oracle::attention::{Heads, Settings, causal_attention};
use tree_training_tests::packing::Packing;
use tree_training_tests::step::read;

const A: u32 = 0;
const B: u32 = 1;
const C: u32 = 2;
const D: u32 = 3;
const E: u32 = 4;
const F: u32 = 5;
const G: u32 = 6;

/// Rows of the tree, in depth-first order A B C D E F G.
const ROWS: usize = 7;

fn trajectories() -> Vec<Trajectory> {
    [[A, B, C, D], [A, B, C, E], [A, B, F, G]]
        .into_iter()
        .enumerate()
        .map(|(index, tokens)| {
            Trajectory::new(
                "task",
                format!("rollout-{index}"),
                tokens.to_vec(),
                vec![true; 4],
            )
        })
        .collect()
}

fn packed(form: LossForm) -> PackedStep {
    let (objective, aggregation) = (Objective::PerOccurrence, Aggregation::Sum);
    Packing::ONE_PACK.pack_for(&trajectories(), objective, aggregation, form)
}

fn only_pack(form: LossForm) -> Pack {
    let mut packs = packed(form).packs;
    assert_eq!(packs.len(), 1);
    packs.remove(0)
}

#[test]
fn seven_tokens_at_the_positions_of_their_paths() {
    let layout = only_pack(LossForm::LogLikelihood).layout;
    assert_eq!(layout.tokens, [A, B, C, D, E, F, G]);
    assert_eq!(layout.position_ids, [0, 1, 2, 3, 3, 2, 3]);
    assert_eq!(layout.parents, [-1, 0, 1, 2, 2, 1, 5]);
    assert_eq!(layout.subtree_ends, [7, 7, 5, 4, 5, 7, 7]);
    let segments = [
        (0, 2, None),
        (2, 3, Some(0)),
        (3, 4, Some(1)),
        (4, 5, Some(1)),
        (5, 7, Some(0)),
    ];
    let segments = segments.map(|(start, end, parent)| Segment { start, end, parent });
    assert_eq!(layout.segments, segments);
}

#[test]
fn nine_predictions_from_four_rows() {
    let occurrences = only_pack(LossForm::PerTrajectory).occurrences;
    let mut predictions: Vec<_> = (0..occurrences.len())
        .map(|i| {
            let trajectory = occurrences.trajectories[i];
            (
                trajectory,
                occurrences.token_indices[i],
                occurrences.rows[i],
                occurrences.targets[i],
            )
        })
        .collect();
    predictions.sort_unstable();
    let rows: Vec<_> = predictions.iter().map(|&(_, _, row, _)| row).collect();
    assert_eq!(rows, [0, 1, 2, 0, 1, 2, 0, 1, 5]);
    let targets: Vec<_> = predictions
        .iter()
        .map(|&(_, _, _, target)| target)
        .collect();
    assert_eq!(targets, [B, C, D, B, C, E, B, F, G]);

    // Merged: one entry for each row and target, with the number of sequences as its weight.
    let merged = only_pack(LossForm::LogLikelihood).occurrences;
    assert_eq!(merged.rows, [0, 1, 1, 2, 2, 5]);
    assert_eq!(merged.targets, [B, C, F, D, E, G]);
    assert_eq!(merged.weights, [3.0, 2.0, 1.0, 1.0, 1.0, 1.0]);
    let mut rows = merged.rows;
    rows.dedup();
    assert_eq!(rows.len(), 4);
}

#[test]
fn visible_pairs_fall_from_30_to_21() {
    let flat = Packing {
        shared: false,
        ..Packing::ONE_PACK
    };
    let pairs = |packing: Packing| -> (u64, u64) {
        let step = packing.pack(&trajectories(), Objective::PerOccurrence, Aggregation::Sum);
        let layouts: Vec<_> = step.packs.into_iter().map(|pack| pack.layout).collect();
        let rows = layouts
            .iter()
            .map(|layout| layout.len())
            .max()
            .expect("a pack");
        let mask = TreeMask::from_layouts(&layouts, rows, &autodiff_device());
        (
            mask.visible_pairs(),
            layouts.iter().map(|layout| layout.visible_pairs()).sum(),
        )
    };
    assert_eq!(pairs(flat), (30, 30));
    assert_eq!(pairs(Packing::ONE_PACK), (21, 21));
}

/// The value of B is read by B, C, F, D, E and G, but D, E and G predict nothing: its gradient is
/// what B, C and F send.
#[test]
fn gradient_of_the_value_of_b_comes_from_b_c_and_f_only() {
    const DIM: usize = 4;
    let device = autodiff_device();
    for dtype in test_dtypes() {
        let tolerance = if dtype == DType::F64 { 1e-12 } else { 1e-5 };
        let mut numbers = Numbers::new(3, dtype);
        let [query, key, value] = [(); 3].map(|()| numbers.take(ROWS * DIM));
        // The loss is a sum over the nine predictions of <output of the row, coefficients>.
        let coefficients: Vec<[Vec<f64>; 3]> = (0..3)
            .map(|_| [(); 3].map(|()| numbers.take(DIM)))
            .collect();

        // Separate: each sequence by itself, in plain loops.
        let paths = [[0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 5, 6]];
        let mut expected = vec![0.0; ROWS * DIM];
        let mut from_query = [0.0; ROWS];
        let mut output_grad = vec![0.0; ROWS * DIM];
        for (path, coefficients) in paths.iter().zip(&coefficients) {
            let gather = |rows: &[f64]| Heads {
                heads: 1,
                length: 4,
                dim: DIM,
                values: path
                    .iter()
                    .flat_map(|&row| rows[row * DIM..][..DIM].to_vec())
                    .collect(),
            };
            let mut grad = Heads::zeros(1, 4, DIM);
            for (token, coefficients) in coefficients.iter().enumerate() {
                grad.add(0, token, 1.0, coefficients);
                for (sum, value) in output_grad[path[token] * DIM..]
                    .iter_mut()
                    .zip(coefficients)
                {
                    *sum += value;
                }
            }
            let settings = Settings::default();
            let result = causal_attention(
                &gather(&query),
                &gather(&key),
                &gather(&value),
                &grad,
                settings,
            );
            for (token, &row) in path.iter().enumerate() {
                let sums = expected[row * DIM..].iter_mut();
                sums.zip(result.value_grad.row(0, token))
                    .for_each(|(sum, value)| *sum += value);
                let sent: f64 = grad.row(0, token).iter().map(|value| value.abs()).sum();
                from_query[row] += result.probabilities[0][token][1] * sent;
            }
        }
        let senders: Vec<usize> = (0..ROWS).filter(|&row| from_query[row] != 0.0).collect();
        assert_eq!(senders, [1, 2, 5], "the rows B, C and F");

        // Packed.
        let tensor = |values: &[f64]| {
            let data = TensorData::new(values.to_vec(), [1, 1, ROWS, DIM]);
            Tensor::<4>::from_data(data, (&device, dtype))
        };
        let layout = only_pack(LossForm::LogLikelihood).layout;
        let mask = TreeMask::from_layouts(&[layout], ROWS, &device);
        let value = tensor(&value).require_grad();
        let output = tree_attention(
            tensor(&query),
            tensor(&key),
            value.clone(),
            &mask,
            TreeAttentionOptions::default(),
        );
        let gradients = (output * tensor(&output_grad)).sum().backward();
        let found = read(
            &value
                .grad(&gradients)
                .expect("a gradient")
                .reshape([ROWS * DIM]),
        );
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() < tolerance, "{found} {expected}");
        }
    }
}

/// The row of C predicts D in one sequence and E in another: the gradient of its logits is
/// `(p - e_D) + (p - e_E)`, not that of one of them.
#[test]
fn gradient_of_the_logits_of_c_is_the_sum_over_both_targets() {
    let device = autodiff_device();
    let mut pack = only_pack(LossForm::PerTrajectory);
    for (form, merged) in [
        (LossForm::PerTrajectory, false),
        (LossForm::LogLikelihood, true),
    ] {
        pack.occurrences = only_pack(form).occurrences;
        for dtype in test_dtypes() {
            let tolerance = if dtype == DType::F64 { 1e-12 } else { 1e-6 };
            let logits = Numbers::new(5, dtype).take(ROWS * ROWS);

            // With the identity as the head, hidden states are logits.
            let data = TensorData::new(logits.clone(), [1, ROWS, ROWS]);
            let hidden = Tensor::<3>::from_data(data, (&device, dtype)).require_grad();
            let head = Tensor::<2>::eye(ROWS, &device).cast(dtype);
            let batch = TreeBatch::with_dtype(&[pack.clone()], &device, dtype.into());
            let options = LmHeadOptions::default();
            let log_probs = token_log_probs(hidden.clone(), head, &batch.occurrences, options);
            let loss = burn_tree_train::sft_loss(log_probs.log_probs, &batch.occurrences);
            let gradients = loss.backward();
            let found = hidden
                .grad(&gradients)
                .expect("a gradient")
                .reshape([ROWS * ROWS]);
            let found = read(&found);

            let gradient = |row: usize, targets: &[u32]| -> Vec<f64> {
                let row = &logits[row * ROWS..][..ROWS];
                let sum: f64 = row.iter().map(|logit| logit.exp()).sum();
                let mut gradient = vec![0.0; ROWS];
                for &target in targets {
                    for (column, logit) in row.iter().enumerate() {
                        gradient[column] += logit.exp() / sum;
                    }
                    gradient[target as usize] -= 1.0;
                }
                gradient
            };
            let targets: [&[u32]; ROWS] = [&[B, B, B], &[C, C, F], &[D, E], &[], &[], &[G], &[]];
            let expected: Vec<f64> = (0..ROWS)
                .flat_map(|row| gradient(row, targets[row]))
                .collect();
            for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let row = index / ROWS;
                assert!(
                    (found - expected).abs() < tolerance,
                    "merged {merged}, row {row}: {found} {expected}"
                );
            }
        }
    }
}

/// Both ends of a prediction as tensors: what a training loop sees.
#[test]
fn tensors_say_the_same_as_the_pack() {
    let pack = only_pack(LossForm::PerTrajectory);
    let batch = TreeBatch::new(&[pack], &autodiff_device());
    let ints = |tensor: Tensor<2, Int>| -> Vec<i64> {
        tensor
            .into_data()
            .convert::<i64>()
            .try_into_vec()
            .expect("i64")
    };
    assert_eq!(ints(batch.tokens), [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(ints(batch.position_ids), [0, 1, 2, 3, 3, 2, 3]);
    assert_eq!(ints(batch.parents), [-1, 0, 1, 2, 2, 1, 5]);
    assert_eq!(ints(batch.key_start), [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(ints(batch.key_end), [7, 7, 5, 4, 5, 7, 7]);
    assert_eq!(*batch.occurrences.host_rows, [0, 0, 0, 1, 1, 1, 2, 2, 5]);
}
