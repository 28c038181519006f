//! The table of micro-kernels: those of each format, the best first.

use half::{bf16, f16};

use super::kernel::{Element, MicroKernel};
#[cfg(target_arch = "aarch64")]
use super::neon;
use super::pack::{pack, pack_shifted, pack_widened};
use super::panel::Panel;
use super::portable;
use super::skinny::Skinny;
#[cfg(target_arch = "x86_64")]
use super::{amx, bf16x3, x86};
use crate::isa::InstructionSet;

macro_rules! element {
    ($format:ty, $acc:ty, $kernels:ident) => {
        impl Element for $format {
            type Acc = $acc;
            fn kernels() -> &'static [MicroKernel<Self>] {
                $kernels
            }
        }
    };
}

element!(f32, f32, F32);
element!(f64, f64, F64);
element!(f16, f32, F16);
element!(bf16, f32, BF16);
element!(i8, i32, I8);

/// Panels of a kernel that multiplies element by element.
const fn plain(width: usize) -> Panel {
    groups(width, 1, 1)
}

/// Panels of groups of k, filled up to a multiple.
const fn groups(width: usize, group: usize, k_multiple: usize) -> Panel {
    Panel { width, group, k_multiple, head: 0 }
}

/// No skinny path: its operands would have to be f32 in memory.
const fn unless_converted(_: unsafe fn(Skinny<f32>)) -> Option<unsafe fn(Skinny<f32>)> {
    None
}

