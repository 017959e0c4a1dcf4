//! How much of the machine's matrix-product rate a training step reaches, on separate sequences.
//!
//! `cargo bench -p tree-training-examples --bench training_step [-- HIDDEN TOKENS REPETITIONS]`
//! prints for each part of the step its time, and for the whole the share of the rate of one plain
//! product of the model's shape. Product and step alternate, so that both see the same machine.

use std::time::Instant;

use burn::optim::GradientsParams;
use burn::tensor::{Device, Distribution, FloatDType, Tensor};
use burn_tree_attn::{RopeConfig, rope, tree_attention};
use burn_tree_train::{
    BlockContext, LmHeadOptions, StepCounts, TreeModel, sft_loss, swiglu, token_log_probs,
};
use tree_pack::{PackOptions, Trajectory, TreeBatch, flat_forests, pack_step};
use tree_training_examples::qwen3::{Qwen3, Qwen3Config};
use tree_training_examples::training::cost::ModelSize;
use tree_training_examples::training::gemm::{gemm_flops_per_second, median};

/// Tokens of one sequence.
const SEQUENCE: usize = 512;

fn config(hidden: usize) -> Qwen3Config {
    Qwen3Config {
        hidden_size: hidden,
        intermediate_size: 3 * hidden,
        num_attention_heads: hidden / 64,
        num_key_value_heads: hidden / 128,
        head_dim: 64,
        ..Qwen3Config::named("tiny", 4096).expect("a built-in name")
    }
}

/// Sequences without common prefixes; half of their tokens are trained.
fn sequences(tokens: usize, vocab: usize) -> Vec<Trajectory> {
    (0..tokens / SEQUENCE)
        .map(|sequence| {
            let ids = (0..SEQUENCE)
                .map(|index| ((sequence * 8191 + index * 127) % vocab) as u32)
                .collect();
            let mask = (0..SEQUENCE).map(|index| index % 64 >= 32).collect();
            Trajectory::new(format!("task {sequence}"), "rollout", ids, mask)
        })
        .collect()
}

fn loss(model: &Qwen3, batch: &TreeBatch, context: &BlockContext) -> Tensor<1> {
    let hidden = model.hidden_states(batch.tokens.clone(), context);
    let output = token_log_probs(
        hidden,
        model.head_weight(),
        &batch.occurrences,
        LmHeadOptions::default(),
    );
    sft_loss(output.log_probs, &batch.occurrences)
}

fn seconds<T>(run: impl FnOnce() -> T) -> (f64, T) {
    let start = Instant::now();
    let result = run();
    (start.elapsed().as_secs_f64(), result)
}

/// Times the forward pass of a part, and its backward pass from a gradient of ones.
fn part(name: &str, flops: f64, repetitions: usize, run: impl Fn() -> Tensor<2>) {
    let mut forward = Vec::new();
    let mut backward = Vec::new();
    for _ in 0..repetitions {
        let (time, output) = seconds(&run);
        forward.push(time);
        let total = output.sum();
        backward.push(seconds(|| total.backward()).0);
    }
    let (forward, backward) = (median(forward), median(backward));
    let rate = 3.0 * flops / (forward + backward) / 1e9;
    println!(
        "  {name:<34} {:8.2} ms {:8.2} ms {rate:8.1} GFLOP/s",
        forward * 1e3,
        backward * 1e3
    );
}

