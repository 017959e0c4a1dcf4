//! How the angles of a rotary embedding are stretched for texts longer than those it was trained on.

use std::f64::consts::TAU;

/// Scaling of the rotary embedding.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum RopeScaling {
    /// None: pair `i` turns by `theta^(-2 i / d)` a position.
    #[default]
    None,
    /// All pairs turn more slowly by the same factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// That of Llama 3.1: slow pairs turn more slowly, fast ones as before.
    Llama3(Llama3Scaling),
    /// YaRN (Peng et al., 2023): as that of Llama 3.1 with another transition, and larger scores.
    Yarn(YarnScaling),
}

/// Numbers of Llama 3's scaling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Llama3Scaling {
    /// By how much slow pairs are slowed down.
    pub factor: f64,
    /// Pairs with fewer turns over the original length are slow.
    pub low_freq_factor: f64,
    /// Pairs with more turns over the original length stay.
    pub high_freq_factor: f64,
    /// Positions of the original length.
    pub original_max_position_embeddings: f64,
}

/// Numbers of YaRN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct YarnScaling {
    /// By how much slow pairs are slowed down.
    pub factor: f64,
    /// Positions of the original length.
    pub original_max_position_embeddings: f64,
    /// Pairs with more turns over the original length stay.
    pub beta_fast: f64,
    /// Pairs with fewer turns over the original length are slow.
    pub beta_slow: f64,
    /// Whether the transition begins and ends at a whole pair.
    pub truncate: bool,
    /// Factor of cosines and sines, so that scores get its square.
    pub attention_factor: f64,
}

impl RopeScaling {
    /// What the pairs of `rotary_dim` dimensions turn by, from one position to the next.
    pub fn inverse_frequencies(&self, theta: f64, rotary_dim: usize) -> Vec<f64> {
        let dim = rotary_dim as f64;
        let plain = (0..rotary_dim / 2).map(|pair| theta.powf(-2.0 * pair as f64 / dim));
        match self {
            Self::None => plain.collect(),
            Self::Linear { factor } => plain.map(|frequency| frequency / factor).collect(),
            Self::Llama3(scaling) => plain.map(|frequency| scaling.scaled(frequency)).collect(),
            Self::Yarn(scaling) => {
                let (low, high) = scaling.transition(theta, dim);
                plain
                    .enumerate()
                    .map(|(pair, frequency)| {
                        let slow = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
                        frequency / scaling.factor * slow + frequency * (1.0 - slow)
                    })
                    .collect()
            }
        }
    }

    /// Factor of cosines and sines.
    pub fn attention_factor(&self) -> f64 {
        match self {
            Self::Yarn(scaling) => scaling.attention_factor,
            Self::None | Self::Linear { .. } | Self::Llama3(_) => 1.0,
        }
    }
}

impl Llama3Scaling {
    fn scaled(&self, frequency: f64) -> f64 {
        let turns = self.original_max_position_embeddings * frequency / TAU;
        let (low, high) = (self.low_freq_factor, self.high_freq_factor);
        if turns > high {
            frequency
        } else if turns < low {
            frequency / self.factor
        } else {
            let share = (turns - low) / (high - low);
            (1.0 - share) * frequency / self.factor + share * frequency
        }
    }
}

impl YarnScaling {
    /// The factor of cosines and sines that YaRN proposes, if none is given.
    pub fn default_attention_factor(factor: f64) -> f64 {
        Self::magnitude(factor, 1.0)
    }

    /// The same from the numbers `mscale` and `mscale_all_dim` of a configuration.
    pub fn attention_factor_of(factor: f64, mscale: f64, mscale_all_dim: f64) -> f64 {
        Self::magnitude(factor, mscale) / Self::magnitude(factor, mscale_all_dim)
    }

    fn magnitude(factor: f64, scale: f64) -> f64 {
        match factor <= 1.0 {
            true => 1.0,
            false => 0.1 * scale * factor.ln() + 1.0,
        }
    }

