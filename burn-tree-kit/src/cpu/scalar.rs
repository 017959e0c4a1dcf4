//! Storage types of tensors and the types of their arithmetic.

use std::fmt::Debug;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

use burn::tensor::{bf16, f16};

/// A type of arithmetic: f32 or f64.
pub trait Real:
    Copy
    + Debug
    + Default
    + PartialOrd
    + Send
    + Sync
    + Add<Output = Self>
    + AddAssign
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + 'static
{
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// Negative infinity.
    const NEG_INFINITY: Self;

    /// `value`, rounded to this type.
    fn from_f64(value: f64) -> Self;
    /// `e^x`, exactly 0 for negative infinity. In f32 without branches, so that loops vectorise.
    fn exp(self) -> Self;
    /// Natural logarithm.
    fn ln(self) -> Self;
    /// Hyperbolic tangent.
    fn tanh(self) -> Self;
    /// Sine and cosine.
    fn sin_cos(self) -> (Self, Self);
    /// The angle `position * frequency` in radians, rounded to this type.
    fn angle(position: i64, frequency: Self) -> Self;
}

impl Real for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const NEG_INFINITY: Self = f32::NEG_INFINITY;

    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value as f32
    }

    /// `2^n e^r` with `x = n ln 2 + r`, `|r| <= ln 2 / 2`, the polynomial for `e^r` of Cephes
    /// (Moshier): within 2 ulp. Below the smallest normal number the result is 0.
    #[inline(always)]
    fn exp(self) -> Self {
        const LOWEST: f32 = -87.336_54;
        const HIGHEST: f32 = 88.722_83;
        // A value with few bits, so that its products with integers are exact.
        const LN_2_HIGH: f32 = 355.0 / 512.0;
        const LN_2_LOW: f32 = -2.121_944_4e-4;
        // 1.5 * 2^23: adding it rounds to an integer in the low bits.
        const ROUND: f32 = 12_582_912.0;
        let x = if self > LOWEST { self } else { LOWEST };
        let x = if x < HIGHEST { x } else { HIGHEST };
        let shifted = x * std::f32::consts::LOG2_E + ROUND;
        let n = shifted - ROUND;
        let r = x - n * LN_2_HIGH - n * LN_2_LOW;
        let mut p = 1.987_569_1e-4;
        p = p * r + 1.398_199_9e-3;
        p = p * r + 8.333_452e-3;
        p = p * r + 4.166_579_6e-2;
        p = p * r + 1.666_666_5e-1;
        p = p * r + 0.5;
        let e = p * r * r + r + 1.0;
        let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
        let value = e * power;
        let value = if self < LOWEST { 0.0 } else { value };
        // Comparisons above replaced NaN.
        if self.is_nan() { self } else { value }
    }

    #[inline(always)]
    fn ln(self) -> Self {
        f32::ln(self)
    }

    /// `1 - 2 / (e^2x + 1)`, with an absolute error of 1e-7.
    #[inline(always)]
    fn tanh(self) -> Self {
        1.0 - 2.0 / (Real::exp(2.0 * self) + 1.0)
    }

    #[inline(always)]
    fn sin_cos(self) -> (Self, Self) {
        f32::sin_cos(self)
    }

    #[inline(always)]
    fn angle(position: i64, frequency: Self) -> Self {
        position as f32 * frequency
    }
}

impl Real for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const NEG_INFINITY: Self = f64::NEG_INFINITY;

    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value
    }

    #[inline(always)]
    fn exp(self) -> Self {
        f64::exp(self)
    }

    #[inline(always)]
    fn ln(self) -> Self {
        f64::ln(self)
    }

    #[inline(always)]
    fn tanh(self) -> Self {
        f64::tanh(self)
    }

    #[inline(always)]
    fn sin_cos(self) -> (Self, Self) {
        f64::sin_cos(self)
    }

    #[inline(always)]
    fn angle(position: i64, frequency: Self) -> Self {
        position as f64 * frequency
    }
}

/// An element type of tensors.
pub trait Storage: Copy + Default + Send + Sync + 'static {
    /// The type of its arithmetic.
    type Compute: Real;
    /// The same value in the type of its arithmetic.
    fn widen(self) -> Self::Compute;
    /// `value`, rounded to this type.
    fn narrow(value: Self::Compute) -> Self;
    /// The values without a copy, if storage and arithmetic have the same type.
    fn as_compute(values: &[Self]) -> Option<&[Self::Compute]>;
    /// Computed values, rounded to this type.
    fn from_compute(values: Vec<Self::Compute>) -> Vec<Self>;
}

macro_rules! stored_as_computed {
    ($type:ty) => {
        impl Storage for $type {
            type Compute = $type;
            #[inline(always)]
            fn widen(self) -> $type {
                self
            }
            #[inline(always)]
            fn narrow(value: $type) -> Self {
                value
            }
            fn as_compute(values: &[Self]) -> Option<&[$type]> {
                Some(values)
            }
            fn from_compute(values: Vec<$type>) -> Vec<Self> {
                values
            }
        }
    };
}

macro_rules! stored_in_half {
    ($type:ty) => {
        impl Storage for $type {
            type Compute = f32;
            #[inline(always)]
            fn widen(self) -> f32 {
                self.to_f32()
            }
            #[inline(always)]
            fn narrow(value: f32) -> Self {
                <$type>::from_f32(value)
            }
            fn as_compute(_values: &[Self]) -> Option<&[f32]> {
                None
            }
            fn from_compute(values: Vec<f32>) -> Vec<Self> {
                values.into_iter().map(<$type>::from_f32).collect()
            }
        }
    };
}

stored_as_computed!(f32);
stored_as_computed!(f64);
stored_in_half!(f16);
stored_in_half!(bf16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_ulp_and_exact_at_the_ends() {
        let mut x = -87.0f32;
        while x < 88.0 {
            let (ours, exact) = (Real::exp(x), f64::from(x).exp());
            // 2 ulp of f32 are a relative error of 2.4e-7.
            assert!(
                (f64::from(ours) / exact - 1.0).abs() < 2.4e-7,
                "exp({x}) = {ours}, not {exact}"
            );
            x += 0.013;
        }
        assert_eq!(Real::exp(0.0f32), 1.0);
        assert_eq!(Real::exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(Real::exp(-1e30f32), 0.0);
        assert!(Real::exp(f32::NAN).is_nan());
    }

    #[test]
    fn tanh_is_within_2e_7() {
        let mut x = -20.0f32;
        while x < 20.0 {
            assert!(
                (f64::from(Real::tanh(x)) - f64::from(x).tanh()).abs() < 2e-7,
                "tanh({x})"
            );
            x += 0.011;
        }
    }
}
