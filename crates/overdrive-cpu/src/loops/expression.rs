//! A program as loops execute it. Conversions that change no lane are gone, products feed
//! multiply-adds, and values that nobody uses are dropped.
//!
//! Invariant: nodes are in an order in which operands precede their uses.

use std::collections::HashMap;

use overdrive_ir::plan::{Access, Instr, Program, Register};
use overdrive_ir::{Binary, Compare, DType, Overflow, Reducer, SlotId, Unary};

use super::Unsupported;
use super::lane::Class;
use super::map::Signs;

/// The start of an affine address.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(super) enum AddressStart {
    Slot(SlotId),
    /// Address 0 and elements of one byte: the address is an index.
    Index,
    /// The tile of a contraction; its addresses are given row by row.
    Accumulator,
}

/// An address that is linear in the indices of the iteration space: offset and strides in bytes.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Affine {
    pub source: AddressStart,
    pub element: i64,
    pub offset: i64,
    pub strides: Vec<i64>,
}

/// A node, by index.
pub(super) type Reg = usize;

/// For loads at computed places, how many elements behind the access each reads.
pub(crate) type Reads = HashMap<Register, Register>;

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Node {
    /// Reads an element; the accumulator of a contraction is one.
    Load(usize),
    /// Reads the element of `0` that lies `1` elements behind its first.
    LoadAt(usize, Reg),
    /// Bits of the class.
    Constant(i64),
    Index(usize),
    Unary(Unary, Reg),
    Binary(Binary, Reg, Reg),
    Compare(Compare, Reg, Reg),
    Select(Reg, Reg, Reg),
    MultiplyAdd(Signs, Reg, Reg, Reg),
    /// `exp(0 - 1)` where 1 is the maximum over 0.
    ExpBelow(Reg, Reg),
    /// GELU by the tangent, of `0`.
    Gelu(Reg),
    /// GELU by the tangent, of `0 + 1`.
    GeluOfSum(Reg, Reg),
    Convert {
        from: DType,
        value: Reg,
        overflow: Overflow,
    },
    Bitcast {
        from: DType,
        value: Reg,
    },
    RandomBits {
        seed: Reg,
        site: u64,
        index: usize,
    },
    Reduce(Reducer, Reg),
}

impl Node {
    /// The nodes that it reads, in the order of the kernel's sources.
    pub(super) fn operands(&self) -> Vec<Reg> {
        match *self {
            Node::Load(_) | Node::Constant(_) | Node::Index(_) => vec![],
            Node::Unary(_, a) | Node::Reduce(_, a) | Node::Gelu(a) | Node::LoadAt(_, a) => vec![a],
            Node::Convert { value, .. } | Node::Bitcast { value, .. } => vec![value],
            Node::RandomBits { seed, .. } => vec![seed],
            Node::Binary(_, a, b)
            | Node::Compare(_, a, b)
            | Node::ExpBelow(a, b)
            | Node::GeluOfSum(a, b) => {
                vec![a, b]
            }
            Node::Select(a, b, c) | Node::MultiplyAdd(_, a, b, c) => vec![a, b, c],
        }
    }

    /// The affine address that it reads.
    pub(super) fn affine(&self) -> Option<usize> {
        match *self {
            Node::Load(affine) | Node::Index(affine) | Node::RandomBits { index: affine, .. } => {
                Some(affine)
            }
            _ => None,
        }
    }
}

/// A store of a node's value.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct StoreNode {
    pub affine: usize,
    pub value: Reg,
    pub dtype: DType,
}

/// A program, ready to be laid over loops.
#[derive(Clone, Debug, Default)]
pub(super) struct Expression {
    pub nodes: Vec<Node>,
    pub dtypes: Vec<DType>,
    pub affines: Vec<Affine>,
    pub stores: Vec<StoreNode>,
    /// Whether a node's value reaches a store.
    pub used: Vec<bool>,
}

impl Expression {
    pub(super) fn new(
        program: &Program,
        slots: &dyn Fn(SlotId) -> DType,
    ) -> Result<Self, Unsupported> {
        Self::with_reads(program, slots, &Reads::new())
    }

