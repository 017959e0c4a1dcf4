//! The parts of a step: its phases, and the operations of a block.

use burn::optim::GradientsParams;
use burn::tensor::{Device, Distribution, FloatDType, Tensor};
use burn_tree_attn::{RopeConfig, rope, tree_attention};
use burn_tree_models::layers::{Attention, FeedForward, GatedDeltaNet, InputProjections, Mixer};
use burn_tree_models::{CausalLm, LinearAttentionConfig, ModelConfig};
use burn_tree_nn::{decay_gate, gated_rms_norm, l2_norm, linear};
use burn_tree_nn::{swiglu, token_log_probs};
use burn_tree_ssm::{CausalConv1dOptions, tree_causal_conv1d_split};
use burn_tree_train::{BlockContext, StepCounts, TreeModel, sft_loss, widen_gradients};
use burn_tree_trainer::optim::optimizer_step::Trainer;
use burn_tree_trainer::report::timing::{Repetitions, seconds, wait};
use burn_tree_trainer::report::{table, tera};
use tree_pack::{Pack, TreeBatch};
use tree_training_benchmarks::delta_rule::{DeltaRuleHeads, DeltaRuleInputs};

use crate::args::Args;
use crate::steps::BenchStep;

/// Prints both for the largest pack of the step on trees.
pub fn print(step: &BenchStep, config: &ModelConfig, trainer: &Trainer<CausalLm>, args: &Args) {
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

/// The phases of a step of one pack, with a wait after each. Their sum exceeds the time of a step
/// without waits.
fn phases(pack: &Pack, trainer: &Trainer<CausalLm>, repetitions: Repetitions) {
    let device = &trainer.device;
    let (precision, head) = (trainer.precision, trainer.options.head);
    let plain = device.clone().inner();
    let time = |work: &mut dyn FnMut()| seconds(&plain, repetitions, work) * 1e3;
    let worker = precision.shadow(&trainer.model);
    let forward = || {
        let batch = TreeBatch::new(std::slice::from_ref(pack), device);
        let hidden = worker.hidden_states(batch.tokens.clone(), &BlockContext::new(&batch));
        let hidden = hidden.expect("a pack of its own");
        let output = token_log_probs(hidden, worker.head_weight(), &batch.occurrences, head);
        sft_loss(output, &batch.occurrences)
    };
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
    /// FLOPs of the forward and the backward pass, if they are counted.
    flops: Option<[f64; 2]>,
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
        // Attention has five products in the backward pass and two in the forward pass.
        let more = match name.starts_with("attention") {
            true => 2.5,
            false => 2.0,
        };
        self.done.push(Operation {
            name,
            flops: (flops > 0.0).then_some([flops, more * flops]),
            forward,
            backward: both - forward,
        });
    }

    fn time_delta_rule(&mut self, heads: DeltaRuleHeads, inputs: &DeltaRuleInputs) {
        let rows = inputs.recurrence().rows();
        let output = inputs.forward();
        self.done.push(Operation {
            name: "gated delta rule",
            flops: Some([heads.forward_flops(rows), heads.backward_flops(rows)]),
            forward: seconds(self.device, self.repetitions, || inputs.forward()),
            backward: seconds(self.device, self.repetitions, || inputs.backward(&output)),
        });
    }

    fn print(&self) {
        let rows = self.done.iter().map(|operation| {
            let rate = |pass: usize, seconds: f64| match operation.flops {
                Some(flops) => tera(flops[pass] / seconds),
                None => String::new(),
            };
            vec![
                operation.name.to_owned(),
                format!("{:.3}", operation.forward * 1e3),
                format!("{:.3}", operation.backward * 1e3),
                rate(0, operation.forward),
                rate(1, operation.backward),
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
}

fn operations(
    pack: &Pack,
    config: &ModelConfig,
    trainer: &Trainer<CausalLm>,
    repetitions: Repetitions,
) {
    let device = &trainer.device;
    let model = trainer.precision.shadow(&trainer.model);
    let batch = TreeBatch::new(std::slice::from_ref(pack), device);
    let context = BlockContext::new(&batch);
    let counts = StepCounts::of_pack(pack);
    let inputs = Inputs {
        rows: batch.dims(),
        dtype: trainer.precision.blocks,
        device: device.clone().inner(),
    };
    let mut times = Operations {
        device: &inputs.device,
        repetitions,
        done: Vec::new(),
    };
    let block_with = |recurrent: bool| {
        let blocks = model.layers.iter().enumerate();
        let mut of_kind =
            blocks.filter(|(_, block)| matches!(block.mixer, Mixer::GatedDeltaNet(_)) == recurrent);
        of_kind.next()
    };
    let x = inputs.random(config.hidden_size);
    if let Some((index, block)) = block_with(false)
        && let Mixer::Attention(attention) = &block.mixer
    {
        attention_operations(config, attention, &context, &counts, &inputs, &mut times);
        times.time("whole block with attention", 0.0, || {
            let block = model.block(index, x.clone(), &context, None);
            block.expect("a block of the model").0
        });
    }
    if let Some((index, block)) = block_with(true)
        && let Mixer::GatedDeltaNet(layer) = &block.mixer
        && let Some(sizes) = config.linear_attention(index)
    {
        recurrent_operations(config, sizes, layer, &context, &inputs, &mut times);
        times.time("whole recurrent block", 0.0, || {
            let block = model.block(index, x.clone(), &context, None);
            block.expect("a block of the model").0
        });
    }
    let block = &model.layers[0];
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    times.time("norm", 0.0, || block.input_layernorm.forward(x.clone()));
    times.time("residual", 0.0, || x.clone() + x.clone());
    if let FeedForward::Dense(mlp) = &block.mlp {
        let (gate, up) = (inputs.random(inner), inputs.random(inner));
        times.time("gate projection", inputs.product(hidden, inner), || {
            linear(x.clone(), mlp.gate_proj.weight.val())
        });
        times.time("gated activation", 0.0, || swiglu(gate.clone(), up.clone()));
        times.time("down projection", inputs.product(inner, hidden), || {
            linear(gate.clone(), mlp.down_proj.weight.val())
        });
    }
    times.time("embedding (once)", 0.0, || {
        model.embed(batch.tokens.clone(), &context)
    });
    let head = model.head_weight();
    let projected = counts.projected_rows as f64;
    times.time(
        "head and log-probabilities (once)",
        2.0 * projected * (config.vocab_size * hidden) as f64,
        || {
            token_log_probs(
                x.clone(),
                head.clone(),
                &batch.occurrences,
                trainer.options.head,
            )
            .log_probs
        },
    );
    times.print();
}

/// Random inputs of the operations.
struct Inputs {
    /// Rows of the batch, and tokens of each.
    rows: [usize; 2],
    dtype: FloatDType,
    device: Device,
}

impl Inputs {
    fn random(&self, width: usize) -> Tensor<3> {
        let [rows, tokens] = self.rows;
        let shape = [rows, tokens, width];
        let x = Tensor::<3>::random(shape, Distribution::Default, &self.device);
        x.cast(self.dtype).autodiff().require_grad()
    }

    /// `[B, N, heads * dim]` -> `[B, N, heads, dim]`
    fn heads(&self, x: Tensor<3>, heads: usize) -> Tensor<4> {
        let [rows, tokens] = self.rows;
        let dim = x.dims()[2] / heads;
        x.reshape([rows, tokens, heads, dim])
    }

    /// FLOPs of a product with a matrix.
    fn product(&self, input: usize, output: usize) -> f64 {
        2.0 * self.tokens() * (input * output) as f64
    }

    fn tokens(&self) -> f64 {
        (self.rows[0] * self.rows[1]) as f64
    }
}

fn attention_operations(
    config: &ModelConfig,
    attention: &Attention,
    context: &BlockContext,
    counts: &StepCounts,
    inputs: &Inputs,
    times: &mut Operations,
) {
    let hidden = config.hidden_size;
    let (queries, keys) = (config.num_attention_heads, config.num_key_value_heads);
    let (query_dim, key_dim) = (queries * config.head_dim, keys * config.head_dim);
    let gate_dim = if config.attention_output_gate {
        query_dim
    } else {
        0
    };
    let (x, query, key) = (
        inputs.random(hidden),
        inputs.random(query_dim),
        inputs.random(key_dim),
    );
    times.time(
        "q projection",
        inputs.product(hidden, query_dim + gate_dim),
        || linear(x.clone(), attention.q_proj.weight.val()),
    );
    times.time("k projection", inputs.product(hidden, key_dim), || {
        linear(x.clone(), attention.k_proj.weight.val())
    });
    times.time("o projection", inputs.product(query_dim, hidden), || {
        linear(query.clone(), attention.o_proj.weight.val())
    });
    if let Some(norm) = &attention.q_norm {
        times.time("q norm", 0.0, || {
            norm.forward(inputs.heads(query.clone(), queries))
        });
    }
    let rope_config = RopeConfig {
        rotary_dim: Some(config.rotary_dim),
        scaling: config.rope_scaling,
        ..RopeConfig::new(config.rope_theta)
    };
    times.time("rope of q, and layout", 0.0, || {
        let q = inputs.heads(query.clone(), queries).swap_dims(1, 2);
        rope(q, context.position_ids(), &rope_config)
    });
    times.time(
        "attention, and layout",
        4.0 * counts.visible_pairs as f64 * query_dim as f64,
        || {
            let q = inputs.heads(query.clone(), queries).swap_dims(1, 2);
            let k = inputs.heads(key.clone(), keys).swap_dims(1, 2);
            let attended = tree_attention(q, k.clone(), k, context.mask(), Default::default());
            let [rows, tokens] = inputs.rows;
            attended.swap_dims(1, 2).reshape([rows, tokens, query_dim])
        },
    );
}

fn recurrent_operations(
    config: &ModelConfig,
    sizes: &LinearAttentionConfig,
    layer: &GatedDeltaNet,
    context: &BlockContext,
    inputs: &Inputs,
    times: &mut Operations,
) {
    let hidden = config.hidden_size;
    let (conv_dim, value_dim) = (sizes.conv_dim(), sizes.value_dim());
    let heads = sizes.num_value_heads;
    let (x, value) = (inputs.random(hidden), inputs.random(value_dim));
    let (convolved, gates) = (inputs.random(conv_dim), inputs.random(heads));
    let key = inputs.random(sizes.key_dim());
    if let InputProjections::Split(projections) = &layer.projections {
        times.time(
            "q, k, v projection",
            inputs.product(hidden, conv_dim),
            || linear(x.clone(), projections.in_proj_qkv.weight.val()),
        );
        times.time("z projection", inputs.product(hidden, value_dim), || {
            linear(x.clone(), projections.in_proj_z.weight.val())
        });
        times.time(
            "gate projection by head",
            inputs.product(hidden, heads),
            || linear(x.clone(), projections.in_proj_a.weight.val()),
        );
    }
    times.time("convolution", 0.0, || {
        let options = CausalConv1dOptions { silu: true };
        let weight = layer.conv1d.weight.val();
        let parts = [sizes.key_dim(), sizes.key_dim(), value_dim];
        let x = convolved.clone();
        let y = tree_causal_conv1d_split(x, weight, context.recurrence(), None, parts, options);
        // All three, so that all are differentiated.
        Tensor::cat(y.outputs.to_vec(), 2)
    });
    times.time("norm of keys", 0.0, || {
        l2_norm(inputs.heads(key.clone(), sizes.num_key_heads), 1e-6)
    });
    times.time("decay", 0.0, || {
        decay_gate(gates.clone(), layer.a_log.val(), layer.dt_bias.val())
    });
    let (rule_heads, dtype) = (DeltaRuleHeads::from(sizes), inputs.dtype.into());
    let (recurrence, device) = (context.recurrence(), &inputs.device);
    let delta_rule =
        DeltaRuleInputs::random(recurrence, rule_heads, dtype, Default::default(), device)
            .expect("what the model runs");
    times.time_delta_rule(rule_heads, &delta_rule);
    times.time("gated norm", 0.0, || {
        let value = inputs.heads(value.clone(), heads);
        gated_rms_norm(
            value.clone(),
            value,
            layer.norm.weight.val(),
            config.rms_norm_eps,
        )
    });
    times.time(
        "output projection",
        inputs.product(value_dim, hidden),
        || linear(value.clone(), layer.out_proj.weight.val()),
    );
}
