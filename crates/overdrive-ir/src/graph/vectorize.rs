//! Inlining a region once per point of a grid, all points at once.
//!
//! A scalar function (the score or mask function of attention) becomes array code:
//! - Every value that differs between points gets the grid's dimensions in front of its own.
//! - The axes of every primitive move accordingly.
//! - A read at indices of the point itself is a broadcast, whose gradient is a sum.
//! - A read at any other index stays one `gather`, whose gradient is a scatter-add.
//!
//! After Bradbury et al., JAX, `vmap`.

use super::{Builder, Expr, Graph, Node, Value};
use crate::{DType, Mismatch, Operation, Prim, Shape, TensorType};

/// A value inside a vectorised region.
#[derive(Copy, Clone, Debug)]
pub(crate) enum PointValue<'b> {
    /// One value per point: the grid's dimensions, then its own.
    Each(Expr<'b>),
    /// The same for every point.
    Shared(Expr<'b>),
    /// The point's i32 index along this dimension of the grid.
    Index(usize),
}

impl<'b> PointValue<'b> {
    /// One value per point.
    fn each(self, b: &'b Builder, grid: &[usize]) -> Expr<'b> {
        match self {
            PointValue::Each(value) => value,
            PointValue::Index(axis) => b.iota(DType::I32, grid.to_vec(), axis),
            PointValue::Shared(value) => {
                let own = value.sizes();
                let dims: Vec<usize> = (grid.len()..grid.len() + own.len()).collect();
                value.broadcast_in(&Shape::from([grid, &own].concat()), &dims)
            }
        }
    }
}

impl Builder {
    /// The outputs of `region`, one value per point of `grid`. `region` must have passed
    /// `check_lanes`.
    pub(crate) fn inline_over<'b>(
        &'b self,
        grid: &[usize],
        region: &Graph,
        arguments: &[PointValue<'b>],
    ) -> Vec<Expr<'b>> {
        let mut lanes: Vec<Option<PointValue<'b>>> = vec![None; region.value_count()];
        for (port, argument) in region.inputs().iter().zip(arguments) {
            lanes[port.value.0 as usize] = Some(*argument);
        }
        let known = |lanes: &[Option<PointValue<'b>>], v: Value| {
            lanes[v.0 as usize].expect("operands precede their node")
        };
        for node in region.nodes() {
            let operands: Vec<PointValue<'b>> =
                node.operands.iter().map(|&v| known(&lanes, v)).collect();
            let results: Vec<PointValue<'b>> = match &node.op {
                op if operands.iter().all(|lane| matches!(lane, PointValue::Shared(_))) => {
                    let operands: Vec<Expr<'b>> =
                        operands.iter().map(|lane| lane.each(self, &[])).collect();
                    let results = self.node(op.clone(), &operands, node.regions.clone());
                    results.into_iter().map(PointValue::Shared).collect()
                }
                Operation::Composite(_) => {
                    let expansion = node.op.expansion(&region.types(&node.operands), &node.regions);
                    self.inline_over(grid, &expansion, &operands)
                        .into_iter()
                        .map(PointValue::Each)
                        .collect()
                }
                Operation::Prim(Prim::Gather { axes })
                    if let Some(read) = at_point(grid, (region, node, axes), &lanes) =>
                {
                    vec![PointValue::Each(read)]
                }
                Operation::Prim(prim) => {
                    let lifted = lift(prim, grid).expect("the region passed `check_lanes`");
                    let operand = |(i, lane): (usize, &PointValue<'b>)| match (prim, lane) {
                        (Prim::Gather { .. }, PointValue::Shared(table)) if i == 0 => *table,
                        _ => lane.each(self, grid),
                    };
                    let operands: Vec<Expr<'b>> =
                        operands.iter().enumerate().map(operand).collect();
                    vec![PointValue::Each(self.op1(lifted, &operands))]
                }
            };
            for (value, result) in node.results.iter().zip(results) {
                lanes[value.0 as usize] = Some(result);
            }
        }
        region.outputs().iter().map(|port| known(&lanes, port.value).each(self, grid)).collect()
    }
}

