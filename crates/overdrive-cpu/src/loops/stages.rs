//! When each node of an expression is computed: once a task, once a row, once a line, or for every
//! lane. Also after which of the reductions.
//!
//! A row is walked in passes. A `Reduce` of pass `p` folds values that need no reduction later than
//! `p - 1`. Values that depend on its result have stage `p + 1`. Stores of elements belong to the
//! last pass, so that a result may take the place of an operand. A pass recomputes the values that
//! it needs from loads, except expensive ones. They are kept in a cache for the row, where it fits.

use overdrive_ir::{Binary, Unary};

use super::expression::{Expression, Node, Reg};
use super::nest::{Lanes, LoopNest};

/// Levels of the nest at which a value changes, and the reductions that it waits for.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Varies {
    /// From row to row.
    pub outer: bool,
    /// From line to line of a row.
    pub inner: bool,
    /// From lane to lane.
    pub lane: bool,
    /// Passes that must be over before it is known.
    pub stage: usize,
}

/// How often a node is computed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Level {
    Task,
    Row,
    Line,
    Element,
}

/// The nodes of one pass, in order.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct PassNodes {
    pub nodes: Vec<Reg>,
    pub folds: Vec<Reg>,
    /// Indices of the stores of elements.
    pub stores: Vec<usize>,
}

/// The passes of an expression over a nest.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Stages {
    pub varies: Vec<Varies>,
    pub lanes: Lanes,
    pub passes: Vec<PassNodes>,
    /// Nodes whose values are kept for later passes.
    pub cached: Vec<Reg>,
    /// Indices of the stores of rows.
    pub row_stores: Vec<usize>,
}

/// Bytes of a row's caches: a share of the second-level cache of any CPU that has AVX2.
const CACHE_BYTES: usize = 256 << 10;
/// Cycles per vector that a value must cost to be worth keeping.
const DEAR: usize = 4;

impl Stages {
    /// Plans the passes. A row has at most `row_lanes` lanes over all its lines.
    pub(super) fn new(expression: &Expression, nest: &LoopNest, row_lanes: usize) -> Stages {
        let varies = variation(expression, nest);
        let mut stages = Stages {
            varies,
            lanes: nest.lanes,
            passes: Vec::new(),
            cached: Vec::new(),
            row_stores: Vec::new(),
        };
        let mut element_stores = Vec::new();
        for (at, store) in expression.stores.iter().enumerate() {
            let walk = &nest.walks[store.affine];
            let along = stages.lanes == Lanes::Along && walk.lane != 0;
            let element = along || walk.inner.iter().any(|&s| s != 0);
            if element { element_stores.push(at) } else { stages.row_stores.push(at) }
        }
        let folds: Vec<Reg> = (0..expression.nodes.len())
            .filter(|&r| expression.used[r] && matches!(expression.nodes[r], Node::Reduce(..)))
            .collect();
        let of_folds = folds.iter().map(|&r| stages.varies[r].stage);
        let of_stores =
            element_stores.iter().map(|&s| stages.varies[expression.stores[s].value].stage + 1);
        let count = of_folds.chain(of_stores).max().unwrap_or(0);
        let room = CACHE_BYTES / row_lanes.max(1) / 8;
        let mut seen = vec![false; expression.nodes.len()];
        for pass in 0..count {
            let ends_here = |&r: &Reg| stages.varies[r].stage == pass + 1;
            let mut nodes = PassNodes {
                nodes: Vec::new(),
                folds: folds.iter().copied().filter(ends_here).collect(),
                stores: if pass + 1 == count { element_stores.clone() } else { Vec::new() },
            };
            let values = nodes.folds.iter().map(|&r| expression.nodes[r].operands()[0]);
            let roots: Vec<Reg> =
                values.chain(nodes.stores.iter().map(|&s| expression.stores[s].value)).collect();
            let mut needed = vec![false; expression.nodes.len()];
            for root in roots {
                stages.visit(expression, root, &mut needed, (&seen, room));
            }
            nodes.nodes = (0..needed.len()).filter(|&r| needed[r]).collect();
            nodes.nodes.iter().for_each(|&r| seen[r] = true);
            stages.passes.push(nodes);
        }
        stages
    }

    /// How often a node is computed.
    pub(super) fn level(&self, reg: Reg) -> Level {
        let Varies { outer, inner, lane, stage } = self.varies[reg];
        match self.lanes {
            Lanes::Along if lane => Level::Element,
            Lanes::Across if lane && inner => Level::Element,
            _ if inner => Level::Line,
            _ if outer || lane || stage > 0 => Level::Row,
            _ => Level::Task,
        }
    }

    /// Marks `reg` and what it needs within a pass, down to rows and caches.
    fn visit(
        &mut self,
        expression: &Expression,
        reg: Reg,
        needed: &mut [bool],
        limits: (&[bool], usize),
    ) {
        if needed[reg] || !matches!(self.level(reg), Level::Line | Level::Element) {
            return;
        }
        if self.level(reg) == Level::Element {
            let (seen, room) = limits;
            let kept = self.cached.contains(&reg);
            if !kept && seen[reg] && self.cached.len() < room && self.price(expression, reg) >= DEAR
            {
                self.cached.push(reg);
            }
            if seen[reg] && self.cached.contains(&reg) {
                return;
            }
        }
        needed[reg] = true;
        for operand in expression.nodes[reg].operands() {
            self.visit(expression, operand, needed, limits);
        }
    }

    /// Cycles per vector to compute a node from loads, rows and caches; shared parts count each
    /// time.
    fn price(&self, expression: &Expression, reg: Reg) -> usize {
        if self.level(reg) != Level::Element || self.cached.contains(&reg) {
            return 0;
        }
        let node = &expression.nodes[reg];
        let below: usize = node.operands().iter().map(|&r| self.price(expression, r)).sum();
        below.min(DEAR) + own_price(node)
    }
}

/// Cycles per vector that a node takes, roughly.
pub(super) fn own_price(node: &Node) -> usize {
    match node {
        Node::Load(_) | Node::Constant(_) | Node::Reduce(..) => 0,
        Node::Unary(
            Unary::Neg | Unary::Abs | Unary::Not | Unary::Floor | Unary::Ceil | Unary::Round,
            _,
        ) => 1,
        Node::Unary(..)
        | Node::ExpBelow(..)
        | Node::Gelu(_)
        | Node::GeluOfSum(..)
        | Node::RandomBits { .. } => DEAR,
        Node::Binary(Binary::Div | Binary::Rem | Binary::Pow, ..) => DEAR,
        _ => 1,
    }
}

fn variation(expression: &Expression, nest: &LoopNest) -> Vec<Varies> {
    let mut varies: Vec<Varies> = Vec::with_capacity(expression.nodes.len());
    for node in &expression.nodes {
        let mut v = Varies::default();
        if let Some(affine) = node.affine() {
            let walk = &nest.walks[affine];
            let accumulator = walk.source == super::expression::AddressStart::Accumulator;
            v.outer = accumulator || walk.outer.iter().any(|&s| s != 0);
            v.inner = walk.inner.iter().any(|&s| s != 0);
            v.lane = walk.lane != 0;
        }
        for operand in node.operands() {
            let o = varies[operand];
            v.outer |= o.outer;
            v.inner |= o.inner;
            v.lane |= o.lane;
            v.stage = v.stage.max(o.stage);
        }
        if let Node::Reduce(..) = node {
            v = Varies {
                outer: v.outer,
                inner: false,
                lane: nest.lanes == Lanes::Across,
                stage: v.stage + 1,
            };
        }
        varies.push(v);
    }
    varies
}
