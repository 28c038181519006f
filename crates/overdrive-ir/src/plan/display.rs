//! Plans as text, for snapshots and for people who want to know what will run.
//!
//! A step is one line: what it does, from which slots to which, with FLOPs and bytes. Scalar
//! programs follow as expressions over the indices `i0 i1 ...`. In these, `acc` is the sum of the
//! contraction. A slot shows its type and place where it is first written. Sizes are exact, so that
//! a snapshot changes when a plan does.

use super::program::{Access, Instr, Program, Register};
use super::{
    ConvolutionCall, GemmCall, KernelCall, KernelOp, Layout, MatrixView, Note, OnlyIf, Plan,
    Recomputing, SlotId, SlotPlace, Space, Step, StepKind, View,
};
use crate::{Precision, row_major};
use serde::Serialize;
use std::fmt::{self, Display, Formatter};

impl Display for Plan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let cost = self.cost();
        let total = |bytes: &[usize]| grouped(bytes.iter().sum::<usize>() as u64);
        writeln!(
            f,
            "plan {} ({}): {} steps, {} FLOP",
            self.name,
            self.mode,
            self.steps.len(),
            grouped(cost.flops)
        )?;
        writeln!(
            f,
            "  arena {} B (live {} B), persistent {} B, moved {} B",
            total(&self.arena_bytes[..self.arena_bytes.len().min(1)]),
            grouped(self.live_bytes as u64),
            total(&self.persistent_bytes),
            grouped(cost.bytes)
        )?;
        if self.scratch_bytes() > 0 {
            writeln!(f, "  scratch {} B", grouped(self.scratch_bytes() as u64))?;
        }
        for space in 1..self.arena_bytes.len() as u8 {
            let bytes = grouped(self.peak_bytes(Space(space)));
            writeln!(f, "  space {space}: {bytes} B with states")?;
        }
        for (number, slot) in self.inputs.iter().enumerate() {
            writeln!(f, "  input {number}: {}", self.described(*slot))?;
        }
        self.steps.iter().try_for_each(|step| self.print_step(step, f))?;
        for (number, slot) in self.outputs.iter().enumerate() {
            writeln!(f, "  output {number}: {}", self.described(*slot))?;
        }
        for (state, old, new) in &self.updates {
            writeln!(f, "  update {state}: {} <- {}", slot_name(*old), slot_name(*new))?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "  {note}"))
    }
}

impl Plan {
    fn described(&self, id: SlotId) -> String {
        let slot = self.slot(id);
        let layout = match &slot.layout {
            Layout::RowMajor => String::new(),
            Layout::Packed { name, bytes } => format!(" {name} {} B", grouped(*bytes as u64)),
        };
        let place = match &slot.place {
            SlotPlace::Input(number) => format!("input {number}"),
            SlotPlace::Output(number) => format!("output {number}"),
            SlotPlace::State(name) => match self.space(id) {
                Space::MAIN => format!("state {name}"),
                Space(other) => format!("state {name} of space {other}"),
            },
            SlotPlace::Constant(value) if value.ty().elements() == 1 => {
                format!("constant {}", value.to_f64()[0])
            }
            SlotPlace::Constant(_) => "constant".to_owned(),
            SlotPlace::Arena { space, offset } => {
                format!("arena{}+{}", space.0, grouped(*offset as u64))
            }
            SlotPlace::Persistent { space, offset } => {
                format!("persistent{}+{}", space.0, grouped(*offset as u64))
            }
        };
        format!("{} {}{layout} in {place}", slot_name(id), slot.ty)
    }

    fn print_step(&self, step: &Step, f: &mut Formatter<'_>) -> fmt::Result {
        // For a copy, both ends are shown, wherever they are.
        let is_copy = matches!(step.kind, StepKind::CopyStart);
        let prepare = if step.prepare { "prepare " } else { "" };
        write!(f, "  {prepare}{} {}", kind(&step.kind), step.name)?;
        if !step.scope.is_empty() {
            write!(f, " at {}", step.scope)?;
        }
        if let Space(other @ 1..) = self.runs_in(step) {
            write!(f, " in space {other}")?;
        }
        write!(f, ": {} FLOP, {} B", grouped(step.cost.flops), grouped(step.cost.bytes))?;
        if let Some(OnlyIf { weights, column, .. }) = step.only_if {
            write!(f, ", only if column {column} of {} is not all 0", slot_name(weights))?;
        }
        if step.scratch_bytes > 0 {
            write!(f, ", scratch {} B", grouped(step.scratch_bytes as u64))?;
        }
        if step.stream != 0 || !step.waits.is_empty() || step.records.is_some() {
            write!(
                f,
                ", stream {} waits {:?} records {:?}",
                step.stream, step.waits, step.records
            )?;
        }
        writeln!(f)?;
        let fixed = |s: &&SlotId| {
            matches!(self.slot(**s).place, SlotPlace::State(_) | SlotPlace::Constant(_))
        };
        for slot in step.reads.iter().filter(|slot| is_copy || fixed(slot)) {
            writeln!(f, "      reads {}", self.described(*slot))?;
        }
        if matches!(step.kind, StepKind::CopyDone) {
            let ends = [step.reads[0], step.writes[0]].map(slot_name);
            return writeln!(f, "      {} is {}", ends[1], ends[0]);
        }
        for slot in &step.writes {
            writeln!(f, "      writes {}", self.described(*slot))?;
        }
        for (old, new) in &step.aliases {
            writeln!(f, "      {} is {}", slot_name(*new), slot_name(*old))?;
        }
        print_work(&step.kind, f)
    }
}

