//! `Laid`: a value of the whole graph as one rank has it, in every sharding that was asked for.
//!
//! Invariant: each form of a value is computed once. Values that cost nothing to compute
//! (constants, indices, broadcasts of whole values) have no form until somebody asks. They are then
//! computed as a part, not as a whole that is cut.

use super::relation::relation;
use overdrive_ir::{
    Axis, Builder, Channel, DType, Expr, Mesh, Operation, Prim, Reducer, Sharding, Tensor,
    TensorType,
};
use std::cell::RefCell;
use std::rc::Rc;

/// A value of the whole graph.
pub(super) struct Laid<'b> {
    /// Its type in the whole graph.
    pub(super) ty: TensorType,
    /// The sharding that it was computed with; whole, if it costs nothing.
    pub(super) sharding: Sharding,
    forms: RefCell<Vec<(Sharding, Expr<'b>)>>,
    free: Option<Free<'b>>,
}

/// How to compute a value that costs nothing.
struct Free<'b> {
    prim: Prim,
    operands: Vec<Rc<Laid<'b>>>,
    scope: String,
}

impl<'b> Laid<'b> {
    /// A value that is `expr` on each rank.
    pub(super) fn new(ty: TensorType, sharding: Sharding, expr: Expr<'b>) -> Rc<Self> {
        let forms = RefCell::new(vec![(sharding.clone(), expr)]);
        Rc::new(Laid { ty, sharding, forms, free: None })
    }

