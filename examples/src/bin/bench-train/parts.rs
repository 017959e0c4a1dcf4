//! Where the time of a step goes: its phases, and the operations of a block.

use burn::optim::GradientsParams;
use burn::tensor::{Device, Distribution, Tensor};
use burn_tree_attn::{RopeConfig, rope, tree_attention};
use burn_tree_train::{
    BlockContext, StepCounts, TreeModel, swiglu, token_log_probs, widen_gradients,
};
use tree_pack::{Pack, TreeBatch};
use tree_training_examples::qwen3::{FeedForward, Qwen3, Qwen3Config};
use tree_training_examples::training::optimizer_step::{Trainer, loss_of_pack};
use tree_training_examples::training::report::{table, tera};
use tree_training_examples::training::timing::{Repetitions, seconds, wait};

use crate::args::Args;
use crate::steps::BenchStep;

/// Prints both for the largest pack of the step on trees.
pub fn print(step: &BenchStep, config: &Qwen3Config, trainer: &Trainer<Qwen3>, args: &Args) {
    let largest = step.tree.packs.iter().max_by_key(|pack| pack.layout.len());
    let pack = largest.expect("a step has packs");
    let repetitions = Repetitions {
        warm_up: args.warm_up,
        samples: args.repetitions.get(),
        runs: 1,
    };
    phases(pack, trainer, repetitions);
    operations(pack, config, trainer, repetitions);
}

/// The phases of a step of one pack, each waited for: their sum is more than a step takes in which
/// the device never waits.
fn phases(pack: &Pack, trainer: &Trainer<Qwen3>, repetitions: Repetitions) {
    let device = &trainer.device;
    let (precision, head) = (trainer.precision, trainer.head);
    let plain = device.clone().inner();
    let time = |work: &mut dyn FnMut()| seconds(&plain, repetitions, work) * 1e3;
    let worker = precision.shadow(&trainer.model);
    let forward = || loss_of_pack(&worker, pack, head, device);
    let gradients = || GradientsParams::from_grads(forward().backward(), &worker);
    let widened = || widen_gradients(gradients(), &worker);

    let shadow = time(&mut || drop(precision.shadow(&trainer.model)));
    let batch = time(&mut || {
        drop(BlockContext::new(&TreeBatch::new(
            std::slice::from_ref(pack),
            device,
        )))
    });
    let until_loss = time(&mut || drop(forward()));
    let until_gradients = time(&mut || drop(gradients()));
    let until_widened = time(&mut || drop(widened()));
    let mut scratch = trainer.clone();
    let until_update = time(&mut || drop(scratch.update(widened(), 1e-12.into())));
    let row = |name: &str, ms: f64| vec![name.to_owned(), format!("{ms:.2}")];
    let rows = vec![
        row("copy of the parameters", shadow),
        row("batch and mask", batch),
        row("forward, with batch and mask", until_loss),
        row("backward", until_gradients - until_loss),
        row("gradients to f32", until_widened - until_gradients),
        row("norm, clipping and optimizer", until_update - until_widened),
    ];
    println!(
        "{}",
        table(&[&format!("phases, {} rows", pack.padded_len), "ms"], rows)
    );
    wait(&plain);
}

/// One row of the table of operations.
struct Operation {
    name: &'static str,
    flops: f64,
    forward: f64,
    backward: f64,
}

/// Times operations of one pack, forward and backward.
struct Operations<'a> {
    device: &'a Device,
    repetitions: Repetitions,
    done: Vec<Operation>,
}

impl Operations<'_> {
    /// `flops` are those of the forward pass.
    fn time<const D: usize>(
        &mut self,
        name: &'static str,
        flops: f64,
        run: impl Fn() -> Tensor<D>,
    ) {
        let forward = seconds(self.device, self.repetitions, &run);
        // From a gradient of ones.
        let both = seconds(self.device, self.repetitions, || run().backward());
        self.done.push(Operation {
            name,
            flops,
            forward,
            backward: both - forward,
        });
    }
}

