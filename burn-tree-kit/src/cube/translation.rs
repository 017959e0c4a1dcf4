//! Translates kernels to CUDA C++ in tests, without a GPU.

use std::path::PathBuf;
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

/// The storage of bf16 tensors.
pub const BF16: ElemType = ElemType::Float(FloatKind::BF16);
/// The storage of f16 tensors.
pub const F16: ElemType = ElemType::Float(FloatKind::F16);

/// A name for the kernel, the kernel, and text that its CUDA source must contain (an instruction).
pub type Case = (String, Box<dyn CubeKernel>, &'static str);

/// The device that kernels are compiled for.
#[derive(Clone)]
pub struct Target {
    /// The properties of the device.
    pub device: Arc<DeviceProperties>,
    /// The register layouts of its matrix instructions.
    pub target: Arc<TargetProperties>,
}

impl Target {
    /// A GPU of compute capability 9.0, as CubeCL's CUDA runtime describes it.
    pub fn hopper() -> Self {
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

/// A buffer argument of a kernel.
pub fn buffer() -> BufferCompilationArg {
    BufferCompilationArg { inplace: None }
}

/// Settings of an unchecked kernel with cubes of `units` units and 32-bit addresses.
pub fn settings(units: usize) -> KernelSettings {
    let units = CubeDim::new_1d(units as u32);
    KernelSettings::new(units.into(), ExecutionMode::Unchecked, AddressType::U32)
}

/// Whether a kernel waits for groups of asynchronous copies while some copies are neither in a
/// group nor tracked by a barrier. The wait does not cover these copies, and only rare wrong
/// numbers on a device would show it.
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

/// Translates kernels to CUDA C++. Writes the sources to `folder`, if given, where `nvcc -cubin
/// -Xptxas -v` reports registers and spills.
///
/// # Panics
/// If a kernel does not translate, lacks its instruction, needs more shared memory than a cube of
/// compute capability 9.0 has, waits for copies without all of them, or has a buffer that CubeCL
/// considers unused, so that device failures would not propagate through the kernel.
pub fn assert_translate(cases: Vec<Case>, folder: Option<PathBuf>) {
    let options = CompilationOptions {
        supports_features: CppSupportedFeatures {
            grid_constants: true,
            fast_math: true,
            ..Default::default()
        },
        ..Default::default()
    };
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
        assert!(
            compiled.io.iter().all(|io| !io.is_dead()),
            "{name} has buffers that nobody would know to be read or written: {:?}",
            compiled.io
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