/// The elements that a gather reads from a tensor of all points, one for each of them, if it reads
/// at indices of the point. None of these passes the end of the tensor, which is broadcast then.
fn at_point<'b>(
    grid: &[usize],
    (region, node, axes): (&Graph, &Node, &[usize]),
    lanes: &[Option<PointValue<'b>>],
) -> Option<Expr<'b>> {
    let lane = |v: Value| lanes[v.0 as usize];
    let PointValue::Shared(table) = lane(node.operands[0])? else { return None };
    if !axes.iter().copied().eq(0..table.rank()) {
        return None;
    }
    let index = region.producer(node.operands[1])?;
    let parts = match index.op.prim()? {
        Prim::Concat { .. } => &index.operands[..],
        _ => &node.operands[1..],
    };
    // The dimension of the grid for each dimension of the tensor.
    let mut read: Vec<usize> = vec![];
    for (&part, size) in parts.iter().zip(table.sizes()) {
        // Indices are clamped, so that it has one element to read.
        if size == 1 {
            continue;
        }
        let moved =
            region.producer(part).filter(|n| matches!(n.op.prim(), Some(Prim::Reshape { .. })))?;
        let PointValue::Index(axis) = lane(moved.operands[0])? else { return None };
        if grid[axis] != size || read.contains(&axis) {
            return None;
        }
        read.push(axis);
    }
    let sizes: Vec<usize> = read.iter().map(|&axis| grid[axis]).collect();
    let mut order: Vec<usize> = (0..read.len()).collect();
    order.sort_by_key(|&i| read[i]);
    let dims: Vec<usize> = order.iter().map(|&i| read[i]).collect();
    Some(table.reshape(sizes).transpose(&order).broadcast_in(&Shape::from(grid.to_vec()), &dims))
}

/// Errs unless `inline_over` can vectorise `region`, whose first `each` inputs differ between
/// points.
pub(crate) fn check_lanes(region: &Graph, each: usize) -> Result<(), Mismatch> {
    let differs: Vec<bool> = (0..region.inputs().len()).map(|i| i < each).collect();
    check_differing(region, &differs)
}

fn check_differing(region: &Graph, inputs: &[bool]) -> Result<(), Mismatch> {
    let mut differs = vec![false; region.value_count()];
    for (port, differing) in region.inputs().iter().zip(inputs) {
        differs[port.value.0 as usize] = *differing;
    }
    for node in region.nodes() {
        let operands: Vec<bool> = node.operands.iter().map(|v| differs[v.0 as usize]).collect();
        if !operands.contains(&true) {
            continue;
        }
        let refused = || {
            let expected =
                "elementwise ops, shape ops, reductions, and gathers from captured tensors";
            Mismatch::new(expected, format!("`{}` in region `{}`", node.op.name(), region.name()))
        };
        match &node.op {
            Operation::Composite(_) => {
                let types: Vec<TensorType> = region.types(&node.operands);
                if types.iter().any(|ty| ty.shape.known().is_none()) {
                    return Err(refused());
                }
                check_differing(&node.op.expansion(&types, &node.regions), &operands)?;
            }
            Operation::Prim(Prim::Gather { .. }) if operands[0] => return Err(refused()),
            Operation::Prim(prim) => lift(prim, &[]).map(|_| ()).ok_or_else(refused)?,
        }
        node.results.iter().for_each(|v| differs[v.0 as usize] = true);
    }
    Ok(())
}

/// The primitive that does at every point of `grid` what `prim` does at one.
fn lift(prim: &Prim, grid: &[usize]) -> Option<Prim> {
    let front = grid.len();
    let moved = |axes: &[usize]| -> Vec<usize> { axes.iter().map(|axis| axis + front).collect() };
    let behind = |axes: &[usize]| -> Vec<usize> { (0..front).chain(moved(axes)).collect() };
    let over = |shape: &Shape| {
        Shape(grid.iter().map(|&n| n.into()).chain(shape.0.iter().cloned()).collect())
    };
    Some(match prim {
        prim if prim.is_elementwise() => prim.clone(),
        Prim::Broadcast { shape, dims } => {
            Prim::Broadcast { shape: over(shape), dims: behind(dims) }
        }
        Prim::Reshape { shape } => Prim::Reshape { shape: over(shape) },
        Prim::Transpose { perm } => Prim::Transpose { perm: behind(perm) },
        Prim::Concat { axis } => Prim::Concat { axis: axis + front },
        Prim::Reduce { reducer, axes } => Prim::Reduce { reducer: *reducer, axes: moved(axes) },
        Prim::Slice { start, limit, stride } => Prim::Slice {
            start: [&vec![0; front][..], start].concat(),
            limit: [grid, limit].concat(),
            stride: [&vec![1; front][..], stride].concat(),
        },
        Prim::Gather { .. } => prim.clone(),
        _ => return None,
    })
}
