//! The printed epilogue: `epilogue(sums, channel, pixel, slots...)` of LANES neighbouring pixels.

use std::fmt::Write;

use overdrive_ir::SlotId;
use overdrive_ir::plan::{Access, Instr, Program, Register, Store};
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
        "sums[v]".to_owned()
    }
}

/// The same program with those trailing spatial dimensions in one that all buffers read as one.
fn merged(program: &Program) -> Program {
    let mut program = program.clone();
    let is_indexed = |instr: &Instr| matches!(instr, Instr::Index(d) if *d >= 2);
    if program.instrs.iter().any(is_indexed) {
        return program;
    }
    while program.extents.len() > 3 {
        let last = program.extents.len() - 1;
        let extent = program.extents[last];
        let loads = program.instrs.iter_mut().filter_map(|instr| match instr {
            Instr::Load(access) => Some(access),
            _ => None,
        });
        let mut accesses: Vec<&mut Access> =
            loads.chain(program.stores.iter_mut().map(|store| &mut store.access)).collect();
        if accesses
            .iter()
            .any(|access| access.strides[last - 1] != access.strides[last] * extent as i64)
        {
            break;
        }
        for access in &mut accesses {
            access.strides.remove(last - 1);
        }
        program.extents[last - 1] *= extent;
        program.extents.pop();
    }
    program
}

/// Neighbours along the last spatial dimension that a thread finishes: at most 16 bytes of any
/// result.
fn lanes(program: &Program) -> usize {
    let widest = program
        .stores
        .iter()
        .map(|store| program.dtype(store.value).bits() / 8)
        .max()
        .unwrap_or(16);
    let extent =
        if program.extents.len() > 2 { program.extents.last().copied().unwrap_or(1) } else { 1 };
    [8, 4, 2]
        .into_iter()
        .find(|&lanes| lanes * widest <= 16 && extent.is_multiple_of(lanes))
        .unwrap_or(1)
}

/// Elements that a store of `lanes` neighbours may write at once.
fn alignment(access: &Access, lanes: usize) -> usize {
    let outer = access.strides.split_last().map_or(&[][..], |(_, outer)| outer);
    let divides =
        |n: usize| outer.iter().chain([&access.offset]).all(|stride| stride % n as i64 == 0);
    [8, 4, 2].into_iter().find(|&n| n <= lanes && divides(n)).unwrap_or(1)
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
            let reason = format!(
                "a convolution's epilogue on {packed}, which is less than a byte; convert it apart"
            );
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
        let text = function(&merged(program), &parameters.join(", "), &names.join(", "));
        Ok(Self { text, slots })
    }
}

/// The function, with its arguments.
fn function(program: &Program, parameters: &str, names: &str) -> String {
    let (lanes, rank) = (lanes(program), program.extents.len());
    let mut text = format!(
        "#define SLOTS {parameters}\n#define NAMES {names}\nconstexpr int LANES = {lanes};\n"
    );
    text += "__device__ __forceinline__ void epilogue(const Partial (&sums)[LANES], const Offset \
             i1, const Offset n, SLOTS) {\n";
    text += "    Offset rest = n;\n";
    for d in (2..rank).rev() {
        let extent = program.extents[d].max(1);
        let name = if d == rank - 1 { "first".to_owned() } else { format!("i{d}") };
        let _ = writeln!(text, "    const Offset {name} = rest % {extent};\n    rest /= {extent};");
    }
    text += "    const Offset i0 = rest;\n";
    for (i, store) in program.stores.iter().enumerate() {
        let _ = writeln!(text, "    {} to{i}[LANES];", program.dtype(store.value));
    }
    text += "#pragma unroll\n    for (int v = 0; v < LANES; v++) {\n";
    let lane =
        if rank > 2 { format!("const Offset i{} = first + v;\n", rank - 1) } else { String::new() };
    text += &lane;
    text += &body(program, &Spelled { program });
    for (i, store) in program.stores.iter().enumerate() {
        let _ = writeln!(text, "to{i}[v] = t{};", store.value.0);
    }
    text += "    }\n";
    if rank > 2 {
        let _ = writeln!(text, "    const Offset i{} = first;", rank - 1);
    }
    for (i, Store { access, .. }) in program.stores.iter().enumerate() {
        let (slot, place) = (access.slot.0, place(access));
        let _ = match access.strides.last() {
            Some(1) if rank > 2 => {
                writeln!(
                    text,
                    "    store<{}>(s{slot} + ({place}), to{i});",
                    alignment(access, lanes)
                )
            }
            Some(step) if rank > 2 => {
                writeln!(text, "    scatter(s{slot} + ({place}), to{i}, {step});")
            }
            _ => writeln!(text, "    s{slot}[{place}] = to{i}[0];"),
        };
    }
    text + "}\n"
}

/// Whether `dtype` is a type of sums that threads can keep.
pub(super) fn is_sum(dtype: DType) -> bool {
    matches!(dtype, DType::F64 | DType::F32 | DType::I32 | DType::I64)
}
