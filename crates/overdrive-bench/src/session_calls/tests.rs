//! The adapter against a back end that evaluates graphs by their definition, with faults that can
//! be switched on.

use super::*;
use crate::failure::FailureKind;
use crate::rules::Rules;
use crate::runner::Runner;
use crate::testing::SyntheticClock;
use overdrive_ir::backend::{MemoryReport, Pending, Protocol, Ready, StepProfile, TimedSample};
use overdrive_ir::plan::{Layout, Slot, SlotPlace, Step, StepKind};
use overdrive_ir::{
    Arguments, Builder, Cost, DType, Executable, Graph, Mode, Plan, SlotId, TensorType, Tuning,
    eval,
};
use std::any::Any;
use std::sync::{Arc, Mutex};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    WritesNothing,
    ChangesItsInput,
    OffByAThousandth,
    WrongAfterManyCalls,
}

struct Host(Mutex<Tensor>);

impl overdrive_ir::backend::Memory for Host {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

fn content(buffer: &Buffer) -> &Mutex<Tensor> {
    &buffer.memory.as_any().downcast_ref::<Host>().unwrap().0
}

fn buffer(tensor: Tensor) -> Buffer {
    Buffer { ty: tensor.ty().clone(), memory: Box::new(Host(Mutex::new(tensor))) }
}

struct Definition;

impl Backend for Definition {
    fn name(&self) -> &str {
        "definition"
    }

    fn target(&self) -> &dyn overdrive_ir::Target {
        unreachable!("measuring asks for no capability")
    }

    fn compile(&self, _: &Graph, _: Mode, _: &Tuning) -> Result<Arc<dyn Executable>, BackendError> {
        unreachable!("measuring compiles nothing")
    }

    fn upload(&self, tensor: &Tensor) -> Result<Buffer, BackendError> {
        Ok(buffer(tensor.clone()))
    }

    fn download(&self, buffer: &Buffer) -> Result<Tensor, BackendError> {
        Ok(content(buffer).lock().unwrap().clone())
    }

    fn output(&self, ty: &TensorType) -> Result<Buffer, BackendError> {
        Ok(buffer(Tensor::from_f64(ty.dtype, ty.shape.clone(), &vec![f64::NAN; ty.elements()])))
    }

    fn write(&self, buffer: &mut Buffer, tensor: &Tensor) -> Result<(), BackendError> {
        *content(buffer).lock().unwrap() = tensor.clone();
        Ok(())
    }
}

struct Evaluated {
    graph: Graph,
    plan: Plan,
    clock: SyntheticClock,
    fault: Fault,
    calls: u64,
    keeps_time: bool,
}

/// Times of a call after emptying the caches: by the host's clock, and by the device's.
const COLD_NS: [f64; 2] = [5e6, 2e6];

impl Session for Evaluated {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn run(&mut self, call: Arguments<'_>) -> Result<Box<dyn Pending>, BackendError> {
        let Arguments { inputs, outputs, .. } = call;
        self.calls += 1;
        self.clock.advance(1_000_000);
        let tensors: Vec<Tensor> =
            inputs.iter().map(|input| content(input).lock().unwrap().clone()).collect();
        if self.fault == Fault::ChangesItsInput {
            *content(&inputs[0]).lock().unwrap() = Tensor::from_f32([2, 3], &[0.0; 6]);
        }
        let off = match self.fault {
            Fault::OffByAThousandth => 1.001,
            Fault::WrongAfterManyCalls if self.calls > 20 => 1.001,
            _ => 1.0,
        };
        for (output, value) in outputs.iter().zip(eval::eval_tensors(&self.graph, &tensors)) {
            if self.fault != Fault::WritesNothing {
                let values: Vec<f64> = value.to_f64().iter().map(|value| value * off).collect();
                *content(output).lock().unwrap() =
                    Tensor::from_f64(value.ty().dtype, value.ty().shape.clone(), &values);
            }
        }
        Ok(Box::new(Ready))
    }

    fn sample(
        &mut self,
        mut call: Arguments<'_>,
        protocol: Protocol,
    ) -> Result<Vec<TimedSample>, BackendError> {
        assert!(self.keeps_time, "the host's clock is read around `run`");
        for _ in 0..protocol.calls_per_sample {
            self.run(call.again())?.wait()?;
        }
        let [host_ns, device_ns] = COLD_NS;
        Ok(vec![TimedSample { host_ns, device_ns: Some(device_ns), cycles: None, flags: vec![] }])
    }

    fn keeps_time(&self) -> bool {
        self.keeps_time
    }

    fn memory(&self) -> MemoryReport {
        MemoryReport::default()
    }

