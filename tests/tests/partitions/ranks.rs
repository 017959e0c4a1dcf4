//! A step distributed over ranks: the sum of the gradients of the ranks is that of the step, for
//! trees of any sizes. Simulated one rank after the other, with a sum in place of the all-reduce.

use std::num::NonZeroUsize;

use burn::optim::GradientsAccumulator;
use burn_tree_train::StepOptions;
use tree_pack::{Aggregation, Objective, Pack, Partitioning, Trajectory, assign_to_ranks};
use tree_training_tests::device::{autodiff_device, test_dtypes};
use tree_training_tests::equality::bars;
use tree_training_tests::models::{dense_config, hybrid_config, random_model};
use tree_training_tests::partition::{Cut, compare, parts_step, whole_step};
use tree_training_tests::step::Step;

const VOCABULARY: usize = 30;

/// A tree of 44 tokens in several parts, and two of 6 and 3.
fn uneven() -> Vec<Trajectory> {
    let mut trajectories = Vec::new();
    for branch in 0..4 {
        let mut tokens: Vec<u32> = (1..9).collect();
        tokens.extend((0..9).map(|token| (3 * token + 5 * branch) % VOCABULARY as u32));
        trajectories.push(("large", tokens));
    }
    trajectories.push(("middle", vec![4, 5, 6, 7, 8, 9]));
    trajectories.push(("small", vec![7, 1, 7]));
    let trajectories = trajectories.into_iter().map(|(task, tokens)| {
        let mask = vec![true; tokens.len()];
        Trajectory::new(task, "rollout", tokens, mask)
    });
    trajectories.collect()
}

#[test]
fn ranks_together_have_the_gradient_of_one() {
    let device = autodiff_device();
    let trajectories = uneven();
    let objective = Objective::PerOccurrence;
    let cost = |pack: &Pack| pack.layout.len() as f64 + 0.01 * pack.layout.visible_pairs() as f64;
    for dtype in test_dtypes() {
        for config in [dense_config(VOCABULARY), hybrid_config(VOCABULARY)] {
            let model = random_model(&config, 3, dtype, &device);
            for aggregation in [Aggregation::TokenMean, Aggregation::SepAvg] {
                let whole = whole_step(
                    &model,
                    &trajectories,
                    objective,
                    aggregation,
                    dtype,
                    &device,
                );
                let cut = Cut::new(12, Partitioning::Shared);
                let packed = cut.pack(&trajectories, objective, aggregation);
                // Fewer ranks than trees, and more.
                for ranks in [2, 5] {
                    let ranks = NonZeroUsize::new(ranks).expect("not zero");
                    let assignment = assign_to_ranks(&packed, ranks, cost).expect("valid costs");
                    let mut gradients = GradientsAccumulator::new();
                    let (mut loss, mut predictions) = (0.0, Vec::new());
                    for rank in 0..ranks.get() {
                        let own = assignment.step_of(&packed, rank);
                        let options = StepOptions::default();
                        let step = parts_step(&model, &own, &options, &device);
                        loss += step.loss;
                        predictions.extend(step.predictions);
                        gradients.accumulate(&model, step.gradients);
                    }
                    predictions.sort_by_key(|own| (own.trajectory, own.token));
                    let together = Step {
                        loss,
                        predictions,
                        gradients: gradients.grads(),
                    };
                    compare(&model, &together, &whole, dtype, bars(dtype).1)
                        .unwrap_or_else(|error| panic!("{ranks} ranks, {aggregation:?}: {error}"));
                }
            }
        }
    }
}
