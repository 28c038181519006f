//! Score and mask functions as CUDA C++, by the one printer of scalar expressions.

use overdrive_ir::ops::Attention;
use overdrive_ir::plan::{Access, Instr, Register, View};
use overdrive_ir::{DType, Graph};
use overdrive_passes::{At, CaptureRead, Region};

use crate::launch::Refusal;
use crate::loops::print::{Spelling, body};

/// A region and what it reads.
pub(super) struct PrintedRegion<'a> {
    pub(super) region: Region,
    captures: &'a [View],
    /// Whether weights are rounded to 16 bits, so that faster functions will do.
    is_loose: bool,
}

impl<'a> PrintedRegion<'a> {
    /// A region that reads `captures`, for weights of `dtype`.
    pub(super) fn new(region: &Graph, captures: &'a [View], dtype: DType) -> Result<Self, Refusal> {
        let region = Region::new(region, captures).map_err(Refusal::Unsupported)?;
        Ok(Self { region, captures, is_loose: dtype.bits() == 16 })
    }

    /// Its statements.
    pub(super) fn body(&self) -> String {
        body(&self.region.program, self)
    }

    /// Whether its value depends on an index: 0 to 3 are b, h, q and k.
    pub(super) fn reads_index(&self, dimension: usize) -> bool {
        let Region { program, reads, outputs } = &self.region;
        let is = |r: &Register| *program.instr(*r) == Instr::Index(dimension);
        let at = |at: &At| matches!(at, At::Computed(r) if is(r));
        program.instrs.iter().any(|instr| instr.operands().iter().any(is))
            || reads.values().any(|read| read.index.iter().any(at))
            || outputs.iter().flatten().any(is)
    }

    /// For each register: does it differ between pairs of a query and a key of one head?
    pub(super) fn varies(&self) -> Vec<bool> {
        let Region { program, reads, .. } = &self.region;
        let mut varies: Vec<bool> = Vec::with_capacity(program.instrs.len());
        for (instr, register) in program.instrs.iter().zip(0..) {
            let differs = |r: &Register| varies[r.0 as usize];
            let at = |at: &At| matches!(at, At::Computed(r) if differs(r));
            let own = match instr {
                Instr::Index(dimension) => *dimension >= 2,
                Instr::Accumulator => true,
                Instr::Load(_) => reads[&Register(register)].index.iter().any(at),
                other => other.operands().iter().any(differs),
            };
            varies.push(own);
        }
        varies
    }
}

impl Spelling for PrintedRegion<'_> {
    fn load(&self, register: Register, _: &Access) -> String {
        let CaptureRead { capture, index } = &self.region.reads[&register];
        let view = &self.captures[*capture];
        let mut at = format!("{}", view.offset);
        for ((index, &stride), extent) in index.iter().zip(&view.strides).zip(view.ty.sizes()) {
            at += &match index {
                At::Fixed(i) => format!(" + {}", *i as i64 * stride),
                // Indices are mostly i32, whose range is tested in half the instructions.
                At::Computed(register) => {
                    format!(
                        " + (i64)clamped({}, {}) * {stride}",
                        self.name(*register),
                        extent as i64 - 1
                    )
                }
            };
        }
        format!("c{capture}[{at}]")
    }

    fn index(&self, dimension: usize) -> String {
        ["b", "h", "q", "k"][dimension].to_owned()
    }

    fn point(&self) -> String {
        unreachable!("score and mask functions draw no random bits")
    }

    fn accumulator(&self) -> String {
        "sum".to_owned()
    }

    fn is_loose(&self, register: Register) -> bool {
        self.is_loose && self.region.program.dtype(register) == DType::F32
    }
}

/// Parameters of every function.
pub(super) const INDEX: &str = "i32 b, i32 h, i32 q, i32 k CAPTURES";

/// The functions of the regions as text, each behind its macro. Also the parameters that follow the
/// other operands: the seed if weights are dropped, and the captures. Weights are rounded to
/// `dtype`.
pub(super) fn print(
    regions: &[Graph],
    (attention, rest): (&Attention, &[View]),
    dtype: DType,
) -> Result<String, Refusal> {
    let (seed, captures) = attention.seed_and_captures(rest);
    let parameter =
        |(i, view): (usize, &View)| format!(", const {}* __restrict__ c{i}", view.ty.dtype);
    let seeds = seed.map_or("", |_| ", const u64* __restrict__ seed_of").to_owned();
    let names = seed.map_or("", |_| ", seed_of").to_owned();
    let parameters: String =
        [seeds].into_iter().chain(captures.iter().enumerate().map(parameter)).collect();
    let names: String =
        [names].into_iter().chain((0..captures.len()).map(|i| format!(", c{i}"))).collect();
    let mut text = format!("#define CAPTURES {parameters}\n#define CAPTURED {names}\n");
    for region in regions {
        let printed = PrintedRegion::new(region, captures, dtype)?;
        let output = region.ty(region.outputs()[0].value).dtype;
        let (guard, name, sum) = match output {
            DType::Bool => ("MASK", "visible", ""),
            _ => ("SCORE", "score", "Sum sum, "),
        };
        text += &format!(
            "#define {guard}\n__device__ __forceinline__ {output} {name}({sum}{INDEX}) {{\n"
        );
        text += &printed.body();
        text += &format!("return t{};\n}}\n", printed.region.outputs[0][0].0);
    }
    Ok(text)
}
