//! The stage at which each register of a program is computed: once a kernel, once a row, or for
//! every element; and in which pass.
//!
//! A row is walked in passes. A `Reduce` of pass `p` folds values that need no reduction later than
//! `p - 1`. Values that depend on its result have stage `p + 1`. Stores of elements belong to the
//! last pass, so that a result may take the place of an operand. A pass computes the values that it
//! needs from loads again. The compiler sees that, and keeps those that registers have room for.

use super::accuracy::loose;
use super::level::Level;
use super::nest::{Lanes, LoopNest, Of};
use super::online::{Online, online};
use super::pick::{Pick, pick};
use overdrive_ir::plan::{Instr, Program, Register, SlotId};
use std::collections::BTreeMap;

/// One walk over a row.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct RowPass {
    /// Registers of elements that it computes, in order.
    pub(super) elements: Vec<Register>,
    /// Reductions that it folds.
    pub(super) folds: Vec<Register>,
    /// Numbers of the stores of elements that it does.
    pub(super) stores: Vec<usize>,
}

/// The passes of a program.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Stages {
    pub(super) levels: Vec<Level>,
    /// For each register, how many passes are over before it is known.
    pub(super) stage: Vec<usize>,
    pub(super) passes: Vec<RowPass>,
    /// Numbers of the stores of rows.
    pub(super) row_stores: Vec<usize>,
    /// Registers that reach a store.
    pub(super) used: Vec<bool>,
    /// Registers for which fast functions will do.
    pub(super) loose: Vec<bool>,
    /// Reductions that are one element of their row, which no pass folds.
    pub(super) picks: BTreeMap<Register, Pick>,
    /// Sums that are folded beside a maximum.
    pub(super) online: BTreeMap<Register, Online>,
    /// Whether rows must not be cut: one part would pick an element that another overwrites.
    pub(super) whole_rows: bool,
}

impl Stages {
    /// The stages where no result takes the place of an operand.
    pub(super) fn new(program: &Program, nest: &LoopNest) -> Stages {
        Self::of(program, nest, true)
    }

    /// The stages where results take the place of operands, pairs of old and new. A pick reads an
    /// element that another thread may overwrite. So it comes before a fold that all threads wait
    /// in, and the result is stored after; or else it is folded like any sum.
    pub(super) fn in_place(
        program: &Program,
        nest: &LoopNest,
        aliases: &[(SlotId, SlotId)],
    ) -> Stages {
        let stages = Self::of(program, nest, true);
        if aliases.is_empty() || stages.picks.is_empty() {
            return stages;
        }
        let is_early = |r: &Register| stages.stage[r.0 as usize] == 0;
        let is_late = |(_, new): &(SlotId, SlotId)| {
            let mut stores = program.stores.iter().filter(|store| store.access.slot == *new);
            stores.all(|store| !is_early(&store.value))
        };
        let waits = stages.picks.keys().all(is_early) && aliases.iter().all(is_late);
        let stages = if waits { stages } else { Self::of(program, nest, false) };
        Self { whole_rows: true, ..stages }
    }

