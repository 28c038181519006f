//! Pulls a program out of a region, result by result.

use super::index::{Affine, IndexMap, access, through_view};
use super::{Space, is_contraction, register_dtype};
use overdrive_ir::plan::{Instr, Program, Reduction, Register, Store, View};
use overdrive_ir::{Binary, DType, Graph, Node, Origin, Overflow, Prim, Reducer, Value};
use std::collections::HashMap;

/// Lowers a region whose inputs are read through `operands` and whose results are written through
/// `results`. Errs with the reason where the region is not one loop nest.
pub(crate) fn lower(
    region: &Graph,
    operands: &[View],
    results: &[View],
) -> Result<Program, String> {
    let space = Space::of(region)?;
    let program =
        Program { extents: space.extents(), reduced: space.reduced.len(), ..Program::default() };
    let mut emitter = Emitter { region, operands, space, program, known: HashMap::new() };
    for (port, view) in region.outputs().iter().zip(results) {
        let ty = region.ty(port.value);
        let map = emitter.space.map_of(ty).ok_or_else(|| {
            format!("a result of {} does not fit the loop over {:?}", ty.shape, emitter.space.full)
        })?;
        let register = emitter.value(port.value, &map)?;
        let value = emitter.narrow(register, ty.dtype);
        let access = access(view, &map, emitter.rank());
        emitter.program.stores.push(Store { access, value });
    }
    let varies = emitter.program.element_level();
    let first_reduced = emitter.rank() - emitter.program.reduced;
    for store in &emitter.program.stores {
        let row_access = !emitter.program.is_spread(&store.access);
        let points: usize = emitter.program.extents[first_reduced..].iter().product();
        if row_access && varies[store.value.0 as usize] && points > 1 {
            return Err("a result of the reduced shape varies along the reduced dimensions".into());
        }
    }
    Ok(emitter.program)
}

struct Emitter<'a> {
    region: &'a Graph,
    operands: &'a [View],
    space: Space,
    program: Program,
    known: HashMap<(Value, IndexMap), Register>,
}

