//! Misuse of the library that had gone undetected: each case is an error with its cause.

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, FloatDType, Int, Tensor};
use burn_tree_attn::{TreeMask, TreeMaskError};
use burn_tree_nn::{
    LmHeadError, LmHeadOptions, TokenLogProbs, token_log_probs, try_token_log_probs,
};
use burn_tree_ssm::{RecurrenceError, TreeRecurrence};
use burn_tree_train::losses::{LossInputError, PpoOptions, try_ppo_loss, try_sft_loss};
use burn_tree_train::{
    BlockContext, BlockError, BlockOutputs, BlockPast, NoGradientsCause, StepError, StepOptions,
    TreeModel, frozen, sft_loss, step_forward, step_gradients,
};
use tree_pack::{
    OccurrenceBatch, PackOptions, PackedStep, PacksError, Partitioning, Trajectory, TreeBatch,
    build_forests, pack_step,
};
use tree_training_tests::device::{autodiff_device, device, supports_f64};
use tree_training_tests::models::{hybrid_config, random_model};
use tree_training_tests::small_gpt::{Mistake, SmallGpt};

const VOCABULARY: usize = 12;

fn trajectories(last: u32) -> Vec<Trajectory> {
    let sequences = [
        &[1, 2, 3, 4, 5, 6][..],
        &[1, 2, 3, 7, 8],
        &[1, 2, 9, 10, last],
    ];
    sequences
        .iter()
        .enumerate()
        .map(|(rollout, tokens)| {
            let trained = vec![true; tokens.len()];
            Trajectory::new("task", rollout.to_string(), tokens.to_vec(), trained)
        })
        .collect()
}

fn pack(trajectories: &[Trajectory], budget: usize) -> PackedStep {
    let options = PackOptions {
        partitioning: Partitioning::Connected,
        ..PackOptions::new(budget)
    };
    pack_step(
        trajectories,
        &build_forests(trajectories).unwrap(),
        &options,
    )
    .unwrap()
}

fn whole() -> PackedStep {
    pack(&trajectories(11), 64)
}

/// Parts that continue each other.
fn parts() -> PackedStep {
    let packed = pack(&trajectories(11), 6);
    assert!(packed.packs.iter().any(|pack| pack.gateway.is_some()));
    packed
}

fn supervised(_: usize, output: TokenLogProbs, occurrences: &OccurrenceBatch) -> Tensor<1> {
    sft_loss(output, occurrences)
}

fn all_options() -> [StepOptions; 2] {
    [false, true].map(|recompute| StepOptions {
        recompute,
        ..StepOptions::default()
    })
}

/// The error of a step of `model` on `packed`, with and without activation checkpointing.
fn refused<M: Module + TreeModel>(model: &M, packed: &PackedStep, device: &Device) -> StepError {
    let [first, second] = all_options().map(|options| {
        step_gradients(model, packed, &options, device, supervised).expect_err("a mistake")
    });
    assert_eq!(first.to_string(), second.to_string());
    first
}

fn cause(error: StepError) -> NoGradientsCause {
    match error {
        StepError::NoGradients(cause) => cause,
        error => panic!("{error}"),
    }
}

#[test]
fn steps_without_gradients_are_refused() {
    let (plain, autodiff) = (device(), autodiff_device());
    let model = SmallGpt::fresh(VOCABULARY, &plain);
    let error = refused(&model, &whole(), &plain);
    assert_eq!(
        error.to_string(),
        "no parameter gets a gradient: the model is on a device without autodiff, expected one of \
         Device::autodiff"
    );
    let model = SmallGpt::fresh(VOCABULARY, &autodiff);
    let error = refused(&model.valid(), &whole(), &autodiff);
    assert_eq!(cause(error), NoGradientsCause::NoAutodiff);
    let error = refused(&frozen(&model), &whole(), &autodiff);
    assert_eq!(cause(error), NoGradientsCause::Frozen);
    let mut untrained = trajectories(11);
    for trajectory in &mut untrained {
        trajectory.loss_mask.fill(false);
    }
    let error = refused(&model, &pack(&untrained, 64), &autodiff);
    assert_eq!(cause(error), NoGradientsCause::NothingTrained);
    for options in all_options() {
        let detached = |_, output: TokenLogProbs, occurrences: &OccurrenceBatch| {
            sft_loss(output, occurrences).detach()
        };
        let step = step_gradients(&model, &parts(), &options, &autodiff, detached);
        let error = step.expect_err("no gradients");
        assert_eq!(cause(error), NoGradientsCause::Detached);
    }
}

