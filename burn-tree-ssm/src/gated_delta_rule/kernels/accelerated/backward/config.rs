//! Sizes of the kernels of the backward pass.

use super::super::blocks::WindowConfig;
use super::super::place::PathConfig;

/// Bytes of shared memory that a cube of the backward pass needs at least.
pub(in super::super) fn shared_bytes(key_dim: usize, value_dim: usize) -> usize {
    let window = WindowConfig { key_dim, value_dim };
    [
        window.local_shared_bytes(),
        window.gradients_shared_bytes(),
        path_shared_bytes(path_config(&window, true, 2)),
        path_shared_bytes(path_config(&window, false, 2)),
    ]
    .into_iter()
    .max()
    .unwrap_or(0)
}

/// The larger of the needs of both kernels along paths.
pub(super) fn path_shared_bytes(config: PathConfig) -> usize {
    config
        .scan_shared_bytes()
        .max(config.reverse_shared_bytes())
}

/// The shape of the kernels along paths: planes in pairs make more cubes of the same work, which is
/// better while `few` do not fill the device.
pub(super) fn path_config(window: &WindowConfig, few: bool, stages: usize) -> PathConfig {
    PathConfig {
        key_dim: window.key_dim,
        value_dim: window.value_dim,
        planes: if few { 2 } else { 4 },
        stages,
    }
}
