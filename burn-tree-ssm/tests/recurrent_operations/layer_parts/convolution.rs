//! Calls of the convolution with all their gradients.

use burn::tensor::{DType, Device, Tensor};
use burn_tree_ssm::causal_conv1d::reference;
use burn_tree_ssm::{
    CausalConv1dOptions, TreeRecurrence, tree_causal_conv1d, tree_causal_conv1d_split,
};

use crate::support::{device, random, reference_device, relative_error};

/// Inputs of a call and the gradients of its outputs, in f64 on the reference device.
#[derive(Clone)]
pub struct Inputs {
    pub recurrence: TreeRecurrence,
    pub silu: bool,
    pub x: Tensor<3>,
    pub weight: Tensor<2>,
    pub initial_tails: Option<Tensor<3>>,
    pub grad_output: Tensor<3>,
    pub grad_tails: Option<Tensor<3>>,
}

/// Outputs and gradients, on the reference device. Parts are put together again.
pub struct Results {
    pub output: Tensor<3>,
    pub tails: Option<Tensor<3>>,
    pub x: Tensor<3>,
    pub weight: Tensor<2>,
    pub initial_tails: Option<Tensor<3>>,
}

impl Inputs {
    pub fn random(
        recurrence: &TreeRecurrence,
        channels: usize,
        kernel_size: usize,
        silu: bool,
        seed: u64,
    ) -> Self {
        let [b, n] = [recurrence.batch_size(), recurrence.row_length()];
        let tails = |count: usize, seed| {
            let shape = [count, kernel_size - 1, channels];
            (count > 0 && kernel_size > 1).then(|| random(shape, seed))
        };
        Self {
            recurrence: recurrence.clone(),
            silu,
            x: random([b, n, channels], seed + 1),
            weight: random([channels, kernel_size], seed + 2),
            initial_tails: tails(recurrence.n_initial_states(), seed + 3),
            grad_output: random([b, n, channels], seed + 4),
            grad_tails: tails(recurrence.requested_rows().len(), seed + 5),
        }
    }

    /// The values that `dtype` represents; weights in `weight_dtype`.
    pub fn rounded(mut self, dtype: DType, weight_dtype: DType) -> Self {
        let round = |x: Tensor<3>| x.cast(dtype).cast(DType::F64);
        self.x = round(self.x);
        self.weight = self.weight.cast(weight_dtype).cast(DType::F64);
        self.initial_tails = self.initial_tails.map(round);
        self.grad_output = round(self.grad_output);
        self.grad_tails = self.grad_tails.map(round);
        self
    }

    /// Results of the definition, in f64.
    pub fn expected(&self) -> Results {
        let device = reference_device().autodiff();
        self.results(&device, [DType::F64; 2], |x, weight, tails, options| {
            let result = reference::tree_causal_conv1d(x, weight, &self.recurrence, tails, options);
            (vec![result.output], result.tails)
        })
    }

    /// Results on the device under test.
    pub fn found(&self, dtype: DType, weight_dtype: DType) -> Results {
        self.found_on(&device().autodiff(), dtype, weight_dtype)
    }

    pub fn found_on(&self, device: &Device, dtype: DType, weight_dtype: DType) -> Results {
        self.results(
            device,
            [dtype, weight_dtype],
            |x, weight, tails, options| {
                let result = tree_causal_conv1d(x, weight, &self.recurrence, tails, options);
                (vec![result.output], result.tails)
            },
        )
    }

    /// As [`found`](Self::found), with the output in parts.
    pub fn found_split(&self, parts: [usize; 3], dtype: DType) -> Results {
        let device = device().autodiff();
        self.results(&device, [dtype; 2], |x, weight, tails, options| {
            let result =
                tree_causal_conv1d_split(x, weight, &self.recurrence, tails, parts, options);
            for (output, part) in result.outputs.iter().zip(parts) {
                assert_eq!(output.dims()[2], part);
            }
            (result.outputs.into(), result.tails)
        })
    }

