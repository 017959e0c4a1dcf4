//! What cannot run is refused or an error.

use burn::tensor::{DType, Tensor};
use burn_tree_attn::{
    ArgumentError, Implementation, TreeAttentionOptions, TreeMask, try_tree_attention,
};

use super::{ALL, LAUNCHES, available};
use crate::support::{Forest, computes_in, device, is_cubecl, random};

/// More cubes than a launch can have.
#[test]
fn a_call_that_cannot_be_laid_out_is_refused() {
    let device = device();
    let mask = TreeMask::from_layouts(&[Forest(vec![(None, 1)]).layout()], 1, &device);
    for (implementation, dtype, reason) in [
        (
            Implementation::Portable,
            DType::F32,
            "too many for one launch",
        ),
        (Implementation::Accelerated, DType::F16, "2^32"),
    ] {
        if !computes_in(dtype) {
            continue;
        }
        let reason = match available(dtype, 16, 16).contains(&implementation) {
            true => reason,
            false => "",
        };
        // All heads are one in memory.
        let heads =
            || Tensor::<4>::zeros([1, 1, 1, 16], (&device, dtype)).expand([1, 1i64 << 32, 1, 16]);
        let options = TreeAttentionOptions {
            implementation,
            ..Default::default()
        };
        let error = try_tree_attention(heads(), heads(), heads(), &mask, options).unwrap_err();
        assert!(
            matches!(error, ArgumentError::Implementation { requested, .. } if requested == implementation)
                && error.to_string().contains(reason),
            "{error}"
        );
    }
}

/// A device that fails later than at the call has no results to read: whatever depends on what
/// failed is an error, nothing else is.
#[test]
fn a_failure_of_the_device_is_an_error_of_what_depends_on_it() {
    if !is_cubecl() {
        return;
    }
    let _launches = LAUNCHES.read();
    let device = device();
    let mask = TreeMask::from_layouts(&[Forest(vec![(None, 16)]).layout()], 16, &device);
    let leaf =
        |seed| Tensor::from_inner(random([1, 1, 16, 16], seed, DType::F32, &device)).require_grad();
    let (query, key, value) = (leaf(1), leaf(2), leaf(3));
    // 512 GiB of queries: no device has them.
    let options = TreeAttentionOptions::default();
    let queries = query.expand([1, 1 << 29, 16, 16]);
    let output = try_tree_attention(queries, key.clone(), value.clone(), &mask, options).unwrap();
    let gradients = output.clone().sum().backward();
    assert!(output.slice([0..1, 0..1]).try_into_data().is_err());
    for leaf in [key, value] {
        assert!(leaf.grad(&gradients).unwrap().try_into_data().is_err());
        assert!(leaf.try_into_data().is_ok());
    }
}

#[test]
fn an_implementation_that_cannot_run_is_refused() {
    let device = device();
    let mask = TreeMask::from_layouts(&[Forest(vec![(None, 2)]).layout()], 2, &device);
    // More than the kernels have registers for.
    let zeros = || Tensor::<4>::zeros([1, 1, 2, 5000], &device);
    let _launches = LAUNCHES.read();
    for implementation in ALL {
        let options = TreeAttentionOptions {
            implementation,
            ..Default::default()
        };
        let result = try_tree_attention(zeros(), zeros(), zeros(), &mask, options);
        match implementation {
            Implementation::Automatic | Implementation::Generic => {
                assert!(
                    result
                        .unwrap()
                        .into_data()
                        .iter::<f32>()
                        .all(|it| it == 0.0)
                );
            }
            requested => {
                let error = result.unwrap_err();
                assert!(
                    matches!(&error, ArgumentError::Implementation { requested: it, .. } if *it == requested),
                    "{error}"
                );
            }
        }
    }
}
