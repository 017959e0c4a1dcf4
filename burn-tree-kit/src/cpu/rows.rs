//! Loops over rows of numbers that the compiler vectorises for the processor that runs them.

use super::scalar::Real;

/// Partial results per row: enough for the widest vectors.
const LANES: usize = 16;

/// Defines a function that is compiled for AVX-512, for AVX2 and without either; the widest version
/// that the processor supports runs. Functions that it calls must be `#[inline(always)]` to be
/// compiled with it.
#[macro_export]
#[doc(hidden)]
macro_rules! vectorised_fn {
    (
        $(#[$attribute:meta])*
        $visibility:vis fn $name:ident<$t:ident: $bound:ident>(
            $($argument:ident: $type:ty),* $(,)?
        ) $body:block
    ) => {
        $(#[$attribute])*
        $visibility fn $name<$t: $bound>($($argument: $type),*) {
            #[inline(always)]
            fn body<$t: $bound>($($argument: $type),*) $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
                fn with_avx512<$t: $bound>($($argument: $type),*) {
                    body($($argument),*)
                }
                #[target_feature(enable = "avx2")]
                fn with_avx2<$t: $bound>($($argument: $type),*) {
                    body($($argument),*)
                }
                if is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                {
                    // SAFETY: the processor has these instructions.
                    return unsafe { with_avx512($($argument),*) };
                }
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: the processor has these instructions.
                    return unsafe { with_avx2($($argument),*) };
                }
            }
            body($($argument),*)
        }
    };
}

/// Combines all values with `combine` in a fixed order: first into 16 partial results that begin
/// with `start`, then these. `start` must be the neutral element.
#[inline(always)]
pub fn fold<T: Real>(values: &[T], start: T, combine: impl Fn(T, T) -> T) -> T {
    let mut lanes = [start; LANES];
    let chunks = values.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = combine(*lane, value);
        }
    }
    for (lane, &value) in lanes.iter_mut().zip(rest) {
        *lane = combine(*lane, value);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = combine(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// The dot product of `a` and `b`, slices of the same length, in a fixed order.
#[inline(always)]
pub fn dot<T: Real>(a: &[T], b: &[T]) -> T {
    let mut lanes = [T::ZERO; LANES];
    let (mut left, mut right) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    for (a, b) in left.by_ref().zip(right.by_ref()) {
        for i in 0..LANES {
            lanes[i] += a[i] * b[i];
        }
    }
    for (i, (&a, &b)) in left.remainder().iter().zip(right.remainder()).enumerate() {
        lanes[i] += a * b;
    }
    fold(&lanes, T::ZERO, |a, b| a + b)
}
