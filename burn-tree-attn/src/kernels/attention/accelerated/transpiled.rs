//! Translates the kernels to CUDA C++, for devices that need not be there: that they expand, that
//! their shared memory fits, and that no copies are left out where they wait for copies. If the
//! environment variable `BURN_TREE_ATTN_SOURCES` names a folder, the sources are written there, for
//! `nvcc -cubin -Xptxas -v` to tell registers and spills.

use std::sync::Arc;

use cubecl::benchmark::TimingMethod;
use cubecl::ir::features::Plane;
use cubecl::ir::*;
use cubecl::prelude::*;
use cubecl::{Compiler, define_kernel};
use cubecl_cpp::cuda::arch::CudaArchitecture;
use cubecl_cpp::cuda::mma::manual::contiguous_elements_cuda;
use cubecl_cpp::cuda::supported_mma_combinations;
use cubecl_cpp::shared::{
    CompilationOptions, CppCompiler, CppSupportedFeatures, register_mma_features,
};
use cubecl_cpp::target::Cuda;

use super::backward::transpiled::backward_kernels;
use super::forward::tree_attention_forward::TreeAttentionForward;
use super::forward_warpgroup::tree_attention_forward_warpgroup::TreeAttentionForwardWarpgroup;
use super::*;

const BF16: ElemType = ElemType::Float(FloatKind::BF16);
const F16: ElemType = ElemType::Float(FloatKind::F16);

