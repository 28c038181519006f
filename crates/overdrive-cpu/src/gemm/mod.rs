//! General matrix multiplication: batches of `C = A B` for matrices with any strides. The epilogue
//! is applied to the product's blocks while they are in cache.
//!
//! The loops are those of BLIS (`macro_kernel`, `schedule`). Blocks of A and B are packed (`pack`,
//! `transpose`) into the panels that a micro-kernel walks down. There is one micro-kernel for each
//! instruction set (`simd`; `x86`, `amx`, `neon` and `portable`), and `bf16x3` is f32 on AMX.
//! Products of a few rows are `skinny`. The kernel is chosen when the program runs (`kernel`,
//! `micro_kernels`), so that one binary serves every CPU.
//!
//! Invariants:
//!
//! - Sums of f16 and bf16 are f32, sums of i8 are i32.
//! - Each element of C is summed in an order that depends on the kernel and k alone. So results do
//!   not change with the number of threads.
//! - A call allocates nothing but scratch, and that once.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod bf16x3;
mod blocks;
mod columns;
mod conversion;
mod epilogue;
mod kernel;
mod macro_kernel;
mod micro_kernels;
#[cfg(target_arch = "aarch64")]
mod neon;
mod operands;
mod pack;
mod packed;
mod panel;
#[cfg(target_arch = "x86_64")]
mod pieces;
#[cfg(target_arch = "x86_64")]
mod pixels;
mod portable;
mod schedule;
mod simd;
mod skinny;
mod target;
#[cfg(target_arch = "x86_64")]
mod transpose;
mod view;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(crate) use blocks::{BlockProduct, transpose};
pub use columns::Columns;
pub(crate) use conversion::{Narrow, Widen};
pub(crate) use epilogue::ProductPart;
pub use epilogue::{AccumulatorBlock, Epilogue, ProductOutput};
pub use kernel::{Accumulator, Element, MicroKernel};
pub use macro_kernel::gemm;
pub use packed::{Packed, Rhs};
pub(crate) use panel::OperandLines;
#[cfg(target_arch = "x86_64")]
pub(crate) use pieces::{PIECE, PiecesTile, Piecewise, UNIT};
#[cfg(target_arch = "x86_64")]
pub(crate) use pixels::{PixelConfig, PixelTiles};
pub(crate) use target::SumsTarget;
pub use view::{View, ViewMut};
