mod backward;
mod blocks;
mod states;
