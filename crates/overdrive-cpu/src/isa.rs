//! Instruction sets: which of them this machine has, and which a thread uses. Nothing else in this
//! crate asks the processor.
//!
//! A back end is made for one set
//! ([`CpuBackend::with_instruction_set`](crate::CpuBackend::with_instruction_set)), by default the
//! best. That set is in force on a thread while the back end compiles and runs, and always on the
//! threads of its pool. Every choice of a kernel asks for it here. So one process can have back
//! ends of several sets, and no choice outlives its back end.
#![allow(unsafe_code)] // One system call.

use std::cell::Cell;
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

/// The instruction sets that kernels are written for. In order: each includes those before it that
/// its architecture has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum InstructionSet {
    /// The instructions that every processor of the architecture has.
    Portable,
    /// Products on NEON, which every 64-bit ARM processor has.
    Neon,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// Products of i8 on AVX-512.
    Avx512Vnni,
    /// Products of bf16 on AVX-512.
    Avx512Bf16,
    /// Tiles of bf16 and of i8, granted by the operating system.
    Amx,
}

use InstructionSet::{Amx, Avx2, Avx512, Avx512Bf16, Avx512Vnni, Neon, Portable};

thread_local! {
    /// The set that a back end has put in force on this thread.
    static IN_FORCE: Cell<Option<InstructionSet>> = const { Cell::new(None) };
}

impl InstructionSet {
    /// All that there are.
    pub const ALL: [Self; 7] = [Portable, Neon, Avx2, Avx512, Avx512Vnni, Avx512Bf16, Amx];

    /// The instruction sets that this machine has, the best last.
    pub fn available() -> impl Iterator<Item = Self> {
        let best = Self::best();
        Self::ALL.into_iter().filter(move |set| set.is_of_architecture() && *set <= best)
    }

    /// The best that this machine has.
    pub fn best() -> Self {
        static BEST: OnceLock<InstructionSet> = OnceLock::new();
        *BEST.get_or_init(detected)
    }

    /// As users name it.
    pub fn name(self) -> &'static str {
        match self {
            Portable => "portable",
            Neon => "neon",
            Avx2 => "avx2",
            Avx512 => "avx512",
            Avx512Vnni => "avx512-vnni",
            Avx512Bf16 => "avx512-bf16",
            Amx => "amx",
        }
    }

    /// The names of those that this machine has, with commas between them.
    pub fn names() -> String {
        Self::available().map(Self::name).collect::<Vec<_>>().join(", ")
    }

    /// The set in force on this thread: the best, where no back end has said otherwise.
    pub(crate) fn in_force() -> Self {
        IN_FORCE.get().unwrap_or_else(Self::best)
    }

    /// Whether this thread may use this set: the machine has it, and it is no better than the one
    /// in force.
    pub(crate) fn is_usable(self) -> bool {
        self.is_of_architecture() && self <= Self::in_force()
    }

    /// Calls `work` with this set in force on this thread: for whoever calls kernels without a back
    /// end.
    ///
    /// # Panics
    /// If the machine lacks the set.
    pub fn during<R>(self, work: impl FnOnce() -> R) -> R {
        struct Restore(Option<InstructionSet>);
        impl Drop for Restore {
            fn drop(&mut self) {
                IN_FORCE.set(self.0);
            }
        }
        assert!(self.is_of_architecture() && self <= Self::best(), "this machine has no {self}");
        let _restore = Restore(IN_FORCE.replace(Some(self)));
        work()
    }

    fn is_of_architecture(self) -> bool {
        match self {
            Portable => true,
            Neon => cfg!(target_arch = "aarch64"),
            Avx2 | Avx512 | Avx512Vnni | Avx512Bf16 | Amx => cfg!(target_arch = "x86_64"),
        }
    }
}

impl fmt::Display for InstructionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is none of this machine's sets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownSet(String);

impl fmt::Display for UnknownSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = InstructionSet::ALL.iter().any(|set| set.name() == self.0);
        let problem = if known {
            "this machine lacks the instruction set"
        } else {
            "unknown instruction set"
        };
        write!(f, "{problem} `{}`: this machine has {}", self.0, InstructionSet::names())
    }
}

impl std::error::Error for UnknownSet {}

impl FromStr for InstructionSet {
    type Err = UnknownSet;

    /// The set of this name, which this machine has.
    fn from_str(name: &str) -> Result<Self, UnknownSet> {
        Self::available().find(|set| set.name() == name).ok_or_else(|| UnknownSet(name.to_owned()))
    }
}

/// The best set whose instructions, and those of all before it, this processor has.
#[cfg(target_arch = "x86_64")]
fn detected() -> InstructionSet {
    let steps = [
        (Avx2, is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")),
        (
            Avx512,
            is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl"),
        ),
        (Avx512Vnni, is_x86_feature_detected!("avx512vnni")),
        (Avx512Bf16, is_x86_feature_detected!("avx512bf16")),
        (Amx, has_tiles() && request_tile_registers()),
    ];
    steps.into_iter().take_while(|&(_, has)| has).last().map_or(Portable, |(set, _)| set)
}

#[cfg(not(target_arch = "x86_64"))]
fn detected() -> InstructionSet {
    if cfg!(target_arch = "aarch64") { Neon } else { Portable }
}

/// Whether the processor has tiles, of bf16 and of i8: bits of EDX of leaf 7, which the standard
/// library does not tell yet.
#[cfg(target_arch = "x86_64")]
fn has_tiles() -> bool {
    const BF16: u32 = 1 << 22;
    const TILE: u32 = 1 << 24;
    const INT8: u32 = 1 << 25;
    let all = BF16 | TILE | INT8;
    std::arch::x86_64::__cpuid_count(7, 0).edx & all == all
}

/// Tile registers are 8 KiB more for the kernel to save at a context switch. So Linux requires a
/// process to ask for them once.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn request_tile_registers() -> bool {
    // <asm/prctl.h> and Documentation/arch/x86/xstate.rst.
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers and changes nothing but the process's permission.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn request_tile_registers() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_in_force_for_as_long_as_it_is_asked_for() {
        let best = InstructionSet::best();
        let inner = Portable.during(|| {
            assert!(Portable.is_usable() && !Avx2.is_usable() && !Neon.is_usable());
            best.during(|| assert_eq!(InstructionSet::in_force(), best));
            InstructionSet::in_force()
        });
        assert_eq!((inner, InstructionSet::in_force()), (Portable, best));
        let panicked = std::panic::catch_unwind(|| Portable.during(|| panic!("a task")));
        assert!(panicked.is_err() && InstructionSet::in_force() == best);
    }

    #[test]
    fn names_are_those_of_this_machine() {
        for set in InstructionSet::available() {
            assert_eq!(set.name().parse(), Ok(set));
        }
        let foreign = if cfg!(target_arch = "x86_64") { "neon" } else { "avx2" };
        let error = foreign.parse::<InstructionSet>().unwrap_err().to_string();
        assert!(error.contains("lacks") && error.contains("portable"), "{error}");
        let error = "sse9".parse::<InstructionSet>().unwrap_err().to_string();
        assert!(
            error.starts_with("unknown instruction set `sse9`: this machine has portable"),
            "{error}"
        );
    }
}
