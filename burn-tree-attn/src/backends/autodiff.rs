//! Autodiff: the backward passes by hand.

use std::sync::Arc;

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;

use crate::mask::Visibility;
use crate::ops::TreeAttentionOps;
use crate::primitive::join;
use crate::rope::autodiff::rope;
use crate::rope::settings::RopeSettings;
use crate::tree_attention::autodiff::attend;
use crate::tree_attention::options::AttentionSettings;

impl<B: TreeAttentionOps, C: CheckpointStrategy> TreeAttentionOps for Autodiff<B, C> {
    fn tree_attention(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        visibility: Arc<Visibility>,
        settings: AttentionSettings,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let inputs = [query, key, value];
        let joined = inputs.each_ref().map(|input| input.primitive().clone());
        attend::<B, C, 3>(inputs, joined, visibility, settings)
    }

    fn tree_attention_with_past(
        query: FloatTensor<Self>,
        past_key: FloatTensor<Self>,
        past_value: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        visibility: Arc<Visibility>,
        settings: AttentionSettings,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let inputs = [query, past_key, key, past_value, value];
        let [query, past_key, key, past_value, value] =
            inputs.each_ref().map(|input| input.primitive().clone());
        let joined = [
            query,
            join::<B>(past_key, key),
            join::<B>(past_value, value),
        ];
        attend::<B, C, 5>(inputs, joined, visibility, settings)
    }

    fn rope(
        x: FloatTensor<Self>,
        position_ids: IntTensor<Self>,
        settings: RopeSettings,
    ) -> FloatTensor<Self> {
        rope::<B, C>(x, position_ids, settings)
    }
}
