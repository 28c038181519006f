//! Host steps: the f64 reference evaluation of one node, rounded to the types of its results.
//!
//! A node for which a back end has no kernel is right all the same; the plan names such a step.
//! Invariant: a call of it reads and writes only bytes of the slots that the step names.

use super::{KernelCall, KernelOp, Plan, SlotId, View};
use crate::eval::{States, eval, for_each_index};
use crate::{Array, Builder, Expr, Graph, Operation, Tensor, TensorType};

/// One node as a graph of its own, and where its operands and results lie.
#[derive(Debug)]
pub struct HostCall {
    graph: Graph,
    operands: Vec<Seen>,
    results: Vec<Option<Seen>>,
}

/// A view with the size of its slot in bytes.
#[derive(Debug)]
struct Seen {
    view: View,
    bytes: usize,
}

impl HostCall {
    /// The node behind a call.
    ///
    /// # Errors
    /// Says what about the node cannot be run so.
    pub fn new(plan: &Plan, call: &KernelCall) -> Result<Self, String> {
        let (op, regions) = match &call.op {
            KernelOp::Prim(prim, regions) => (Operation::Prim(prim.clone()), regions),
            KernelOp::Composite(op, regions) => (Operation::Composite(op.clone()), regions),
        };
        let b = Builder::new("host");
        let input = |(i, view): (usize, &View)| b.input(&i.to_string(), view.ty.clone());
        let args: Vec<Expr<'_>> = call.operands.iter().enumerate().map(input).collect();
        let results = b.node(op, &args, regions.clone());
        results.iter().enumerate().for_each(|(i, result)| b.output(&i.to_string(), *result));
        let graph = b.finish().map_err(|e| e.to_string())?;
        let seen = |view: &View| Seen { view: view.clone(), bytes: plan.slot(view.slot).bytes() };
        let bits_apart = |view: &View| {
            !view.ty.dtype.bits().is_multiple_of(8)
                && *view != View::row_major(view.slot, view.ty.clone())
        };
        if call.results.iter().flatten().any(bits_apart) {
            return Err("results of less than a byte an element must be dense".to_owned());
        }
        Ok(Self {
            graph,
            operands: call.operands.iter().map(seen).collect(),
            results: call.results.iter().map(|r| r.as_ref().map(seen)).collect(),
        })
    }

    /// Evaluates. `read` gives the bytes of a slot, of the size asked for; `write` has its second
    /// argument called on those of another.
    pub fn run<'b, E>(
        &self,
        read: impl Fn(SlotId, usize) -> Result<std::borrow::Cow<'b, [u8]>, E>,
        mut write: impl FnMut(SlotId, usize, &dyn Fn(&mut [u8])) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut args = Vec::with_capacity(self.operands.len());
        for Seen { view, bytes } in &self.operands {
            args.push(elements(view, &read(view.slot, *bytes)?));
        }
        let results = eval(&self.graph, &args, &mut States::new());
        for (result, to) in results.iter().zip(&self.results) {
            if let Some(Seen { view, bytes }) = to {
                let tensor = result.to_tensor();
                write(view.slot, *bytes, &|to| store(&tensor, view, to))?;
            }
        }
        Ok(())
    }
}

/// The elements of a view in row-major order.
fn elements(view: &View, bytes: &[u8]) -> Array {
    let dtype = view.ty.dtype;
    let count = bytes.len() * 8 / dtype.bits();
    let bytes = bytes[..dtype.bytes_for(count)].to_vec();
    let whole =
        Tensor::from_bytes(TensorType::new(dtype, [count]), bytes).expect("the bytes are counted");
    let mut from = Vec::with_capacity(view.ty.elements());
    for_each_offset(view, |offset| from.push(offset));
    Array::from(&whole).rearrange(&view.ty.sizes(), |i| from[i])
}

fn store(tensor: &Tensor, view: &View, to: &mut [u8]) {
    let bits = view.ty.dtype.bits();
    if !bits.is_multiple_of(8) {
        to[..tensor.bytes().len()].copy_from_slice(tensor.bytes());
        return;
    }
    let mut elements = tensor.bytes().chunks_exact(bits / 8);
    for_each_offset(view, |offset| {
        let element = elements.next().expect("the result has the view's type");
        to[offset * (bits / 8)..][..bits / 8].copy_from_slice(element);
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
