//! `Expr`: a `Copy` handle on a value, so that model code reads like the formula.
//!
//! Arithmetic broadcasts like NumPy by inserting explicit `broadcast` primitives; the primitives
//! themselves never broadcast. Builder methods of composites are in the file of each op.

use super::{Builder, Graph, Value};
use crate::{
    Binary, Compare, DType, Dim, DotGeneral, Mismatch, Overflow, Pad, Precision, Prim, Reducer,
    Shape, Tensor, TensorType, Unary,
};

/// A value under construction.
#[derive(Copy, Clone, Debug)]
pub struct Expr<'b> {
    builder: &'b Builder,
    /// `None` after an error.
    value: Option<Value>,
}

impl<'b> Expr<'b> {
    pub(super) fn new(builder: &'b Builder, value: Value) -> Self {
        Self { builder, value: Some(value) }
    }

    pub(super) fn poison(builder: &'b Builder) -> Self {
        Self { builder, value: None }
    }

    /// True after an error: whatever is built from it is inert too.
    pub fn is_poison(self) -> bool {
        self.value.is_none()
    }

    /// The value. Panics on an inert expression.
    pub fn value(self) -> Value {
        self.value.expect("inert expressions are never read: the builder holds the error")
    }

    /// The builder it belongs to.
    pub fn builder(self) -> &'b Builder {
        self.builder
    }

    /// Its type; of an inert expression, an f32 scalar.
    pub fn ty(self) -> TensorType {
        self.value.map_or_else(|| TensorType::scalar(DType::F32), |v| self.builder.ty(v))
    }

    /// Element type.
    pub fn dtype(self) -> DType {
        self.ty().dtype
    }

    /// Shape.
    pub fn shape(self) -> Shape {
        self.ty().shape
    }

    /// Extents; only for bound graphs (empty for an inert expression).
    pub fn sizes(self) -> Vec<usize> {
        self.ty().sizes()
    }

    /// Number of dimensions.
    pub fn rank(self) -> usize {
        self.ty().rank()
    }

    /// Extent of an axis; only for bound graphs. 1 for an inert expression.
    pub fn size(self, axis: usize) -> usize {
        if self.is_poison() { 1 } else { self.sizes()[axis] }
    }

    /// A scalar constant of this expression's type.
    pub fn constant(self, value: f64) -> Expr<'b> {
        self.builder.constant(Tensor::scalar(self.dtype(), value))
    }

    /// Applies an elementwise function.
    pub fn unary(self, kind: Unary) -> Expr<'b> {
        self.builder.op1(Prim::Unary { kind }, &[self])
    }

    /// Applies an elementwise function of two operands, broadcasting both.
    pub fn binary(self, kind: Binary, other: Expr<'b>) -> Expr<'b> {
        let (a, b) = self.broadcast_together(other);
        self.builder.op1(Prim::Binary { kind }, &[a, b])
    }

    /// Compares, broadcasting both.
    pub fn compare(self, kind: Compare, other: Expr<'b>) -> Expr<'b> {
        let (a, b) = self.broadcast_together(other);
        self.builder.op1(Prim::Compare { kind }, &[a, b])
    }

    /// `if self then yes else no`, broadcasting all three.
    pub fn select(self, yes: Expr<'b>, no: Expr<'b>) -> Expr<'b> {
        let (yes, no) = yes.broadcast_together(no);
        let (condition, yes) = self.broadcast_together(yes);
        let no = no.broadcast_to(&condition.shape());
        self.builder.op1(Prim::Select, &[condition, yes, no])
    }

    /// Elementwise maximum.
    pub fn max(self, other: Expr<'b>) -> Expr<'b> {
        self.binary(Binary::Max, other)
    }

    /// Elementwise minimum.
    pub fn min(self, other: Expr<'b>) -> Expr<'b> {
        self.binary(Binary::Min, other)
    }

    /// e to the power of each element.
    pub fn exp(self) -> Expr<'b> {
        self.unary(Unary::Exp)
    }

    /// Natural logarithm.
    pub fn log(self) -> Expr<'b> {
        self.unary(Unary::Log)
    }

    /// Square root.
    pub fn sqrt(self) -> Expr<'b> {
        self.unary(Unary::Sqrt)
    }

    /// 1 / sqrt.
    pub fn rsqrt(self) -> Expr<'b> {
        self.unary(Unary::Rsqrt)
    }

    /// Hyperbolic tangent.
    pub fn tanh(self) -> Expr<'b> {
        self.unary(Unary::Tanh)
    }

    /// Rounds to another type, IEEE overflow; nothing where the type stays.
    pub fn convert(self, to: DType) -> Expr<'b> {
        if self.is_poison() || self.dtype() == to {
            return self;
        }
        self.builder.op1(Prim::Convert { to, overflow: Overflow::Ieee }, &[self])
    }

    /// In the type that sums use. Composites compute in it and round once, so that bf16 and f16
    /// lose nothing inside.
    pub fn widen(self) -> Expr<'b> {
        self.convert(self.dtype().accumulation())
    }

    /// Reads the same elements under another shape.
    pub fn reshape(self, shape: impl Into<Shape>) -> Expr<'b> {
        let shape = shape.into();
        if !self.is_poison() && self.shape() == shape {
            return self;
        }
        self.builder.op1(Prim::Reshape { shape }, &[self])
    }

    /// Permutes dimensions: result dimension `i` is dimension `perm[i]`.
    pub fn transpose(self, perm: &[usize]) -> Expr<'b> {
        if perm.iter().enumerate().all(|(i, &p)| i == p) {
            return self;
        }
        self.builder.op1(Prim::Transpose { perm: perm.to_vec() }, &[self])
    }

    /// Swaps the last two dimensions.
    pub fn t(self) -> Expr<'b> {
        let mut perm: Vec<usize> = (0..self.rank()).collect();
        let rank = perm.len();
        if rank >= 2 {
            perm.swap(rank - 1, rank - 2);
        }
        self.transpose(&perm)
    }

    /// Places dimension `i` at `dims[i]` of `shape`.
    pub fn broadcast_in(self, shape: &Shape, dims: &[usize]) -> Expr<'b> {
        if !self.is_poison()
            && self.shape() == *shape
            && dims.iter().enumerate().all(|(i, &d)| i == d)
        {
            return self;
        }
        self.builder.op1(Prim::Broadcast { shape: shape.clone(), dims: dims.to_vec() }, &[self])
    }

    /// NumPy broadcasting: aligns trailing dimensions.
    pub fn broadcast_to(self, shape: &Shape) -> Expr<'b> {
        let (rank, target) = (self.rank(), shape.rank());
        if rank > target {
            let found = format!("{} to {shape}", self.ty());
            return self
                .builder
                .fail("broadcast", Mismatch::new("a target of at least the same rank", found));
        }
        let dims: Vec<usize> = (target - rank..target).collect();
        self.broadcast_in(shape, &dims)
    }

    fn broadcast_together(self, other: Expr<'b>) -> (Expr<'b>, Expr<'b>) {
        if self.is_poison() || other.is_poison() {
            return (Expr::poison(self.builder), Expr::poison(self.builder));
        }
        let (a, b) = (self.shape(), other.shape());
        let rank = a.rank().max(b.rank());
        let one = Dim::Size(1);
        let aligned = |s: &Shape, i: usize| match (i + s.rank()).checked_sub(rank) {
            Some(axis) => s[axis].clone(),
            None => Dim::Size(1),
        };
        let mut dims = Vec::with_capacity(rank);
        for i in 0..rank {
            let (x, y) = (aligned(&a, i), aligned(&b, i));
            dims.push(if x == one { y } else { x });
        }
        let shape = Shape(dims);
        (self.broadcast_to(&shape), other.broadcast_to(&shape))
    }

    /// Folds axes away.
    pub fn reduce(self, reducer: Reducer, axes: &[usize]) -> Expr<'b> {
        if axes.is_empty() {
            return self;
        }
        self.builder.op1(Prim::Reduce { reducer, axes: axes.to_vec() }, &[self])
    }

    /// Folds axes to extent 1.
    pub fn reduce_keep(self, reducer: Reducer, axes: &[usize]) -> Expr<'b> {
        let mut shape = self.shape();
        for (axis, dim) in shape.0.iter_mut().enumerate() {
            if axes.contains(&axis) {
                *dim = Dim::Size(1);
            }
        }
        self.reduce(reducer, axes).reshape(shape)
    }

    /// Sum over axes.
    pub fn sum(self, axes: &[usize]) -> Expr<'b> {
        self.reduce(Reducer::Sum, axes)
    }

    /// Mean over axes, kept with extent 1; only for bound graphs.
    pub fn mean_keep(self, axes: &[usize]) -> Expr<'b> {
        let count: usize = axes.iter().map(|&a| self.size(a)).product();
        self.reduce_keep(Reducer::Sum, axes) * (1.0 / count as f64)
    }

    /// Elements `start..limit` of one axis.
    pub fn slice_axis(self, axis: usize, start: usize, limit: usize) -> Expr<'b> {
        if self.is_poison() {
            return self;
        }
        let sizes = self.sizes();
        let (mut starts, mut limits) = (vec![0; sizes.len()], sizes.clone());
        (starts[axis], limits[axis]) = (start, limit);
        self.builder.op1(
            Prim::Slice { start: starts, limit: limits, stride: vec![1; sizes.len()] },
            &[self],
        )
    }

    /// Surrounds with a constant.
    pub fn pad(self, pads: Vec<Pad>, value: f64) -> Expr<'b> {
        self.builder.op1(Prim::Pad { pads }, &[self, self.constant(value)])
    }

    /// Rows of `self` at `indices`, along `axes` (see `Prim::Gather`).
    pub fn gather(self, indices: Expr<'b>, axes: &[usize]) -> Expr<'b> {
        self.builder.op1(Prim::Gather { axes: axes.to_vec() }, &[self, indices])
    }

    /// The element at scalar integer indices, one per axis: how a region reads a captured tensor.
    pub fn at(self, index: &[Expr<'b>]) -> Expr<'b> {
        let parts: Vec<Expr<'b>> = index.iter().map(|i| i.reshape([1usize])).collect();
        let axes: Vec<usize> = (0..index.len()).collect();
        self.gather(self.builder.concat(&parts, 0), &axes)
    }

    /// General contraction with sums in at least f32 and a result of the operands' type.
    pub fn dot(
        self,
        other: Expr<'b>,
        batch: &[(usize, usize)],
        contract: &[(usize, usize)],
    ) -> Expr<'b> {
        let out = self.dtype();
        self.dot_to(other, batch, contract, out)
    }

    /// `dot` with a result of type `out`.
    pub fn dot_to(
        self,
        other: Expr<'b>,
        batch: &[(usize, usize)],
        contract: &[(usize, usize)],
        out: DType,
    ) -> Expr<'b> {
        let accumulate = self.dtype().accumulation();
        let (batch, contract) = (batch.to_vec(), contract.to_vec());
        let dot = DotGeneral { batch, contract, accumulate, out, precision: Precision::Exact };
        self.builder.op1(Prim::DotGeneral(dot), &[self, other])
    }

    /// `[..., m, k] x [k, n]`, or `[batch..., m, k] x [batch..., k, n]` with equal batch
    /// dimensions.
    pub fn matmul(self, other: Expr<'b>) -> Expr<'b> {
        if self.is_poison() || other.is_poison() {
            return Expr::poison(self.builder);
        }
        let (a, b) = (self.rank(), other.rank());
        if a < 2 || b < 2 || (b > 2 && a != b) {
            let found = format!("{} and {}", self.ty(), other.ty());
            let expected = "operands of rank 2 or more, the second of rank 2 or of equal rank";
            return self.builder.fail("matmul", Mismatch::new(expected, found));
        }
        let batch: Vec<(usize, usize)> = (0..b - 2).map(|i| (i, i)).collect();
        self.dot(other, &batch, &[(a - 1, b - 2)])
    }
}

impl Builder {
    /// A constant.
    pub fn constant(&self, value: Tensor) -> Expr<'_> {
        self.op1(Prim::Constant { value }, &[])
    }

    /// `0, 1, 2, ...` along an axis.
    pub fn iota(&self, dtype: DType, shape: impl Into<Shape>, axis: usize) -> Expr<'_> {
        self.op1(Prim::Iota { dtype, shape: shape.into(), axis }, &[])
    }

    /// Joins along an axis.
    pub fn concat<'b>(&'b self, parts: &[Expr<'b>], axis: usize) -> Expr<'b> {
        self.op1(Prim::Concat { axis }, parts)
    }

    /// A scalar of any type, filled over a shape.
    pub fn full(&self, dtype: DType, shape: impl Into<Shape>, value: f64) -> Expr<'_> {
        self.constant(Tensor::scalar(dtype, value)).broadcast_in(&shape.into(), &[])
    }

    /// `if` with both branches as regions over the captures.
    pub fn if_else<'b>(
        &'b self,
        condition: Expr<'b>,
        captures: &[Expr<'b>],
        [yes, no]: [Graph; 2],
    ) -> Vec<Expr<'b>> {
        let operands: Vec<Expr<'b>> =
            std::iter::once(condition).chain(captures.iter().copied()).collect();
        self.node(Prim::If, &operands, vec![yes, no])
    }
}

macro_rules! arithmetic {
    ($($trait:ident $method:ident $kind:ident;)*) => {$(
        impl<'b> std::ops::$trait for Expr<'b> {
            type Output = Expr<'b>;
            fn $method(self, other: Expr<'b>) -> Expr<'b> {
                self.binary(Binary::$kind, other)
            }
        }
        impl<'b> std::ops::$trait<f64> for Expr<'b> {
            type Output = Expr<'b>;
            fn $method(self, other: f64) -> Expr<'b> {
                self.binary(Binary::$kind, self.constant(other))
            }
        }
        impl<'b> std::ops::$trait<Expr<'b>> for f64 {
            type Output = Expr<'b>;
            fn $method(self, other: Expr<'b>) -> Expr<'b> {
                other.constant(self).binary(Binary::$kind, other)
            }
        }
    )*};
}

arithmetic! {
    Add add Add;
    Sub sub Sub;
    Mul mul Mul;
    Div div Div;
}

impl<'b> std::ops::Neg for Expr<'b> {
    type Output = Expr<'b>;
    fn neg(self) -> Expr<'b> {
        self.unary(Unary::Neg)
    }
}
