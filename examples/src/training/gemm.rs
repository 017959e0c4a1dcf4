//! The machine's rate in plain matrix products, against which a training step is judged.

use std::time::Instant;

use burn::tensor::{Device, Distribution, Tensor};

/// Median FLOP/s of `[rows, inner] x [inner, columns]` in f32 on `device` over `repetitions`
/// products, after two that warm up.
pub fn gemm_flops_per_second(
    device: &Device,
    [rows, inner, columns]: [usize; 3],
    repetitions: usize,
) -> f64 {
    let random = |shape| Tensor::<2>::random(shape, Distribution::Default, device);
    let (left, right) = (random([rows, inner]), random([inner, columns]));
    let run = || {
        let start = Instant::now();
        let product = left.clone().matmul(right.clone());
        // Reading one value back waits for the device.
        let _ = product.slice([0..1, 0..1]).into_data();
        start.elapsed().as_secs_f64()
    };
    for _ in 0..2 {
        run();
    }
    let seconds = median((0..repetitions.max(1)).map(|_| run()).collect());
    2.0 * rows as f64 * inner as f64 * columns as f64 / seconds
}

/// The middle value, or the mean of the two in the middle. NaN if there are none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    if n == 0 {
        f64::NAN
    } else if n % 2 == 1 {
        values[n / 2]
    } else {
        (values[n / 2 - 1] + values[n / 2]) / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_even_and_no_values() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(vec![]).is_nan());
    }

    #[test]
    fn a_rate_is_measured() {
        let rate = gemm_flops_per_second(&Device::flex(), [64, 64, 64], 3);
        assert!(rate.is_finite() && rate > 0.0);
    }
}
