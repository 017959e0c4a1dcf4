//! Language models in Burn that train on trees: the Qwen3 family, with weights from and to Hugging
//! Face folders, and LoRA.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod lora;
pub mod qwen3;
