//! Checks of the arguments, before dispatch.

#[cfg(feature = "cubecl-backend")]
use burn::backend::DispatchDevice;
use burn::tensor::Tensor;
use burn_tree_kit::check::{ArgumentError, Check};
use burn_tree_kit::implementation::Implementation;

#[cfg(feature = "cubecl-backend")]
use super::dims::Dims;
#[cfg(feature = "cubecl-backend")]
use super::kernels;
use super::options::{AttentionSettings, TreeAttentionOptions};
use crate::mask::TreeMask;

const CHECK: Check = Check {
    op: "tree_attention",
};

/// The dimensions of all tensors, as errors name them.
const DIMENSIONS: [&str; 4] = ["batch size", "head count", "row count", "head dimension"];
const BATCH: usize = 0;
const HEADS: usize = 1;
const ROWS: usize = 2;
const HEAD_DIM: usize = 3;

/// The arguments of a call.
pub(super) struct Arguments<'a> {
    pub query: &'a Tensor<4>,
    /// Past keys and values.
    pub past: Option<[&'a Tensor<4>; 2]>,
    /// The other keys and values, or all of them.
    pub own: [&'a Tensor<4>; 2],
    pub mask: &'a TreeMask,
    pub options: TreeAttentionOptions,
}

impl Arguments<'_> {
    /// Refuses arguments that do not fit, and fills in the options.
    pub(super) fn check(&self) -> Result<AttentionSettings, ArgumentError> {
        self.check_shapes()?;
        self.check_past_shapes()?;
        self.check_tensors()?;
        let settings = self.resolve()?;
        self.check_implementation(settings)?;
        Ok(settings)
    }

    /// Keys and values with their names.
    fn keys_and_values(&self) -> impl Iterator<Item = (&Tensor<4>, &'static str)> {
        let past = self.past.into_iter().flatten();
        let past = past.zip(["past key", "past value"]);
        past.chain(self.own.into_iter().zip(["key", "value"]))
    }

    fn check_shapes(&self) -> Result<(), ArgumentError> {
        let query = self.query.dims();
        let [key, value] = self.own.map(|tensor| tensor.dims());
        let mask = self.mask;
        let (of_mask, of_query, of_key) = ("of the mask", "of the query", "of the key");
        expect("query", query, BATCH, mask.batch_size(), of_mask)?;
        expect("query", query, ROWS, mask.n_queries(), of_mask)?;
        expect("key", key, BATCH, query[BATCH], of_query)?;
        self.check_key_rows(key)?;
        expect("key", key, HEAD_DIM, query[HEAD_DIM], of_query)?;
        expect("value", value, BATCH, query[BATCH], of_query)?;
        expect("value", value, HEADS, key[HEADS], of_key)?;
        expect("value", value, ROWS, key[ROWS], of_key)?;
        let (heads, kv_heads) = (query[HEADS], key[HEADS]);
        if kv_heads == 0 || heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(ArgumentError::Shape {
                op: CHECK.op,
                tensor: "query",
                found: query.to_vec(),
                expected: format!(
                    "head count a positive multiple of {kv_heads} (key and value heads)"
                ),
            });
        }
        CHECK.has_columns("query", &query)?;
        CHECK.has_columns("value", &value)
    }

    /// The rows of all keys together are those of the mask.
    fn check_key_rows(&self, key: [usize; 4]) -> Result<(), ArgumentError> {
        let mask = self.mask;
        if let Some([past, _]) = self.past {
            let mut both = key;
            both[ROWS] += past.dims()[ROWS];
            return expect("past and own key", both, ROWS, mask.n_keys(), "of the mask");
        }
        let past_keys = mask.n_keys() - mask.n_queries();
        let reason = if past_keys > 0 && key[ROWS] == mask.n_queries() {
            &format!(
                "of the mask, {past_keys} of them past keys of another pack: \
                 see tree_attention_with_past"
            )
        } else {
            "of the mask"
        };
        expect("key", key, ROWS, mask.n_keys(), reason)
    }

    /// The past differs from the rest in its rows only.
    fn check_past_shapes(&self) -> Result<(), ArgumentError> {
        let Some(past) = self.past else {
            return Ok(());
        };
        let [past_key, past_value] = past.map(|tensor| tensor.dims());
        let [key, value] = self.own.map(|tensor| tensor.dims());
        for (tensor, past, own, reason) in [
            ("past key", past_key, key, "of the key"),
            ("past value", past_value, value, "of the value"),
        ] {
            for dimension in [BATCH, HEADS, HEAD_DIM] {
                expect(tensor, past, dimension, own[dimension], reason)?;
            }
        }
        let rows = past_key[ROWS];
        expect("past value", past_value, ROWS, rows, "of the past key")
    }

    fn check_tensors(&self) -> Result<(), ArgumentError> {
        let query = self.query;
        CHECK.float("query", query.dtype())?;
        for (tensor, name) in self.keys_and_values() {
            CHECK.same_dtype(name, tensor.dtype(), "query", query.dtype())?;
            CHECK.same_device(name, tensor.device(), "query", query.device())?;
        }
        CHECK.same_device("mask", self.mask.device().clone(), "query", query.device())
    }

    fn resolve(&self) -> Result<AttentionSettings, ArgumentError> {
        let options = self.options;
        let default = || (self.query.dims()[HEAD_DIM] as f64).sqrt().recip();
        let scale = options.scale.unwrap_or_else(default);
        let refuse = |argument, value, expected| {
            Err(ArgumentError::Number {
                op: CHECK.op,
                argument,
                value,
                expected,
            })
        };
        if !scale.is_finite() {
            return refuse("option `scale`", scale, "a finite number");
        }
        if let Some(cap) = options.softcap
            && !(cap.is_finite() && cap > 0.0)
        {
            return refuse("option `softcap`", cap, "a positive finite number");
        }
        if options.sliding_window == Some(0) {
            let expected = "at least 1 (a query sees itself)";
            return refuse("option `sliding_window`", 0.0, expected);
        }
        Ok(AttentionSettings {
            scale,
            softcap: options.softcap,
            sliding_window: options.sliding_window,
            implementation: options.implementation,
        })
    }

    /// Refuses a requested implementation that does not run these tensors.
    #[cfg_attr(not(feature = "cubecl-backend"), allow(unused_variables))]
    fn check_implementation(&self, settings: AttentionSettings) -> Result<(), ArgumentError> {
        use Implementation::{Automatic, Generic};
        let requested = settings.implementation;
        if matches!(requested, Automatic | Generic) {
            return Ok(());
        }
        let device = self.query.device().inner();
        let reason = match device.as_dispatch() {
            #[cfg(feature = "cubecl-backend")]
            DispatchDevice::Cube(device) => {
                let [mut key, mut value] = self.own.map(|tensor| tensor.dims());
                [key[ROWS], value[ROWS]] = [self.mask.n_keys(); 2];
                let call = kernels::call::Call {
                    device,
                    dtype: self.query.dtype(),
                    dims: Dims::of_shapes([self.query.dims(), key, value]),
                    visibility: self.mask.visibility(),
                    settings,
                };
                let with_backward = self.query.is_autodiff()
                    || self.keys_and_values().any(|(it, _)| it.is_autodiff());
                match kernels::check(&call, with_backward) {
                    Ok(()) => return Ok(()),
                    Err(unavailable) => unavailable.0,
                }
            }
            #[allow(unreachable_patterns, reason = "there may be no other backend")]
            _ => format!("{device:?} is not a CubeCL device"),
        };
        Err(ArgumentError::Implementation {
            op: CHECK.op,
            requested,
            reason,
        })
    }
}

/// One dimension of a tensor has the size that `reason` asks for.
fn expect(
    tensor: &'static str,
    shape: [usize; 4],
    dimension: usize,
    expected: usize,
    reason: &str,
) -> Result<(), ArgumentError> {
    if shape[dimension] == expected {
        return Ok(());
    }
    Err(ArgumentError::Shape {
        op: CHECK.op,
        tensor,
        found: shape.to_vec(),
        expected: format!("{} {expected} ({reason})", DIMENSIONS[dimension]),
    })
}
