//! `sparse_linear` on Hopper's sparse tensor cores: which layers have a kernel, in which tiles, and its launch.

mod instruction;
mod product;
mod tile;

pub(super) use product::{compile, sources};
pub(super) use tile::declines;
