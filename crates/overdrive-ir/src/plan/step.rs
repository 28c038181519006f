//! Steps: the closed list of what a plan can ask of a device.

use super::program::{Access, Program};
use super::slot::SlotId;
use crate::window_dimension::WindowDimension;
use crate::{Cost, DType, OpRef, Precision, Prim, TensorType};

/// One unit of work. `reads` and `writes` are complete, so liveness needs nothing else.
#[derive(Clone, PartialEq, Debug)]
pub struct Step {
    /// The work of the step.
    pub kind: StepKind,
    /// Slots read.
    pub reads: Vec<SlotId>,
    /// Slots written, workspaces included.
    pub writes: Vec<SlotId>,
    /// Pairs (read, written) that must share their bytes. One is a state that is updated in place,
    /// or a value that is overwritten where it is read for the last time.
    pub aliases: Vec<(SlotId, SlotId)>,
    /// Queue it is issued on: 0 for work, others for copies between memory spaces, for work in
    /// other memory and, where the device runs them beside work, for collectives.
    pub stream: u16,
    /// Events of steps on other streams that end before this one begins.
    pub waits: Vec<u32>,
    /// Event that other streams learn of its end by. Placing the plan renumbers events.
    pub records: Option<u32>,
    /// Runs once, and again only when one of its reads (states, constants) changes.
    pub prepare: bool,
    /// A condition without which nothing reads what it writes, so that a device may leave it out.
    pub only_if: Option<OnlyIf>,
    /// The most scratch that it takes while it runs, in bytes of main memory. Steps of work share
    /// one area, one after the other.
    pub scratch_bytes: usize,
    /// FLOPs and bytes of the work, for rooflines.
    pub cost: Cost,
    /// Name of the graph ops it came from, outermost first: `linear+gelu`.
    pub name: String,
    /// Scope of the last of them.
    pub scope: String,
}

impl Step {
    /// Uses slot `to` wherever it used `from`.
    pub fn rename(&mut self, from: SlotId, to: SlotId) {
        self.for_each_slot(&mut |slot| {
            if *slot == from {
                *slot = to;
            }
        });
    }

    /// The steps that it stands for: itself, or those that one launch does.
    pub fn parts(&self) -> &[Step] {
        match &self.kind {
            StepKind::Joined(_, steps) => steps,
            _ => std::slice::from_ref(self),
        }
    }

    /// Whether it is the start of a copy or a collective that the other ends.
    pub fn starts(&self, end: &Step) -> bool {
        let is_kind = match (&self.kind, &end.kind) {
            (StepKind::CopyStart, StepKind::CopyDone) => true,
            (StepKind::CollectiveStart { prim }, StepKind::CollectiveDone { channel }) => {
                prim.channel().is_some_and(|own| own.id == *channel)
            }
            _ => false,
        };
        is_kind && (&self.reads, &self.writes) == (&end.reads, &end.writes)
    }

    /// Whether one of two steps writes a slot that is, by `same`, one that the other touches.
    pub fn meets(&self, other: &Step, same: impl Fn(&SlotId, &SlotId) -> bool) -> bool {
        let touches = |writer: &[SlotId], other: &[SlotId]| {
            writer.iter().any(|w| other.iter().any(|o| same(w, o)))
        };
        touches(&self.writes, &other.reads)
            || touches(&self.writes, &other.writes)
            || touches(&other.writes, &self.reads)
    }

    fn for_each_slot(&mut self, see: &mut dyn FnMut(&mut SlotId)) {
        let pairs = self.aliases.iter_mut().flat_map(|(old, new)| [old, new]);
        self.reads.iter_mut().chain(&mut self.writes).chain(pairs).for_each(&mut *see);
        self.only_if.iter_mut().for_each(|only_if| see(&mut only_if.weights));
        self.kind.for_each_slot(see);
    }
}

/// The condition of a step: some row of a column of weights is not 0.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct OnlyIf {
    /// Weights `[rows, E]`, all of a slot that the step reads, row after row.
    pub weights: SlotId,
    /// Rows and E.
    pub shape: [usize; 2],
    /// The column, below E.
    pub column: usize,
}

