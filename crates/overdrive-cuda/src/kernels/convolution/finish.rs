//! The printed epilogue: `epilogue(sum, channel, pixel, slots...)`.

use std::fmt::Write;

use overdrive_ir::SlotId;
use overdrive_ir::plan::{Access, Instr, Program, Register};
use overdrive_ir::{DType, Plan};

use crate::launch::Refusal;
use crate::loops::print::{Spelling, body};

/// An epilogue over `[N, O, spatial...]` as text, and the slots that it takes.
pub(super) struct Finish {
    pub(super) text: String,
    pub(super) slots: Vec<SlotId>,
}

/// How a program over output pixels spells its parts.
struct Spelled<'a> {
    program: &'a Program,
}

/// `i0 * 64 + i1 + 3`
fn place(access: &Access) -> String {
    let terms = access.strides.iter().enumerate().filter(|&(_, &stride)| stride != 0);
    let mut terms: Vec<String> = terms.map(|(d, stride)| format!("i{d} * ({stride})")).collect();
    terms.push(format!("({})", access.offset));
    terms.join(" + ")
}

impl Spelling for Spelled<'_> {
    fn load(&self, _: Register, access: &Access) -> String {
        format!("s{}[{}]", access.slot.0, place(access))
    }

    fn index(&self, dimension: usize) -> String {
        format!("i{dimension}")
    }

    fn point(&self) -> String {
        let extents = self.program.extents.iter().enumerate();
        extents.fold("(i64)0".to_owned(), |at, (d, extent)| format!("({at} * {extent} + i{d})"))
    }

    fn accumulator(&self) -> String {
        "sum".to_owned()
    }
}

impl Finish {
    pub(super) fn new(plan: &Plan, program: &Program, may_alias: bool) -> Result<Self, Refusal> {
        let read = program.instrs.iter().filter_map(|instr| match instr {
            Instr::Load(access) => Some(access.slot),
            _ => None,
        });
        let written: Vec<SlotId> = program.stores.iter().map(|store| store.access.slot).collect();
        let mut slots: Vec<SlotId> = read.chain(written.iter().copied()).collect();
        slots.sort_unstable();
        slots.dedup();
        let dtype = |slot: &SlotId| plan.slot(*slot).ty.dtype;
        if let Some(packed) = slots.iter().map(dtype).find(|dtype| dtype.bits() < 8) {
            let reason =
                format!("a convolution's epilogue on {packed}, which is less than a byte; convert it apart");
            return Err(Refusal::Unsupported(reason));
        }
        let parameter = |slot: &SlotId| {
            let (constant, alone) = match (written.contains(slot), may_alias) {
                (true, _) => ("", ""),
                (false, true) => ("const ", ""),
                (false, false) => ("const ", " __restrict__"),
            };
            format!("{constant}{}*{alone} s{}", dtype(slot), slot.0)
        };
        let parameters: Vec<String> = slots.iter().map(parameter).collect();
        let names: Vec<String> = slots.iter().map(|slot| format!("s{}", slot.0)).collect();
        let mut text = String::new();
        let _ = writeln!(text, "#define SLOTS {}\n#define NAMES {}", parameters.join(", "), names.join(", "));
        text += "__device__ __forceinline__ void epilogue(const Sum sum, const Offset i1, const Offset n, SLOTS) {\n";
        text += "    Offset rest = n;\n";
        for d in (2..program.extents.len()).rev() {
            let extent = program.extents[d].max(1);
            let _ = writeln!(text, "    const Offset i{d} = rest % {extent};\n    rest /= {extent};");
        }
        text += "    const Offset i0 = rest;\n";
        text += &body(program, &Spelled { program });
        for store in &program.stores {
            let _ = writeln!(
                text,
                "    s{}[{}] = t{};",
                store.access.slot.0,
                place(&store.access),
                store.value.0
            );
        }
        text += "}\n";
        Ok(Self { text, slots })
    }
}

/// Whether `dtype` is a type of sums that threads can keep.
pub(super) fn is_sum(dtype: DType) -> bool {
    matches!(dtype, DType::F64 | DType::F32 | DType::I32 | DType::I64)
}
