//! What the tests that translate kernels share.

/// A kernel of `$units` units on a target, with its arguments, which are nothing to a compiler if
/// they are numbers at run time.
macro_rules! kernel {
    ($target:expr, $kernel:path, $units:expr, $($argument:expr),* $(,)?) => {{
        use $kernel as Kernel;
        let (device, target) = ($target.device.clone(), $target.target.clone());
        let settings = burn_tree_kit::cube::translation::settings($units as usize);
        let kernel = Kernel::new(settings, device, target, $($argument),*);
        Box::new(kernel) as Box<dyn cubecl::prelude::CubeKernel>
    }};
}

pub(super) use kernel;
