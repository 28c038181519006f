//! Prints the epilogue of a product, which our kernels apply to `V` neighbouring sums of a row in
//! registers.
//!
//! The text declares:
//!
//! - `Slots`: the addresses of the buffers.
//! - `epilogue`: loads the values that the program reads, makes every store but the first, and
//!   gives the values of the first. Its halves are `Loaded`, for kernels that load early.
//! - `store_result`: makes the first store. It is apart from `epilogue` so that a kernel may send
//!   the result through shared memory instead. A kernel may do so with the first few stores of one
//!   type.
//! - `prefetch`: asks for the values that eight neighbours read.
//!
//! Invariant: neighbours are read and written at once only where every row starts at an address
//! that allows it.

use super::problem::{SLOT_ALIGNMENT, alignment, split};
use crate::compiler::KernelSource;
use crate::loops::print::Spelling;
use crate::loops::{Following, gelu};
use overdrive_ir::DType;
use overdrive_ir::plan::{Access, GemmCall, Instr, MatrixView, Program, Register, SlotId};
use std::fmt::Write as _;

/// The C++ of an epilogue, and the buffers that it wants in `Slots`.
pub(super) struct PrintedEpilogue {
    pub(super) text: String,
    pub(super) slots: Vec<SlotId>,
}

/// True when every buffer's elements have addresses: the printed text cannot write parts of a byte.
pub(super) fn is_printable(program: &Program) -> bool {
    let loads =
        program.instrs.iter().zip(&program.dtypes).filter(|(i, _)| matches!(i, Instr::Load(_)));
    let stores = program.stores.iter().map(|s| program.dtype(s.value));
    loads.map(|(_, &dtype)| dtype).chain(stores).all(|dtype| dtype.bits() >= 8)
}

/// Prints the epilogue of `call`, with the functions that find a batch's operands.
///
/// # Panics
/// If the program is not printable, or stores nothing.
pub(super) fn print(call: &GemmCall) -> PrintedEpilogue {
    print_for(call, 1, None)
}

/// The same for a kernel that is given the values of the first `results` stores, which have one
/// type, one store after the other. `follow` is the work on the rows of the first result.
pub(super) fn print_for(
    call: &GemmCall,
    results: usize,
    following: Option<&Following<'_>>,
) -> PrintedEpilogue {
    let program = &call.epilogue.0;
    assert!(is_printable(program), "the caller asked");
    let mut slots: Vec<SlotId> = Vec::new();
    let mut number = |slot| {
        slots.iter().position(|&s| s == slot).unwrap_or_else(|| {
            slots.push(slot);
            slots.len() - 1
        })
    };
    let Loads { places, reads, ahead } = loads(program, &mut number);
    let Stores { assigns, others, writes, last } = stores(program, results, &mut number);
    let statements = gelu::statements(program, &InKernel { batch: call.batch.len() });
    let follow = following.map(|following| following.print(&mut number)).unwrap_or_default();
    let out = program.dtype(program.stores.first().expect("an epilogue stores").value);
    let batch = batch_indices(&call.batch);
    let mut text =
        format!("struct Slots {{\n    void* at[{}];\n}};\ntypedef {out} OUT;\n", slots.len());
    let arguments = "const Slots& slots, u32 batch, i32 row, i32 col";
    let _ = write!(
        text,
        "template <int V>\nstruct Loaded {{\n{places}__device__ __forceinline__ void \
         load_all({arguments}, i32 count) {{\n{batch}{reads}}}\n"
    );
    let _ = write!(
        text,
        "__device__ __forceinline__ void apply({arguments}, const SUM (&sums)[V], i32 count, OUT \
         (&out)[{results} * V]) {{\n{batch}{others}#pragma unroll\n    for (int v = 0; v < V; ++v) \
         {{\n{statements}{assigns}    }}\n{writes}}}\n}};\n"
    );
    let _ = write!(
        text,
        "template <int V>\n__device__ __forceinline__ void epilogue({arguments}, const SUM \
         (&sums)[V], i32 count, OUT (&out)[{results} * V]) {{\n    Loaded<V> loaded;\n    \
         loaded.load_all(slots, batch, row, col, count);\n    loaded.apply(slots, batch, row, \
         col, sums, count, out);\n}}\n"
    );
    let _ = write!(
        text,
        "template <int V>\n__device__ __forceinline__ void store_result({arguments}, const OUT \
         (&out)[{results} * V], i32 count) {{\n{batch}{last}}}\n"
    );
    let _ = write!(
        text,
        "__device__ __forceinline__ void prefetch({arguments}) {{\n{batch}{ahead}}}\n"
    );
    for (name, view) in [("lhs", &call.lhs), ("rhs", &call.rhs)] {
        let _ = writeln!(
            text,
            "__device__ __forceinline__ i64 {name}_batch(u32 batch) {{\n{batch}    return {};\n}}",
            offset(view.offset, &batch_terms(&view.batch_strides))
        );
    }
    PrintedEpilogue { text: text + &follow, slots }
}