fn parts(model: &Qwen3, config: &Qwen3Config, batch: &TreeBatch, repetitions: usize) {
    let device = batch.tokens.device();
    let [rows, tokens] = batch.dims();
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let random = |width: usize| {
        Tensor::<3>::random([rows, tokens, width], Distribution::Default, &device).require_grad()
    };
    let flat = |x: Tensor<3>| {
        let width = x.dims()[2];
        x.reshape([rows * tokens, width])
    };
    let context = BlockContext::new(batch);
    let block = &model.layers[0];
    let count = (rows * tokens) as f64;
    println!(
        "  {:<34} {:>11} {:>11}",
        "part of one block", "forward", "backward"
    );

    let x = random(hidden);
    part("norm", 0.0, repetitions, || {
        flat(block.input_layernorm.forward(x.clone()))
    });
    part("residual", 0.0, repetitions, || flat(x.clone() + x.clone()));
    part(
        "q projection",
        2.0 * count * (hidden * hidden) as f64,
        repetitions,
        || flat(block.self_attn.q_proj.forward(x.clone())),
    );
    let queries = config.num_attention_heads;
    let keys = config.num_key_value_heads;
    let heads = |x: Tensor<3>, heads: usize| x.reshape([rows, tokens, heads, config.head_dim]);
    part("q norm", 0.0, repetitions, || {
        flat(
            block
                .self_attn
                .q_norm
                .forward(heads(x.clone(), queries))
                .reshape([rows, tokens, hidden]),
        )
    });
    let rope_config = RopeConfig {
        theta: config.rope_theta,
        rotary_dim: None,
    };
    part("rope of q, and layout", 0.0, repetitions, || {
        let q = heads(x.clone(), queries).swap_dims(1, 2);
        let q = rope(q, context.position_ids.clone(), &rope_config);
        flat(q.swap_dims(1, 2).reshape([rows, tokens, hidden]))
    });
    let pairs: u64 = batch
        .layouts
        .iter()
        .map(|layout| layout.visible_pairs())
        .sum();
    let key = random(hidden / queries * keys);
    part(
        "attention",
        4.0 * pairs as f64 * hidden as f64,
        repetitions,
        || {
            let q = heads(x.clone(), queries).swap_dims(1, 2);
            let k = heads(key.clone(), keys).swap_dims(1, 2);
            let attended = tree_attention(q, k.clone(), k, &context.mask, Default::default());
            flat(attended.swap_dims(1, 2).reshape([rows, tokens, hidden]))
        },
    );
    let (gate, up) = (random(inner), random(inner));
    part("gated activation", 0.0, repetitions, || {
        flat(swiglu(gate.clone(), up.clone()))
    });
    part(
        "down projection",
        2.0 * count * (hidden * inner) as f64,
        repetitions,
        || {
            let layer = match &block.mlp {
                tree_training_examples::qwen3::FeedForward::Dense(mlp) => &mlp.down_proj,
                tree_training_examples::qwen3::FeedForward::Sparse(_) => unreachable!("dense"),
            };
            flat(layer.forward(gate.clone()))
        },
    );
    println!("  {:<34}", "once per step");
    part("embedding", 0.0, repetitions, || {
        flat(model.embed(batch.tokens.clone()))
    });
    let projected = batch.occurrences.host_rows.len() as f64;
    let head = model.head_weight();
    part(
        "head and log-probabilities",
        2.0 * projected * (head.dims()[0] * hidden) as f64,
        repetitions,
        || {
            let output = token_log_probs(
                x.clone(),
                head.clone(),
                &batch.occurrences,
                LmHeadOptions::default(),
            );
            output.log_probs.unsqueeze()
        },
    );
}

fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .filter_map(|argument| argument.parse().ok());
    let hidden = arguments.next().unwrap_or(512);
    let tokens = arguments.next().unwrap_or(4096);
    let repetitions = arguments.next().unwrap_or(5);

    let device = Device::flex().autodiff();
    let config = config(hidden);
    let model = Qwen3::random(&config, 0, FloatDType::F32, &device);
    let trajectories = sequences(tokens, config.vocab_size);
    let forests = flat_forests(&trajectories).expect("valid trajectories");
    let step = pack_step(&trajectories, &forests, &PackOptions::new(tokens)).expect("packs");
    let batch = TreeBatch::new(&step.packs, &device);
    let flops = ModelSize::new(&config, None)
        .cost
        .step_flops(&StepCounts::of_packs(&step.packs));
    println!(
        "hidden {hidden}, {} blocks, vocabulary {}, {tokens} tokens in sequences of {SEQUENCE}",
        config.num_hidden_layers, config.vocab_size
    );

    let (mut forward, mut backward, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    for repetition in 0..=repetitions {
        let rate = gemm_flops_per_second(&Device::flex(), [tokens, hidden, 3 * hidden], 1);
        let context = BlockContext::new(&batch);
        let (forward_time, loss) = seconds(|| loss(&model, &batch, &context));
        let (backward_time, _) = seconds(|| GradientsParams::from_grads(loss.backward(), &model));
        // The first step warms up.
        if repetition > 0 {
            rates.push(rate);
            forward.push(forward_time);
            backward.push(backward_time);
        }
    }
    let (forward, backward, rate) = (median(forward), median(backward), median(rates));
    let reached = flops / (forward + backward);
    println!(
        "step: forward {:.0} ms, backward {:.0} ms; {:.1} GFLOP/s = {:.0} % of the product's {:.1}",
        forward * 1e3,
        backward * 1e3,
        reached / 1e9,
        100.0 * reached / rate,
        rate / 1e9
    );
    parts(&model, &config, &batch, repetitions);
}