fn operations(
    pack: &Pack,
    config: &Qwen3Config,
    trainer: &Trainer<Qwen3>,
    repetitions: Repetitions,
) {
    let device = &trainer.device;
    let model = trainer.precision.shadow(&trainer.model);
    let batch = TreeBatch::new(std::slice::from_ref(pack), device);
    let context = BlockContext::new(&batch);
    let [rows, tokens] = batch.dims();
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let (queries, keys) = (config.num_attention_heads, config.num_key_value_heads);
    let head_dim = config.head_dim;
    let dtype = trainer.precision.blocks;
    let random = |width: usize| {
        let x = Tensor::<3>::random(
            [rows, tokens, width],
            Distribution::Default,
            &device.clone().inner(),
        );
        x.cast(dtype).autodiff().require_grad()
    };
    let heads = |x: Tensor<3>, heads: usize| x.reshape([rows, tokens, heads, head_dim]);
    let counts = StepCounts::of_pack(pack);
    let count = (rows * tokens) as f64;
    let product = |input: usize, output: usize| 2.0 * count * (input * output) as f64;
    let block = &model.layers[0];
    let attention = &block.self_attn;
    let FeedForward::Dense(mlp) = &block.mlp else {
        return;
    };

    let plain = device.clone().inner();
    let mut times = Operations {
        device: &plain,
        repetitions,
        done: Vec::new(),
    };
    let (x, query, key) = (
        random(hidden),
        random(queries * head_dim),
        random(keys * head_dim),
    );
    let (gate, up) = (random(inner), random(inner));
    times.time("norm", 0.0, || block.input_layernorm.forward(x.clone()));
    times.time("residual", 0.0, || x.clone() + x.clone());
    times.time("q projection", product(hidden, queries * head_dim), || {
        attention.q_proj.forward(x.clone())
    });
    times.time("k projection", product(hidden, keys * head_dim), || {
        attention.k_proj.forward(x.clone())
    });
    times.time("o projection", product(queries * head_dim, hidden), || {
        attention.o_proj.forward(query.clone())
    });
    times.time("q norm", 0.0, || {
        attention.q_norm.forward(heads(query.clone(), queries))
    });
    let rope_config = RopeConfig {
        theta: config.rope_theta,
        rotary_dim: None,
    };
    times.time("rope of q, and layout", 0.0, || {
        let q = heads(query.clone(), queries).swap_dims(1, 2);
        rope(q, context.position_ids.clone(), &rope_config)
    });
    let width = (queries * head_dim) as f64;
    times.time(
        "attention, and layout",
        4.0 * counts.visible_pairs as f64 * width,
        || {
            let q = heads(query.clone(), queries).swap_dims(1, 2);
            let k = heads(key.clone(), keys).swap_dims(1, 2);
            let attended = tree_attention(q, k.clone(), k, &context.mask, Default::default());
            attended
                .swap_dims(1, 2)
                .reshape([rows, tokens, queries * head_dim])
        },
    );
    times.time("gate projection", product(hidden, inner), || {
        mlp.gate_proj.forward(x.clone())
    });
    times.time("gated activation", 0.0, || swiglu(gate.clone(), up.clone()));
    times.time("down projection", product(inner, hidden), || {
        mlp.down_proj.forward(gate.clone())
    });
    times.time("whole block", 0.0, || {
        model.block(0, x.clone(), &context, None).0
    });
    times.time("embedding (once)", 0.0, || {
        model.embed(batch.tokens.clone(), &context)
    });
    let head = model.head_weight();
    let projected = counts.projected_rows as f64;
    times.time(
        "head and log-probabilities (once)",
        2.0 * projected * (config.vocab_size * hidden) as f64,
        || token_log_probs(x.clone(), head.clone(), &batch.occurrences, trainer.head).log_probs,
    );

    let rows = times.done.iter().map(|operation| {
        let rate = |flops: f64, seconds: f64| match flops > 0.0 {
            true => tera(flops / seconds),
            false => String::new(),
        };
        vec![
            operation.name.to_owned(),
            format!("{:.3}", operation.forward * 1e3),
            format!("{:.3}", operation.backward * 1e3),
            rate(operation.flops, operation.forward),
            // Attention's five products are counted as two and a half times its two.
            rate(
                operation.flops
                    * if operation.name.starts_with("attention") {
                        2.5
                    } else {
                        2.0
                    },
                operation.backward,
            ),
        ]
    });
    let header = [
        "operation",
        "forward ms",
        "backward ms",
        "TFLOP/s",
        "backward",
    ];
    println!("{}", table(&header, rows.collect()));
}
