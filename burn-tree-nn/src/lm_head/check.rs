//! Checks of the arguments of the log-probabilities.

use burn::tensor::{DType, Tensor};
use tree_pack::OccurrenceBatch;

use super::error::LmHeadError;
use super::options::LmHeadOptions;

/// Checks everything except the rows of the occurrences, which the plan checks.
pub(super) fn check(
    hidden: &Tensor<3>,
    head_weight: &Tensor<2>,
    occurrences: &OccurrenceBatch,
    options: LmHeadOptions,
) -> Result<(), LmHeadError> {
    let [batch, rows, hidden_size] = hidden.dims();
    let [vocab, head_size] = head_weight.dims();
    if hidden_size != head_size {
        return Err(LmHeadError::HiddenSize {
            hidden: hidden_size,
            head: head_size,
        });
    }
    if hidden_size == 0 {
        return Err(LmHeadError::NoFeatures);
    }
    let expected = occurrences.batch.map(|batch| batch.dims());
    if let Some(expected) = expected.filter(|&expected| expected != [batch, rows]) {
        return Err(LmHeadError::Rows {
            found: [batch, rows],
            expected,
        });
    }
    check_dtypes(hidden, head_weight, options)?;
    check_devices(hidden, head_weight, occurrences)?;
    check_targets(occurrences, vocab)
}

fn check_dtypes(
    hidden: &Tensor<3>,
    head_weight: &Tensor<2>,
    options: LmHeadOptions,
) -> Result<(), LmHeadError> {
    let dtypes = [
        ("hidden", Some(hidden.dtype())),
        ("head_weight", Some(head_weight.dtype())),
        ("product_dtype", options.product_dtype.map(DType::from)),
    ];
    for (argument, dtype) in dtypes {
        match dtype {
            None | Some(DType::F64 | DType::F32 | DType::F16 | DType::BF16) => {}
            Some(found) => return Err(LmHeadError::DType { argument, found }),
        }
    }
    Ok(())
}

/// A device with autodiff equals the same device without it.
fn check_devices(
    hidden: &Tensor<3>,
    head_weight: &Tensor<2>,
    occurrences: &OccurrenceBatch,
) -> Result<(), LmHeadError> {
    let expected = hidden.device().inner();
    let devices = [
        ("head_weight", head_weight.device()),
        ("targets", occurrences.targets.device()),
    ];
    for (tensor, device) in devices {
        let found = device.inner();
        if found != expected {
            return Err(LmHeadError::Device {
                tensor,
                found: format!("{found:?}"),
                expected: format!("{expected:?}"),
            });
        }
    }
    Ok(())
}

/// Targets are compared with the vocabulary on the host, since a device cannot return an error.
fn check_targets(occurrences: &OccurrenceBatch, vocab: usize) -> Result<(), LmHeadError> {
    let [targets] = occurrences.targets.dims();
    for targets in [targets, occurrences.host_targets.len()] {
        if targets != occurrences.host_rows.len() {
            return Err(LmHeadError::Columns {
                rows: occurrences.host_rows.len(),
                targets,
            });
        }
    }
    let mut host = occurrences.host_targets.iter();
    match host.position(|&target| target as usize >= vocab) {
        Some(occurrence) => Err(LmHeadError::Target {
            occurrence,
            target: occurrences.host_targets[occurrence],
            vocab,
        }),
        None => Ok(()),
    }
}