    /// The same for a program some of whose loads read at computed places.
    pub(super) fn with_reads(
        program: &Program,
        slots: &dyn Fn(SlotId) -> DType,
        reads: &Reads,
    ) -> Result<Self, Unsupported> {
        let (out, map) = (Expression::default(), Vec::new());
        let mut builder = Builder { program, slots, reads, out, map };
        for at in 0..program.instrs.len() {
            let reg = builder.node(at)?;
            builder.map.push(reg);
        }
        for store in &program.stores {
            let affine = builder.access(&store.access)?;
            let (value, dtype) = (builder.map[store.value.0 as usize], slots(store.access.slot));
            builder.out.stores.push(StoreNode { affine, value, dtype });
        }
        let mut expression = builder.out;
        expression.mark_used();
        expression.drop_roundings();
        expression.fuse_gelus();
        expression.fuse_products();
        expression.fuse_exponentials();
        expression.mark_used();
        Ok(expression)
    }

    /// The class of a node's lanes.
    pub(super) fn class(&self, reg: Reg) -> Class {
        Class::of(self.dtypes[reg])
    }

    /// How often each node is read, by stores and by nodes that are used.
    pub(super) fn uses(&self) -> Vec<usize> {
        let mut uses = vec![0; self.nodes.len()];
        let used = self.nodes.iter().zip(&self.used).filter(|(_, used)| **used);
        let operands = used.flat_map(|(node, _)| node.operands());
        operands.chain(self.stores.iter().map(|s| s.value)).for_each(|reg| uses[reg] += 1);
        uses
    }

    /// A rounding whose value is only stored is the store's own work.
    fn drop_roundings(&mut self) {
        let uses = self.uses();
        for at in 0..self.stores.len() {
            let StoreNode { value, dtype, .. } = self.stores[at];
            let stored =
                self.stores.iter().filter(|s| s.value == value && s.dtype == dtype).count();
            if let Node::Convert { from: DType::F32, value: source, overflow: Overflow::Ieee } =
                self.nodes[value]
                && stored == uses[value]
                && matches!(dtype, DType::BF16 | DType::F16)
                && self.dtypes[value] == dtype
            {
                self.stores.iter_mut().filter(|s| s.value == value).for_each(|s| s.value = source);
            }
        }
    }

    /// `a * b + c` where the product has no other use.
    fn fuse_products(&mut self) {
        let uses = self.uses();
        for at in 0..self.nodes.len() {
            let Node::Binary(kind @ (Binary::Add | Binary::Sub), x, y) = self.nodes[at] else {
                continue;
            };
            if !self.dtypes[at].is_float() {
                continue;
            }
            let product = |reg: Reg| match self.nodes[reg] {
                Node::Binary(Binary::Mul, a, b) if uses[reg] == 1 => Some((a, b)),
                _ => None,
            };
            self.nodes[at] = match (kind, product(x), product(y)) {
                (Binary::Add, Some((a, b)), _) => Node::MultiplyAdd(Signs::Plus, a, b, y),
                (Binary::Add, _, Some((a, b))) => Node::MultiplyAdd(Signs::Plus, a, b, x),
                (Binary::Sub, Some((a, b)), _) => Node::MultiplyAdd(Signs::Minus, a, b, y),
                (Binary::Sub, _, Some((a, b))) => Node::MultiplyAdd(Signs::Negated, a, b, x),
                _ => continue,
            };
        }
    }

    /// `exp(a - b)` where `b` is the maximum over `a`, and the difference has no other use.
    fn fuse_exponentials(&mut self) {
        let uses = self.uses();
        for at in 0..self.nodes.len() {
            if let Node::Unary(Unary::Exp, of) = self.nodes[at]
                && let Node::Binary(Binary::Sub, a, b) = self.nodes[of]
                && self.nodes[b] == Node::Reduce(Reducer::Max, a)
                && uses[of] == 1
            {
                self.nodes[at] = Node::ExpBelow(a, b);
            }
        }
    }

    pub(super) fn mark_used(&mut self) {
        self.used = vec![false; self.nodes.len()];
        self.stores.iter().for_each(|s| self.used[s.value] = true);
        for at in (0..self.nodes.len()).rev() {
            if self.used[at] {
                self.nodes[at].operands().into_iter().for_each(|reg| self.used[reg] = true);
            }
        }
    }
}

struct Builder<'a> {
    program: &'a Program,
    slots: &'a dyn Fn(SlotId) -> DType,
    reads: &'a Reads,
    out: Expression,
    /// The node of each register.
    map: Vec<Reg>,
}

