//! General matrix multiplication: batches of `C = A B` for matrices with any strides, with whatever follows the
//! product applied to its blocks while they are in cache.
//!
//! The loops are those of BLIS (`product`, `schedule`): blocks of A and B are packed (`pack`, `transpose`) into the
//! panels that a micro-kernel walks down (`simd`, and an instruction set each in `x86` and `portable`). The kernel
//! is chosen when the program runs (`kernel`), so that one binary serves every CPU.
//!
//! Invariants: sums of f16 and bf16 are f32; each element of C is summed in an order that depends on the kernel
//! and k alone, so that results do not change with the number of threads; a call allocates nothing but scratch,
//! and that once.

mod element;
mod epilogue;
mod kernel;
mod pack;
mod packed;
mod portable;
mod product;
mod schedule;
mod simd;
#[cfg(target_arch = "x86_64")]
mod transpose;
mod view;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::threads::Pool;

pub use element::{Accumulator, Element};
pub use epilogue::{Block, Epilogue, Output};
pub use kernel::Kernel;
pub use packed::Packed;
pub use product::Rhs;
pub use view::{View, ViewMut};

/// `C = A B` by the kernel that B is packed for, or else by the best that the CPU has; see [`Kernel::gemm`].
///
/// # Panics
/// If the shapes do not fit each other.
pub fn gemm<'a, T: Element>(
    pool: &Pool,
    a: View<'_, T>,
    b: impl Into<Rhs<'a, T>>,
    output: Output<'_, T::Acc>,
) {
    let b = b.into();
    let kernel = match b {
        Rhs::Packed(packed) => packed.kernel(),
        Rhs::Strided(_) => Kernel::best(),
    };
    kernel.gemm(pool, a, b, output);
}
