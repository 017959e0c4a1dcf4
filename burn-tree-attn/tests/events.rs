//! Which implementation runs, as told to a subscriber: through the public functions, under autodiff
//! and, with the feature, Fusion.

mod support;

use burn::tensor::{DType, Tensor};
use burn_tree_attn::{
    ArgumentError, Implementation, TreeAttentionOptions, TreeMask, try_tree_attention,
};
use support::{Forest, computes_in, device, is_cubecl, random};
use tree_training_devices::Events;

/// The one test of this binary: its subscriber is that of the process, because Fusion may run
/// operations on another thread.
#[test]
fn the_requested_implementation_runs() {
    let events = Events::of(burn_tree_kit::implementation::TARGET);
    tracing::subscriber::set_global_default(events.clone()).unwrap();
    let device = device();
    let mask = TreeMask::from_layouts(
        &[Forest(vec![(None, 9), (Some(0), 4)]).layout()],
        15,
        &device,
    );
    let run = |implementation, dtype| {
        let options = TreeAttentionOptions {
            implementation,
            ..Default::default()
        };
        let leaf =
            |seed| Tensor::from_inner(random([1, 2, 15, 64], seed, dtype, &device)).require_grad();
        let (query, key, value) = (leaf(1), leaf(2), leaf(3));
        let output = try_tree_attention(query.clone(), key, value, &mask, options)?;
        let gradients = output.sum().backward();
        query.grad(&gradients).unwrap().into_data();
        Ok::<_, ArgumentError>(events.take())
    };
    let both = |name: &str| {
        ["forward", "backward"]
            .map(|pass| format!("tree_attention {pass} {name}"))
            .to_vec()
    };
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        if !computes_in(dtype) {
            continue;
        }
        let accelerated = run(Implementation::Accelerated, dtype);
        let portable = run(Implementation::Portable, dtype);
        let automatic = run(Implementation::Automatic, dtype).unwrap();
        let generic = run(Implementation::Generic, dtype).unwrap();
        if !is_cubecl() {
            assert!(accelerated.is_err() && portable.is_err());
            continue;
        }
        assert_eq!(portable.unwrap(), both("portable"));
        assert_eq!(generic, both("generic"));
        match accelerated {
            Ok(accelerated) => {
                assert_eq!(accelerated, both("accelerated"));
                assert_eq!(automatic, both("accelerated"));
            }
            Err(_) => assert_eq!(automatic, both("portable")),
        }
    }
}