    fn results(
        &self,
        device: &Device,
        [dtype, weight_dtype]: [DType; 2],
        function: impl FnOnce(
            Tensor<3>,
            Tensor<2>,
            Option<Tensor<3>>,
            CausalConv1dOptions,
        ) -> (Vec<Tensor<3>>, Option<Tensor<3>>),
    ) -> Results {
        let x = on(&self.x, device, dtype).require_grad();
        let weight = on(&self.weight, device, weight_dtype).require_grad();
        let tails = |tails: &Tensor<3>| on(tails, device, dtype);
        let initial = self.initial_tails.as_ref().map(tails);
        let initial = initial.map(Tensor::require_grad);
        let options = CausalConv1dOptions { silu: self.silu };
        let (outputs, requested) = function(x.clone(), weight.clone(), initial.clone(), options);

        // A loss for each part, so that each has a gradient of its own.
        let grad_output = on(&self.grad_output, device, dtype);
        let mut first = 0;
        let mut losses = Vec::new();
        for output in &outputs {
            assert_eq!(output.dtype(), dtype);
            let channels = output.dims()[2];
            let grad = grad_output.clone().narrow(2, first, channels);
            losses.push((output.clone() * grad).sum());
            first += channels;
        }
        if let (Some(requested), Some(grad)) = (&requested, &self.grad_tails) {
            assert_eq!(requested.dtype(), dtype);
            losses.push((requested.clone() * tails(grad)).sum());
        }
        let grads = losses.into_iter().reduce(|a, b| a + b).unwrap().backward();
        let weight_grad = weight.grad(&grads).unwrap();
        assert_eq!(weight_grad.dtype(), weight_dtype);
        let outputs = outputs.into_iter().map(Tensor::inner).collect();
        Results {
            output: home(Tensor::cat(outputs, 2)),
            tails: requested.map(|tails| home(tails.inner())),
            x: home(x.grad(&grads).unwrap()),
            weight: home(weight_grad),
            initial_tails: initial.map(|tails| home(tails.grad(&grads).unwrap())),
        }
    }
}

impl Results {
    /// Checks outputs and gradients against tolerances (relative L2 errors).
    pub fn assert_close(&self, expected: &Self, forward: f64, backward: f64) {
        let close = |name: &str, found: &Tensor<3>, expected: &Tensor<3>, tolerance: f64| {
            let error = relative_error(found, expected);
            assert!(error <= tolerance, "{name}: relative error {error:.2e}");
        };
        let pairs = |found: &Option<Tensor<3>>, expected: &Option<Tensor<3>>| {
            assert_eq!(found.is_some(), expected.is_some());
            found.clone().zip(expected.clone())
        };
        close("output", &self.output, &expected.output, forward);
        // Tails are copies.
        if let Some((found, expected)) = pairs(&self.tails, &expected.tails) {
            close("tails", &found, &expected, 0.0);
        }
        close("gradient of x", &self.x, &expected.x, backward);
        let weights = [&self.weight, &expected.weight].map(|x| x.clone().unsqueeze());
        close("gradient of the weight", &weights[0], &weights[1], backward);
        if let Some((found, expected)) = pairs(&self.initial_tails, &expected.initial_tails) {
            close("gradient of the tails", &found, &expected, backward);
        }
    }

    /// The bytes of all results, by name.
    pub fn bytes(&self) -> Vec<(&'static str, Vec<u8>)> {
        let bytes = |tensor: &Tensor<3>| tensor.to_data().as_bytes().to_vec();
        let mut all = vec![
            ("output", bytes(&self.output)),
            ("gradient of x", bytes(&self.x)),
            (
                "gradient of the weight",
                bytes(&self.weight.clone().unsqueeze()),
            ),
        ];
        all.extend(self.tails.as_ref().map(|tails| ("tails", bytes(tails))));
        let gradient = self.initial_tails.as_ref();
        all.extend(gradient.map(|tails| ("gradient of the tails", bytes(tails))));
        all
    }
}

fn on<const D: usize>(tensor: &Tensor<D>, device: &Device, dtype: DType) -> Tensor<D> {
    Tensor::from_data(tensor.to_data().convert_dtype(dtype), (device, dtype))
}

fn home<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    let device = reference_device();
    let data = tensor.to_data().convert_dtype(DType::F64);
    Tensor::from_data(data, (&device, DType::F64))
}
