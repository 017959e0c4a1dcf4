//! Kernels do not depend on the shapes of packs.

use burn::tensor::DType;
use burn_tree_attn::Implementation;

use super::{LAUNCHES, available, case};
use crate::support::{Case, computes_in};

/// Shapes of packs are arguments of kernels: fifty of them compile no more than one.
#[test]
fn other_shapes_compile_no_other_kernels() {
    use crate::support::direct;
    use cubecl::launched::LaunchedKernels;

    let Some(device) = direct::device() else {
        println!("skipped: there are no kernels for this device");
        return;
    };
    // On compute capability 9.0, head dimension 64 has kernels of its own.
    for (implementation, dtype, dim) in [
        (Implementation::Portable, DType::F32, 16),
        (Implementation::Accelerated, DType::BF16, 64),
        (Implementation::Accelerated, DType::F16, 80),
    ] {
        if !computes_in(dtype) || !available(dtype, dim, dim).contains(&implementation) {
            println!("skipped: {implementation:?} kernels, {dtype:?}, {dim}: not on this device");
            continue;
        }
        let _alone = LAUNCHES.write();
        let launched = |packs: &[Case]| {
            let call = |pack| direct::Call::new(pack, dtype, implementation, &device);
            let calls: Vec<_> = packs.iter().map(call).collect();
            let collection = LaunchedKernels::new();
            let results: Vec<_> = calls.into_iter().map(direct::Call::run).collect();
            let launched = collection.finish();
            for result in results.into_iter().flatten() {
                direct::values(result).unwrap();
            }
            launched
        };
        let one = case(vec![(None, 70), (Some(0), 9)], (dim, dim));
        let fifty: Vec<Case> = (1..=50usize)
            .map(|shape| {
                let nodes = (0..shape).map(|node| (node.checked_sub(1 + node % 2), 1 + node % 7));
                let mut pack = case(nodes.collect(), (dim, dim));
                pack.rows[0].past = (0..shape as u32 % 5 * 30)
                    .map(|key| (0.2, 0.7, key))
                    .collect();
                pack.padding = shape % 4;
                pack.kv_heads = 1 + shape % 3;
                if implementation == Implementation::Portable {
                    pack.group = 1 + shape % 4;
                }
                pack
            })
            .collect();
        let one = launched(&[one]);
        let fifty = launched(&fifty);
        assert!(!one.is_empty());
        assert_eq!(
            fifty.difference(&one).count(),
            0,
            "{implementation:?}, {dtype:?}, {dim}: besides {} kernels",
            one.len()
        );
        println!(
            "{implementation:?}, {dtype:?}, {dim}: {} kernels for {} packs",
            one.len(),
            51
        );
    }
}