/// Prints the work of a step.
fn print_work(kind: &StepKind, f: &mut Formatter<'_>) -> fmt::Result {
    match kind {
        StepKind::Loop(program) => program.fmt(f),
        StepKind::Gemm(call) => call.fmt(f),
        StepKind::Convolution(call) => call.fmt(f),
        StepKind::Chain(calls) => calls.iter().try_for_each(|call| call.fmt(f)),
        StepKind::Kernel(call) | StepKind::Host(call) => call.fmt(f),
        StepKind::Pack { source, k, n } => {
            writeln!(f, "      [{k}, {n}] of {source}")
        }
        StepKind::PackFilter(call) => writeln!(f, "      {}", call.kernel),
        StepKind::CopyStart
        | StepKind::CopyDone
        | StepKind::CollectiveStart { .. }
        | StepKind::CollectiveDone { .. } => Ok(()),
        StepKind::Joined(_, steps) => steps.iter().try_for_each(|step| print_work(&step.kind, f)),
    }
}

fn kind(kind: &StepKind) -> &'static str {
    match kind {
        StepKind::Loop(_) => "loop",
        StepKind::Gemm(_) => "gemm",
        StepKind::Convolution(_) => "convolution",
        StepKind::Chain(_) => "chain",
        StepKind::Pack { .. } | StepKind::PackFilter(_) => "pack",
        StepKind::Kernel(_) => "kernel",
        StepKind::CopyStart | StepKind::CollectiveStart { .. } => "start",
        StepKind::CopyDone | StepKind::CollectiveDone { .. } => "done",
        StepKind::Host(_) => "host",
        StepKind::Joined(..) => "joined",
    }
}

impl Display for Note {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Note::Expanded { op, scope, reason } => write!(f, "expanded {op} at {scope}: {reason}"),
            Note::Declined { what, scope, reason } => {
                write!(f, "declined {what} at {scope}: {reason}")
            }
            Note::Recomputed { op, scope, why } => {
                write!(f, "recomputed {op} at {scope}: {why}")
            }
            Note::Offloaded { what, scope, reason } if scope.is_empty() => {
                write!(f, "offloaded {what}: {reason}")
            }
            Note::Offloaded { what, scope, reason } => {
                write!(f, "offloaded {what} at {scope}: {reason}")
            }
            Note::RunsThere { step, scope, reason } => {
                write!(f, "{step} at {scope} runs where its states wait: {reason}")
            }
            Note::ByRows { op, scope, parts } => {
                write!(f, "{op} at {scope} is made in {parts} parts of its rows")
            }
            Note::Cast { scope, reason } => write!(f, "cast at {scope}: {reason}"),
        }
    }
}

impl Display for Recomputing {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Recomputing::ForMemory { kept_bytes } => {
                write!(f, "{kept_bytes} bytes are not kept for the backward")
            }
            Recomputing::ForTraffic { moved_bytes } => {
                write!(f, "its readers move {moved_bytes} bytes less so")
            }
        }
    }
}

impl Display for MatrixView {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let offset = if self.offset == 0 { String::new() } else { format!("+{}", self.offset) };
        write!(
            f,
            "{} {}{offset} (strides {} {})",
            slot_name(self.slot),
            self.dtype,
            self.row_stride,
            self.col_stride
        )
    }
}

impl Display for GemmCall {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let batch: String = self.batch.iter().map(|n| format!("{n} x ")).collect();
        let Self { m, n, k, lhs, rhs, accumulate, .. } = self;
        let shortcut = match self.precision {
            Precision::Exact => "",
            Precision::Tf32 => ", products of tf32",
            Precision::FastFp8 => ", sums of fp8 in the tensor core",
        };
        writeln!(
            f,
            "      {batch}[{m}, {k}] x [{k}, {n}] of {lhs} and {rhs}, sums in \
             {accumulate}{shortcut}"
        )?;
        self.epilogue.0.fmt(f)
    }
}

impl Display for ConvolutionCall {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let padded: Vec<String> = self
            .window
            .iter()
            .map(|w| format!("stride {} pad {} {}", w.stride, w.pad_low, w.pad_high))
            .collect();
        let (input, kernel, windows) = (&self.input, &self.kernel, padded.join(", "));
        writeln!(
            f,
            "      {input} by {kernel}, {windows}, groups {}, sums in {}",
            self.groups, self.accumulate
        )?;
        self.epilogue.0.fmt(f)
    }
}