/// The closure may fail: the error names the pack.
#[test]
fn a_loss_that_cannot_be_computed_is_an_error() {
    let device = autodiff_device();
    let model = SmallGpt::fresh(VOCABULARY, &device);
    for options in all_options() {
        // The trajectories have no advantages.
        let loss = |_, output: TokenLogProbs, occurrences: &OccurrenceBatch| {
            try_ppo_loss(output, occurrences, &PpoOptions::default()).map(|(loss, _)| loss)
        };
        let error = step_gradients(&model, &whole(), &options, &device, loss).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("loss of pack 0: "), "{text}");
    }
}

/// With several ranks, one rank may have no trained tokens, or no packs.
#[test]
fn a_rank_without_trained_tokens_is_no_mistake() {
    let device = autodiff_device();
    let model = SmallGpt::fresh(VOCABULARY, &device);
    let mut rank = whole();
    rank.packs.clear();
    let step = step_gradients(&model, &rank, &StepOptions::default(), &device, supervised);
    assert_eq!(step.unwrap().gradients.len(), 0);
    let mut rank = whole();
    rank.packs[0].occurrences = Default::default();
    let step = step_gradients(&model, &rank, &StepOptions::default(), &device, supervised);
    assert_eq!(step.unwrap().losses.len(), 1);
}

/// A layer that no token uses.
#[derive(Module, Debug)]
struct WithSpareLayer {
    model: SmallGpt,
    spare: Linear,
    scale: Param<Tensor<1>>,
}

impl TreeModel for WithSpareLayer {
    fn embed(&self, tokens: Tensor<2, Int>, context: &BlockContext) -> Tensor<3> {
        self.model.embed(tokens, context) * self.scale.val().reshape([1, 1, 1])
    }

    fn n_blocks(&self) -> usize {
        self.model.n_blocks()
    }

    fn block(
        &self,
        index: usize,
        x: Tensor<3>,
        context: &BlockContext,
        past: Option<&BlockPast>,
    ) -> Result<(Tensor<3>, BlockOutputs), BlockError> {
        self.model.block(index, x, context, past)
    }

    fn final_norm(&self, x: Tensor<3>) -> Tensor<3> {
        self.model.final_norm(x)
    }

    fn head_weight(&self) -> Tensor<2> {
        self.model.head_weight()
    }
}

#[test]
fn parameters_without_a_gradient_are_named() {
    let device = autodiff_device();
    let model = WithSpareLayer {
        model: SmallGpt::fresh(VOCABULARY, &device),
        spare: LinearConfig::new(3, 3).init(&device),
        scale: Param::from_tensor(Tensor::ones([1], &device)),
    };
    for options in all_options() {
        let step = step_gradients(&model, &parts(), &options, &device, supervised).unwrap();
        assert_eq!(step.without_gradient, ["spare.weight", "spare.bias"]);
    }
}

#[test]
fn parts_are_no_batches_of_their_own() {
    let device = device();
    let packed = parts();
    let part = packed
        .packs
        .iter()
        .find(|pack| pack.gateway.is_some())
        .unwrap();
    let error = TreeBatch::try_new(std::slice::from_ref(part), &device).unwrap_err();
    assert!(error.to_string().contains("continues another"), "{error}");
    let (layouts, rows) = (std::slice::from_ref(&part.layout), part.padded_len);
    let error = TreeMask::try_from_layouts(layouts, rows, &device).unwrap_err();
    assert!(
        matches!(error, TreeMaskError::Continues { row: 0, .. }),
        "{error}"
    );
    let error = TreeRecurrence::try_from_layouts(layouts, rows).unwrap_err();
    assert!(
        matches!(error, RecurrenceError::Continues { row: 0, .. }),
        "{error}"
    );
    // A state for each root, or the root is refused.
    let roots = layouts[0].parents.iter().filter(|&&parent| parent < 0);
    let states = vec![Some(0); roots.count()];
    assert!(TreeRecurrence::try_continuing(layouts, rows, &states).is_ok());
    let states = vec![None; states.len()];
    let error = TreeRecurrence::try_continuing(layouts, rows, &states).unwrap_err();
    assert!(
        matches!(error, RecurrenceError::Continues { row: 0, .. }),
        "{error}"
    );
}

/// Two batches of the same shape with the same number of predictions.
fn twins() -> [TreeBatch; 2] {
    [11, 3].map(|last| TreeBatch::new(&pack(&trajectories(last), 64).packs, &device()))
}