    fn of(program: &Program, nest: &LoopNest, may_pick: bool) -> Stages {
        let count = program.instrs.len();
        let (mut levels, mut stage) = (Vec::with_capacity(count), Vec::with_capacity(count));
        let mut picks = BTreeMap::new();
        let mut beside: BTreeMap<Register, Online> = BTreeMap::new();
        for (r, instr) in program.instrs.iter().enumerate() {
            let operands = instr.operands();
            let walk = match instr {
                Instr::Load(_) => nest.walks.get(&Of::Load(Register(r as u32))),
                Instr::Index(d) => nest.walks.get(&Of::Index(*d)),
                Instr::RandomBits { .. } => nest.walks.get(&Of::Point),
                _ => None,
            };
            let folded = nest.extents.len() - nest.reduced;
            let own = match walk {
                Some(walk) if walk.strides[folded..].iter().any(|&s| s != 0) => Level::Element,
                Some(walk) if walk.strides.iter().any(|&s| s != 0) => Level::Row,
                _ => Level::Kernel,
            };
            let inherited = operands.iter().map(|o: &Register| levels[o.0 as usize]).max();
            let online = online(program, Register(r as u32)).filter(|_| nest.lanes == Lanes::Along);
            // One sum for each maximum.
            let online = online.filter(|of| beside.values().all(|other| other.max != of.max));
            let waits = match online {
                Some(of) => stage[of.value.0 as usize],
                None => operands.iter().map(|o| stage[o.0 as usize]).max().unwrap_or(0),
            };
            beside.extend(online.map(|of| (Register(r as u32), of)));
            let reduces = matches!(instr, Instr::Reduce(_));
            let picked = pick(program, nest, (Register(r as u32), &levels)).filter(|_| may_pick);
            let folds = reduces && picked.is_none();
            picks.extend(picked.map(|pick| (Register(r as u32), pick)));
            levels.push(if reduces {
                Level::Row
            } else {
                own.max(inherited.unwrap_or(Level::Kernel))
            });
            stage.push(waits + usize::from(folds));
        }
        let mut used = vec![false; count];
        program.stores.iter().for_each(|s| used[s.value.0 as usize] = true);
        for r in (0..count).rev() {
            if used[r] {
                program.instrs[r].operands().iter().for_each(|o| used[o.0 as usize] = true);
            }
        }
        let folded = nest.extents.len() - nest.reduced;
        let of_elements = |s: &usize| {
            nest.walks[&Of::Store(*s)].strides[folded..].iter().any(|&stride| stride != 0)
        };
        let (element_stores, row_stores): (Vec<usize>, Vec<usize>) =
            (0..program.stores.len()).partition(of_elements);
        let loose = loose(program);
        beside.retain(|sum, _| used[sum.0 as usize]);
        let online = beside;
        let (passes, whole_rows) = (Vec::new(), false);
        let mut stages =
            Stages { levels, stage, passes, row_stores, used, loose, picks, online, whole_rows };
        stages.plan(program, element_stores);
        stages
    }

    fn plan(&mut self, program: &Program, element_stores: Vec<usize>) {
        let registers = || (0..program.instrs.len() as u32).map(Register);
        let folds: Vec<Register> = registers()
            .filter(|r| self.used[r.0 as usize] && matches!(program.instr(*r), Instr::Reduce(_)))
            .filter(|r| !self.picks.contains_key(r))
            .filter(|r| self.online.values().all(|online| online.max != *r))
            .collect();
        let of_folds = folds.iter().map(|r| self.stage[r.0 as usize]);
        let of_stores =
            element_stores.iter().map(|&s| self.stage[program.stores[s].value.0 as usize] + 1);
        let count = of_folds.chain(of_stores).max().unwrap_or(0);
        for pass in 0..count {
            let folds: Vec<Register> =
                folds.iter().copied().filter(|r| self.stage[r.0 as usize] == pass + 1).collect();
            let stores = if pass + 1 == count { element_stores.clone() } else { Vec::new() };
            let mut needed = vec![false; program.instrs.len()];
            folds.iter().for_each(|r| needed[self.folded(program, *r).0 as usize] = true);
            stores.iter().for_each(|&s| needed[program.stores[s].value.0 as usize] = true);
            for r in (0..needed.len()).rev() {
                let computed = needed[r] && self.levels[r] == Level::Element;
                if computed {
                    program.instrs[r].operands().iter().for_each(|o| needed[o.0 as usize] = true);
                }
            }
            let elements = registers()
                .filter(|r| needed[r.0 as usize] && self.levels[r.0 as usize] == Level::Element)
                .collect();
            self.passes.push(RowPass { elements, folds, stores });
        }
    }

    /// The elements that a reduction folds.
    pub(super) fn folded(&self, program: &Program, reduction: Register) -> Register {
        self.online
            .get(&reduction)
            .map_or(program.instr(reduction).operands()[0], |online| online.value)
    }

    /// The level of a register.
    pub(super) fn level(&self, register: Register) -> Level {
        self.levels[register.0 as usize]
    }

    /// Registers of a level and stage that reach a store, in order. Values that passes fold are
    /// apart.
    pub(super) fn registers(&self, program: &Program, level: Level, stage: usize) -> Vec<Register> {
        (0..program.instrs.len() as u32)
            .map(Register)
            .filter(|register| {
                let r = register.0 as usize;
                let is = self.used[r] && self.levels[r] == level && self.stage[r] == stage;
                is && (!matches!(program.instrs[r], Instr::Reduce(_))
                    || self.picks.contains_key(register))
            })
            .collect()
    }
}