    fn profile(&mut self, _: Arguments<'_>, _: u32) -> Result<Vec<StepProfile>, BackendError> {
        unreachable!("nothing is profiled")
    }
}

/// `y = exp(x) + x` on f32 2x3.
fn graph() -> Graph {
    let builder = Builder::new("exp-plus");
    let x = builder.input("x", TensorType::new(DType::F32, [2, 3]));
    builder.output("y", x.exp() + x);
    builder.finish().unwrap()
}

fn step(prepare: bool) -> Step {
    Step {
        kind: StepKind::CopyDone,
        reads: vec![],
        writes: vec![],
        aliases: vec![],
        stream: 0,
        waits: vec![],
        records: None,
        prepare,
        only_if: None,
        scratch_bytes: 0,
        cost: Cost::default(),
        name: "exp".into(),
        scope: String::new(),
    }
}

fn outcome_with(fault: Fault) -> crate::outcome::Outcome {
    outcome_of(fault, Rivals::OfItsClock)
}

/// Who else takes part.
#[derive(Clone, Copy, PartialEq)]
enum Rivals {
    OfItsClock,
    DeviceAlone,
    DeviceBesideHostClocks,
}

fn outcome_of(fault: Fault, rivals: Rivals) -> crate::outcome::Outcome {
    let graph = graph();
    let slot = Slot {
        ty: TensorType::new(DType::F32, [2, 3]),
        layout: Layout::RowMajor,
        place: SlotPlace::Output(0),
    };
    // One step prepares, one runs in each call.
    let steps = [true, false].map(step).to_vec();
    let plan = Plan { steps, slots: vec![slot], outputs: vec![SlotId(0)], ..Plan::default() };
    let clock = SyntheticClock::default();
    let keeps_time = rivals != Rivals::OfItsClock;
    let mut session =
        Evaluated { graph: graph.clone(), plan, clock: clock.clone(), fault, calls: 0, keeps_time };
    let oracle = Oracle::new(
        "the definition in f64",
        |seed| crate::oracle::normal_inputs(&graph, seed),
        |inputs| Ok(eval::eval_tensors(&graph, inputs)),
    );
    let target =
        CallTarget { backend: &Definition, session: &mut session, state: &mut State::default() };
    let calls = Calls::new(target, &oracle, Tolerance::ulps(DType::F32, 4.0), 3).unwrap();
    let mut calls =
        if rivals == Rivals::DeviceBesideHostClocks { calls.beside_host_clocks() } else { calls };
    Runner::new(&clock, Rules::full(), 3).measure(&mut calls)
}

#[test]
fn beside_host_clocks_the_host_s_time_is_of_calls_back_to_back() {
    for (rivals, host_ns) in
        [(Rivals::DeviceAlone, 5_000_000), (Rivals::DeviceBesideHostClocks, 1_000_000)]
    {
        let outcome = outcome_of(Fault::None, rivals);
        let series = outcome.measurement().unwrap().latency.as_ref().unwrap();
        assert_eq!(series.summary.median_ns, COLD_NS[1], "the latency is the device's");
        assert!(series.samples.iter().all(|sample| sample.host_ns == host_ns));
        assert_eq!(series.conditions.launches_per_call, Some(1));
        assert_eq!(series.on_the_host().is_some(), rivals == Rivals::DeviceBesideHostClocks);
    }
}

#[test]
fn a_sound_session_is_timed_and_proven() {
    let outcome = outcome_with(Fault::None);
    let found = outcome.measurement().unwrap();
    assert_eq!(found.latency.as_ref().unwrap().summary.median_ns, 1e6);
    let agreement = found.agreement.as_ref().unwrap();
    assert_eq!((agreement.reference.as_str(), agreement.seeds), ("the definition in f64", 5));
    assert_eq!(agreement.worst.values, 6 * (5 + 1), "five seeds and one timed call");
}

#[test]
fn faults_are_incorrect_and_have_no_time() {
    for (fault, word) in [
        (Fault::WritesNothing, "differs"),
        (Fault::ChangesItsInput, "changed its input 0"),
        (Fault::OffByAThousandth, "differs"),
        (Fault::WrongAfterManyCalls, "in a timed call"),
    ] {
        let failure =
            outcome_with(fault).failure().cloned().unwrap_or_else(|| panic!("{fault:?} passed"));
        assert_eq!(failure.kind, FailureKind::Incorrect, "{fault:?}");
        assert!(failure.reason.contains(word), "{fault:?}: {failure}");
    }
}

#[test]
fn a_back_end_s_error_keeps_its_class() {
    let error =
        BackendError::OutOfMemory { needed: 2, available: 1, remedy: "rematerialize".into() };
    assert_eq!(Failure::from(error).kind, FailureKind::OutOfMemory);
}
