//! Parameters and gradients of a module by name, on the host.

use std::collections::BTreeMap;
use std::fmt;

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

/// A tensor on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct HostTensor {
    /// Sizes of the dimensions.
    pub shape: Vec<usize>,
    /// Values in row-major order.
    pub values: Vec<f64>,
}

impl HostTensor {
    /// Reads a tensor back.
    pub fn read<const D: usize>(tensor: &Tensor<D>) -> Self {
        let data = tensor.clone().into_data().convert::<f64>();
        Self {
            shape: tensor.dims().to_vec(),
            values: data.try_into_vec().expect("just converted to f64"),
        }
    }

    /// Euclidean norm.
    pub fn norm(&self) -> f64 {
        self.values
            .iter()
            .map(|value| value * value)
            .sum::<f64>()
            .sqrt()
    }

    /// Euclidean norm of the difference.
    ///
    /// # Panics
    /// If the shapes differ.
    pub fn distance(&self, other: &Self) -> f64 {
        assert_eq!(self.shape, other.shape, "shapes differ");
        let squares = self
            .values
            .iter()
            .zip(&other.values)
            .map(|(a, b)| (a - b) * (a - b));
        squares.sum::<f64>().sqrt()
    }
}

/// Tensors by the path of their parameter in the module, such as `blocks.0.q_proj.weight`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamedTensors(pub BTreeMap<String, HostTensor>);

/// Tolerances of two sets of tensors.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// Largest `||a - b|| / ||b||` of a tensor.
    pub relative: f64,
    /// Smallest norm of a tensor in the relative difference, as a share of the norm of all tensors:
    /// where terms cancel (queries and keys of a sequence of one token), the tensor is only
    /// rounding and has no relative precision.
    pub floor: f64,
    /// Whether tensors that are expected to be zero must be exactly zero.
    pub exact_zeros: bool,
}

impl NamedTensors {
    /// The parameters of a module.
    pub fn parameters<M: Module>(module: &M) -> Self {
        let mut reader = Reader {
            gradients: None,
            path: Vec::new(),
            tensors: Self::default(),
        };
        module.visit(&mut reader);
        reader.tensors
    }

    /// The gradients of the parameters of a module; zero if there is none.
    pub fn gradients<M: Module>(module: &M, gradients: &GradientsParams) -> Self {
        let gradients = Some(gradients);
        let mut reader = Reader {
            gradients,
            path: Vec::new(),
            tensors: Self::default(),
        };
        module.visit(&mut reader);
        reader.tensors
    }

    /// Differences by name.
    ///
    /// # Panics
    /// If a name is missing.
    pub fn minus(&self, other: &Self) -> Self {
        let difference = |(name, tensor): (&String, &HostTensor)| {
            let values = tensor.values.iter().zip(&other.0[name].values);
            let values = values.map(|(a, b)| a - b).collect();
            (
                name.clone(),
                HostTensor {
                    shape: tensor.shape.clone(),
                    values,
                },
            )
        };
        Self(self.0.iter().map(difference).collect())
    }

    /// Checks that the gradients of unused parameters are exactly zero: rows of embeddings whose
    /// token does not occur, and experts that no token chose.
    ///
    /// # Errors
    /// The first such row or matrix.
    pub fn check_untouched_rows(&self, expected: &Self) -> Result<(), String> {
        let is_table = |name: &&String| name.contains("embed") || name.contains("experts");
        for name in self.0.keys().filter(is_table) {
            let (found, expected) = (&self.0[name], &expected.0[name]);
            let size = found.values.len() / found.shape[0];
            let rows = found.values.chunks(size).zip(expected.values.chunks(size));
            for (index, (found, expected)) in rows.enumerate() {
                let zero = |values: &[f64]| values.iter().all(|&value| value == 0.0);
                if zero(expected) && !zero(found) {
                    return Err(format!("{name}[{index}] must be zero"));
                }
            }
        }
        Ok(())
    }

    /// Euclidean norm of all numbers.
    pub fn norm(&self) -> f64 {
        self.0
            .values()
            .map(|tensor| tensor.norm().powi(2))
            .sum::<f64>()
            .sqrt()
    }

    /// The tensor with the largest difference from `expected`.
    ///
    /// # Panics
    /// If the names or shapes differ.
    pub fn worst(&self, expected: &Self, floor: f64) -> Worst {
        let names = |tensors: &Self| tensors.0.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(self), names(expected), "names of the tensors");
        let floor = floor * expected.norm();
        let mut worst = Worst {
            name: String::new(),
            relative: -1.0,
            norm: 0.0,
        };
        for (name, tensor) in &self.0 {
            let expected = &expected.0[name];
            let (distance, norm) = (tensor.distance(expected), expected.norm().max(floor));
            let relative = if distance == 0.0 {
                0.0
            } else {
                distance / norm
            };
            // NaN counts as the worst.
            if !relative.is_finite() || relative > worst.relative {
                worst = Worst {
                    name: name.clone(),
                    relative,
                    norm,
                };
                if !relative.is_finite() {
                    break;
                }
            }
        }
        worst
    }

    /// Checks every tensor against `expected`.
    ///
    /// # Errors
    /// The worst tensor, or the first one that is not zero as expected.
    pub fn check(&self, expected: &Self, tolerance: Tolerance) -> Result<Worst, String> {
        let worst = self.worst(expected, tolerance.floor);
        if tolerance.exact_zeros {
            for (name, tensor) in &self.0 {
                let should_be_zero = expected.0[name].values.iter().all(|&value| value == 0.0);
                if should_be_zero && tensor.values.iter().any(|&value| value != 0.0) {
                    return Err(format!("{name} must be zero, has norm {:e}", tensor.norm()));
                }
            }
        }
        // Not `>`, so that NaN fails.
        if worst.relative <= tolerance.relative {
            Ok(worst)
        } else {
            Err(format!("{worst}, allowed {:e}", tolerance.relative))
        }
    }
}

/// The tensor with the largest difference.
#[derive(Clone, Debug)]
pub struct Worst {
    /// Its name.
    pub name: String,
    /// `||a - b|| / ||b||`.
    pub relative: f64,
    /// `||b||`, or the smallest norm.
    pub norm: f64,
}

impl fmt::Display for Worst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} differs by {:.2e} of {:.2e}",
            self.name, self.relative, self.norm
        )
    }
}

struct Reader<'a> {
    /// Reads the gradients instead of the parameters.
    gradients: Option<&'a GradientsParams>,
    path: Vec<String>,
    tensors: NamedTensors,
}

impl ModuleVisitor for Reader<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        let tensor = match self.gradients.map(|gradients| gradients.get::<D>(param.id)) {
            None => HostTensor::read(&value),
            Some(Some(gradient)) => HostTensor::read(&gradient),
            Some(None) => {
                let shape = value.dims().to_vec();
                HostTensor {
                    values: vec![0.0; shape.iter().product()],
                    shape,
                }
            }
        };
        let previous = self.tensors.0.insert(self.path.join("."), tensor);
        assert!(
            previous.is_none(),
            "two parameters are called {}",
            self.path.join(".")
        );
    }
}
