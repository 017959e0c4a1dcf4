mod backward;
mod blocks;
mod states;

pub(crate) use backward::backward;
