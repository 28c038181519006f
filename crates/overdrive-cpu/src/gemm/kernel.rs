//! The table of micro-kernels, and the choice among them when the program runs.

use half::{bf16, f16};

use super::element::Element;
use super::few_rows::FewRows;
#[cfg(target_arch = "aarch64")]
use super::neon;
use super::pack::{Block, Panel, pack, pack_shifted, pack_widened};
use super::portable;
use super::simd::PackedBlock;
#[cfg(target_arch = "x86_64")]
use super::{amx, thirds, x86};
use crate::isa::InstructionSet;

/// A micro-kernel: how it wants its operands packed, and the function that multiplies packed
/// blocks.
#[derive(Debug)]
pub struct Kernel<T: Element> {
    pub(super) name: &'static str,
    /// What the CPU must have.
    pub(super) set: InstructionSet,
    /// Panels of A: `width` is the tile's rows.
    pub(super) a: Panel,
    /// Panels of B: `width` is the tile's columns.
    pub(super) b: Panel,
    /// Bytes of a packed element.
    pub(super) packed_bytes: usize,
    pub(super) pack: unsafe fn(Block<T>, Panel, *mut u8),
    pub(super) multiply: unsafe fn(&PackedBlock<T::Acc>),
    /// The path for a few rows, where elements need no conversion.
    pub(super) few_rows: Option<unsafe fn(FewRows<T::Acc>)>,
    /// For a kernel that is the best only where B is packed once: the rows of A that it is worth
    /// its while for.
    pub(super) packed_for: Option<usize>,
}

impl<T: Element> Kernel<T> {
    /// The best kernel that may be executed here, whatever the product.
    pub fn best() -> &'static Self {
        Self::first(|kernel| kernel.packed_for.is_none())
    }

    /// The best for products of `rows` rows of A by a B that is packed once.
    pub fn best_packed(rows: usize) -> &'static Self {
        Self::first(|kernel| kernel.packed_for.is_none_or(|least| rows >= least))
    }

    fn first(suits: impl Fn(&Self) -> bool) -> &'static Self {
        let found = Self::supported().find(|kernel| suits(kernel));
        found.expect("every list ends with the portable kernel, which runs everywhere")
    }

    /// All kernels that may be executed here, the best first: those of the instruction set in force
    /// and of those before it.
    pub fn supported() -> impl Iterator<Item = &'static Self> {
        T::kernels().iter().filter(|kernel| kernel.set.is_usable())
    }

    /// The instruction set and the tile, such as `avx512 14x32`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Bytes of a packed block of `lines` lines over `k`.
    pub(super) fn block_bytes(&self, panel: Panel, lines: usize, k: usize) -> usize {
        lines.div_ceil(panel.width) * panel.len(k) * self.packed_bytes
    }
}

/// Panels of a kernel that multiplies element by element.
const fn plain(width: usize) -> Panel {
    groups(width, 1, 1)
}

/// Panels of groups of k, filled up to a multiple.
const fn groups(width: usize, group: usize, k_multiple: usize) -> Panel {
    Panel { width, group, k_multiple, head: 0 }
}

/// No path for a few rows: its operands would have to be f32 in memory.
const fn unless_converted(_: unsafe fn(FewRows<f32>)) -> Option<unsafe fn(FewRows<f32>)> {
    None
}