impl Emitter<'_> {
    fn rank(&self) -> usize {
        self.program.extents.len()
    }

    fn push(&mut self, instr: Instr, dtype: DType) -> Register {
        // Equal instructions are one: loads through equal maps, constants, index arithmetic.
        let same = |i: &usize| self.program.instrs[*i] == instr && self.program.dtypes[*i] == dtype;
        match (0..self.program.instrs.len()).find(same) {
            Some(i) => Register(i as u32),
            None => self.program.push(instr, dtype),
        }
    }

    fn constant(&mut self, value: f64, dtype: DType) -> Register {
        self.push(Instr::Constant(value), dtype)
    }

    /// The register converted from its f32 form to the half type that is to be stored.
    fn narrow(&mut self, register: Register, dtype: DType) -> Register {
        if self.program.dtype(register) == dtype {
            return register;
        }
        if let Instr::Convert(source, _) = *self.program.instr(register)
            && self.program.dtype(source) == dtype
        {
            return source;
        }
        self.push(Instr::Convert(register, Overflow::Ieee), dtype)
    }

    fn widen(&mut self, register: Register) -> Register {
        match register_dtype(self.program.dtype(register)) {
            dtype if dtype == self.program.dtype(register) => register,
            dtype => self.push(Instr::Convert(register, Overflow::Ieee), dtype),
        }
    }

    fn value(&mut self, value: Value, map: &IndexMap) -> Result<Register, String> {
        if let Some(&register) = self.known.get(&(value, map.clone())) {
            return Ok(register);
        }
        let register = match self.region.origin(value) {
            Origin::Input(i) => {
                let load = Instr::Load(access(&self.operands[i], map, self.rank()));
                let loaded = self.push(load, self.region.ty(value).dtype);
                self.widen(loaded)
            }
            Origin::State(_) => unreachable!("regions have no states"),
            Origin::Node(id, _) => self.node(self.region.node(id), map)?,
        };
        self.known.insert((value, map.clone()), register);
        Ok(register)
    }

    fn node(&mut self, node: &Node, map: &IndexMap) -> Result<Register, String> {
        let ty = self.region.ty(node.results[0]).clone();
        let dtype = register_dtype(ty.dtype);
        if is_contraction(node) {
            return self.accumulator(node, map, ty.dtype);
        }
        match node.op.prim().expect("what is no primitive is a contraction") {
            Prim::Constant { value } if value.ty().elements() == 1 => {
                Ok(self.constant(value.to_f64()[0], dtype))
            }
            Prim::Unary { kind } => {
                let a = self.value(node.operands[0], map)?;
                Ok(self.push(Instr::Unary(*kind, a), dtype))
            }
            Prim::Binary { kind } => {
                let (a, b) =
                    (self.value(node.operands[0], map)?, self.value(node.operands[1], map)?);
                Ok(self.push(Instr::Binary(*kind, a, b), dtype))
            }
            Prim::Compare { kind } => {
                let (a, b) =
                    (self.value(node.operands[0], map)?, self.value(node.operands[1], map)?);
                Ok(self.push(Instr::Compare(*kind, a, b), DType::Bool))
            }
            Prim::Select => {
                let c = self.value(node.operands[0], map)?;
                let (a, b) =
                    (self.value(node.operands[1], map)?, self.value(node.operands[2], map)?);
                Ok(self.push(Instr::Select(c, a, b), dtype))
            }
            Prim::Convert { to, overflow } => {
                let a = self.value(node.operands[0], map)?;
                let from = self.region.ty(node.operands[0]).dtype;
                // Widening half to f32 is exact, and the register is f32 already.
                if self.program.dtype(a) == *to && register_dtype(from) == *to {
                    return Ok(a);
                }
                let rounded = self.push(Instr::Convert(a, *overflow), *to);
                Ok(self.widen(rounded))
            }
            Prim::Bitcast { to } => {
                let a = self.value(node.operands[0], map)?;
                let a = self.narrow(a, self.region.ty(node.operands[0]).dtype);
                let cast = self.push(Instr::Bitcast(a), *to);
                Ok(self.widen(cast))
            }
            Prim::Iota { axis, .. } => Ok(self.index(&map[*axis].clone(), dtype)),
            Prim::RandomBits { site, .. } => {
                let identity = (0..self.rank()).map(Affine::dim).eq(map.iter().cloned());
                if !identity || self.program.extents != ty.sizes() {
                    return Err("random bits are numbered by their own shape".into());
                }
                let seed = self.value(node.operands[0], &vec![])?;
                Ok(self.push(Instr::RandomBits { seed, site: *site }, dtype))
            }
            Prim::Reduce { reducer, axes } => self.reduce(node, (*reducer, axes), map),
            prim => {
                let sizes = self.region.ty(node.operands[0]).sizes();
                let inner = through_view(prim, &sizes, map)
                    .ok_or_else(|| format!("`{}` has no affine index", prim.name()))?;
                self.value(node.operands[0], &inner)
            }
        }
    }

    fn accumulator(&mut self, node: &Node, map: &IndexMap, out: DType) -> Result<Register, String> {
        if !(0..self.rank()).map(Affine::dim).eq(map.iter().cloned()) {
            return Err("an epilogue sees each sum once, in place".into());
        }
        let accumulate = match node.op.prim() {
            Some(Prim::DotGeneral(dot)) => dot.accumulate,
            Some(Prim::Convolution(conv)) => conv.accumulate,
            Some(_) => unreachable!("only contractions accumulate"),
            None => out.accumulation(),
        };
        let sum = self.push(Instr::Accumulator, accumulate);
        let dtype = register_dtype(out);
        Ok(if accumulate == dtype {
            sum
        } else {
            self.push(Instr::Convert(sum, Overflow::Ieee), dtype)
        })
    }

    /// `offset + sum(coefficient * index)` as a number.
    fn index(&mut self, affine: &Affine, dtype: DType) -> Register {
        let mut sum = None;
        for &(dim, coefficient) in &affine.terms {
            let mut term = self.push(Instr::Index(dim), dtype);
            if coefficient != 1 {
                let by = self.constant(coefficient as f64, dtype);
                term = self.push(Instr::Binary(Binary::Mul, term, by), dtype);
            }
            sum = Some(match sum {
                None => term,
                Some(sum) => self.push(Instr::Binary(Binary::Add, sum, term), dtype),
            });
        }
        match (sum, affine.offset) {
            (Some(sum), 0) => sum,
            (None, offset) => self.constant(offset as f64, dtype),
            (Some(sum), offset) => {
                let offset = self.constant(offset as f64, dtype);
                self.push(Instr::Binary(Binary::Add, sum, offset), dtype)
            }
        }
    }

    fn reduce(
        &mut self,
        node: &Node,
        (reducer, axes): (Reducer, &[usize]),
        map: &IndexMap,
    ) -> Result<Register, String> {
        let operand = self.region.ty(node.operands[0]).clone();
        let sizes = operand.sizes();
        let first_reduced = self.rank() - self.program.reduced;
        let extents: Vec<usize> = axes.iter().map(|&axis| sizes[axis]).collect();
        if extents != self.program.extents[first_reduced..] {
            return Err(format!(
                "a reduction over {extents:?} beside one over {:?}",
                self.space.reduced
            ));
        }
        if map.iter().any(|affine| affine.terms.iter().any(|t| t.0 >= first_reduced)) {
            return Err("a reduction of what another reduction gives".into());
        }
        let (mut kept, mut reduced) = (map.iter().cloned(), first_reduced..self.rank());
        let inner: IndexMap = (0..sizes.len())
            .map(|axis| match axes.contains(&axis) {
                true => Affine::dim(reduced.next().expect("extents agree")),
                false => kept.next().expect("the result has the kept axes"),
            })
            .collect();
        let mut value = self.value(node.operands[0], &inner)?;
        let dtype = self.program.dtype(value);
        if !self.program.element_level()[value.0 as usize] {
            // A value that is constant along the row is folded like any other: as an element.
            let again = Instr::Select(self.true_element(), value, value);
            value = self.program.push(again, dtype);
        }
        Ok(self.push(Instr::Reduce(Reduction { reducer, value }), dtype))
    }

    /// A register that is true at every element and varies along the row as far as levels go.
    fn true_element(&mut self) -> Register {
        let index = self.push(Instr::Index(self.rank() - 1), DType::I32);
        self.push(Instr::Compare(overdrive_ir::Compare::Eq, index, index), DType::Bool)
    }
}
