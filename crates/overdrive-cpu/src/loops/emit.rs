//! Emission: turns nodes into operations of a list, and assigns registers to their values.
//!
//! Registers are handed out by liveness within a pass. Values that rows compute keep their register
//! to the row's end.

use super::Unsupported;
use super::code::{
    Code, EmitTarget, MAX_BLOCK, MIN_BLOCK, Op, PointerId, PointerTarget, PrefetchOp,
    REGISTER_BYTES, RowPass, Stage, Stores,
};
use super::expression::{AddressStart, Node, Reg};
use super::isa::{Isa, for_level};
use super::nest::{Lanes, Walk};
use super::reduce;
use super::stages::Level;
use crate::stream::Near;
use overdrive_ir::DType;

impl Code {
    pub(super) fn new(target: EmitTarget<'_>) -> Result<Code, Unsupported> {
        for_level!(target.level, emit(target))
    }
}

fn emit<I: Isa>(target: EmitTarget<'_>) -> Result<Code, Unsupported> {
    let EmitTarget { expression, nest, stages, .. } = target;
    let mut places: Vec<PointerTarget> =
        (0..nest.walks.len()).map(|w| PointerTarget::Walk(w as u32)).collect();
    places.extend((0..stages.cached.len()).map(|c| PointerTarget::Cache(c as u32)));
    let used = (0..expression.nodes.len()).filter(|&r| expression.used[r]);
    let lane_bytes = used.map(|r| expression.class(r).bytes()).max().unwrap_or(4);
    let mut emitter = Emitter {
        target,
        homes: vec![None; expression.nodes.len()],
        free: Vec::new(),
        code: Code {
            places,
            setup: Vec::new(),
            stages: vec![Stage::default(); stages.passes.len() + 1],
            cells: 0,
            units: 0,
            caches: stages.cached.len() as u32,
            lane_bytes,
            block: 0,
            accumulator: 0,
        },
        isa: std::marker::PhantomData::<I>,
    };
    for stage in 0..=stages.passes.len() {
        emitter.rows(stage)?;
        if stage < stages.passes.len() {
            emitter.pass(stage)?;
        }
    }
    let mut code = emitter.code;
    let unit_bytes = (code.units.max(1) as usize) * lane_bytes;
    // If operands come from memory, shorter blocks overlap loads with arithmetic better.
    let longest = if target.stores == Stores::Streaming { MAX_BLOCK / 2 } else { MAX_BLOCK };
    code.block = (REGISTER_BYTES / unit_bytes / 64 * 64).clamp(MIN_BLOCK, longest);
    code.accumulator = if nest.lanes == Lanes::Along { reduce::LANES } else { code.block };
    if target.stores == Stores::Streaming {
        prefetch(&mut code, target);
    }
    Ok(code)
}

/// Prefetch distance, in blocks.
const PREFETCH_BLOCKS: i64 = 2;

/// Spreads prefetches over the operations of a block, in proportion to their work, so that memory
/// is busy meanwhile. With one pass they are for a later block. With more passes, the first one
/// brings this row to the cache. The later passes read it there and prefetch the next row.
fn prefetch(code: &mut Code, target: EmitTarget<'_>) {
    let EmitTarget { expression, nest, .. } = target;
    if nest.lanes != Lanes::Along || !nest.inner.is_empty() {
        return;
    }
    let one_pass = code.stages.len() == 2;
    let mut loads: Vec<usize> = expression.nodes.iter().filter_map(Node::affine).collect();
    loads.retain(|&load| {
        let walk = &nest.walks[load];
        let next_row = one_pass || walk.outer.last() == Some(&(nest.lane as i64 * walk.element));
        walk.contiguous() && matches!(walk.source, AddressStart::Slot(_)) && next_row
    });
    let (block, near) = (code.block, if one_pass { Near::First } else { Near::Second });
    let lanes = if one_pass { PREFETCH_BLOCKS * block as i64 } else { nest.lane as i64 };
    let later =
        code.stages.iter_mut().flat_map(|stage| &mut stage.pass).skip(usize::from(!one_pass));
    let mut working: Vec<&mut Op> =
        later.flat_map(|pass| &mut pass.element).filter(|op| op.work > 0).collect();
    let ops = working.len();
    for (at, &load) in loads.iter().enumerate() {
        // Each load gets its share of the operations, and each of those its share of the load.
        let mine = &mut working[at * ops / loads.len()..(at + 1) * ops / loads.len()];
        let element = nest.walks[load].element;
        let (bytes, work) =
            (block * element as usize, mine.iter().map(|op| op.work).sum::<usize>());
        let mut before = 0;
        for op in mine {
            op.ahead = Some(PrefetchOp {
                walk: load as PointerId,
                bytes: lanes * element + (bytes * before / work) as i64,
                step: (bytes * op.work / work * 16).div_ceil(block),
                near,
            });
            before += op.work;
        }
    }
}