/// The C++ of the values that a program reads.
#[derive(Default)]
struct Loads {
    /// Declarations of the values.
    places: String,
    /// Reads them.
    reads: String,
    /// Prefetches them.
    ahead: String,
}

fn loads(program: &Program, number: &mut impl FnMut(SlotId) -> usize) -> Loads {
    let mut loads = Loads::default();
    for (register, instr) in program.instrs.iter().enumerate() {
        let Instr::Load(access) = instr else { continue };
        let (dtype, slot) = (program.dtypes[register], number(access.slot));
        let (place, read) = load(register, dtype, access, slot);
        loads.places += &place;
        loads.reads += &read;
        let (at, _, _) = address(dtype, access, slot);
        let sector = 32 * 8 / dtype.bits();
        let conditions: Vec<String> = [
            (sector > 8, format!("col % {sector} == 0")),
            // The same for all rows.
            (split(access).1[0] == 0, "row % 64 == 0".to_owned()),
        ]
        .into_iter()
        .filter_map(|(holds, condition)| holds.then_some(condition))
        .collect();
        let condition = match &conditions[..] {
            [] => String::new(),
            some => format!("if ({}) ", some.join(" && ")),
        };
        let _ = writeln!(loads.ahead, "    {condition}ask_for({at});");
    }
    loads
}

/// The C++ of the values that a program stores.
#[derive(Default)]
struct Stores {
    /// Gives each lane's values to `out`, or to variables of their own.
    assigns: String,
    /// Declarations of those variables.
    others: String,
    /// Stores them.
    writes: String,
    /// Makes the first store.
    last: String,
}

/// The values of the first `results` stores go to `out`.
fn stores(program: &Program, results: usize, number: &mut impl FnMut(SlotId) -> usize) -> Stores {
    let mut stores = Stores::default();
    for (i, store) in program.stores.iter().enumerate() {
        let dtype = program.dtype(store.value);
        let text = |name: &str, slot| store_text(name, dtype, &store.access, slot);
        let slot = number(store.access.slot);
        let value = store.value.0;
        if i < results {
            let _ = writeln!(stores.assigns, "        out[{i} * V + v] = t{value};");
            if i == 0 {
                stores.last = text("out", slot);
            }
        } else {
            let _ = writeln!(stores.others, "    {dtype} s{i}[V];");
            let _ = writeln!(stores.assigns, "        s{i}[v] = t{value};");
            stores.writes += &text(&format!("s{i}"), slot);
        }
    }
    stores
}

/// The defines that tell a kernel the extents and types of a product that it sums in `sums`.
pub(super) fn defines(call: &GemmCall, sums: DType) -> Vec<(&'static str, String)> {
    let batch: usize = call.batch.iter().product();
    let view = |view: &MatrixView| {
        [view.row_stride.to_string() + "ll", view.col_stride.to_string() + "ll"]
    };
    let ([lhs_row, lhs_col], [rhs_row, rhs_col]) = (view(&call.lhs), view(&call.rhs));
    vec![
        ("M", call.m.to_string()),
        ("N", call.n.to_string()),
        ("K", format!("{}ll", call.k)),
        ("BATCH", format!("{batch}u")),
        ("LHS", call.lhs.dtype.to_string()),
        ("RHS", call.rhs.dtype.to_string()),
        ("SUM", sums.to_string()),
        ("ACCUMULATE", call.accumulate.to_string()),
        ("LHS_ROW", lhs_row),
        ("LHS_COL", lhs_col),
        ("RHS_ROW", rhs_row),
        ("RHS_COL", rhs_col),
    ]
}

