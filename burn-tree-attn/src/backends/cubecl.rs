//! CubeCL runtimes: kernels where the device runs them, the generic bodies otherwise.

use std::sync::Arc;

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn_cubecl::CubeBackend;

use crate::mask::Visibility;
use crate::ops::TreeAttentionOps;
use crate::rope::kernel::rope;
use crate::rope::settings::RopeSettings;
use crate::tree_attention::options::AttentionSettings;
use crate::tree_attention::{generic, kernels};

impl TreeAttentionOps for CubeBackend {
    fn tree_attention(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        visibility: Arc<Visibility>,
        settings: AttentionSettings,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        kernels::forward([&query, &key, &value], &visibility, settings)
            .unwrap_or_else(|| generic::forward::<Self>(query, key, value, &visibility, settings))
    }

    fn tree_attention_backward(
        grad_output: FloatTensor<Self>,
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        output: FloatTensor<Self>,
        log_sum_exp: FloatTensor<Self>,
        visibility: Arc<Visibility>,
        settings: AttentionSettings,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let results = [&output, &log_sum_exp, &grad_output];
        kernels::backward([&query, &key, &value], results, &visibility, settings).unwrap_or_else(
            || {
                generic::backward::<Self>(
                    grad_output,
                    query,
                    key,
                    value,
                    output,
                    log_sum_exp,
                    &visibility,
                    settings,
                )
            },
        )
    }

    fn rope(
        x: FloatTensor<Self>,
        position_ids: IntTensor<Self>,
        settings: RopeSettings,
    ) -> FloatTensor<Self> {
        rope(x, position_ids, settings)
    }
}