/// The f32 kernels for operands that `pack` makes f32, after those that are better for them.
macro_rules! f32_kernels {
    ($pack:expr, $skinny:path $(, $first:expr)*) => {
        &[
            $(#[cfg(target_arch = "x86_64")] $first,)*
            #[cfg(target_arch = "x86_64")]
            MicroKernel {
                name: "avx512 14x32",
                set: InstructionSet::Avx512,
                a: plain(14),
                b: plain(32),
                packed_bytes: 4,
                pack: $pack,
                multiply: x86::f32_avx512,
                skinny: $skinny(x86::f32_avx512_skinny),
                packed_for: None,
            },
            #[cfg(target_arch = "x86_64")]
            MicroKernel {
                name: "avx2 6x16",
                set: InstructionSet::Avx2,
                a: plain(6),
                b: plain(16),
                packed_bytes: 4,
                pack: $pack,
                multiply: x86::f32_avx2,
                skinny: $skinny(x86::f32_avx2_skinny),
                packed_for: None,
            },
            #[cfg(target_arch = "aarch64")]
            MicroKernel {
                name: "neon 8x12",
                set: InstructionSet::Neon,
                a: plain(8),
                b: plain(12),
                packed_bytes: 4,
                pack: $pack,
                multiply: neon::f32_neon,
                skinny: $skinny(neon::f32_neon_skinny),
                packed_for: None,
            },
            MicroKernel {
                name: "portable 4x8",
                set: InstructionSet::Portable,
                a: plain(4),
                b: plain(8),
                packed_bytes: 4,
                pack: $pack,
                multiply: portable::f32_portable,
                skinny: $skinny(portable::f32_portable_skinny),
                packed_for: None,
            },
        ]
    };
}

static F32: &[MicroKernel<f32>] = f32_kernels!(
    pack::<f32>,
    Some,
    MicroKernel {
        name: "amx-bf16x3 32x32",
        set: InstructionSet::Amx,
        a: groups(32, 32, 32),
        b: groups(32, 2, 32),
        packed_bytes: 6,
        pack: bf16x3::pack_bf16x3,
        multiply: bf16x3::f32_amx,
        skinny: None,
        packed_for: Some(17),
    }
);
static F16: &[MicroKernel<f16>] = f32_kernels!(pack_widened::<f16, f32>, unless_converted);
static BF16: &[MicroKernel<bf16>] = f32_kernels!(
    pack_widened::<bf16, f32>,
    unless_converted,
    MicroKernel {
        name: "amx 32x32",
        set: InstructionSet::Amx,
        a: groups(32, 32, 32),
        b: groups(32, 2, 32),
        packed_bytes: 2,
        pack: pack::<bf16>,
        multiply: amx::bf16_amx,
        skinny: None,
        packed_for: None,
    },
    MicroKernel {
        name: "avx512-bf16 14x32",
        set: InstructionSet::Avx512Bf16,
        a: groups(14, 2, 2),
        b: groups(32, 2, 2),
        packed_bytes: 2,
        pack: pack::<bf16>,
        multiply: x86::bf16_avx512,
        skinny: None,
        packed_for: None,
    }
);

static I8: &[MicroKernel<i8>] = &[
    #[cfg(target_arch = "x86_64")]
    MicroKernel {
        name: "amx-int8 32x32",
        set: InstructionSet::Amx,
        a: groups(32, 64, 64),
        b: groups(32, 4, 64),
        packed_bytes: 1,
        pack: pack::<i8>,
        multiply: amx::i8_amx,
        skinny: None,
        packed_for: None,
    },
    #[cfg(target_arch = "x86_64")]
    MicroKernel {
        name: "avx512-vnni 14x32",
        set: InstructionSet::Avx512Vnni,
        a: groups(14, 4, 4),
        b: Panel { head: 1, ..groups(32, 4, 4) },
        packed_bytes: 1,
        pack: pack_shifted,
        multiply: x86::i8_vnni,
        skinny: None,
        packed_for: None,
    },
    #[cfg(target_arch = "x86_64")]
    MicroKernel {
        name: "avx2-i16 6x16",
        set: InstructionSet::Avx2,
        a: groups(6, 2, 2),
        b: groups(16, 2, 2),
        packed_bytes: 2,
        pack: pack_widened::<i8, i16>,
        multiply: x86::i8_avx2,
        skinny: None,
        packed_for: None,
    },
    MicroKernel {
        name: "portable-i32 4x8",
        set: InstructionSet::Portable,
        a: plain(4),
        b: plain(8),
        packed_bytes: 4,
        pack: pack_widened::<i8, i32>,
        multiply: portable::i8_portable,
        skinny: None,
        packed_for: None,
    },
];

static F64: &[MicroKernel<f64>] = &[
    #[cfg(target_arch = "x86_64")]
    MicroKernel {
        name: "avx512 14x16",
        set: InstructionSet::Avx512,
        a: plain(14),
        b: plain(16),
        packed_bytes: 8,
        pack: pack::<f64>,
        multiply: x86::f64_avx512,
        skinny: Some(x86::f64_avx512_skinny),
        packed_for: None,
    },
    #[cfg(target_arch = "x86_64")]
    MicroKernel {
        name: "avx2 6x8",
        set: InstructionSet::Avx2,
        a: plain(6),
        b: plain(8),
        packed_bytes: 8,
        pack: pack::<f64>,
        multiply: x86::f64_avx2,
        skinny: Some(x86::f64_avx2_skinny),
        packed_for: None,
    },
    #[cfg(target_arch = "aarch64")]
    MicroKernel {
        name: "neon 8x6",
        set: InstructionSet::Neon,
        a: plain(8),
        b: plain(6),
        packed_bytes: 8,
        pack: pack::<f64>,
        multiply: neon::f64_neon,
        skinny: Some(neon::f64_neon_skinny),
        packed_for: None,
    },
    MicroKernel {
        name: "portable 4x8",
        set: InstructionSet::Portable,
        a: plain(4),
        b: plain(8),
        packed_bytes: 8,
        pack: pack::<f64>,
        multiply: portable::f64_portable,
        skinny: Some(portable::f64_portable_skinny),
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
            set.during(|| {
                [MicroKernel::<T>::best().name(), MicroKernel::<T>::best_packed(usize::MAX).name()]
            })
        };
        InstructionSet::available().flat_map(best).collect()
    }

    #[test]
    fn every_kernel_is_the_best_of_some_set_of_this_machine() {
        fn check<T: Element>() {
            let preferred = preferred::<T>();
            for kernel in MicroKernel::<T>::supported() {
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
