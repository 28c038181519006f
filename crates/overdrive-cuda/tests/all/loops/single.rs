//! One loop as a plan of one step, with its slots in device memory.

use overdrive_cuda::launch::{Addresses, Launch, Refusal, Site};
use overdrive_cuda::memory::DeviceBytes;
use overdrive_cuda::{Device, loops};
use overdrive_ir::plan::{Layout, Plan, Program, Slot, SlotPlace, Step, StepKind};
use overdrive_ir::{Mode, SlotId, Tensor, TensorType, Tuning};
use std::sync::Arc;

/// A compiled loop over its slots.
pub(crate) struct Single {
    pub(crate) device: Arc<Device>,
    pub(crate) launch: Box<dyn Launch>,
    pub(crate) slots: Vec<DeviceBytes>,
    pub(crate) addresses: Addresses,
    _workspace: DeviceBytes,
}

impl Single {
    /// Compiles `program`, whose slot `n` is of type `types[n]`.
    pub(crate) fn new(
        device: &Arc<Device>,
        program: &Program,
        types: &[TensorType],
    ) -> Result<Self, Refusal> {
        Self::in_place(device, program, types, &[])
    }

    /// The same where slots take the place of others: pairs of old and new.
    pub(crate) fn in_place(
        device: &Arc<Device>,
        program: &Program,
        types: &[TensorType],
        aliases: &[(SlotId, SlotId)],
    ) -> Result<Self, Refusal> {
        let slot = |(number, ty): (usize, &TensorType)| Slot {
            ty: ty.clone(),
            layout: Layout::RowMajor,
            place: SlotPlace::Input(number),
        };
        let step = Step {
            kind: StepKind::Loop(program.clone()),
            reads: vec![],
            writes: vec![],
            aliases: aliases.to_vec(),
            stream: 0,
            waits: vec![],
            records: None,
            prepare: false,
            only_if: None,
            scratch_bytes: 0,
            cost: Default::default(),
            name: "loop".to_owned(),
            scope: String::new(),
        };
        let plan = Plan { slots: types.iter().enumerate().map(slot).collect(), ..Plan::default() };
        let tuning = Tuning::default();
        let site = Site { plan: &plan, step: &step, device, tuning: &tuning, mode: Mode::Compile };
        let launch = loops::compile(&site, program)?;
        let slots: Vec<DeviceBytes> = types
            .iter()
            .map(|ty| DeviceBytes::new(device, ty.bytes()))
            .collect::<Result<_, _>>()?;
        let workspace = DeviceBytes::new(device, launch.workspace_bytes())?;
        let mut addresses = Addresses::new(slots.len(), workspace.address());
        slots
            .iter()
            .enumerate()
            .for_each(|(n, slot)| addresses.set(SlotId(n as u32), slot.address()));
        for (old, new) in aliases {
            addresses.set(*new, slots[old.0 as usize].address());
        }
        Ok(Self { device: Arc::clone(device), launch, slots, addresses, _workspace: workspace })
    }

    /// Enqueues the loop.
    pub(crate) fn launch(&self) {
        self.launch.launch(self.device.stream(), &self.addresses).unwrap_or_else(|e| panic!("{e}"));
    }

    /// Runs it over these contents and returns the content of the slots afterwards.
    pub(crate) fn run(&self, contents: &[Tensor]) -> Vec<Tensor> {
        let stream = self.device.stream().cu_stream();
        let check =
            |r: Result<(), cudarc::driver::DriverError>| r.unwrap_or_else(|e| panic!("{e}"));
        for (slot, content) in self.slots.iter().zip(contents) {
            if !slot.is_empty() {
                // SAFETY: the slot has the bytes of its tensor, which outlives the synchronisation
                // below.
                check(unsafe {
                    cudarc::driver::result::memcpy_htod_async(
                        slot.address(),
                        content.bytes(),
                        stream,
                    )
                });
            }
        }
        self.launch();
        let download = |(slot, content): (&DeviceBytes, &Tensor)| {
            let mut bytes = vec![0u8; content.bytes().len()];
            if !slot.is_empty() {
                // SAFETY: the slot has the bytes of its tensor, as `bytes` has. `bytes` outlives
                // the synchronisation below.
                check(unsafe {
                    cudarc::driver::result::memcpy_dtoh_async(&mut bytes, slot.address(), stream)
                });
            }
            check(self.device.stream().synchronize());
            Tensor::from_bytes(content.ty().clone(), bytes).unwrap()
        };
        self.slots.iter().zip(contents).map(download).collect()
    }
}
