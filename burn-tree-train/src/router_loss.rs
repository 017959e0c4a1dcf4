//! Load-balancing loss of mixture-of-experts models on trees.
//!
//! Over the tokens of all trajectories and all mixture layers, `f_e` is the number of times that
//! expert `e` was chosen and `P_e` the sum of its probabilities, both divided by the number of
//! tokens times layers. The loss is `E * sum_e f_e P_e`. On a tree, a token counts in `f`, in `P`
//! and in the denominator once per trajectory that contains it.
//!
//! Because of the product, the loss of an optimizer step is not the sum of the losses of its packs.
//! [`RouterLoad`] therefore collects `f` and the denominator first, in a forward pass without
//! gradients. [`load_balancing_loss`] is then linear in the probabilities, and is summed over
//! packs. With the load of one pack it is the loss of that pack.

use burn::tensor::{Tensor, TensorData};

use crate::RouterOutput;

/// The number of times each expert was chosen, over any number of packs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RouterLoad {
    /// `[E]` choices, each counted by the multiplicity of its token.
    counts: Vec<f64>,
    /// Sum over layers and tokens of the multiplicity.
    total: f64,
}

impl RouterLoad {
    /// Adds a pack: the routing of each mixture layer, and `multiplicity [B * N]`, the number of
    /// trajectories that contain each token (0 in padding).
    ///
    /// # Panics
    ///
    /// If lengths or numbers of experts differ.
    pub fn add(&mut self, routers: &[RouterOutput], multiplicity: &[f32]) {
        for router in routers {
            let [tokens, experts] = router.probabilities.dims();
            let [_, choices] = router.experts.dims();
            assert_eq!(
                tokens,
                multiplicity.len(),
                "{tokens} tokens are routed, the multiplicities are {}",
                multiplicity.len()
            );
            assert!(
                self.counts.is_empty() || self.counts.len() == experts,
                "a layer has {experts} experts, an earlier one {}",
                self.counts.len()
            );
            self.counts.resize(experts, 0.0);
            let chosen = router.experts.to_data();
            for (choice, expert) in chosen.iter::<i64>().enumerate() {
                self.counts[expert as usize] += f64::from(multiplicity[choice / choices]);
            }
            self.total += multiplicity.iter().map(|&m| f64::from(m)).sum::<f64>();
        }
    }

    /// `[E]` share of each expert in the choices; the shares sum to the number of experts per
    /// token.
    pub fn fractions(&self) -> Vec<f64> {
        self.counts.iter().map(|count| count / self.total).collect()
    }
}

/// Contribution of a pack to the load-balancing loss of the step that `load` was collected over,
/// `[1]`: `E * sum_e f_e * (sum_{layers, tokens} multiplicity * p_e) / total`, without the
/// coefficient of the loss.
///
/// # Panics
///
/// If `routers` is empty, or lengths or numbers of experts differ from those of `load`.
pub fn load_balancing_loss(
    routers: &[RouterOutput],
    multiplicity: &[f32],
    load: &RouterLoad,
) -> Tensor<1> {
    let probabilities = |router: &RouterOutput| router.probabilities.clone();
    let first = probabilities(routers.first().expect("a layer with experts"));
    let (device, dtype) = (first.device(), first.dtype());
    let [tokens, experts] = first.dims();
    assert_eq!(tokens, multiplicity.len(), "multiplicities of all tokens");
    assert_eq!(experts, load.counts.len(), "experts of the load");
    let row = |values: Vec<f64>, shape: [usize; 2]| {
        Tensor::<2>::from_data(TensorData::new(values, shape), (&device, dtype))
    };
    let scale = experts as f64 / load.total;
    let fractions = load.fractions().iter().map(|f| f * scale).collect();
    let multiplicity = multiplicity.iter().map(|&m| f64::from(m)).collect();
    let multiplicity = row(multiplicity, [1, tokens]);
    let fractions = row(fractions, [experts, 1]);
    routers
        .iter()
        .map(|router| multiplicity.clone().matmul(probabilities(router)))
        .reduce(|sum, layer| sum + layer)
        .expect("checked above")
        .matmul(fractions)
        .reshape([1])
}
