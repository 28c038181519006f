//! General matrix multiplication: batches of `C = A B` for matrices with any strides, with whatever
//! follows the product applied to its blocks while they are in cache.
//!
//! The loops are those of BLIS (`product`, `schedule`): blocks of A and B are packed (`pack`,
//! `transpose`) into the panels that a micro-kernel walks down (`simd`, and an instruction set each
//! in `x86`, `amx`, `neon` and `portable`; `thirds` is f32 on AMX). The kernel is chosen when the
//! program runs (`kernel`), so that one binary serves every CPU.
//!
//! Invariants: sums of f16 and bf16 are f32, of i8 i32; each element of C is summed in an order
//! that depends on the kernel and k alone, so that results do not change with the number of
//! threads; a call allocates nothing but scratch, and that once.

#[cfg(target_arch = "x86_64")]
mod amx;
mod blocks;
mod columns;
mod element;
mod epilogue;
mod few_rows;
mod kernel;
#[cfg(target_arch = "aarch64")]
mod neon;
mod operands;
mod pack;
mod packed;
#[cfg(target_arch = "x86_64")]
mod pixels;
mod portable;
mod product;
mod schedule;
mod simd;
mod target;
#[cfg(target_arch = "x86_64")]
mod thirds;
#[cfg(target_arch = "x86_64")]
mod transpose;
mod view;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(crate) use blocks::{BlockProduct, Lines, transpose};
pub use columns::Columns;
pub use element::{Accumulator, Element};
pub(crate) use element::{Narrow, Widen};
pub(crate) use epilogue::Part;
pub use epilogue::{Block, Epilogue, Output};
pub use kernel::Kernel;
pub use packed::{Packed, Rhs};
#[cfg(target_arch = "x86_64")]
pub(crate) use pixels::{PixelConfig, PixelTiles};
pub use product::gemm;
pub(crate) use target::Target;
pub use view::{View, ViewMut};