#[test]
fn occurrences_of_another_batch_are_refused() {
    let [one, other] = twins();
    assert_eq!(one.dims(), other.dims());
    assert_eq!(one.occurrences.len(), other.occurrences.len());
    let context = BlockContext::new(&one);
    let [batch, rows] = one.dims();
    let hidden = Tensor::<3>::ones([batch, rows, 4], &device());
    let head = Tensor::<2>::ones([VOCABULARY, 4], &device());
    let log_probs = |occurrences: &OccurrenceBatch| {
        let (hidden, head) = (hidden.clone(), head.clone());
        context.try_token_log_probs(hidden, head, occurrences, LmHeadOptions::default())
    };
    assert_eq!(
        log_probs(&other.occurrences).unwrap_err(),
        LmHeadError::OtherBatch
    );
    let output = log_probs(&one.occurrences).unwrap();
    assert_eq!(
        try_sft_loss(output.clone(), &other.occurrences).unwrap_err(),
        LossInputError::OtherBatch
    );
    let error = try_ppo_loss(output.clone(), &other.occurrences, &PpoOptions::default());
    assert!(error.is_err());
    assert!(try_sft_loss(output, &one.occurrences).is_ok());
    // The same packs uploaded twice are the same batch.
    let [again, _] = twins();
    assert!(log_probs(&again.occurrences).is_ok());
}

#[test]
fn rows_that_are_not_those_of_the_batch_are_refused() {
    let [batch, _] = twins();
    let [_, rows] = batch.dims();
    for found in [rows - 1, rows + 1] {
        let hidden = Tensor::<3>::ones([1, found, 4], &device());
        let head = Tensor::<2>::ones([VOCABULARY, 4], &device());
        let output = try_token_log_probs(hidden, head, &batch.occurrences, Default::default());
        let (found, expected) = ([1, found], [1, rows]);
        assert_eq!(output.unwrap_err(), LmHeadError::Rows { found, expected });
    }
}

#[test]
fn weights_narrower_than_the_model_are_refused() {
    if !supports_f64() {
        return;
    }
    let packed = whole();
    let f64_of = |tensor: Tensor<2>| tensor.cast(DType::F64);
    let device = device();
    let loss = |batch: &TreeBatch| {
        let [rows, length] = batch.dims();
        let hidden = f64_of(Tensor::ones([rows * length, 4], &device));
        let output = token_log_probs(
            hidden.reshape([rows, length, 4]),
            f64_of(Tensor::ones([VOCABULARY, 4], &device)),
            &batch.occurrences,
            LmHeadOptions::default(),
        );
        try_sft_loss(output, &batch.occurrences)
    };
    let error = loss(&TreeBatch::new(&packed.packs, &device)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "weights are F32, which rounds them, but the log-probabilities are F64: create the batch \
         with TreeBatch::with_dtype"
    );
    assert!(
        loss(&TreeBatch::with_dtype(
            &packed.packs,
            &device,
            FloatDType::F64
        ))
        .is_ok()
    );
}

#[test]
fn blocks_that_leave_too_little_are_named() {
    let device = autodiff_device();
    for (mistake, expected) in [
        (
            Mistake::LeavesNoKeys,
            "block 1 of the model, in pack 0: the block uses BlockContext::mask and other packs \
             continue this one, but BlockOutputs::key is None",
        ),
        (
            Mistake::LeavesFewerKeys,
            "block 1 of the model, in pack 0: BlockOutputs::key has 6 rows, expected 7",
        ),
    ] {
        let model = SmallGpt::with_mistake(VOCABULARY, mistake, &device);
        let packed = pack(&trajectories(11), 7);
        let rows = packed.packs[0].padded_len;
        let expected = expected
            .replace("6 rows", &format!("{} rows", rows - 1))
            .replace("expected 7", &format!("expected {rows}"));
        assert_eq!(refused(&model, &packed, &device).to_string(), expected);
        let error = step_forward(
            &model,
            &packed,
            &StepOptions::default(),
            &device,
            |_, _, _| (),
        );
        assert_eq!(error.unwrap_err().to_string(), expected);
        // No pack continues a whole tree.
        let step = step_gradients(
            &model,
            &whole(),
            &StepOptions::default(),
            &device,
            supervised,
        );
        assert!(step.is_ok());
    }
}

#[test]
fn blocks_that_ignore_their_past_are_named() {
    let device = autodiff_device();
    let model = SmallGpt::with_mistake(VOCABULARY, Mistake::IgnoresPast, &device);
    let text = refused(&model, &parts(), &device).to_string();
    assert!(
        text.starts_with("block 1 of the model, in pack 1: tree_attention: key has shape"),
        "{text}"
    );
    assert!(text.contains("tree_attention_with_past"), "{text}");
}