    /// The pairs between which the transition is.
    fn transition(&self, theta: f64, dim: f64) -> (f64, f64) {
        let pair_with = |turns: f64| {
            let ratio = self.original_max_position_embeddings / (TAU * turns);
            dim * ratio.ln() / (2.0 * theta.ln())
        };
        let (mut low, mut high) = (pair_with(self.beta_fast), pair_with(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(dim - 1.0));
        if low == high {
            high += 0.001;
        }
        (low, high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_close(found: &[f64], expected: &[f64]) {
        for (found, expected) in found.iter().zip(expected) {
            assert!(
                (found / expected - 1.0).abs() < 1e-9,
                "{found} instead of {expected}"
            );
        }
    }

    const LLAMA3: Llama3Scaling = Llama3Scaling {
        factor: 32.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 64.0,
    };

    const YARN: YarnScaling = YarnScaling {
        factor: 4.0,
        original_max_position_embeddings: 32.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        truncate: true,
        attention_factor: 1.0,
    };

    /// Values of the reference implementation.
    #[test]
    fn frequencies_of_llama_3() {
        let frequencies = RopeScaling::Llama3(LLAMA3).inverse_frequencies(5e5, 32);
        let expected = [1.0, 0.440366602672, 0.067133037511, 0.00266865938393];
        assert_close(&frequencies, &expected);
        assert_eq!(frequencies.len(), 16);
        let scaling = Llama3Scaling {
            factor: 8.0,
            original_max_position_embeddings: 32.0,
            ..LLAMA3
        };
        let frequencies = RopeScaling::Llama3(scaling).inverse_frequencies(1e4, 16);
        let expected = [1.0, 0.095839985883, 0.0125, 0.00395284707521];
        assert_close(&frequencies, &expected);
    }

    #[test]
    fn frequencies_of_linear_scaling() {
        let frequencies = RopeScaling::Linear { factor: 4.0 }.inverse_frequencies(1e4, 4);
        assert_close(&frequencies, &[0.25, 0.0025]);
    }

    /// Values of the reference implementation.
    #[test]
    fn frequencies_of_yarn() {
        for (scaling, expected) in [
            (
                YARN,
                [1.0, 0.421755993893, 0.158113883008, 0.044456985251, 0.025],
            ),
            (
                YarnScaling {
                    truncate: false,
                    ..YARN
                },
                [1.0, 0.413199237, 0.148490247, 0.04445698525, 0.025],
            ),
            (
                YarnScaling {
                    beta_fast: 4.0,
                    beta_slow: 0.5,
                    ..YARN
                },
                [1.0, 0.4779901264, 0.2213594362, 0.09780536755, 0.04],
            ),
            (
                YarnScaling {
                    beta_fast: 2.0,
                    beta_slow: 0.5,
                    truncate: false,
                    ..YARN
                },
                [1.0, 0.5623413252, 0.2791745471, 0.1016102942, 0.02599659159],
            ),
        ] {
            let frequencies = RopeScaling::Yarn(scaling).inverse_frequencies(1e4, 32);
            for (found, expected) in frequencies.iter().zip(expected) {
                assert!((found / expected - 1.0).abs() < 2e-9, "{frequencies:?}");
            }
        }
    }

    #[test]
    fn factors_of_the_scores() {
        let default = YarnScaling::default_attention_factor(4.0);
        assert!((default - 1.138629436111989).abs() < 1e-12);
        let given = YarnScaling::attention_factor_of(4.0, 0.707, 1.0);
        assert!((given - 0.964326914892074).abs() < 1e-12, "{given}");
        assert_eq!(YarnScaling::default_attention_factor(0.5), 1.0);
        assert_eq!(RopeScaling::Llama3(LLAMA3).attention_factor(), 1.0);
        assert_eq!(RopeScaling::Yarn(YARN).attention_factor(), 1.0);
    }
}
