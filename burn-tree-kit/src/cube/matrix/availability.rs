//! Availability of the instructions of this module.

use burn::tensor::DType;
use cubecl::ir::features::MmaConfig;
use cubecl::ir::{ElemType, FloatKind};
use cubecl::prelude::*;

use super::PLANE;

/// The element type of operands of `dtype`: f16 or bf16. `None` for other dtypes.
pub fn operand(dtype: DType) -> Option<ElemType> {
    match dtype {
        DType::F16 => Some(ElemType::Float(FloatKind::F16)),
        DType::BF16 => Some(ElemType::Float(FloatKind::BF16)),
        _ => None,
    }
}

/// Describes the instructions for operands of type `element` that a device lacks; `None` if it has
/// all.
pub fn missing_instructions(properties: &DeviceProperties, element: ElemType) -> Option<String> {
    let features = &properties.features;
    let hardware = &properties.hardware;
    let product = MmaConfig {
        a_type: element,
        b_type: element,
        cd_type: ElemType::Float(FloatKind::F32),
        m: 16,
        n: 8,
        k: 16,
    };
    if !features.matmul.mma.contains(&product) {
        Some(format!(
            "no 16 x 8 x 16 products of {element} with f32 sums"
        ))
    } else if !features.matmul.ldmatrix.contains(&element) {
        Some("no ldmatrix".into())
    } else if !features.copy_async {
        Some("no asynchronous copies (CUDA needs CubeCL's C++ compiler)".into())
    } else if (hardware.plane_size_min, hardware.plane_size_max) != (PLANE as u32, PLANE as u32) {
        Some(format!("planes are not of {PLANE} units"))
    } else {
        None
    }
}