/// The kinds of work.
#[derive(Clone, PartialEq, Debug)]
pub enum StepKind {
    /// A fused loop nest.
    Loop(Program),
    /// A matrix product with an epilogue.
    Gemm(GemmCall),
    /// A convolution with an epilogue.
    Convolution(ConvolutionCall),
    /// A chain of convolutions, each the only reader of the one before. A device runs them band by
    /// band. The slots between them have no place in the plan: the device holds only the present
    /// band of each.
    Chain(Vec<ConvolutionCall>),
    /// Rearranges the right operand of later GEMMs into `Layout::Packed`: `reads[0]` to
    /// `writes[0]`.
    Pack {
        /// The matrix, rows k, columns n.
        source: MatrixView,
        /// Rows.
        k: usize,
        /// Columns.
        n: usize,
    },
    /// Rearranges the kernel of later convolutions into `Layout::Packed`: `reads[0]` to
    /// `writes[0]`. The call is the first of those convolutions, as it would be without this step.
    PackFilter(ConvolutionCall),
    /// A kernel that a back end has by name for a composite or a primitive.
    Kernel(KernelCall),
    /// Start of a copy of `reads[0]` to `writes[0]`, of equal bytes and in different memory spaces,
    /// on a stream of its own.
    CopyStart,
    /// Its end, on the stream of work: of the last `CopyStart` before it with the same reads and
    /// writes. Neither slot may be reused before.
    CopyDone,
    /// Start of a collective of each of the reads to the write at the same place; `Done` with the
    /// same channel completes it. Permutations and `all_to_all` have one of each.
    CollectiveStart {
        /// The collective primitive.
        prim: Prim,
    },
    /// Completion of the collective of this channel.
    CollectiveDone {
        /// Channel id.
        channel: u64,
    },
    /// Work on the host in the middle of a device plan: the f64 reference evaluation of one node.
    /// Named in the notes, never silent.
    Host(KernelCall),
    /// Steps that one launch does, as if in this order, and what holds them together. Values passed
    /// from one step to another, with no other reader, need not be in memory.
    Joined(Bond, Vec<Step>),
}

/// Why a device can do several steps in one launch.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Bond {
    /// They are small, and read one operand or each other at the same element.
    Small,
    /// Each product is added to the result of the one before it.
    Sum,
    /// They are alike, and none has to do with another.
    Alike,
    /// A product, and the step over the rows of its result.
    Rows,
}

impl Bond {
    /// All of them, in the order in which they are looked for.
    pub const ALL: [Bond; 4] = [Bond::Small, Bond::Sum, Bond::Alike, Bond::Rows];
}

impl StepKind {
    /// Whether it computes: it is no part of a copy or of a collective.
    pub fn is_work(&self) -> bool {
        use StepKind::{CollectiveDone, CollectiveStart, CopyDone, CopyStart};
        !matches!(self, CopyStart | CopyDone | CollectiveStart { .. } | CollectiveDone { .. })
    }

    /// Calls `see` with every slot that the work names.
    fn for_each_slot(&mut self, see: &mut dyn FnMut(&mut SlotId)) {
        match self {
            StepKind::Loop(program) => program.for_each_slot(see),
            StepKind::Gemm(call) => {
                [&mut call.lhs.slot, &mut call.rhs.slot].into_iter().for_each(&mut *see);
                call.epilogue.0.for_each_slot(see);
            }
            StepKind::Convolution(call) | StepKind::PackFilter(call) => call.for_each_slot(see),
            StepKind::Chain(calls) => calls.iter_mut().for_each(|call| call.for_each_slot(see)),
            StepKind::Pack { source, .. } => see(&mut source.slot),
            StepKind::Kernel(call) | StepKind::Host(call) => {
                let views = call.operands.iter_mut().chain(call.results.iter_mut().flatten());
                views.map(|view| &mut view.slot).for_each(&mut *see);
                if let Some(epilogue) = &mut call.epilogue {
                    epilogue.0.for_each_slot(see);
                }
            }
            StepKind::Joined(_, steps) => {
                steps.iter_mut().for_each(|step| step.for_each_slot(see));
            }
            StepKind::CopyStart
            | StepKind::CopyDone
            | StepKind::CollectiveStart { .. }
            | StepKind::CollectiveDone { .. } => {}
        }
    }
}

impl ConvolutionCall {
    fn for_each_slot(&mut self, see: &mut dyn FnMut(&mut SlotId)) {
        let views = [&mut self.input.slot, &mut self.kernel.slot].into_iter();
        views.chain(&mut self.workspace).for_each(&mut *see);
        self.epilogue.0.for_each_slot(see);
    }
}

/// A two-dimensional view of a slot with outer batch dimensions.
#[derive(Clone, PartialEq, Debug)]
pub struct MatrixView {
    /// The buffer.
    pub slot: SlotId,
    /// Element type of the buffer.
    pub dtype: DType,
    /// Element offset of the first element.
    pub offset: i64,
    /// Elements per row step.
    pub row_stride: i64,
    /// Elements per column step.
    pub col_stride: i64,
    /// Elements per step of each batch dimension (0 where broadcast).
    pub batch_strides: Vec<i64>,
}

