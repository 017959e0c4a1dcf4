//! Backend tensors with operators, so that equations can be read.

use std::ops::{Add, Mul, Neg, Range, Sub};

use burn::backend::{Backend, TensorMetadata, get_device_settings, tensor::FloatTensor};
use burn::tensor::{FloatDType, Shape, Slice, TensorData};

/// A float tensor of backend `B`; operators work element by element, repeating dimensions of size
/// 1.
pub(super) struct Array<B: Backend>(pub(super) FloatTensor<B>);

impl<B: Backend> Array<B> {
    pub(super) fn zeros<const D: usize>(
        shape: [usize; D],
        device: &burn::backend::tensor::Device<B>,
        dtype: FloatDType,
    ) -> Self {
        Self(B::float_zeros(Shape::new(shape), device, dtype))
    }

    pub(super) fn from_values<const D: usize>(
        values: Vec<f32>,
        shape: [usize; D],
        device: &burn::backend::tensor::Device<B>,
        dtype: FloatDType,
    ) -> Self {
        let values = B::float_from_data(TensorData::new(values, shape), device);
        Self(B::float_cast(values, dtype))
    }

    /// Size of dimension `dim`.
    pub(super) fn size(&self, dim: usize) -> usize {
        self.0.shape()[dim]
    }

    pub(super) fn cast(self, dtype: FloatDType) -> Self {
        Self(B::float_cast(self.0, dtype))
    }

    pub(super) fn reshape<const D: usize>(self, shape: [usize; D]) -> Self {
        Self(B::float_reshape(self.0, Shape::new(shape)))
    }

    pub(super) fn expand<const D: usize>(self, shape: [usize; D]) -> Self {
        Self(B::float_expand(self.0, Shape::new(shape)))
    }

    pub(super) fn swap(self, a: usize, b: usize) -> Self {
        Self(B::float_swap_dims(self.0, a, b))
    }

    /// Transposes the matrices of a `[.., .., rows, columns]`.
    pub(super) fn t(&self) -> Self {
        self.clone().swap(2, 3)
    }

    /// Products of matrices.
    pub(super) fn dot(&self, other: &Self) -> Self {
        Self(B::float_matmul(self.0.clone(), other.0.clone()))
    }

    pub(super) fn scale(self, factor: f64) -> Self {
        Self(B::float_mul_scalar(self.0, factor.into()))
    }

    pub(super) fn exp(self) -> Self {
        Self(B::float_exp(self.0))
    }

    /// `minimum` in place of smaller numbers; NaN stays.
    pub(super) fn at_least(self, minimum: f64) -> Self {
        let bool = get_device_settings::<B>(&self.0.device()).bool_dtype;
        let lower = B::float_lower_elem(self.0.clone(), minimum.into(), bool);
        Self(B::float_mask_fill(self.0, lower, minimum.into()))
    }

    /// Sums over a dimension, which stays with size 1.
    pub(super) fn sum(self, dim: usize) -> Self {
        Self(B::float_sum_dim(self.0, dim))
    }

    /// Part of dimension `dim`.
    pub(super) fn narrow(&self, dim: usize, range: Range<usize>) -> Self {
        let shape = self.0.shape();
        if range == (0..shape[dim]) {
            return self.clone();
        }
        let mut slices: Vec<Slice> = shape.iter().map(|&size| Slice::from(0..size)).collect();
        slices[dim] = Slice::from(range);
        Self(B::float_slice(self.0.clone(), &slices))
    }

    /// Part of the first dimension.
    pub(super) fn part(&self, range: Range<usize>) -> Self {
        self.narrow(0, range)
    }

    pub(super) fn cat(parts: Vec<Self>, dim: usize) -> Self {
        match <[Self; 1]>::try_from(parts) {
            Ok([part]) => part,
            Err(parts) => {
                let parts = parts.into_iter().map(|part| part.0).collect();
                Self(B::float_cat(parts, dim))
            }
        }
    }

    /// `value` where `mask` is 0.
    pub(super) fn fill_where_zero(self, mask: &Self, value: f64) -> Self {
        let device = self.0.device();
        let bool = get_device_settings::<B>(&device).bool_dtype;
        let hidden = B::float_lower_elem(mask.0.clone(), 0.5.into(), bool);
        let hidden = B::bool_expand(hidden, self.0.shape());
        Self(B::float_mask_fill(self.0, hidden, value.into()))
    }
}

impl<B: Backend> Clone for Array<B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

macro_rules! operator {
    ($trait:ident, $method:ident, $primitive:ident) => {
        impl<B: Backend> $trait for Array<B> {
            type Output = Self;
            fn $method(self, other: Self) -> Self {
                Self(B::$primitive(self.0, other.0))
            }
        }
        impl<B: Backend> $trait<&Array<B>> for Array<B> {
            type Output = Self;
            fn $method(self, other: &Self) -> Self {
                Self(B::$primitive(self.0, other.0.clone()))
            }
        }
        impl<B: Backend> $trait for &Array<B> {
            type Output = Array<B>;
            fn $method(self, other: Self) -> Array<B> {
                Array(B::$primitive(self.0.clone(), other.0.clone()))
            }
        }
        impl<B: Backend> $trait<Array<B>> for &Array<B> {
            type Output = Array<B>;
            fn $method(self, other: Array<B>) -> Array<B> {
                Array(B::$primitive(self.0.clone(), other.0))
            }
        }
    };
}
operator!(Add, add, float_add);
operator!(Sub, sub, float_sub);
operator!(Mul, mul, float_mul);

impl<B: Backend> Neg for Array<B> {
    type Output = Self;
    fn neg(self) -> Self {
        Self(B::float_neg(self.0))
    }
}

/// Zeros in the shape and dtype of an array.
pub(super) fn zeros_like<B: Backend>(array: &Array<B>) -> Array<B> {
    let (shape, device) = (array.0.shape(), array.0.device());
    Array(B::float_zeros(shape, &device, array.0.dtype().into()))
}