impl Builder<'_> {
    fn push(&mut self, node: Node, dtype: DType) -> Reg {
        self.out.nodes.push(node);
        self.out.dtypes.push(dtype);
        self.out.nodes.len() - 1
    }

    fn affine(&mut self, affine: Affine) -> usize {
        self.out.affines.push(affine);
        self.out.affines.len() - 1
    }

    fn access(&mut self, access: &Access) -> Result<usize, Unsupported> {
        let dtype = (self.slots)(access.slot);
        if dtype.bits() < 8 {
            let reason =
                format!("{dtype} elements share bytes; convert to a type of whole bytes first");
            return Err(Unsupported { reason });
        }
        let element = (dtype.bits() / 8) as i64;
        let strides = access.strides.iter().map(|s| s * element).collect();
        let source = AddressStart::Slot(access.slot);
        Ok(self.affine(Affine { source, element, offset: access.offset * element, strides }))
    }

    fn index(&mut self, strides: Vec<i64>) -> usize {
        self.affine(Affine { source: AddressStart::Index, element: 1, offset: 0, strides })
    }

    fn node(&mut self, at: usize) -> Result<Reg, Unsupported> {
        let (dtype, rank) = (self.program.dtypes[at], self.program.extents.len());
        let of = |r: &Register| self.map[r.0 as usize];
        let from = |r: &Register| self.program.dtype(*r);
        let node = match &self.program.instrs[at] {
            Instr::Load(access) => {
                let offset = self.reads.get(&Register(at as u32)).map(of);
                let affine = self.access(access)?;
                offset.map_or(Node::Load(affine), |offset| Node::LoadAt(affine, offset))
            }
            Instr::Constant(x) => Node::Constant(Class::of(dtype).bits_of(*x)),
            Instr::Index(dim) => {
                Node::Index(self.index((0..rank).map(|d| i64::from(d == *dim)).collect()))
            }
            Instr::Accumulator => {
                let element = Class::of(dtype).bytes() as i64;
                let strides = (0..rank).map(|d| if d + 1 == rank { element } else { 0 }).collect();
                Node::Load(self.affine(Affine {
                    source: AddressStart::Accumulator,
                    element,
                    offset: 0,
                    strides,
                }))
            }
            Instr::Unary(kind, a) => Node::Unary(*kind, of(a)),
            Instr::Binary(Binary::Pow, a, b) if self.is_constant(of(b), 2.0) => {
                Node::Binary(Binary::Mul, of(a), of(a))
            }
            Instr::Binary(kind, a, b) => Node::Binary(*kind, of(a), of(b)),
            Instr::Compare(kind, a, b) => Node::Compare(*kind, of(a), of(b)),
            Instr::Select(c, a, b) => Node::Select(of(c), of(a), of(b)),
            // Widening within a class changes no lane: a register of a narrow float holds its f32
            // value.
            Instr::Convert(a, _) if dtype == from(a) || widens(from(a), dtype) => return Ok(of(a)),
            Instr::Convert(a, overflow) => {
                Node::Convert { from: from(a), value: of(a), overflow: *overflow }
            }
            Instr::Bitcast(a) if dtype == from(a) => return Ok(of(a)),
            Instr::Bitcast(a) if dtype.bits() < 8 => {
                let reason = format!("bitcast of {} to {dtype}, which is below a byte", from(a));
                return Err(Unsupported { reason });
            }
            Instr::Bitcast(a) => Node::Bitcast { from: from(a), value: of(a) },
            Instr::RandomBits { seed, site } => {
                let (seed, site) = (of(seed), *site);
                let mut strides = vec![1; rank];
                for d in (1..rank).rev() {
                    strides[d - 1] = strides[d] * self.program.extents[d] as i64;
                }
                Node::RandomBits { seed, site, index: self.index(strides) }
            }
            Instr::Reduce(r) => Node::Reduce(r.reducer, of(&r.value)),
        };
        Ok(self.push(node, dtype))
    }

    fn is_constant(&self, reg: Reg, x: f64) -> bool {
        self.out.nodes[reg] == Node::Constant(self.out.class(reg).bits_of(x))
    }
}

/// Whether lanes of one type are lanes of the other, value for value.
fn widens(from: DType, to: DType) -> bool {
    let float = Class::of(from) == Class::F32 && to == DType::F32;
    match (from.int_range(), to.int_range()) {
        (Some((lo, hi)), Some((to_lo, to_hi))) => {
            Class::of(from) == Class::of(to) && to_lo <= lo && hi <= to_hi && to != DType::Bool
        }
        _ => float,
    }
}