    /// The result of a primitive, if it costs nothing.
    pub(super) fn free(
        b: &'b Builder,
        prim: &Prim,
        operands: &[Rc<Laid<'b>>],
        ty: &TensorType,
    ) -> Option<Rc<Self>> {
        let is_free = match prim {
            Prim::Constant { .. } | Prim::Iota { .. } => true,
            Prim::Broadcast { .. } => operands[0].is_whole(),
            prim => prim.is_elementwise() && operands.iter().all(|x| x.free.is_some()),
        };
        is_free.then(|| {
            let free =
                Free { prim: prim.clone(), operands: operands.to_vec(), scope: b.current_scope() };
            let sharding = Sharding::whole(ty.rank());
            Rc::new(Laid { ty: ty.clone(), sharding, forms: RefCell::default(), free: Some(free) })
        })
    }

    fn is_whole(&self) -> bool {
        self.sharding == Sharding::whole(self.ty.rank())
    }

    /// Bytes of the whole value.
    pub(super) fn bytes(&self) -> f64 {
        self.ty.bytes() as f64
    }

    /// Whether its partial sums along an axis have been summed already, for somebody else.
    pub(super) fn is_summed(&self, axis: &Axis) -> bool {
        self.forms.borrow().iter().any(|(form, _)| !form.partial.contains(axis))
    }

    /// The value laid out as `to` says. Partial sums stay where `to` has them; none are made.
    pub(super) fn at(&self, b: &'b Builder, mesh: &Mesh, to: &Sharding) -> Expr<'b> {
        let known = |to: &Sharding| {
            self.forms.borrow().iter().find(|(form, _)| form == to).map(|(_, expr)| *expr)
        };
        if let Some(expr) = known(to) {
            return expr;
        }
        let expr = match &self.free {
            Some(free) => free.at(b, mesh, (&self.ty, to)),
            None => {
                let forms = self.forms.borrow().clone();
                let nearest = forms.iter().min_by(|(x, _), (y, _)| {
                    wire_bytes(self.bytes(), mesh, (x, to)).total_cmp(&wire_bytes(
                        self.bytes(),
                        mesh,
                        (y, to),
                    ))
                });
                let (from, expr) = nearest.expect("a value that is not free has a form");
                lay(*expr, mesh, (from.clone(), to))
            }
        };
        self.forms.borrow_mut().push((to.clone(), expr));
        expr
    }
}

impl<'b> Free<'b> {
    fn at(&self, b: &'b Builder, mesh: &Mesh, (ty, to): (&TensorType, &Sharding)) -> Expr<'b> {
        let scope = b.current_scope();
        let inner = self.scope.strip_prefix(&scope).unwrap_or_default().to_owned();
        let _scope = b.scope_path(&inner);
        let types: Vec<TensorType> = self.operands.iter().map(|x| x.ty.clone()).collect();
        let op = Operation::Prim(self.prim.clone());
        let r = relation(&op, &types, std::slice::from_ref(ty), &[]);
        let axis_of = |factor: Option<usize>| {
            let dim = r.results[0].iter().position(|&f| f.is_some() && f == factor)?;
            to.split[dim].clone()
        };
        let operands: Vec<Expr<'b>> = self
            .operands
            .iter()
            .zip(&r.operands)
            .map(|(x, dims)| {
                let split = dims.iter().map(|&f| axis_of(f)).collect();
                x.at(b, mesh, &Sharding { split, partial: vec![] })
            })
            .collect();
        let split = r.results[0].iter().map(|&f| axis_of(f)).collect();
        let part = Sharding { split, partial: vec![] };
        let prim = localized(&self.prim, &part.local(&ty.sizes(), mesh), &[]);
        lay(b.op1(prim, &operands), mesh, (part, to))
    }
}

/// The primitive as one rank applies it: the same, with the sizes of its part in its attributes.
/// `factored` says which dimensions of a slice are whole in the operand.
pub(super) fn localized(prim: &Prim, local: &[usize], factored: &[bool]) -> Prim {
    let shape = || local.to_vec().into();
    match prim {
        Prim::Broadcast { dims, .. } => Prim::Broadcast { shape: shape(), dims: dims.clone() },
        Prim::Reshape { .. } => Prim::Reshape { shape: shape() },
        Prim::Iota { dtype, axis, .. } => Prim::Iota { dtype: *dtype, shape: shape(), axis: *axis },
        Prim::Slice { start, limit, stride } => {
            let limit = |dim: usize| if factored[dim] { local[dim] } else { limit[dim] };
            let limit = (0..local.len()).map(limit).collect();
            Prim::Slice { start: start.clone(), limit, stride: stride.clone() }
        }
        Prim::DynamicSlice { .. } => Prim::DynamicSlice { sizes: local.to_vec() },
        other => other.clone(),
    }
}

/// The primitive, on a channel of the new graph if it has one.
pub(super) fn rechanneled(prim: Prim, b: &Builder) -> Prim {
    match prim {
        Prim::Permute { pairs, channel } => {
            Prim::Permute { pairs, channel: Channel { id: b.channel(), ..channel } }
        }
        Prim::AllReduce { reducer, channel } => {
            Prim::AllReduce { reducer, channel: Channel { id: b.channel(), ..channel } }
        }
        other => other,
    }
}

/// Position of this rank along an axis, as a scalar i64.
pub(super) fn position<'b>(b: &'b Builder, axis: &Axis) -> Expr<'b> {
    b.op1(Prim::RankIndex { along: axis.clone() }, &[]).convert(DType::I64)
}

/// A collective over one axis.
pub(super) fn over(b: &Builder, mesh: &Mesh, axis: &Axis) -> Channel {
    Channel { id: b.channel(), group: mesh.along(axis) }
}

/// Estimated bytes on the wire, per rank, of bringing a value of so many bytes from one sharding to
/// another. They are infinite for partial sums that would have to be made.
pub(super) fn wire_bytes(bytes: f64, mesh: &Mesh, (from, to): (&Sharding, &Sharding)) -> f64 {
    if to.partial.iter().any(|axis| !from.partial.contains(axis)) {
        return f64::INFINITY;
    }
    let of = |axis: &Axis| {
        let ranks = mesh.size(axis) as f64;
        let pass = bytes * (ranks - 1.0) / ranks;
        let target = to.dim_of(axis);
        match (from.partial.contains(axis), from.dim_of(axis)) {
            (true, _) if to.partial.contains(axis) => 0.0,
            (true, _) => pass * if target.is_some() { 1.0 } else { 2.0 },
            (false, None) => 0.0,
            (false, dim) if dim == target => 0.0,
            (false, _) if target.is_some() => pass / ranks,
            (false, _) => pass,
        }
    };
    mesh.axes.iter().map(|(axis, _)| of(axis)).sum()
}

/// Brings a value from one sharding to another: sums, then exchanges, then gathers, then cuts.
fn lay<'b>(mut x: Expr<'b>, mesh: &Mesh, (mut at, to): (Sharding, &Sharding)) -> Expr<'b> {
    let b = x.builder();
    while let Some(axis) = at.partial.iter().find(|axis| !to.partial.contains(axis)).cloned() {
        let (reducer, channel) = (Reducer::Sum, over(b, mesh, &axis));
        x = match to.dim_of(&axis).filter(|&dim| at.split[dim].is_none()) {
            Some(dim) => {
                at.split[dim] = Some(axis.clone());
                b.op1(Prim::ReduceScatter { reducer, axis: dim, channel }, &[x])
            }
            None => b.op1(Prim::AllReduce { reducer, channel }, &[x]),
        };
        at.partial.retain(|other| *other != axis);
    }
    loop {
        let misplaced = (0..at.split.len()).filter(|&dim| at.split[dim] != to.split[dim]);
        let misplaced: Vec<(usize, Axis)> =
            misplaced.filter_map(|dim| Some((dim, at.split[dim].clone()?))).collect();
        let moves = misplaced.iter().find_map(|(dim, axis)| {
            Some((*dim, to.dim_of(axis).filter(|&other| at.split[other].is_none())?))
        });
        if let Some((dim, other)) = moves {
            let axis = at.split[dim].take().expect("a misplaced dimension has an axis");
            let channel = over(b, mesh, &axis);
            x = b.op1(Prim::AllToAll { split: other, concat: dim, channel }, &[x]);
            at.split[other] = Some(axis);
        } else if let Some((dim, axis)) = misplaced.first() {
            at.split[*dim] = None;
            let channel = over(b, mesh, axis);
            x = b.op1(Prim::AllGather { axis: *dim, channel }, &[x]);
        } else {
            break;
        }
    }
    for dim in 0..at.split.len() {
        if let Some(axis) = to.split[dim].as_ref().filter(|_| at.split[dim].is_none()) {
            x = part(x, (dim, axis), mesh);
        }
    }
    x
}

/// This rank's part of a dimension of a whole value.
pub(crate) fn part<'b>(x: Expr<'b>, (dim, axis): (usize, &Axis), mesh: &Mesh) -> Expr<'b> {
    if x.is_poison() {
        return x;
    }
    let (b, mut sizes) = (x.builder(), x.sizes());
    sizes[dim] /= mesh.size(axis);
    let start = |other: usize| match other == dim {
        true => (position(b, axis) * sizes[dim] as f64).reshape([1usize]),
        false => b.constant(Tensor::from_ints(DType::I64, [1usize], &[0])),
    };
    let starts: Vec<Expr<'b>> = (0..sizes.len()).map(start).collect();
    b.op1(Prim::DynamicSlice { sizes }, &[x, b.concat(&starts, 0)])
}