/// A kernel and the matrix instruction that it is made of.
pub(super) type Case = (String, Box<dyn CubeKernel>, &'static str);

/// What kernels are compiled for.
#[derive(Clone)]
pub(super) struct Target {
    pub device: Arc<DeviceProperties>,
    pub target: Arc<TargetProperties>,
}

impl Target {
    /// As CubeCL's CUDA runtime describes a device of compute capability 9.0.
    fn hopper() -> Self {
        let hardware = HardwareProperties {
            load_width: 128,
            vector_register_count: None,
            plane_size_min: 32,
            plane_size_max: 32,
            max_bindings: 1024,
            max_shared_memory_size: 227 * 1024,
            max_cube_count: (i32::MAX as u32, 65535, 65535),
            max_units_per_cube: 1024,
            max_cube_dim: (1024, 1024, 64),
            num_streaming_multiprocessors: Some(132),
            num_tensor_cores: Some(4),
            min_tensor_cores_dim: Some(8),
            num_cpu_cores: None,
            last_level_cache_size: None,
            max_vector_size: VectorSize::MAX,
            cube_mma_reserved_shared_memory: 0,
        };
        let mut device = DeviceProperties::new(
            Default::default(),
            MemoryDeviceProperties::new(1 << 35, 512),
            hardware,
            TimingMethod::Device,
            DeviceIdentity {
                name: "compute capability 9.0".into(),
                fingerprint: "ptx_sm90".into(),
                physical: None,
            },
        );
        cubecl_cpp::register_supported_types(&mut device);
        device.features.plane.insert(Plane::Ops);
        device.features.plane.insert(Plane::Sync);
        device.features.copy_async = true;
        device.features.memory_reinterpret = true;
        device.features.alignment = true;
        device.features.matmul.ldmatrix.extend([BF16, F16]);
        let architecture = CudaArchitecture {
            version: 90,
            tensor_cores: true,
        };
        register_mma_features(supported_mma_combinations(&architecture), &mut device);
        let target = TargetProperties {
            mma: MmaProperties {
                register_size_bits: 32,
                const_plane_size: 32,
                register_layout_a: cubecl::cmma::MatrixLayout::RowMajor,
                register_layout_b: cubecl::cmma::MatrixLayout::ColMajor,
                register_layout_acc: cubecl::cmma::MatrixLayout::RowMajor,
                register_duplication_a: 1,
                register_duplication_b: 1,
                register_duplication_acc: 1,
                contiguous_elements: ContiguousElements::new(contiguous_elements_cuda),
            },
        };
        Self {
            device: Arc::new(device),
            target: Arc::new(target),
        }
    }
}

/// A buffer argument.
pub(super) fn buffer() -> BufferCompilationArg {
    BufferCompilationArg { inplace: None }
}

/// Settings of a kernel of `units` units, as launches make them.
pub(super) fn settings(units: usize) -> KernelSettings {
    let units = CubeDim::new_1d(units as u32);
    KernelSettings::new(units.into(), ExecutionMode::Unchecked, AddressType::U32)
}

fn forward_kernels(
    Target { device, target }: Target,
    head_dim: usize,
    group: usize,
    scores: ScoreMap,
    window: bool,
    dtype: ElemType,
) -> Vec<Case> {
    let b = buffer;
    let name = format!("forward_{head_dim}_{group}_{scores:?}_{window}_{dtype}");
    let config = forward_config(head_dim, group, scores, window);
    let kernel = TreeAttentionForward::new(
        settings(config.units()),
        device.clone(),
        target.clone(),
        b(),
        b(),
        b(),
        b(),
        b(),
        b(),
        b(),
        b(),
        b(),
        b(),
        b(),
        b(),
        (),
        (),
        (),
        (),
        (),
        (),
        (),
        config,
        dtype,
    );
    let mut cases: Vec<Case> = vec![(name.clone(), Box::new(kernel), "mma.sync")];
    if has_warpgroup_products(&device, head_dim) {
        let config = WarpgroupForwardConfig {
            head_dim,
            query_rows: config.query_rows,
            heads: config.heads,
            scores,
            window,
        };
        let kernel = TreeAttentionForwardWarpgroup::new(
            settings(config.units()),
            device,
            target,
            b(),
            b(),
            b(),
            b(),
            b(),
            b(),
            b(),
            b(),
            b(),
            b(),
            b(),
            b(),
            (),
            (),
            (),
            (),
            (),
            (),
            (),
            config,
            dtype,
        );
        cases.push((format!("{name}_warpgroup"), Box::new(kernel), "wgmma"));
    }
    cases
}

/// Whether, as the text goes, a kernel waits for groups of asynchronous copies while some copies
/// are neither in a group nor counted by a barrier: the wait is not for them, which nothing but a
/// rare wrong number on a device would tell.
fn waits_past_copies(source: &str) -> bool {
    let mut uncounted = false;
    for instruction in source.split("cp.async.").skip(1) {
        if instruction.starts_with("ca.") || instruction.starts_with("cg.") {
            uncounted = true;
        } else if instruction.starts_with("commit_group") || instruction.starts_with("mbarrier.") {
            uncounted = false;
        } else if instruction.starts_with("wait_group") && uncounted {
            return true;
        }
    }
    false
}

#[test]
fn kernels_translate_to_cuda() {
    let target = Target::hopper();
    let mut cases = Vec::new();
    for head_dim in [64, 80, 96, 128, 256] {
        assert_eq!(
            check_available(&target.device, DType::BF16, head_dim, head_dim),
            Ok(())
        );
        cases.extend(forward_kernels(
            target.clone(),
            head_dim,
            2,
            ScoreMap::Plain,
            false,
            BF16,
        ));
        cases.extend(forward_kernels(
            target.clone(),
            head_dim,
            8,
            ScoreMap::Capped,
            true,
            F16,
        ));
        cases.extend(backward_kernels(&target, head_dim, 2, false, BF16));
        cases.extend(backward_kernels(&target, head_dim, 1, true, F16));
    }
    cases.extend(forward_kernels(
        target.clone(),
        128,
        3,
        ScoreMap::Multiplied,
        false,
        BF16,
    ));

    let options = CompilationOptions {
        supports_features: CppSupportedFeatures {
            grid_constants: true,
            fast_math: true,
            ..Default::default()
        },
        ..Default::default()
    };
    let folder = std::env::var_os("BURN_TREE_ATTN_SOURCES").map(std::path::PathBuf::from);
    for (name, kernel, instruction) in cases {
        let definition = define_kernel(&*kernel).unwrap_or_else(|error| panic!("{name}: {error}"));
        let compiled = CppCompiler::<Cuda>::default().compile(definition, &options);
        let compiled = compiled.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(
            compiled.source.contains(instruction),
            "{name} without {instruction}"
        );
        assert!(
            !waits_past_copies(&compiled.source),
            "{name} waits for groups of copies but leaves some out"
        );
        let shared = compiled.shared_memory_size;
        assert!(
            shared <= 227 * 1024,
            "{name}: {shared} bytes of shared memory"
        );
        if let Some(folder) = &folder {
            std::fs::write(folder.join(format!("{name}.cu")), &compiled.source).unwrap();
        }
    }
}
