//! Host steps: the f64 reference evaluation of one node, rounded to the types of its results.
//!
//! What no kernel of this back end does is right all the same; the plan names such a step. It allocates: it is the
//! exception that the executor's promise names.
#![allow(unsafe_code)] // Slices over slots.

use overdrive_ir::eval::{States, eval, for_each_index};
use overdrive_ir::plan::{KernelCall, KernelOp, View};
use overdrive_ir::{Array, Builder, Expr, Graph, Operation, Plan, Tensor, TensorType};

use super::step::{Runnable, Unsupported};
use crate::slots::SlotTable;
use crate::threads::Pool;

/// One node as a graph of its own, and where its operands and results lie.
#[derive(Debug)]
pub(crate) struct Host {
    graph: Graph,
    operands: Vec<(View, usize)>,
    results: Vec<Option<(View, usize)>>,
}

impl Host {
    pub(crate) fn new(plan: &Plan, call: &KernelCall) -> Result<Self, Unsupported> {
        let (op, regions) = match &call.op {
            KernelOp::Prim(prim, regions) => (Operation::Prim(prim.clone()), regions),
            KernelOp::Composite(op, regions) => (Operation::Composite(op.clone()), regions),
        };
        let b = Builder::new("host");
        let input = |(i, view): (usize, &View)| b.input(&i.to_string(), view.ty.clone());
        let args: Vec<Expr<'_>> = call.operands.iter().enumerate().map(input).collect();
        let results = b.node(op, &args, regions.clone());
        results.iter().enumerate().for_each(|(i, result)| b.output(&i.to_string(), *result));
        let graph = b.finish().map_err(|e| Unsupported::new(e.to_string()))?;
        let with_bytes = |view: &View| (view.clone(), plan.slot(view.slot).bytes());
        let bits_apart = |view: &View| {
            !view.ty.dtype.bits().is_multiple_of(8) && *view != View::row_major(view.slot, view.ty.clone())
        };
        if call.results.iter().flatten().any(bits_apart) {
            return Err(Unsupported::new("results of less than a byte an element must be dense"));
        }
        Ok(Self {
            graph,
            operands: call.operands.iter().map(with_bytes).collect(),
            results: call.results.iter().map(|r| r.as_ref().map(with_bytes)).collect(),
        })
    }
}

impl Runnable for Host {
    fn run(&self, _: &Pool, slots: &SlotTable) {
        let args: Vec<Array> = self.operands.iter().map(|(view, bytes)| read(view, *bytes, slots)).collect();
        let results = eval(&self.graph, &args, &mut States::new());
        for (result, to) in results.iter().zip(&self.results) {
            if let Some((view, _)) = to {
                write(&result.to_tensor(), view, slots);
            }
        }
    }
}

/// The elements of a view in row-major order.
fn read(view: &View, bytes: usize, slots: &SlotTable) -> Array {
    let dtype = view.ty.dtype;
    let count = bytes * 8 / dtype.bits();
    // SAFETY: the slot has this many bytes, and an earlier step wrote them.
    let bytes = unsafe { slots.slice::<u8>(view.slot, dtype.bytes_for(count)) };
    let whole = Tensor::from_bytes(TensorType::new(dtype, [count]), bytes).expect("the bytes are counted");
    let mut from = Vec::with_capacity(view.ty.elements());
    for_each_offset(view, |offset| from.push(offset));
    Array::from(&whole).rearrange(&view.ty.sizes(), |i| from[i])
}

fn write(tensor: &Tensor, view: &View, slots: &SlotTable) {
    let bits = view.ty.dtype.bits();
    let to = slots.get(view.slot);
    if !bits.is_multiple_of(8) {
        // SAFETY: the view is dense and its slot as long as its type says.
        unsafe { to.copy_from_nonoverlapping(tensor.bytes().as_ptr(), tensor.bytes().len()) };
        return;
    }
    let mut elements = tensor.bytes().chunks_exact(bits / 8);
    for_each_offset(view, |offset| {
        let element = elements.next().expect("the result has the view's type");
        // SAFETY: a view stays inside of its slot.
        unsafe { to.add(offset * (bits / 8)).copy_from_nonoverlapping(element.as_ptr(), bits / 8) };
    });
}

/// Calls `f` with the element offset of each point of a view, in row-major order.
fn for_each_offset(view: &View, mut f: impl FnMut(usize)) {
    for_each_index(&view.ty.sizes(), |index| {
        let steps = index.iter().zip(&view.strides).map(|(&i, &s)| i as i64 * s);
        let offset = view.offset + steps.sum::<i64>();
        f(usize::try_from(offset).expect("a view starts inside of its slot"));
    });
}
