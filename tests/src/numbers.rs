//! Reproducible random values for tests.

use burn::tensor::DType;

/// Values in `-1..1` from a seed (SplitMix64), the same on every platform.
#[derive(Clone, Debug)]
pub struct Numbers {
    state: u64,
    dtype: DType,
}

impl Numbers {
    /// Values that `dtype` represents exactly.
    pub fn new(seed: u64, dtype: DType) -> Self {
        Self { state: seed, dtype }
    }

    /// The next value.
    fn draw(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let uniform = ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64;
        let number = 2.0 * uniform - 1.0;
        match self.dtype {
            DType::F64 => number,
            _ => f64::from(number as f32),
        }
    }

    /// `count` values.
    pub fn take(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| self.draw()).collect()
    }
}