/// A recurrent model whose blocks do not return their states.
#[derive(Module, Debug)]
struct Forgetful {
    model: burn_tree_models::CausalLm,
}

impl TreeModel for Forgetful {
    fn embed(&self, tokens: Tensor<2, Int>, context: &BlockContext) -> Tensor<3> {
        self.model.embed(tokens, context)
    }

    fn n_blocks(&self) -> usize {
        self.model.n_blocks()
    }

    fn block(
        &self,
        index: usize,
        x: Tensor<3>,
        context: &BlockContext,
        past: Option<&BlockPast>,
    ) -> Result<(Tensor<3>, BlockOutputs), BlockError> {
        let (y, outputs) = self.model.block(index, x, context, past)?;
        let outputs = BlockOutputs {
            states: None,
            ..outputs
        };
        Ok((y, outputs))
    }

    fn final_norm(&self, x: Tensor<3>) -> Tensor<3> {
        self.model.final_norm(x)
    }

    fn head_weight(&self) -> Tensor<2> {
        self.model.head_weight()
    }
}

#[test]
fn recurrent_blocks_that_leave_no_states_are_named() {
    let device = autodiff_device();
    let model = Forgetful {
        model: random_model(&hybrid_config(VOCABULARY), 1, DType::F32, &device),
    };
    let text = refused(&model, &parts(), &device).to_string();
    assert!(
        text.starts_with(
            "block 0 of the model, in pack 0: the block uses BlockContext::recurrence"
        ),
        "{text}"
    );
}

#[test]
fn ids_past_the_vocabulary_are_named_before_anything_is_computed() {
    let device = autodiff_device();
    let mut data = trajectories(11);
    data[1].tokens[4] = 53;
    data[1].loss_mask[4] = false;
    let model = SmallGpt::fresh(VOCABULARY, &device);
    for (trained, packed) in [
        (false, pack(&data, 64)),
        (true, {
            data[1].loss_mask[4] = true;
            pack(&data, 6)
        }),
    ] {
        let text = refused(&model, &packed, &device).to_string();
        for part in ["task \"task\"", "53", "position 4", "below 12"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!trained || text.contains("rollout \"1\""), "{text}");
        let forward = step_forward(
            &model,
            &packed,
            &StepOptions::default(),
            &device,
            |_, _, _| (),
        );
        assert_eq!(forward.unwrap_err().to_string(), text);
    }
    // Targets are checked outside of a step, too.
    let batch = TreeBatch::new(&pack(&trajectories(11), 64).packs, &device);
    let [_, rows] = batch.dims();
    let hidden = Tensor::<3>::ones([1, rows, 4], &device);
    let head = Tensor::<2>::ones([10, 4], &device);
    let output = try_token_log_probs(hidden, head, &batch.occurrences, Default::default());
    let error = output.unwrap_err();
    assert!(
        matches!(error, LmHeadError::Target { vocab: 10, .. }),
        "{error}"
    );
}

#[test]
fn columns_of_another_length_are_named() {
    let device = autodiff_device();
    let model = SmallGpt::fresh(VOCABULARY, &device);
    type Spoil = fn(&mut tree_pack::Occurrences);
    let spoils: [(&str, Spoil); 3] = [
        ("old_log_probs", |columns| {
            columns.old_log_probs = Some(vec![-1.0; 2]);
        }),
        ("advantages", |columns| columns.advantages = Some(vec![])),
        ("weights", |columns| {
            columns.weights.pop();
        }),
    ];
    for (column, spoil) in spoils {
        let mut packed = whole();
        spoil(&mut packed.packs[0].occurrences);
        let error = refused(&model, &packed, &device);
        let text = error.to_string();
        assert!(matches!(error, StepError::Packs(_)), "{text}");
        assert!(text.contains("pack 0") && text.contains(column), "{text}");
        let error = TreeBatch::try_new(&packed.packs, &device).unwrap_err();
        assert!(error.to_string().contains(column), "{error}");
    }
}

#[test]
fn packs_of_two_steps_are_refused() {
    let device = autodiff_device();
    let model = SmallGpt::fresh(VOCABULARY, &device);
    let mut mixed = whole();
    mixed.packs.extend(pack(&trajectories(3), 64).packs);
    let error = refused(&model, &mixed, &device);
    assert!(
        matches!(&error, StepError::Packs(PacksError::OtherStep { .. })),
        "{error}"
    );
    assert!(TreeBatch::try_new(&mixed.packs, &device).is_err());
}