impl Display for KernelCall {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let name = match &self.op {
            KernelOp::Prim(prim, _) => prim.name(),
            KernelOp::Composite(op, _) => op.name().to_owned(),
        };
        let operands: Vec<String> = self.operands.iter().map(View::to_string).collect();
        let results: Vec<String> = self
            .results
            .iter()
            .map(|r| r.as_ref().map_or("_".to_owned(), View::to_string))
            .collect();
        let results = if self.epilogue.is_some() { "acc".to_owned() } else { results.join(", ") };
        writeln!(f, "      {results} = {name}({})", operands.join(", "))?;
        self.epilogue.as_ref().map_or(Ok(()), |epilogue| epilogue.0.fmt(f))
    }
}

impl Display for View {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", slot_name(self.slot), self.ty)?;
        let dense = self.ty.shape.known().map(|sizes| dense_strides(&sizes));
        if self.offset != 0 || dense.as_ref() != Some(&self.strides) {
            write!(f, "+{} strides {:?}", self.offset, self.strides)?;
        }
        Ok(())
    }
}

impl Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let [only] = self.stores.as_slice()
            && matches!(self.instr(only.value), Instr::Accumulator)
        {
            return writeln!(f, "      {} = acc", self.element(&only.access));
        }
        let (kept, folded) = self.extents.split_at(self.extents.len() - self.reduced);
        write!(f, "      for {kept:?}")?;
        match folded {
            [] => writeln!(f)?,
            folded => writeln!(f, " fold {folded:?}")?,
        }
        let mut uses = vec![0usize; self.instrs.len()];
        let operands = self.instrs.iter().flat_map(Instr::operands);
        operands.chain(self.stores.iter().map(|s| s.value)).for_each(|r| uses[r.0 as usize] += 1);
        let mut texts: Vec<String> = Vec::with_capacity(self.instrs.len());
        for (index, instr) in self.instrs.iter().enumerate() {
            let text = self.expression(Register(index as u32), &texts);
            let named = !instr.operands().is_empty()
                && (uses[index] > 1 || matches!(instr, Instr::Reduce(_)));
            if named {
                writeln!(f, "      t{index} = {text}")?;
            }
            texts.push(if named { format!("t{index}") } else { text });
        }
        let mut stores = self.stores.iter();
        stores.try_for_each(|s| {
            writeln!(f, "      {} = {}", self.element(&s.access), texts[s.value.0 as usize])
        })
    }
}

impl Program {
    /// `s4` where the access walks its slot densely, else `s4[512 i0 + i2 + 7]`.
    fn element(&self, access: &Access) -> String {
        if access.offset == 0 && access.strides == dense_strides(&self.extents) {
            return slot_name(access.slot);
        }
        let steps = access.strides.iter().enumerate().filter(|(_, stride)| **stride != 0);
        let mut terms: Vec<String> = steps
            .map(
                |(dim, stride)| {
                    if *stride == 1 { format!("i{dim}") } else { format!("{stride} i{dim}") }
                },
            )
            .collect();
        if access.offset != 0 || terms.is_empty() {
            terms.push(access.offset.to_string());
        }
        format!("{}[{}]", slot_name(access.slot), terms.join(" + "))
    }

    fn expression(&self, register: Register, texts: &[String]) -> String {
        let text = |r: &Register| texts[r.0 as usize].as_str();
        match self.instr(register) {
            Instr::Load(access) => self.element(access),
            Instr::Constant(value) => value.to_string(),
            Instr::Index(dim) => format!("i{dim}"),
            Instr::Accumulator => "acc".to_owned(),
            Instr::Unary(kind, a) => format!("{}({})", word(kind), text(a)),
            Instr::Binary(kind, a, b) => format!("{}({}, {})", word(kind), text(a), text(b)),
            Instr::Compare(kind, a, b) => format!("{}({}, {})", word(kind), text(a), text(b)),
            Instr::Select(c, a, b) => format!("select({}, {}, {})", text(c), text(a), text(b)),
            Instr::Convert(a, _) => format!("{}({})", self.dtype(register), text(a)),
            Instr::Bitcast(a) => format!("bitcast_{}({})", self.dtype(register), text(a)),
            Instr::RandomBits { seed, site } => format!("random_bits({}, {site})", text(seed)),
            Instr::Reduce(fold) => format!("reduce_{}({})", word(&fold.reducer), text(&fold.value)),
        }
    }
}

/// The name of a function, as in IR text.
fn word(kind: &impl Serialize) -> String {
    serde_json::to_value(kind)
        .ok()
        .and_then(|v| v.as_str().map(str::to_owned))
        .expect("kinds are unit variants")
}

fn slot_name(slot: SlotId) -> String {
    format!("s{}", slot.0)
}

fn dense_strides(sizes: &[usize]) -> Vec<i64> {
    row_major(sizes).into_iter().map(|s| s as i64).collect()
}

/// Digits in groups of three: `1,048,576`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
