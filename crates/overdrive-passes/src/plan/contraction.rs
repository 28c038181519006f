//! Contractions: dot_general as a strided, batched GEMM with its epilogue, convolution likewise.
//!
//! Free axes collapse into one m and one n where strides allow; outer axes that do not collapse
//! become batch dimensions. Operands are copied only where no assignment of strides exists, and the
//! copy is a step of its own.

use super::convolution::takes_channels_last;
use super::locate::view_of;
use super::steps::{About, Planner, is_dense};
use crate::lower::{contraction, lower};
use overdrive_ir::plan::{
    ConvolutionCall, Epilogue, GemmCall, Instr, KernelCall, KernelOp, Layout, MatrixView, Note,
    Program, SlotId, SlotPlace, StepKind, View,
};
use overdrive_ir::{DotGeneral, Graph, Node, Operation, Origin, Prim, Value};
use std::ops::Range;

/// Axes of both operands by role, and how the result's dimensions collapse.
struct Roles {
    batch: Vec<(usize, usize)>,
    free_lhs: Vec<usize>,
    free_rhs: Vec<usize>,
    contract: Vec<(usize, usize)>,
}

impl Roles {
    fn of(dot: &DotGeneral, lhs: &View, rhs: &View) -> Self {
        let free = |rank: usize, side: fn(&(usize, usize)) -> usize| -> Vec<usize> {
            let taken: Vec<usize> = dot.batch.iter().chain(&dot.contract).map(side).collect();
            (0..rank).filter(|axis| !taken.contains(axis)).collect()
        };
        let (free_lhs, free_rhs) = (free(lhs.ty.rank(), |p| p.0), free(rhs.ty.rank(), |p| p.1));
        Self { batch: dot.batch.clone(), free_lhs, free_rhs, contract: dot.contract.clone() }
    }
}

/// Extent and stride of several axes read as one. `None` where they are no arithmetic progression.
fn collapse(view: &View, axes: &[usize]) -> Option<(usize, i64)> {
    let sizes = view.ty.sizes();
    collapse_strides(axes.iter().map(|&a| (sizes[a], view.strides[a])))
}

fn collapse_strides(axes: impl Iterator<Item = (usize, i64)>) -> Option<(usize, i64)> {
    let mut merged: Option<(usize, i64)> = None;
    for (size, stride) in axes.filter(|&(size, _)| size != 1) {
        merged = Some(match merged {
            None => (size, stride),
            Some((extent, outer)) if outer == stride * size as i64 || extent == 0 || size == 0 => {
                (extent * size, stride)
            }
            Some(_) => return None,
        });
    }
    Some(merged.unwrap_or((1, 0)))
}

