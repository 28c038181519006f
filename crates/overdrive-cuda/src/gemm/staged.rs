//! A product in two launches: the sums to workspace, then the epilogue as a loop.

use crate::Error;
use crate::launch::{Addresses, Launch, Refusal, Site};
use cudarc::driver::CudaStream;
use overdrive_ir::plan::{
    Access, Epilogue, GemmCall, Instr, Layout, Plan, Program, Slot, SlotId, SlotPlace, Store,
};
use overdrive_ir::{DType, TensorType, row_major};
use std::sync::Arc;

/// Bytes that workspaces begin at a multiple of.
const ALIGNMENT: usize = 256;

/// The first launch writes a slot that only this step has, the second reads it.
pub(super) struct Staged {
    product: Box<dyn Launch>,
    rest: Box<dyn Launch>,
    sums: SlotId,
    /// Bytes of the sums, up to where more scratch may begin.
    bytes: usize,
    touched: Vec<SlotId>,
}

/// The two halves of a call over one more slot than its plan has.
pub(super) struct Halves {
    /// The plan with the slot of the sums.
    pub(super) plan: Plan,
    /// Stores the sums unchanged.
    pub(super) product: GemmCall,
    /// Reads them and does the rest.
    pub(super) rest: Program,
    sums: SlotId,
}

impl Halves {
    /// Splits a call whose sums are stored as `dtype` meanwhile.
    pub(super) fn of(plan: &Plan, call: &GemmCall, dtype: DType) -> Self {
        let extents = &call.epilogue.0.extents;
        let sums = SlotId(plan.slots.len() as u32);
        let ty = TensorType::new(dtype, extents.clone());
        let place = SlotPlace::Arena { space: Default::default(), offset: 0 };
        let mut slots = plan.slots.clone();
        slots.push(Slot { ty, layout: Layout::RowMajor, place });
        // Steps are not asked for: only types and layouts of slots are.
        let plan = Plan { name: plan.name.clone(), mode: plan.mode, slots, ..Plan::default() };
        let strides = row_major(extents).into_iter().map(|s| s as i64).collect();
        let access = Access { slot: sums, offset: 0, strides };
        let mut store = Program { extents: extents.clone(), ..Program::default() };
        let value = store.push(Instr::Accumulator, call.accumulate);
        store.stores.push(Store { access: access.clone(), value });
        let mut rest = call.epilogue.0.clone();
        for instr in rest.instrs.iter_mut().filter(|i| **i == Instr::Accumulator) {
            *instr = Instr::Load(access.clone());
        }
        Self { plan, product: GemmCall { epilogue: Epilogue(store), ..call.clone() }, rest, sums }
    }

    /// Bytes of the scratch for the sums.
    pub(super) fn scratch_bytes(&self) -> usize {
        self.plan.slot(self.sums).bytes().next_multiple_of(ALIGNMENT)
    }

    /// Compiles both; `product` makes the first launch, `None` if it cannot.
    pub(super) fn compile(
        &self,
        site: &Site<'_>,
        product: impl FnOnce(&Site<'_>, &GemmCall) -> Result<Option<Box<dyn Launch>>, Refusal>,
    ) -> Result<Option<Box<dyn Launch>>, Refusal> {
        let site = Site { plan: &self.plan, ..*site };
        let Some(product) = product(&site, &self.product)? else { return Ok(None) };
        let rest = crate::loops::compile(&site, &self.rest)?;
        let touched = site.step.reads.iter().chain(&site.step.writes).copied().collect();
        let bytes = self.scratch_bytes();
        Ok(Some(Box::new(Staged { product, rest, sums: self.sums, bytes, touched })))
    }
}

impl Launch for Staged {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        let beyond = addresses.workspace() + self.bytes as u64;
        let mut inner = Addresses::new(self.sums.0 as usize + 1, beyond);
        self.touched.iter().for_each(|&slot| inner.set(slot, addresses.of(slot)));
        inner.set(self.sums, addresses.workspace());
        self.product.launch(stream, &inner)?;
        self.rest.launch(stream, &inner)
    }

    fn workspace_bytes(&self) -> usize {
        let theirs = self.product.workspace_bytes().max(self.rest.workspace_bytes());
        self.bytes + theirs
    }
}