/// The list that an operation is added to, and its number of lanes.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Width {
    One,
    Block,
}

pub(super) struct Emitter<'a, I> {
    pub target: EmitTarget<'a>,
    /// Place of each node's value, if it has one now.
    pub homes: Vec<Option<PointerId>>,
    /// Units that nobody needs any more.
    pub free: Vec<PointerId>,
    pub code: Code,
    isa: std::marker::PhantomData<I>,
}

impl<I: Isa> Emitter<'_, I> {
    pub(super) fn place(&mut self, place: PointerTarget) -> PointerId {
        self.code.places.push(place);
        self.code.places.len() as PointerId - 1
    }

    pub(super) fn cell(&mut self) -> PointerId {
        self.code.cells += 1;
        self.place(PointerTarget::Cell(self.code.cells - 1))
    }

    /// `count` neighbouring units.
    pub(super) fn fresh_units(&mut self, count: u32) -> PointerId {
        self.code.units += count;
        self.place(PointerTarget::Unit(self.code.units - count))
    }

    pub(super) fn unit(&mut self) -> PointerId {
        self.free.pop().unwrap_or_else(|| self.fresh_units(1))
    }

    pub(super) fn walk(&self, affine: usize) -> &Walk {
        &self.target.nest.walks[affine]
    }

    pub(super) fn home(&self, reg: Reg) -> PointerId {
        self.homes[reg].expect("operands precede their uses")
    }

    pub(super) fn is_vector(&self, reg: Reg) -> bool {
        self.target.stages.varies[reg].lane
    }

    /// The operations of rows (and, at stage 0, of tasks) before pass `stage`.
    fn rows(&mut self, stage: usize) -> Result<(), Unsupported> {
        let EmitTarget { expression, stages, .. } = self.target;
        for reg in 0..expression.nodes.len() {
            let level = stages.level(reg);
            let here = expression.used[reg]
                && matches!(level, Level::Task | Level::Row)
                && stages.varies[reg].stage == stage
                && self.homes[reg].is_none();
            if !here {
                continue;
            }
            if let Some(affine) = self.direct_load(reg) {
                self.homes[reg] = Some(affine);
                continue;
            }
            let vector = self.is_vector(reg);
            let dst = if vector { self.fresh_units(1) } else { self.cell() };
            let width = if vector { Width::Block } else { Width::One };
            let mut ops = Vec::new();
            self.node(&mut ops, reg, dst, width)?;
            self.homes[reg] = Some(dst);
            match (level, vector) {
                (Level::Task, _) => self.code.setup.extend(ops),
                (_, false) => self.code.stages[stage].scalars.extend(ops),
                (_, true) => self.code.stages[stage].vectors.extend(ops),
            }
        }
        if stage == stages.passes.len() {
            for &at in &stages.row_stores {
                let store = &expression.stores[at];
                let vector = self.walk(store.affine).lane != 0;
                let mut ops = Vec::new();
                self.store(&mut ops, store, if vector { Width::Block } else { Width::One })?;
                let stage = &mut self.code.stages[stage];
                if vector { stage.vectors.extend(ops) } else { stage.scalars.extend(ops) }
            }
        }
        Ok(())
    }

    /// The operations of pass `at`.
    fn pass(&mut self, at: usize) -> Result<(), Unsupported> {
        let EmitTarget { expression, stages, .. } = self.target;
        let nodes = &stages.passes[at];
        let mut pass = RowPass::default();
        let last_use = self.last_uses(at);
        let mut ready = Vec::new();
        // Operations that need no node of this pass: values of rows, and caches of earlier passes.
        self.sinks(&mut pass, at, &mut ready, None)?;
        for &reg in &nodes.nodes {
            if stages.level(reg) == Level::Line {
                let direct = self.direct_load(reg);
                let dst = match direct {
                    Some(place) => place,
                    None => self.cell(),
                };
                if direct.is_none() {
                    self.node(&mut pass.line, reg, dst, Width::One)?;
                }
                self.homes[reg] = Some(dst);
            } else if let Some(place) = self.direct_load(reg) {
                self.homes[reg] = Some(place);
            } else {
                let dst = match (self.cache_of(reg), self.only_store(at, reg)) {
                    (Some(cache), _) => cache,
                    (None, Some(destination)) => destination,
                    (None, None) => self.unit(),
                };
                self.node(&mut pass.element, reg, dst, Width::Block)?;
                self.homes[reg] = Some(dst);
            }
            self.sinks(&mut pass, at, &mut ready, Some(reg))?;
            for operand in expression.nodes[reg].operands().into_iter().chain([reg]) {
                self.release(operand, last_use[operand] == Some(reg));
            }
        }
        for at in ready {
            self.store(&mut pass.element, &expression.stores[at], Width::Block)?;
        }
        // Values of elements do not outlive the pass, unless cached.
        for &reg in &nodes.nodes {
            self.release(reg, true);
            self.homes[reg] = self.cache_of(reg);
        }
        self.code.stages[at].pass = Some(pass);
        Ok(())
    }

    /// The folds and stores that take the value `of` (or values from outside the pass).
    fn sinks(
        &mut self,
        pass: &mut RowPass,
        at: usize,
        ready: &mut Vec<usize>,
        of: Option<Reg>,
    ) -> Result<(), Unsupported> {
        let EmitTarget { expression, stages, stores, .. } = self.target;
        let nodes = &stages.passes[at];
        let takes = |value: Reg| match of {
            Some(reg) => value == reg,
            None => !nodes.nodes.contains(&value),
        };
        for &reduce in &nodes.folds {
            if takes(expression.nodes[reduce].operands()[0]) {
                self.fold(pass, reduce)?;
            }
        }
        for &store in &nodes.stores {
            let value = expression.stores[store].value;
            if !takes(value) || of.is_some_and(|reg| self.only_store(at, reg).is_some()) {
                continue;
            }
            match stores {
                Stores::Direct => {
                    self.store(&mut pass.element, &expression.stores[store], Width::Block)?
                }
                Stores::AfterLoads | Stores::Streaming => ready.push(store),
            }
        }
        Ok(())
    }

    /// The last node of a pass that reads each node; a node that a late store reads is needed to
    /// the end.
    fn last_uses(&self, at: usize) -> Vec<Option<Reg>> {
        let EmitTarget { expression, stages, stores, .. } = self.target;
        let mut last = vec![None; expression.nodes.len()];
        for &reg in &stages.passes[at].nodes {
            last[reg] = Some(reg);
            expression.nodes[reg]
                .operands()
                .into_iter()
                .for_each(|operand| last[operand] = Some(reg));
        }
        if stores != Stores::Direct {
            stages.passes[at].stores.iter().for_each(|&s| last[expression.stores[s].value] = None);
        }
        last
    }

    /// Gives a node's unit back, where it has one that is its own.
    fn release(&mut self, reg: Reg, over: bool) {
        let temporary =
            self.target.stages.level(reg) == Level::Element && self.cache_of(reg).is_none();
        if let Some(place) = self.homes[reg]
            && over
            && temporary
            && matches!(self.code.places[place as usize], PointerTarget::Unit(_))
        {
            self.free.push(place);
            self.homes[reg] = None;
        }
    }

    /// The cache that keeps a node's values.
    fn cache_of(&self, reg: Reg) -> Option<PointerId> {
        let at = self.target.stages.cached.iter().position(|&r| r == reg)?;
        Some((self.target.nest.walks.len() + at) as PointerId)
    }

    /// The place of a load that kernels can read where it is.
    fn direct_load(&self, reg: Reg) -> Option<PointerId> {
        let Node::Load(affine) = self.target.expression.nodes[reg] else { return None };
        let in_place = is_lane(self.target.expression.dtypes[reg]);
        let walk = self.walk(affine);
        (in_place && (!self.is_vector(reg) || walk.contiguous())).then_some(affine as PointerId)
    }

    /// The place of the store that is the only use of a node in its pass, where the node can write
    /// there.
    fn only_store(&self, at: usize, reg: Reg) -> Option<PointerId> {
        let EmitTarget { expression, stages, stores, .. } = self.target;
        let nodes = &stages.passes[at];
        let reads = |&r: &Reg| expression.nodes[r].operands().contains(&reg);
        if stores != Stores::Direct
            || self.direct_load(reg).is_some()
            || nodes.nodes.iter().any(reads)
            || nodes.folds.iter().any(reads)
        {
            return None;
        }
        let mut of_node =
            nodes.stores.iter().map(|&s| &expression.stores[s]).filter(|s| s.value == reg);
        let (Some(store), None) = (of_node.next(), of_node.next()) else { return None };
        let fits = self.is_vector(reg)
            && self.walk(store.affine).contiguous()
            && is_lane(store.dtype)
            && self.cache_of(reg).is_none();
        fits.then_some(store.affine as PointerId)
    }
}

/// Whether memory holds a type as lanes do.
pub(super) fn is_lane(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64 | DType::I32 | DType::U32 | DType::I64 | DType::U64)
}
