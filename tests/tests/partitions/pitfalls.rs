//! Faults of other implementations of partitioned trees.

use std::collections::{BTreeMap, BTreeSet};

use burn::optim::GradientsParams;
use burn::tensor::{DType, FloatDType};
use burn_tree_models::CausalLm;
use burn_tree_nn::{EntropyOutput, LmHeadOptions, token_log_probs};
use burn_tree_train::{
    BlockContext, RouterLoad, RouterLossOptions, StepError, StepOptions, TreeModel,
    load_balancing_loss, sft_loss, shadow, step_forward, step_gradients, step_router_load,
};
use tree_pack::{Aggregation, Objective, Pack, PackedStep, Partitioning, Trajectory, TreeBatch};
use tree_training_tests::device::{autodiff_device, supports_f64};
use tree_training_tests::equality::bars;
use tree_training_tests::models::{
    dense_config, hybrid_config, hybrid_moe_config, moe_config, random_model,
};
use tree_training_tests::partition::{Cut, all_step_options, compare, parts_step, whole_step};
use tree_training_tests::step::read;
use tree_training_tests::tensors::NamedTensors;

const VOCABULARY: usize = 40;
const PARTS: [(usize, Partitioning); 5] = [
    (1, Partitioning::Connected),
    (4, Partitioning::Connected),
    (7, Partitioning::Shared),
    (11, Partitioning::Connected),
    (20, Partitioning::Shared),
];

fn trajectory(tokens: &[u32]) -> Trajectory {
    Trajectory::new("task", "rollout", tokens.to_vec(), vec![true; tokens.len()])
}

/// Forks at several depths, a strict prefix and a duplicate.
fn tree() -> Vec<Trajectory> {
    let mut trajectories = Vec::new();
    for (first, second) in [(0, 0), (1, 0), (0, 1), (1, 1), (0, 1)] {
        let tokens = [1, 2, 3, 10 + first, 4, 5, 6, 20 + second, 7, 8, 9];
        trajectories.push(trajectory(&tokens));
    }
    trajectories.push(trajectory(&[1, 2, 3, 10, 4]));
    trajectories
}

fn pack(trajectories: &[Trajectory], budget: usize, partitioning: Partitioning) -> PackedStep {
    let cut = Cut::new(budget, partitioning);
    cut.pack(
        trajectories,
        Objective::PerOccurrence,
        Aggregation::TokenMean,
    )
}

/// The tokens from the root to every row, over all packs.
fn paths(packs: &[Pack]) -> Vec<Vec<Vec<u32>>> {
    let mut paths: Vec<Vec<Vec<u32>>> = Vec::new();
    for pack in packs {
        let mut of_pack: Vec<Vec<u32>> = Vec::new();
        let mut root = 0;
        for (row, &parent) in pack.layout.parents.iter().enumerate() {
            let mut path = match (&pack.gateway, parent) {
                (_, 0..) => of_pack[parent as usize].clone(),
                (None, _) => Vec::new(),
                (Some(gateway), _) => {
                    let rows = gateway.runs.iter().flat_map(|run| {
                        let pack = run.pack;
                        run.rows.clone().map(move |row| (pack, row))
                    });
                    let past_keys: Vec<_> = rows.collect();
                    let (pack, row) = past_keys[gateway.root_parents[root] as usize];
                    root += 1;
                    paths[pack as usize][row as usize].clone()
                }
            };
            path.push(pack.layout.tokens[row]);
            assert_eq!(pack.layout.position_ids[row] as usize + 1, path.len());
            of_pack.push(path);
        }
        paths.push(of_pack);
    }
    paths
}

