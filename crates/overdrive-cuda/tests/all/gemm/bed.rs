//! A graph that plans to one product, with buffers on a GPU. The tests and the timings of products
//! stand on it.

use cudarc::driver::{CudaSlice, DevicePtr};
use overdrive_cuda::Device;
use overdrive_cuda::gemm;
use overdrive_cuda::launch::{Addresses, Launch, Site};
use overdrive_ir::plan::{GemmCall, Plan, SlotId, SlotPlace, StepKind};
use overdrive_ir::{DType, Description, Graph, Mode, Tensor, Tuning, WithoutKernels};
use std::sync::Arc;

/// The answers of this back end about products and loops.
pub(crate) fn target() -> WithoutKernels {
    WithoutKernels(Description {
        device: "cuda".to_owned(),
        memory_bytes: 1 << 36,
        contraction_dtypes: gemm::DTYPES.into(),
        loop_dtypes: DType::ALL.into(),
        flops_per_byte: 100.0,
        ..Description::default()
    })
}

/// A planned product on a device.
pub(crate) struct Bed {
    pub(crate) device: Arc<Device>,
    pub(crate) plan: Plan,
    memory: Vec<CudaSlice<u8>>,
    workspace: Option<CudaSlice<u8>>,
}

impl Bed {
    /// Plans `graph`, which must become one product, and gives every slot its memory, filled with
    /// all-ones bytes.
    pub(crate) fn new(device: &Arc<Device>, graph: &Graph) -> Self {
        let plan = overdrive_passes::plan(graph, Mode::Compile, &target(), &Tuning::default())
            .expect("the graph is bound");
        let memory = plan
            .slots
            .iter()
            .map(|slot| match &slot.place {
                SlotPlace::Constant(tensor) => device.stream().clone_htod(tensor.bytes()),
                _ => device.stream().clone_htod(&vec![0xffu8; slot.bytes().max(1)]),
            })
            .collect::<Result<_, _>>()
            .expect("the device has memory");
        Self { device: Arc::clone(device), plan, memory, workspace: None }
    }

    /// The product.
    pub(crate) fn call(&self) -> &GemmCall {
        match &self.plan.steps[..] {
            [step] => match &step.kind {
                StepKind::Gemm(call) => call,
                other => panic!("planned as {other:?}"),
            },
            _ => panic!("planned as more than a product:\n{}", self.plan),
        }
    }

    /// The facts that a step may know.
    pub(crate) fn site<'a>(&'a self, tuning: &'a Tuning) -> Site<'a> {
        Site {
            plan: &self.plan,
            step: &self.plan.steps[0],
            device: &self.device,
            tuning,
            mode: Mode::Compile,
        }
    }

    /// Uploads the inputs.
    pub(crate) fn write(&mut self, inputs: &[Tensor]) {
        for (slot, tensor) in self.plan.inputs.clone().into_iter().zip(inputs) {
            if !tensor.bytes().is_empty() {
                let target = &mut self.memory[slot.0 as usize];
                self.device.stream().memcpy_htod(tensor.bytes(), target).expect("sizes agree");
            }
        }
    }

    /// Fills the outputs with all-ones bytes.
    pub(crate) fn poison(&mut self) {
        for slot in self.plan.outputs.clone() {
            let target = &mut self.memory[slot.0 as usize];
            let ones = vec![0xffu8; target.len()];
            self.device.stream().memcpy_htod(&ones, target).expect("sizes agree");
        }
    }

    /// The addresses for a launch, with room for its workspace.
    pub(crate) fn addresses(&mut self, launch: &dyn Launch) -> Addresses {
        let stream = self.device.stream();
        let bytes = launch.workspace_bytes().max(256);
        let workspace = stream.clone_htod(&vec![0xffu8; bytes]).expect("the device has memory");
        let mut addresses = Addresses::new(self.memory.len(), workspace.device_ptr(stream).0);
        self.workspace = Some(workspace);
        for (slot, memory) in self.memory.iter().enumerate() {
            addresses.set(SlotId(slot as u32), memory.device_ptr(stream).0);
        }
        addresses
    }

    /// The outputs.
    pub(crate) fn read(&self) -> Vec<Tensor> {
        let output = |slot: &SlotId| {
            let ty = self.plan.slot(*slot).ty.clone();
            let memory = &self.memory[slot.0 as usize];
            let bytes = self.device.stream().clone_dtoh(memory).expect("the work succeeded");
            let bytes = bytes[..ty.bytes()].to_vec();
            Tensor::from_bytes(ty, bytes).expect("as many bytes as the type has")
        };
        self.plan.outputs.iter().map(output).collect()
    }
}
