//! Operations: the kernel calls of a single node, store or fold.

use overdrive_ir::{Binary, DType, Reducer, Unary};

use super::Unsupported;
use super::code::{EmitTarget, Op, PointerId, PointerTarget, RowPass, Stores};
use super::emit::{Emitter, Width, is_lane};
use super::expression::{Node, Reg, StoreNode};
use super::isa::Isa;
use super::lane::Class;
use super::map::{self, Uniform};
use super::nest::Lanes;
use super::random::RandomBits;
use super::{convert, gelu, load_store, reduce, stages};

impl<I: Isa> Emitter<'_, I> {
    /// Emits a store of a value that has a home.
    pub(super) fn store(
        &mut self,
        ops: &mut Vec<Op>,
        store: &StoreNode,
        width: Width,
    ) -> Result<(), Unsupported> {
        let class = self.target.expression.class(store.value);
        let mut from = self.home(store.value);
        let walk = self.walk(store.affine);
        let immediate = if width == Width::One { 1 } else { walk.lane / walk.element };
        let splat = width == Width::Block && !self.is_vector(store.value);
        let temporary = self.unit_for(splat);
        if let Some(unit) = temporary {
            ops.push(Op::new(load_store::splat::<I>(class), unit, [from; 3], 0));
            from = unit;
        }
        let streams =
            self.target.stores == Stores::Streaming && width == Width::Block && immediate == 1;
        let entry = match is_lane(store.dtype) && streams {
            true => load_store::stream::<I>(class),
            false => load_store::store::<I>(store.dtype).expect("accesses are to whole bytes"),
        };
        ops.push(Op::new(entry, store.affine as PointerId, [from; 3], immediate));
        self.free.extend(temporary);
        Ok(())
    }

    fn unit_for(&mut self, wanted: bool) -> Option<PointerId> {
        wanted.then(|| self.unit())
    }

    /// Emits a reduction into `pass` and gives its result a home.
    pub(super) fn fold(&mut self, pass: &mut RowPass, reduce: Reg) -> Result<(), Unsupported> {
        let EmitTarget { expression, nest, .. } = self.target;
        let Node::Reduce(reducer, value) = expression.nodes[reduce] else {
            unreachable!("only reductions fold")
        };
        let (class, dtype) = (expression.class(reduce), expression.dtypes[reduce]);
        let missing = || Unsupported { reason: format!("{reducer:?} of {dtype}") };
        let (folding, gathering) = reduce::fold::<I>(reducer, class, nest.lanes)
            .zip(reduce::gather::<I>(reducer, class))
            .ok_or_else(missing)?;
        let accumulator = self.fresh_units(1);
        let op = |entry, dst, src: PointerId, immediate| Op::new(entry, dst, [src; 3], immediate);
        let identity = reduce::identity(reducer, dtype);
        pass.fill.push(op(load_store::constant::<I>(class), accumulator, accumulator, identity));
        let mut from = self.home(value);
        let temporary = self.unit_for(!self.is_vector(value));
        if let Some(unit) = temporary {
            pass.element.push(op(load_store::splat::<I>(class), unit, from, 0));
            from = unit;
        }
        pass.element.push(op(folding, accumulator, from, 0));
        self.free.extend(temporary);
        let along = if nest.lanes == Lanes::Along { nest.lane.div_ceil(reduce::LANES) } else { 1 };
        let wide = (class == Class::F32
            && reducer == Reducer::Sum
            && nest.lines() * along > reduce::FLUSH)
            .then(|| self.fresh_units(if self.code.lane_bytes == 4 { 2 } else { 1 }));
        if let Some(wide) = wide {
            pass.fill.push(op(load_store::constant::<I>(Class::F64), wide, wide, 0));
            pass.flush.push(op(I::entry::<reduce::Flush>(), wide, accumulator, 0));
            pass.finish.push(op(I::entry::<reduce::Flush>(), wide, accumulator, 0));
        }
        let home = match (nest.lanes, wide) {
            (Lanes::Across, None) => accumulator,
            (Lanes::Across, Some(wide)) => {
                pass.finish.push(op(I::entry::<reduce::Narrow>(), accumulator, wide, 0));
                accumulator
            }
            (Lanes::Along, None) => {
                let cell = self.cell();
                pass.finish.push(op(gathering, cell, accumulator, 0));
                cell
            }
            (Lanes::Along, Some(wide)) => {
                let cell = self.cell();
                pass.finish.push(op(I::entry::<reduce::GatherWide>(), cell, wide, 0));
                cell
            }
        };
        if let Some(entry) = convert::wrap::<I>(dtype) {
            // A gathered number has one lane; an accumulator has many.
            let ops = match nest.lanes {
                Lanes::Across => &mut pass.finish,
                Lanes::Along => &mut pass.gathered,
            };
            ops.push(op(entry, home, home, 0));
        }
        self.homes[reduce] = Some(home);
        Ok(())
    }

    /// Emits a node into `dst`.
    pub(super) fn node(
        &mut self,
        ops: &mut Vec<Op>,
        reg: Reg,
        dst: PointerId,
        width: Width,
    ) -> Result<(), Unsupported> {
        let expression = self.target.expression;
        let (dtype, class) = (expression.dtypes[reg], expression.class(reg));
        let node = &expression.nodes[reg];
        let operands = node.operands();
        let mut src = [0; 3];
        let mut uniform: Uniform = 0;
        for (i, &operand) in operands.iter().enumerate() {
            src[i] = self.home(operand);
            uniform |= u8::from(width == Width::Block && !self.is_vector(operand)) << i;
        }
        let missing = || Unsupported { reason: format!("{node:?} of {dtype}") };
        let mut immediate = 0;
        let entry = match node {
            Node::Load(affine) => {
                let walk = self.walk(*affine);
                src[0] = *affine as PointerId;
                immediate = if width == Width::One { 1 } else { walk.lane / walk.element };
                load_store::load::<I>(dtype).ok_or_else(missing)?
            }
            Node::LoadAt(affine, at) => {
                src[1] = *affine as PointerId;
                load_store::load_at::<I>(dtype, expression.class(*at)).ok_or_else(missing)?
            }
            Node::Constant(bits) => {
                immediate = *bits;
                load_store::constant::<I>(class)
            }
            Node::Index(affine) => {
                src[0] = *affine as PointerId;
                immediate = self.walk(*affine).lane;
                load_store::index::<I>(class)
            }
            Node::RandomBits { site, index, .. } => {
                let step = self.walk(*index).lane;
                src = [*index as PointerId, src[0], self.place(PointerTarget::Literal(step))];
                immediate = *site as i64;
                I::entry::<RandomBits>()
            }
            Node::Unary(kind, _) => map::unary::<I>(*kind, class).ok_or_else(missing)?,
            Node::Binary(kind, ..) => {
                map::binary::<I>(*kind, class, uniform).ok_or_else(missing)?
            }
            Node::Compare(kind, a, _) => {
                map::compare::<I>(*kind, expression.class(*a), uniform).ok_or_else(missing)?
            }
            Node::ExpBelow(..) => map::exp_below::<I>(class, uniform).ok_or_else(missing)?,
            Node::Gelu(_) => gelu::of_value::<I>(),
            Node::GeluOfSum(..) => gelu::of_sum::<I>(uniform),
            Node::Select(..) => map::select::<I>(class, uniform),
            Node::MultiplyAdd(signs, ..) => {
                map::multiply_add::<I>(*signs, class, uniform).ok_or_else(missing)?
            }
            Node::Convert { from, overflow, .. } => {
                immediate = convert::immediate(dtype, *overflow);
                convert::convert::<I>(*from, dtype, *overflow)
            }
            Node::Bitcast { from, .. } => {
                return self.bitcast(ops, (*from, dtype), (src[0], dst), width);
            }
            Node::Reduce(..) => unreachable!("reductions are emitted by `fold`"),
        };
        ops.push(Op { work: work(node, uniform), ..Op::new(entry, dst, src, immediate) });
        if let (Node::Unary(..) | Node::Binary(..), Some(entry)) = (node, convert::wrap::<I>(dtype))
        {
            ops.push(Op::new(entry, dst, [dst; 3], 0));
        }
        Ok(())
    }

    /// A bitcast is a store of one type and a load of the other.
    fn bitcast(
        &mut self,
        ops: &mut Vec<Op>,
        (from, to): (DType, DType),
        (src, dst): (PointerId, PointerId),
        width: Width,
    ) -> Result<(), Unsupported> {
        let store = load_store::store::<I>(from).zip(load_store::load::<I>(to));
        let (store, load) =
            store.ok_or_else(|| Unsupported { reason: format!("bitcast of {from} to {to}") })?;
        let memory = if width == Width::One { self.cell() } else { self.fresh_units(1) };
        ops.push(Op::new(store, memory, [src; 3], 1));
        ops.push(Op::new(load, dst, [memory; 3], 1));
        Ok(())
    }
}

/// Cycles a vector that a node takes, roughly, if its kernel prefetches meanwhile.
fn work(node: &Node, uniform: Uniform) -> usize {
    match node {
        Node::Unary(Unary::Sin | Unary::Cos, _) => 0,
        // By the reciprocal, and four multiply-adds that correct it.
        Node::Binary(Binary::Div, ..) if uniform == 2 => 4,
        Node::Unary(..)
        | Node::Binary(..)
        | Node::Compare(..)
        | Node::Select(..)
        | Node::MultiplyAdd(..)
        | Node::ExpBelow(..)
        | Node::Gelu(_)
        | Node::GeluOfSum(..) => stages::own_price(node),
        _ => 0,
    }
}