/// A source: our headers, then the definitions, which would clash with names in the headers, then
/// `text`.
pub(super) fn source(
    name: &'static str,
    defines: &[(&'static str, String)],
    text: &str,
) -> KernelSource {
    let defines: String =
        defines.iter().map(|(key, value)| format!("#define {key} {value}\n")).collect();
    let text = format!("#include \"loop.cuh\"\n{}{defines}{text}", gelu::TEXT);
    KernelSource { name: name.into(), text: text.into(), defines: vec![] }
}

/// Splits the linear batch index into `b0 b1 ...`.
fn batch_indices(extents: &[usize]) -> String {
    let mut text = String::new();
    let mut inner = 1;
    for (d, &extent) in extents.iter().enumerate().rev() {
        let _ =
            writeln!(text, "    [[maybe_unused]] const i64 b{d} = batch / {inner}u % {extent}u;");
        inner *= extent;
    }
    text
}

fn batch_terms(strides: &[i64]) -> Vec<(String, i64)> {
    strides.iter().enumerate().map(|(d, &stride)| (format!("b{d}"), stride)).collect()
}

fn offset(origin: i64, terms: &[(String, i64)]) -> String {
    let terms = terms.iter().filter(|(_, stride)| *stride != 0);
    terms.fold(format!("{origin}ll"), |sum, (index, stride)| match stride {
        1 => format!("{sum} + {index}"),
        _ => format!("{sum} + (i64){index} * {stride}ll"),
    })
}

/// Start of a row's elements, the distance between them, and how many can be moved at once.
fn address(dtype: DType, access: &Access, slot: usize) -> (String, i64, u64) {
    let (batch, [row, col]) = split(access);
    let mut terms = batch_terms(batch);
    terms.extend([("row".to_owned(), row), ("col".to_owned(), col)]);
    let others: Vec<i64> = batch.iter().copied().chain([row]).collect();
    let bytes = alignment(dtype, access.offset, &others).min(16).min(SLOT_ALIGNMENT);
    let at_once = (bytes * 8 / dtype.bits() as u64).max(1);
    (format!("({dtype}*)slots.at[{slot}] + ({})", offset(access.offset, &terms)), col, at_once)
}

/// The declaration of the value that `register` reads, and its reading.
fn load(register: usize, dtype: DType, access: &Access, slot: usize) -> (String, String) {
    let (at, step, once) = address(dtype, access, slot);
    let neighbours = format!("    {dtype} l{register}[V];\n");
    match step {
        0 => (
            format!("    {dtype} l{register};\n"),
            format!("    l{register} = *(const {dtype}*)({at});\n"),
        ),
        1 => {
            let load = format!(
                "load<(V < {once} ? V : {once})>(l{register}, (const {dtype}*)({at}), count)"
            );
            (neighbours, format!("    {load};\n"))
        }
        _ => (
            neighbours,
            format!("    gather(l{register}, (const {dtype}*)({at}), {step}ll, count);\n"),
        ),
    }
}

fn store_text(name: &str, dtype: DType, access: &Access, slot: usize) -> String {
    match address(dtype, access, slot) {
        (at, 1, once) => format!("    store<(V < {once} ? V : {once})>({at}, {name}, count);\n"),
        (at, step, _) => format!("    scatter({at}, {name}, {step}ll, count);\n"),
    }
}

/// How a program is spelled inside `epilogue`, for neighbour `v`.
struct InKernel {
    batch: usize,
}

impl Spelling for InKernel {
    fn load(&self, register: Register, access: &Access) -> String {
        let [_, col] = split(access).1;
        if col == 0 { format!("l{}", register.0) } else { format!("l{}[v]", register.0) }
    }

    fn index(&self, dimension: usize) -> String {
        match dimension.checked_sub(self.batch) {
            None => format!("b{dimension}"),
            Some(0) => "row".to_owned(),
            Some(_) => "col + v".to_owned(),
        }
    }

    fn point(&self) -> String {
        "((i64)batch * M + row) * N + col + v".to_owned()
    }

    fn accumulator(&self) -> String {
        "convert<ACCUMULATE>(sums[v])".to_owned()
    }
}
