//! The example of the documentation: the sequences ABCD, ABCE and ABFG.

use burn::tensor::{DType, Int, Tensor, TensorData};
use burn_tree_attn::{TreeAttentionOptions, TreeMask, tree_attention};
use tree_pack::{Aggregation, LossForm, Objective, Pack, PackedStep, Trajectory, TreeBatch};
use tree_training_tests::device::{autodiff_device, test_dtypes};
use tree_training_tests::logits::{WeightedPrediction, check_logit_gradients};
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
/// the sum from B, C and F.
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

        // Separate sequences, in plain loops.
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

/// The row of C predicts D in one sequence and E in another: the gradient of its logits is `(p -
/// e_D) + (p - e_E)`. The same holds for the other rows; D, E and G have no gradient.
#[test]
fn gradient_of_the_logits_of_c_is_the_sum_over_both_targets() {
    let predictions: [&[u32]; 9] = [
        &[A, B],
        &[A, B],
        &[A, B],
        &[A, B, C],
        &[A, B, C],
        &[A, B, F],
        &[A, B, C, D],
        &[A, B, C, E],
        &[A, B, F, G],
    ];
    let predictions = predictions.map(|tokens| WeightedPrediction::new(tokens, 1.0));
    for form in [LossForm::PerTrajectory, LossForm::LogLikelihood] {
        for dtype in test_dtypes() {
            check_logit_gradients(&packed(form), ROWS, &predictions, dtype);
        }
    }
}

/// The tensors for a training loop: seven tokens at their path positions, and nine predictions from
/// four rows.
#[test]
fn nine_predictions_from_four_rows_of_seven() {
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
    let ints = |tensor: Tensor<1, Int>| -> Vec<i64> {
        tensor
            .into_data()
            .convert::<i64>()
            .try_into_vec()
            .expect("i64")
    };
    let columns = batch.occurrences;
    assert_eq!(*columns.host_rows, [0, 0, 0, 1, 1, 1, 2, 2, 5]);
    let (trajectories, indices) = (ints(columns.trajectories), ints(columns.token_indices));
    let mut predictions: Vec<_> = (0..9)
        .map(|i| (trajectories[i], indices[i], columns.host_rows[i]))
        .collect();
    predictions.sort_unstable();
    let rows: Vec<u32> = predictions.iter().map(|&(_, _, row)| row).collect();
    assert_eq!(rows, [0, 1, 2, 0, 1, 2, 0, 1, 5], "by sequence and token");
}
