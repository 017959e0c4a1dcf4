//! Checks of the arguments, before dispatch.

use burn::tensor::{Int, Tensor};
use burn_tree_kit::check::{ArgumentError, Check};

use super::settings::RopeConfig;

const CHECK: Check = Check { op: "rope" };

/// Refuses arguments that do not fit. Returns the number of rotated dimensions.
pub(super) fn check(
    x: &Tensor<4>,
    position_ids: &Tensor<2, Int>,
    config: &RopeConfig,
) -> Result<usize, ArgumentError> {
    let [batch, _, queries, head_dim] = x.dims();
    let rotary_dim = config.rotary_dim.unwrap_or(head_dim);
    let refuse = |argument, value, expected| {
        Err(ArgumentError::Number {
            op: CHECK.op,
            argument,
            value,
            expected,
        })
    };
    if rotary_dim == 0 || !rotary_dim.is_multiple_of(2) {
        let expected = match config.rotary_dim {
            Some(_) => "a positive even number",
            None => "a positive even number (if None, the head dimension)",
        };
        return refuse("rotary_dim", rotary_dim as f64, expected);
    }
    if rotary_dim > head_dim {
        return Err(ArgumentError::Shape {
            op: CHECK.op,
            tensor: "x",
            found: x.dims().to_vec(),
            expected: format!("head dimension at least {rotary_dim} (rotary_dim)"),
        });
    }
    if !(config.theta.is_finite() && config.theta > 0.0) {
        return refuse("theta", config.theta, "a positive finite number");
    }
    let mut numbers = config.scaling.inverse_frequencies(config.theta, rotary_dim);
    numbers.push(config.scaling.attention_factor());
    if let Some(&number) = numbers.iter().find(|number| !number.is_finite()) {
        return refuse("scaling", number, "numbers that give finite angles");
    }
    CHECK.shape(
        "position_ids",
        &position_ids.dims(),
        &[batch, queries],
        "[B, N] of x",
    )?;
    CHECK.float("x", x.dtype())?;
    CHECK.same_device("position_ids", position_ids.device(), "x", x.device())?;
    Ok(rotary_dim)
}