/// The f32 kernels for operands that `pack` makes f32, after those that are better for them.
macro_rules! f32_kernels {
    ($pack:expr, $few_rows:path $(, $first:expr)*) => {
        &[
            $(#[cfg(target_arch = "x86_64")] $first,)*
            #[cfg(target_arch = "x86_64")]
            Kernel {
                name: "avx512 14x32",
                set: InstructionSet::Avx512,
                a: plain(14),
                b: plain(32),
                packed_bytes: 4,
                pack: $pack,
                multiply: x86::f32_avx512,
                few_rows: $few_rows(x86::f32_avx512_few_rows),
                packed_for: None,
            },
            #[cfg(target_arch = "x86_64")]
            Kernel {
                name: "avx2 6x16",
                set: InstructionSet::Avx2,
                a: plain(6),
                b: plain(16),
                packed_bytes: 4,
                pack: $pack,
                multiply: x86::f32_avx2,
                few_rows: $few_rows(x86::f32_avx2_few_rows),
                packed_for: None,
            },
            #[cfg(target_arch = "aarch64")]
            Kernel {
                name: "neon 8x12",
                set: InstructionSet::Neon,
                a: plain(8),
                b: plain(12),
                packed_bytes: 4,
                pack: $pack,
                multiply: neon::f32_neon,
                few_rows: $few_rows(neon::f32_neon_few_rows),
                packed_for: None,
            },
            Kernel {
                name: "portable 4x8",
                set: InstructionSet::Portable,
                a: plain(4),
                b: plain(8),
                packed_bytes: 4,
                pack: $pack,
                multiply: portable::f32_portable,
                few_rows: $few_rows(portable::f32_portable_few_rows),
                packed_for: None,
            },
        ]
    };
}

pub(super) static F32: &[Kernel<f32>] = f32_kernels!(
    pack::<f32>,
    Some,
    Kernel {
        name: "amx-thirds 32x32",
        set: InstructionSet::Amx,
        a: groups(32, 32, 32),
        b: groups(32, 2, 32),
        packed_bytes: 6,
        pack: thirds::pack_thirds,
        multiply: thirds::f32_amx,
        few_rows: None,
        packed_for: Some(17),
    }
);
pub(super) static F16: &[Kernel<f16>] = f32_kernels!(pack_widened::<f16, f32>, unless_converted);
pub(super) static BF16: &[Kernel<bf16>] = f32_kernels!(
    pack_widened::<bf16, f32>,
    unless_converted,
    Kernel {
        name: "amx 32x32",
        set: InstructionSet::Amx,
        a: groups(32, 32, 32),
        b: groups(32, 2, 32),
        packed_bytes: 2,
        pack: pack::<bf16>,
        multiply: amx::bf16_amx,
        few_rows: None,
        packed_for: None,
    },
    Kernel {
        name: "avx512-bf16 14x32",
        set: InstructionSet::Avx512Bf16,
        a: groups(14, 2, 2),
        b: groups(32, 2, 2),
        packed_bytes: 2,
        pack: pack::<bf16>,
        multiply: x86::bf16_avx512,
        few_rows: None,
        packed_for: None,
    }
);

pub(super) static I8: &[Kernel<i8>] = &[
    #[cfg(target_arch = "x86_64")]
    Kernel {
        name: "amx-int8 32x32",
        set: InstructionSet::Amx,
        a: groups(32, 64, 64),
        b: groups(32, 4, 64),
        packed_bytes: 1,
        pack: pack::<i8>,
        multiply: amx::i8_amx,
        few_rows: None,
        packed_for: None,
    },
    #[cfg(target_arch = "x86_64")]
    Kernel {
        name: "avx512-vnni 14x32",
        set: InstructionSet::Avx512Vnni,
        a: groups(14, 4, 4),
        b: Panel { head: 1, ..groups(32, 4, 4) },
        packed_bytes: 1,
        pack: pack_shifted,
        multiply: x86::i8_vnni,
        few_rows: None,
        packed_for: None,
    },
    #[cfg(target_arch = "x86_64")]
    Kernel {
        name: "avx2-i16 6x16",
        set: InstructionSet::Avx2,
        a: groups(6, 2, 2),
        b: groups(16, 2, 2),
        packed_bytes: 2,
        pack: pack_widened::<i8, i16>,
        multiply: x86::i8_avx2,
        few_rows: None,
        packed_for: None,
    },
    Kernel {
        name: "portable-i32 4x8",
        set: InstructionSet::Portable,
        a: plain(4),
        b: plain(8),
        packed_bytes: 4,
        pack: pack_widened::<i8, i32>,
        multiply: portable::i8_portable,
        few_rows: None,
        packed_for: None,
    },
];

pub(super) static F64: &[Kernel<f64>] = &[
    #[cfg(target_arch = "x86_64")]
    Kernel {
        name: "avx512 14x16",
        set: InstructionSet::Avx512,
        a: plain(14),
        b: plain(16),
        packed_bytes: 8,
        pack: pack::<f64>,
        multiply: x86::f64_avx512,
        few_rows: Some(x86::f64_avx512_few_rows),
        packed_for: None,
    },
    #[cfg(target_arch = "x86_64")]
    Kernel {
        name: "avx2 6x8",
        set: InstructionSet::Avx2,
        a: plain(6),
        b: plain(8),
        packed_bytes: 8,
        pack: pack::<f64>,
        multiply: x86::f64_avx2,
        few_rows: Some(x86::f64_avx2_few_rows),
        packed_for: None,
    },
    #[cfg(target_arch = "aarch64")]
    Kernel {
        name: "neon 8x6",
        set: InstructionSet::Neon,
        a: plain(8),
        b: plain(6),
        packed_bytes: 8,
        pack: pack::<f64>,
        multiply: neon::f64_neon,
        few_rows: Some(neon::f64_neon_few_rows),
        packed_for: None,
    },
    Kernel {
        name: "portable 4x8",
        set: InstructionSet::Portable,
        a: plain(4),
        b: plain(8),
        packed_bytes: 8,
        pack: pack::<f64>,
        multiply: portable::f64_portable,
        few_rows: Some(portable::f64_portable_few_rows),
        packed_for: None,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of the kernels of a format that some set prefers, for any product or for a packed
    /// right operand of many rows.
    fn preferred<T: Element>() -> Vec<&'static str> {
        let best = |set: InstructionSet| {
            set.during(|| [Kernel::<T>::best().name(), Kernel::<T>::best_packed(usize::MAX).name()])
        };
        InstructionSet::available().flat_map(best).collect()
    }

    #[test]
    fn every_kernel_is_the_best_of_some_set_of_this_machine() {
        fn check<T: Element>() {
            let preferred = preferred::<T>();
            for kernel in Kernel::<T>::supported() {
                assert!(preferred.contains(&kernel.name()), "no set prefers {}", kernel.name());
            }
        }
        check::<f32>();
        check::<f64>();
        check::<f16>();
        check::<bf16>();
        check::<i8>();
    }
}
