//! The text of `cast_transpose`: all that a specialisation depends on, and how x is computed.

use crate::compiler::KernelSource;
use crate::loops::print::Spelling;
use crate::loops::{gelu, loose};
use overdrive_ir::plan::{Access, Instr, Program, Register};
use overdrive_ir::{Builder, DType, Graph, TensorType, Unary};
use overdrive_passes::elementwise;
use std::borrow::Cow;

/// The kernel, after what it includes and what computes x.
const TEXT: &str = include_str!("../cast_transpose.cu");

/// Numbers of `Matrices`.
const NUMBERS: usize = 14;
/// Threads of a block.
pub(super) const THREADS: u32 = 256;
/// Halves of a tile that are on their way or in use, rows of each thread, and bytes of a copy.
const BROUGHT: usize = 2 * 4 * 16;

/// All that a specialisation depends on, but for the number of calls.
#[derive(PartialEq)]
pub(super) struct Special<'a> {
    /// The type of x.
    pub(super) x: DType,
    /// Those of the tensors that it is computed from.
    pub(super) of: Vec<DType>,
    pub(super) scale: DType,
    pub(super) code: DType,
    pub(super) region: Option<&'a Graph>,
    pub(super) is_whole: bool,
    pub(super) is_full: bool,
    pub(super) has_lines: bool,
    pub(super) wanted: [bool; 4],
}

/// How the program of an element is spelled: operand n is `an`.
struct Element {
    /// For each register, whether a faster function will do.
    loose: Vec<bool>,
}

impl Spelling for Element {
    fn load(&self, _: Register, access: &Access) -> String {
        format!("a{}", access.slot.0)
    }

    fn index(&self, _: usize) -> String {
        unreachable!("x is computed from elements alone")
    }

    fn point(&self) -> String {
        unreachable!("x is computed from elements alone")
    }

    fn is_loose(&self, register: Register) -> bool {
        self.loose[register.0 as usize]
    }
}

/// The function that computes an element of x, before it is rounded to its type.
fn value((program, result): &(Program, Register), of: &[DType]) -> String {
    let unrounded = match program.instr(*result) {
        Instr::Convert(from, _) if program.dtype(*from) == DType::F32 => *from,
        _ => *result,
    };
    let parameters: String =
        (0..).zip(of).map(|(n, ty): (u32, _)| format!(", {ty} a{n}")).collect();
    let statements = gelu::statements(program, &Element { loose: loose(program) });
    format!(
        "{}__device__ __forceinline__ f32 value(int{parameters}) {{\n{statements}\
         return convert<f32>(t{});\n}}\n",
        gelu::TEXT,
        unrounded.0
    )
}

impl Special<'_> {
    /// Shared memory for what is brought ahead.
    pub(super) fn ahead_bytes(&self) -> usize {
        let is_ahead = self.is_whole && self.x.bits() == 16;
        if is_ahead { self.of.len() * BROUGHT * THREADS as usize } else { 0 }
    }

    /// Blocks of a multiprocessor, by registers and shared memory.
    pub(super) fn resident(&self) -> u32 {
        if self.is_whole && self.of.len() == 1 { 3 } else { 2 }
    }

    /// Bytes of a `Part`: the places of operands, scales, results and the counter, the numbers of
    /// `Matrices`, and a word for the blocks.
    pub(super) fn part_bytes(&self) -> usize {
        const PLACES: usize = 7;
        8 * (self.of.len() + PLACES + NUMBERS + 1)
    }

    /// The source for so many calls.
    pub(super) fn source(&self, parts: usize) -> Result<KernelSource, String> {
        let value = match self.region {
            Some(region) => value(&elementwise(region)?, &self.of),
            None => String::new(),
        };
        let each: String =
            self.of.iter().enumerate().map(|(n, ty)| format!(" f({n}, {ty})")).collect();
        let [codes, transposed, largest, sums] = self.wanted.map(|wanted| wanted.to_string());
        let defines = vec![
            ("X", self.x.to_string()),
            ("SCALE", self.scale.to_string()),
            ("CODE", self.code.to_string()),
            ("EACH_OPERAND(f)", each),
            ("COMPUTED", u8::from(self.region.is_some()).to_string()),
            ("WHOLE", self.is_whole.to_string()),
            ("FULL", self.is_full.to_string()),
            ("LINES", self.has_lines.to_string()),
            ("HAS_CODES", codes),
            ("HAS_TRANSPOSED", transposed),
            ("HAS_LARGEST", largest),
            ("HAS_SUMS", sums),
            ("RESIDENT", self.resident().to_string()),
            ("PARTS", parts.to_string()),
            ("PART_BYTES", self.part_bytes().to_string()),
        ];
        let text = Cow::Owned(format!("#include \"loop.cuh\"\n{value}{TEXT}"));
        Ok(KernelSource { name: Cow::Borrowed("cast_transpose"), text, defines })
    }
}

/// One of each way through the kernel.
pub(super) fn sources() -> Vec<KernelSource> {
    let [bf16, f32, e4m3, e5m2] = [DType::BF16, DType::F32, DType::F8E4M3, DType::F8E5M2];
    let b = Builder::new("x");
    let ty = TensorType::new(bf16, [128usize, 128]);
    let (x, dy) = (b.input("x", ty.clone()), b.input("dy", ty));
    b.output("y", x.convert(f32).unary(Unary::Tanh).convert(bf16) * dy);
    let product = b.finish().expect("the region is well typed");
    let plain = |[x, code]: [DType; 2], is_whole, wanted| Special {
        x,
        of: vec![x],
        scale: f32,
        code,
        region: None,
        is_whole,
        is_full: is_whole,
        has_lines: false,
        wanted,
    };
    let of_lines = |is_whole| Special {
        scale: DType::E8M0,
        has_lines: true,
        ..plain([bf16, e4m3], is_whole, [true, true, false, false])
    };
    let of_two = |is_whole| Special {
        of: vec![bf16; 2],
        region: Some(&product),
        ..plain([bf16, e5m2], is_whole, [true; 4])
    };
    let all = [
        plain([bf16, e4m3], true, [true, true, true, false]),
        plain([bf16, e5m2], true, [true; 4]),
        Special { is_full: false, ..plain([bf16, e4m3], true, [true, true, true, false]) },
        plain([f32, e5m2], false, [true; 4]),
        plain([f32, e4m3], true, [false, true, true, false]),
        of_two(true),
        of_two(false),
        of_lines(true),
        of_lines(false),
    ];
    let source =
        |special: &Special<'_>, parts| special.source(parts).expect("the region is elementwise");
    let several = source(&plain([f32, e4m3], true, [true, true, true, false]), 2);
    all.iter().map(|special| source(special, 1)).chain([several]).collect()
}