/// Fault 16: a limit on paths applied to trees. A bushy tree of short paths is no error: it is
/// cut, and no token is dropped.
#[test]
fn a_bushy_tree_is_cut_and_not_refused() {
    let device = autodiff_device();
    let trajectories: Vec<_> = (0..30)
        .map(|leaf| trajectory(&[1, 2, 3, 4, 5, 6 + leaf, 7, 8]))
        .collect();
    let (objective, aggregation) = (Objective::PerOccurrence, Aggregation::TokenMean);
    let model = random_model(&dense_config(VOCABULARY), 1, DType::F32, &device);
    let expected = whole_step(
        &model,
        &trajectories,
        objective,
        aggregation,
        DType::F32,
        &device,
    );
    for partitioning in [Partitioning::Connected, Partitioning::Shared] {
        // Longer than every path, shorter than the tree of 95 tokens.
        let packed = pack(&trajectories, 10, partitioning);
        assert!(packed.packs.iter().all(|pack| pack.layout.len() <= 10));
        let found = parts_step(&model, &packed, &StepOptions::default(), &device);
        compare(&model, &found, &expected, DType::F32, bars(DType::F32).1)
            .unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Fault 17: packing moves branch points. In any partitioning, every token of the tree occurs
/// once, at its depth, after the same tokens.
#[test]
fn other_parts_move_no_branch_point() {
    let trajectories = tree();
    let all = |packed: &PackedStep| -> Vec<Vec<u32>> {
        let mut all = paths(&packed.packs).concat();
        all.sort();
        all
    };
    let whole = all(&pack(&trajectories, 1 << 20, Partitioning::Refuse));
    let distinct: BTreeSet<_> = whole.iter().collect();
    assert_eq!(distinct.len(), whole.len());
    for (budget, partitioning) in PARTS {
        assert_eq!(all(&pack(&trajectories, budget, partitioning)), whole);
    }
}

/// Fault 19: entropies scaled by packing. Every prediction has its own entropy in any part.
#[test]
fn entropies_do_not_depend_on_parts() {
    let device = autodiff_device();
    let dtype = if supports_f64() {
        DType::F64
    } else {
        DType::F32
    };
    let trajectories = tree();
    let options = StepOptions {
        head: LmHeadOptions {
            entropy: EntropyOutput::Value,
            ..LmHeadOptions::default()
        },
        ..StepOptions::default()
    };
    let model = random_model(&hybrid_config(VOCABULARY), 1, dtype, &device);
    let entropies = |packed: &PackedStep| -> BTreeMap<(u32, u32), f64> {
        let of_packs = step_forward(&model, packed, &options, &device, |pack, output, _| {
            let columns = &packed.packs[pack].occurrences;
            let names = columns.trajectories.iter().zip(&columns.token_indices);
            let values = read(&output.entropy.expect("asked for"));
            let pairs = names.zip(values);
            let pairs = pairs.map(|((&trajectory, &token), value)| ((trajectory, token), value));
            pairs.collect::<Vec<_>>()
        });
        of_packs
            .expect("packs of one step")
            .into_iter()
            .flatten()
            .collect()
    };
    let whole = entropies(&pack(&trajectories, 1 << 20, Partitioning::Refuse));
    assert!(whole.values().sum::<f64>() > 1.0);
    for (budget, partitioning) in PARTS {
        let parts = entropies(&pack(&trajectories, budget, partitioning));
        assert!(parts.keys().eq(whole.keys()));
        for (part, whole) in parts.values().zip(whole.values()) {
            assert!((part - whole).abs() < bars(dtype).0, "{part} {whole}");
        }
    }
}

/// Fault 24: a gateway with rows that are no ancestors. Siblings in the parent part do not change
/// the parts below, bit for bit.
#[test]
fn parts_do_not_see_siblings_in_the_part_before() {
    let device = autodiff_device();
    let trajectories = [
        trajectory(&[1, 2, 3, 4, 5]),
        trajectory(&[1, 2, 6, 7, 8, 9, 10, 11]),
    ];
    let packed = pack(&trajectories, 6, Partitioning::Connected);
    let mut changed = packed.clone();
    let sibling = changed.packs[0]
        .layout
        .tokens
        .iter()
        .position(|&token| token == 4);
    changed.packs[0].layout.tokens[sibling.expect("in the first part")] = 30;
    for config in [dense_config, hybrid_config] {
        let model = random_model(&config(VOCABULARY), 1, DType::F32, &device);
        let log_probs = |packed: &PackedStep| {
            let options = StepOptions::default();
            step_forward(&model, packed, &options, &device, |_, output, _| {
                output.log_probs.into_data()
            })
            .expect("packs of one step")
        };
        let (before, after) = (log_probs(&packed), log_probs(&changed));
        assert_ne!(before[0], after[0]);
        assert_eq!(before[1], after[1]);
    }
}

/// Fault 24: small gradients are lost when many branches are summed in bfloat16. A bfloat16 model
/// is as close to the exact gradients in 49 parts as in one.
#[test]
fn bfloat16_loses_no_more_in_many_parts() {
    let device = autodiff_device();
    let trajectories: Vec<_> = (0..48)
        .map(|leaf| trajectory(&[1, 2, 3, 4, 5, 6, leaf % 40, 7 + leaf / 40, 9, 3]))
        .collect();
    let (objective, aggregation) = (Objective::PerOccurrence, Aggregation::TokenMean);
    let master = random_model(&dense_config(VOCABULARY), 1, DType::F32, &device);
    let exact = whole_step(
        &master,
        &trajectories,
        objective,
        aggregation,
        DType::F32,
        &device,
    );
    let exact = NamedTensors::gradients(&master, &exact.gradients);
    let worker = shadow(&master, FloatDType::BF16, CausalLm::stays_wide);
    let error = |packed: &PackedStep| {
        let step = parts_step(&worker, packed, &StepOptions::default(), &device);
        NamedTensors::gradients(&master, &step.gradients)
            .minus(&exact)
            .norm()
            / exact.norm()
    };
    let whole = error(&pack(&trajectories, 1 << 20, Partitioning::Refuse));
    let packed = pack(&trajectories, 6, Partitioning::Connected);
    assert!(packed.packs.len() > 40, "{}", packed.packs.len());
    let parts = error(&packed);
    assert!(parts < 1.5 * whole, "{parts:e} in parts, {whole:e} whole");
}

/// Fault 25: expert loads change with sharing. A token of the trunk counts once per trajectory
/// that contains it, in any part.
#[test]
fn loads_of_experts_and_their_loss_do_not_depend_on_parts() {
    let device = autodiff_device();
    let dtype = if supports_f64() {
        DType::F64
    } else {
        DType::F32
    };
    let trajectories = tree();
    let whole = pack(&trajectories, 1 << 20, Partitioning::Refuse);
    const COEFFICIENT: f64 = 0.7;
    for config in [moe_config, hybrid_moe_config] {
        let model = random_model(&config(VOCABULARY), 1, dtype, &device);
        let (load, loss, gradients) = whole_with_router_loss(&model, &whole, COEFFICIENT);
        for (budget, partitioning) in PARTS {
            let packed = pack(&trajectories, budget, partitioning);
            // By the definition.
            let expected = multiplicities(&trajectories, &packed.packs);
            for (pack, expected) in packed.packs.iter().zip(expected) {
                let counts = pack.trajectory_counts.iter().map(|&count| count as f32);
                assert!(counts.eq(expected));
            }
            for options in all_step_options() {
                let found = step_router_load(&model, &packed, &options, &device).unwrap();
                assert_eq!(found.fractions(), load.fractions());
                let options = StepOptions {
                    router_loss: Some(RouterLossOptions {
                        coefficient: COEFFICIENT,
                        load: found,
                    }),
                    ..options
                };
                let found = step_gradients(
                    &model,
                    &packed,
                    &options,
                    &device,
                    |_, output, occurrences| sft_loss(output, occurrences),
                )
                .unwrap();
                let sum: f64 = found.losses.iter().map(|loss| read(loss)[0]).sum();
                assert!((sum - loss).abs() < bars(dtype).0 * loss, "{sum} {loss}");
                NamedTensors::gradients(&model, &found.gradients)
                    .check(&gradients, bars(dtype).1)
                    .unwrap_or_else(|error| panic!("{budget}, {options:?}: {error}"));
            }
        }
    }
}

/// Number of trajectories that contain each row.
fn multiplicities(trajectories: &[Trajectory], packs: &[Pack]) -> Vec<Vec<f32>> {
    let paths = paths(packs);
    let through = |path: &Vec<u32>| {
        let through = trajectories.iter().filter(|t| t.tokens.starts_with(path));
        through.count() as f32
    };
    paths
        .iter()
        .map(|paths| paths.iter().map(through).collect())
        .collect()
}

/// Load, loss and gradients of a step of one pack, with a plain forward and backward pass.
fn whole_with_router_loss(
    model: &CausalLm,
    packed: &PackedStep,
    coefficient: f64,
) -> (RouterLoad, f64, NamedTensors) {
    let device = autodiff_device();
    let trajectories = tree();
    let [multiplicity] = &multiplicities(&trajectories, &packed.packs)[..] else {
        panic!("one pack");
    };
    let dtype = FloatDType::from(model.head_weight().dtype());
    let batch = TreeBatch::with_dtype(&packed.packs, &device, dtype);
    let context = BlockContext::new(&batch);
    let (hidden, outputs) = model.forward(batch.tokens.clone(), &context).unwrap();
    let routers: Vec<_> = outputs
        .into_iter()
        .filter_map(|output| output.router)
        .collect();
    let mut load = RouterLoad::default();
    load.add(&routers, multiplicity);
    let options = LmHeadOptions::default();
    let output = token_log_probs(hidden, model.head_weight(), &batch.occurrences, options);
    let loss = sft_loss(output, &batch.occurrences)
        + load_balancing_loss(&routers, multiplicity, &load) * coefficient;
    let value = read(&loss)[0];
    let gradients = GradientsParams::from_grads(loss.backward(), model);
    (load, value, NamedTensors::gradients(model, &gradients))
}

/// Inconsistent packs are an error and do not change gradients silently.
#[test]
fn wrong_packs_are_refused() {
    let device = autodiff_device();
    let model = random_model(&dense_config(VOCABULARY), 1, DType::F32, &device);
    let run = |packed: &PackedStep, options: &StepOptions| {
        step_gradients(
            &model,
            packed,
            options,
            &device,
            |_, output, occurrences| sft_loss(output, occurrences),
        )
        .expect_err("wrong packs")
    };
    let packed = pack(&tree(), 7, Partitioning::Connected);
    let plain = StepOptions::default();
    // A part without its parent part.
    let mut wrong = packed.clone();
    wrong.packs = wrong.packs[1..2].to_vec();
    let error = run(&wrong, &plain);
    assert!(matches!(error, StepError::Packs(_)), "{error}");
    let mut wrong = packed.clone();
    wrong.packs[1].gateway = None;
    assert!(matches!(run(&wrong, &plain), StepError::Packs(_)));
    let mut wrong = packed.clone();
    wrong.packs[1]
        .layout
        .position_ids
        .iter_mut()
        .for_each(|position| *position += 1);
    assert!(matches!(run(&wrong, &plain), StepError::Packs(_)));

    let mut wrong = packed;
    wrong.packs[1].trajectory_counts.pop();
    let options = StepOptions {
        router_loss: Some(RouterLossOptions {
            coefficient: 1.0,
            load: RouterLoad::default(),
        }),
        ..plain
    };
    let error = run(&wrong, &options);
    assert!(
        matches!(error, StepError::TrajectoryCounts { pack: 1, .. }),
        "{error}"
    );
}