/// `out = epilogue(lhs[batch, m, k] x rhs[batch, k, n])`.
#[derive(Clone, PartialEq, Debug)]
pub struct GemmCall {
    /// Extents of the batch dimensions.
    pub batch: Vec<usize>,
    /// Rows of the product.
    pub m: usize,
    /// Columns of the product.
    pub n: usize,
    /// Contracted extent.
    pub k: usize,
    /// Left operand: rows m, columns k.
    pub lhs: MatrixView,
    /// Right operand: rows k, columns n. With `Layout::Packed` strides are those of the unpacked
    /// matrix.
    pub rhs: MatrixView,
    /// Type that partial sums have.
    pub accumulate: DType,
    /// Permitted shortcuts.
    pub precision: Precision,
    /// The work on each sum.
    pub epilogue: Epilogue,
}

/// The work of a contraction on each finished sum: a program over `[batch..., m, n]` without
/// reduced dimensions that reads `Instr::Accumulator`. Plain storing is the program with one
/// (possibly converted) store. The epilogue of a convolution is over `[N, O, spatial...]`. It may
/// fold over all of space, once, if the device allows it (`Description::folds_space`). Nothing that
/// varies in space then depends on the fold.
#[derive(Clone, PartialEq, Debug)]
pub struct Epilogue(pub Program);

impl Epilogue {
    /// The access of the only store when the epilogue merely stores the unconverted sum.
    pub fn plain_store(&self) -> Option<&Access> {
        match (self.0.instrs.as_slice(), self.0.stores.as_slice()) {
            ([super::Instr::Accumulator], [store]) => Some(&store.access),
            _ => None,
        }
    }
}

/// An arbitrarily strided view of a slot: transposes, slices and broadcasts cost no step of their
/// own.
#[derive(Clone, PartialEq, Debug)]
pub struct View {
    /// The buffer.
    pub slot: SlotId,
    /// Element type and extents that the kernel sees.
    pub ty: TensorType,
    /// Element offset of the first element.
    pub offset: i64,
    /// Elements to move per step of each dimension; 0 broadcasts, negative reverses.
    pub strides: Vec<i64>,
}

impl View {
    /// All of a dense slot.
    pub fn row_major(slot: SlotId, ty: TensorType) -> Self {
        let strides = crate::row_major(&ty.sizes()).into_iter().map(|s| s as i64).collect();
        Self { slot, ty, offset: 0, strides }
    }

    /// Whether it is all of its slot, row after row.
    pub fn is_dense(&self) -> bool {
        let sizes = self.ty.sizes();
        let dense = crate::row_major(&sizes).into_iter().map(|stride| stride as i64);
        let mut strides = dense.zip(&self.strides).zip(&sizes);
        self.offset == 0 && strides.all(|((dense, &found), &size)| dense == found || size <= 1)
    }

    /// Sizes and strides of the dimensions that are not among `axes`.
    pub fn without(&self, axes: &[usize]) -> (Vec<usize>, Vec<i64>) {
        let sizes = self.ty.sizes();
        let kept = (0..sizes.len()).filter(|axis| !axes.contains(axis));
        kept.map(|axis| (sizes[axis], self.strides[axis])).unzip()
    }
}

/// NCHW x OIHW convolution with an epilogue over `[N, O, spatial...]`.
#[derive(Clone, PartialEq, Debug)]
pub struct ConvolutionCall {
    /// `[N, C, spatial...]`.
    pub input: View,
    /// `[O, C/groups, spatial...]`. With `Layout::Packed` strides are those of the unpacked kernel.
    pub kernel: View,
    /// Geometry per spatial dimension.
    pub window: Vec<WindowDimension>,
    /// Channel groups.
    pub groups: usize,
    /// Type that partial sums have.
    pub accumulate: DType,
    /// The work on each sum.
    pub epilogue: Epilogue,
    /// The slot for partial folds of an epilogue that folds over space: `[N, parts, O]` of the
    /// fold's type, as many parts as `Kernel::parts` says. The last of the step's writes.
    pub workspace: Option<SlotId>,
}

/// A node that a back end runs by a kernel of the op's own name.
#[derive(Clone, PartialEq, Debug)]
pub struct KernelCall {
    /// The op.
    pub op: KernelOp,
    /// Operands in order, captures last. Every kernel takes any strides.
    pub operands: Vec<View>,
    /// Results in order, of distinct elements; `None` where nobody uses the result. Empty where
    /// there is an epilogue.
    pub results: Vec<Option<View>>,
    /// The work on each element of the only result of a product, if the kernel does that work too.
    /// It is over `[batch..., m, n]`; n are the columns of the result. Operands of such a call are
    /// dense.
    pub epilogue: Option<Epilogue>,
}

/// The op behind a named kernel.
#[derive(Clone, PartialEq, Debug)]
pub enum KernelOp {
    /// A primitive that is neither loop nor contraction (gather, sort, ...).
    Prim(Prim, Vec<crate::Graph>),
    /// A composite that the back end claims, with its regions.
    Composite(OpRef, Vec<crate::Graph>),
}