impl Planner<'_> {
    pub(super) fn contraction(
        &mut self,
        region: &Graph,
        operands: &[View],
        values: &[Value],
        (name, node): (&str, &Node),
    ) {
        let core = contraction(region).expect("the caller saw one");
        let views: Vec<View> =
            core.operands.iter().map(|&v| self.region_view(region, v, operands, node)).collect();
        let last = takes_channels_last(self.target, region, &views[0].strides);
        let results: Vec<View> = values.iter().map(|&v| self.destination_after(v, last)).collect();
        let cost = self.region_cost(region, operands, &results);
        let about = About { name, scope: &node.scope, cost };
        let epilogue = lower(region, operands, &results)
            .unwrap_or_else(|reason| panic!("`{name}` was fused because it lowers: {reason}"));
        match &core.op {
            Operation::Prim(Prim::DotGeneral(dot)) => {
                if let Some(call) = self.gemm(dot, (&views[0], &views[1]), &epilogue) {
                    self.gemm_step(call, about);
                } else {
                    self.unfused(region, core, (operands, &results), about);
                }
            }
            Operation::Prim(Prim::Convolution(conv)) => {
                let mut call = ConvolutionCall {
                    input: views[0].clone(),
                    kernel: views[1].clone(),
                    window: conv.window.clone(),
                    groups: conv.groups,
                    accumulate: conv.accumulate,
                    epilogue: Epilogue(epilogue),
                    workspace: None,
                };
                self.pack_filter_ahead(&mut call);
                call.workspace = self.parts_of_a_fold(&call);
                let reads =
                    [call.input.slot, call.kernel.slot].into_iter().chain(loads(&call.epilogue.0));
                let writes = stores(&call.epilogue.0).into_iter().chain(call.workspace);
                let touched = [reads.collect(), writes.collect()];
                self.step(StepKind::Convolution(call), touched, about);
            }
            Operation::Prim(_) => unreachable!("contractions are dot_general and convolution"),
            Operation::Composite(op) => {
                let op = KernelOp::Composite(op.clone(), core.regions.clone());
                self.product_kernel(op, views, &epilogue, about);
            }
        }
    }

    /// A product that the device has by name, whose rows collapse into one m as far as the
    /// epilogue's buffers allow.
    fn product_kernel(
        &mut self,
        op: KernelOp,
        operands: Vec<View>,
        epilogue: &Program,
        about: About<'_>,
    ) {
        let dense =
            |view: View| if is_dense(&view) { view } else { self.materialize(&view, about.name) };
        let operands: Vec<View> = operands.into_iter().map(dense).collect();
        let n = epilogue.extents.len() - 1;
        let collapsed =
            (0..=n).find_map(|first| collapse_program(epilogue, &(first..n), &(n..n + 1)));
        let epilogue = Epilogue(collapsed.expect("no dimension collapses with itself"));
        let reads = operands.iter().map(|view| view.slot).chain(loads(&epilogue.0)).collect();
        let touched = [reads, stores(&epilogue.0)];
        let call = KernelCall { op, operands, results: vec![], epilogue: Some(epilogue) };
        self.step(StepKind::Kernel(call), touched, about);
    }

    /// A view of a value inside a region: an input seen through view primitives.
    fn region_view(
        &mut self,
        region: &Graph,
        value: Value,
        operands: &[View],
        node: &Node,
    ) -> View {
        match region.origin(value) {
            Origin::Input(i) => operands[i].clone(),
            Origin::State(_) => unreachable!("regions have no states"),
            Origin::Node(id, _) => {
                let inner = region.node(id);
                let ty = region.ty(value).clone();
                match inner.op.prim().expect("regions of contractions hold primitives") {
                    Prim::Constant { value } => {
                        let slot = self.slot(&ty, SlotPlace::Constant(value.clone()));
                        View::row_major(slot, ty)
                    }
                    Prim::Iota { .. } => {
                        let b = overdrive_ir::Builder::new("iota");
                        b.output("0", b.op1(inner.op.clone(), &[]));
                        let region = b.finish().expect("an iota is well typed");
                        let slot = self.arena_slot(&ty);
                        let view = View::row_major(slot, ty);
                        self.loop_of(&region, &[], &view, ("iota", &node.scope));
                        view
                    }
                    prim => {
                        let operand = self.region_view(region, inner.operands[0], operands, node);
                        view_of(prim, &operand, &ty).unwrap_or_else(|| {
                            let dense = self.materialize(&operand, "reshape");
                            view_of(prim, &dense, &ty).expect("any view of a dense value is a view")
                        })
                    }
                }
            }
        }
    }

    /// The GEMM behind a contraction; `None` where the epilogue's buffers do not collapse with the
    /// product.
    fn gemm(
        &mut self,
        dot: &DotGeneral,
        (lhs, rhs): (&View, &View),
        epilogue: &Program,
    ) -> Option<GemmCall> {
        let roles = Roles::of(dot, lhs, rhs);
        let (lhs_k, rhs_k): (Vec<usize>, Vec<usize>) = roles.contract.iter().copied().unzip();
        let (lhs, rhs) =
            match (collapse(lhs, &lhs_k), collapse(rhs, &rhs_k), collapse(rhs, &roles.free_rhs)) {
                (Some(_), Some(_), Some(_)) => (lhs.clone(), rhs.clone()),
                (left, _, _) => {
                    let order =
                        |batch: Vec<usize>, free: &[usize], k: &[usize]| [&batch, free, k].concat();
                    let lhs_order =
                        order(roles.batch.iter().map(|p| p.0).collect(), &roles.free_lhs, &lhs_k);
                    let rhs_order =
                        order(roles.batch.iter().map(|p| p.1).collect(), &rhs_k, &roles.free_rhs);
                    let lhs =
                        if left.is_some() { lhs.clone() } else { self.reordered(lhs, &lhs_order) };
                    (lhs, self.reordered(rhs, &rhs_order))
                }
            };
        let (k, lhs_col) = collapse(&lhs, &lhs_k).expect("collapses after the copy");
        let (_, rhs_row) = collapse(&rhs, &rhs_k).expect("collapses after the copy");
        let (n, rhs_col) = collapse(&rhs, &roles.free_rhs).expect("collapses after the copy");
        let batch_rank = roles.batch.len();
        let free = roles.free_lhs.len();
        let columns = batch_rank + free..epilogue.extents.len();
        // The longest run of trailing free axes that the operand and every buffer of the epilogue
        // read as one.
        let (split, program) = (0..=free).find_map(|split| {
            collapse(&lhs, &roles.free_lhs[split..])?;
            let rows = batch_rank + split..batch_rank + free;
            Some((split, collapse_program(epilogue, &rows, &columns)?))
        })?;
        let (m, lhs_row) = collapse(&lhs, &roles.free_lhs[split..]).expect("found above");
        let (lhs_sizes, outer) = (lhs.ty.sizes(), &roles.free_lhs[..split]);
        let batch_axes = roles.batch.iter().map(|p| p.0).chain(outer.iter().copied());
        let batch: Vec<usize> = batch_axes.clone().map(|axis| lhs_sizes[axis]).collect();
        let lhs_batch = batch_axes.map(|axis| lhs.strides[axis]).collect();
        let rhs_batch =
            roles.batch.iter().map(|p| rhs.strides[p.1]).chain(outer.iter().map(|_| 0)).collect();
        let matrix = |view: &View, row_stride, col_stride, batch_strides| MatrixView {
            slot: view.slot,
            dtype: view.ty.dtype,
            offset: view.offset,
            row_stride,
            col_stride,
            batch_strides,
        };
        Some(GemmCall {
            batch,
            m,
            n,
            k,
            lhs: matrix(&lhs, lhs_row, lhs_col, lhs_batch),
            rhs: matrix(&rhs, rhs_row, rhs_col, rhs_batch),
            accumulate: dot.accumulate,
            precision: dot.precision,
            epilogue: Epilogue(program),
        })
    }

    /// A copy whose memory order is `order`, seen with the axes where they were.
    fn reordered(&mut self, view: &View, order: &[usize]) -> View {
        let sizes: Vec<usize> = view.ty.sizes();
        let permuted: Vec<usize> = order.iter().map(|&axis| sizes[axis]).collect();
        let slot = self.arena_slot(&view.ty.with_shape(permuted.clone()));
        let mut dense = View { slot, offset: 0, ..view.clone() };
        order
            .iter()
            .zip(overdrive_ir::row_major(&permuted))
            .for_each(|(&axis, stride)| dense.strides[axis] = stride as i64);
        self.copy(view, &dense, "transpose");
        dense
    }

    fn gemm_step(&mut self, mut call: GemmCall, about: About<'_>) {
        self.pack_ahead(&mut call);
        let reads =
            [call.lhs.slot, call.rhs.slot].into_iter().chain(loads(&call.epilogue.0)).collect();
        let touched = [reads, stores(&call.epilogue.0)];
        self.step(StepKind::Gemm(call), touched, about);
    }

    /// Packs a right operand that never changes, once, where the device has a packed form.
    fn pack_ahead(&mut self, call: &mut GemmCall) {
        let fixed = self.is_fixed(call.rhs.slot);
        let eager = self.plan.mode == overdrive_ir::Mode::Eager;
        let mut batch = call.batch.iter().zip(&call.rhs.batch_strides);
        let shared = batch.all(|(&extent, &stride)| extent == 1 || stride == 0);
        let ahead = fixed && shared && !eager;
        let kernel = ahead.then(|| self.target.kernel(&overdrive_ir::Call::Product(call)).ok());
        let Some((name, bytes)) = kernel.flatten().and_then(|kernel| kernel.packed) else { return };
        let key = format!("{:?} {} {} {name}", call.rhs, call.k, call.n);
        let known = self.packed.get(&key).copied();
        let slot = known.unwrap_or_else(|| {
            let ty = overdrive_ir::TensorType::new(call.rhs.dtype, [call.k, call.n]);
            let slot =
                self.slot(&ty, SlotPlace::Persistent { space: Default::default(), offset: 0 });
            self.plan.slots[slot.0 as usize].layout = Layout::Packed { name, bytes };
            let source = MatrixView { batch_strides: vec![], ..call.rhs.clone() };
            let kind = StepKind::Pack { source, k: call.k, n: call.n };
            let cost = overdrive_ir::Cost { flops: 0, bytes: 2 * bytes as u64 };
            let touched = [vec![call.rhs.slot], vec![slot]];
            self.step(kind, touched, About { name: "pack", scope: "", cost });
            slot
        });
        self.packed.insert(key, slot);
        call.rhs.slot = slot;
    }

    /// The contraction into a buffer of its own, then the rest as a loop. This is for an epilogue
    /// whose buffers lie in an order that the product's rows and columns cannot follow.
    fn unfused(
        &mut self,
        region: &Graph,
        core: &Node,
        (operands, results): (&[View], &[View]),
        about: About<'_>,
    ) {
        let reason = "its buffers are not laid out in rows and columns of the product";
        let what = format!("epilogue of {}", about.name);
        self.plan.notes.push(Note::Declined {
            what,
            scope: about.scope.to_owned(),
            reason: reason.to_owned(),
        });
        let sum = core.results[0];
        let ty = region.ty(sum).clone();
        let slot = self.arena_slot(&ty);
        let dense = View::row_major(slot, ty);
        let (product, rest) = crate::fuse::split_at(region, sum);
        let store =
            lower(&product, operands, std::slice::from_ref(&dense)).expect("a plain store lowers");
        let Some(Prim::DotGeneral(dot)) = core.op.prim() else {
            unreachable!("convolutions do not collapse")
        };
        let [a, b] = [0, 1].map(|i| self.region_view(region, core.operands[i], operands, core));
        let call = self.gemm(dot, (&a, &b), &store).expect("a dense result collapses");
        self.gemm_step(call, About { name: "dot_general", ..about });
        let mut inputs = operands.to_vec();
        inputs.push(dense);
        let bytes = inputs.iter().chain(results).map(|v| v.ty.bytes() as u64).sum();
        let cost = overdrive_ir::Cost { flops: 0, bytes };
        self.loop_step(&rest, &inputs, results, About { cost, ..about });
    }
}

fn loads(program: &Program) -> Vec<SlotId> {
    let load =
        |instr: &Instr| if let Instr::Load(access) = instr { Some(access.slot) } else { None };
    program.instrs.iter().filter_map(load).collect()
}

fn stores(program: &Program) -> Vec<SlotId> {
    program.stores.iter().map(|s| s.access.slot).collect()
}

/// Merges the dimensions `rows` into one and `columns` into one; `None` where a buffer or an index
/// forbids it.
fn collapse_program(
    program: &Program,
    rows: &Range<usize>,
    columns: &Range<usize>,
) -> Option<Program> {
    let mut result = program.clone();
    let merged = |strides: &[i64]| -> Option<Vec<i64>> {
        let group = |range: &Range<usize>| {
            collapse_strides(range.clone().map(|d| (program.extents[d], strides[d])))
                .map(|(_, stride)| stride)
        };
        let mut new = strides[..rows.start].to_vec();
        new.extend([group(rows)?, group(columns)?]);
        Some(new)
    };
    for instr in &mut result.instrs {
        match instr {
            Instr::Load(access) => access.strides = merged(&access.strides)?,
            Instr::Index(dim) if *dim >= rows.start => {
                let (position, range) = if *dim < rows.end { (0, rows) } else { (1, columns) };
                let alone = range.clone().all(|d| d == *dim || program.extents[d] == 1);
                *dim = alone.then_some(rows.start + position)?;
            }
            // Random bits are numbered by the row-major position, which collapsing keeps.
            _ => {}
        }
    }
    for store in &mut result.stores {
        store.access.strides = merged(&store.access.strides)?;
    }
    let volume = |range: &Range<usize>| program.extents[range.clone()].iter().product::<usize>();
    result.extents = program.extents[..rows.start].to_vec();
    result.extents.extend([volume(rows), volume(columns)]);
    Some(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_collapse_where_strides_are_one_progression() {
        assert_eq!(collapse_strides([(4, 6), (6, 1)].into_iter()), Some((24, 1)));
        assert_eq!(collapse_strides([(4, 12), (6, 1)].into_iter()), None);
        assert_eq!(collapse_strides([(4, 6), (1, 99), (6, 1)].into_iter()), Some((24, 1)));
        assert_eq!(collapse_strides([(4, 0), (6, 0)].into_iter()), Some((24, 0)));
        assert_eq!(collapse_strides([].into_iter()), Some((1, 0)));
    }
}
