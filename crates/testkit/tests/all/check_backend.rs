//! The check of back ends is itself checked. It runs against the definition as a back end, which
//! passes, and against the same with each fault that it exists to find.

use overdrive_ir::backend::{
    Memory, MemoryReport, Pending, Protocol, Ready, StepProfile, TimedSample,
};
use overdrive_ir::eval::{States, eval};
use overdrive_ir::{
    Arguments, Array, Backend, BackendError, Buffer, Builder, DType, Executable, Graph, Init, Mode,
    Plan, Session, Target, Tensor, TensorType, Tuning,
};
use std::any::Any;
use std::sync::{Arc, Mutex};
use testkit::{Disagreement, check_backend};

#[derive(Copy, Clone, PartialEq, Debug)]
enum Fault {
    None,
    WritesNothing,
    ChangesItsInput,
    /// Every value by a part in ten thousand.
    Imprecise,
    ForgetsTheState,
    DiffersFromCallToCall,
    Refuses,
}

struct Host(Mutex<Tensor>);

impl Memory for Host {
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

/// Evaluates graphs by their definition, less its fault.
struct Definition(Fault);

struct Compiled {
    graph: Graph,
    plan: Plan,
    fault: Fault,
}

struct Evaluated {
    compiled: Arc<Compiled>,
    calls: u32,
}

impl Backend for Definition {
    fn name(&self) -> &str {
        "definition"
    }

    fn target(&self) -> &dyn Target {
        unreachable!("the check asks for no capability")
    }

    fn compile(
        &self,
        graph: &Graph,
        _: Mode,
        _: &Tuning,
    ) -> Result<Arc<dyn Executable>, BackendError> {
        if self.0 == Fault::Refuses {
            let [backend, op, scope, reason] =
                ["definition", "add", "", "of a fault"].map(str::to_owned);
            return Err(BackendError::Unsupported { backend, op, scope, reason });
        }
        let (graph, plan, fault) = (graph.clone(), Plan::default(), self.0);
        Ok(Arc::new(Compiled { graph, plan, fault }))
    }

    fn upload(&self, tensor: &Tensor) -> Result<Buffer, BackendError> {
        Ok(Buffer { ty: tensor.ty().clone(), memory: Box::new(Host(Mutex::new(tensor.clone()))) })
    }

    fn download(&self, buffer: &Buffer) -> Result<Tensor, BackendError> {
        Ok(content(buffer).lock().unwrap().clone())
    }

    fn output(&self, ty: &TensorType) -> Result<Buffer, BackendError> {
        self.upload(&Tensor::from_f64(ty.dtype, ty.shape.clone(), &vec![0.0; ty.elements()]))
    }

    fn write(&self, buffer: &mut Buffer, tensor: &Tensor) -> Result<(), BackendError> {
        *content(buffer).lock().unwrap() = tensor.clone();
        Ok(())
    }
}

impl Executable for Compiled {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn session(self: Arc<Self>) -> Result<Box<dyn Session>, BackendError> {
        Ok(Box::new(Evaluated { compiled: self, calls: 0 }))
    }
}

impl Session for Evaluated {
    fn plan(&self) -> &Plan {
        &self.compiled.plan
    }

    fn run(&mut self, call: Arguments<'_>) -> Result<Box<dyn Pending>, BackendError> {
        let Arguments { state, inputs, outputs } = call;
        self.calls += 1;
        let arguments: Vec<Array> =
            inputs.iter().map(|input| Array::from(&*content(input).lock().unwrap())).collect();
        let read = |buffer: &Buffer| Array::from(&*content(buffer).lock().unwrap());
        let mut states: States =
            state.buffers.iter().map(|(name, buffer)| (name.clone(), read(buffer))).collect();
        let results = eval(&self.compiled.graph, &arguments, &mut states);
        let off = match self.compiled.fault {
            Fault::Imprecise => 1.0001,
            Fault::DiffersFromCallToCall => 1.0 + 1e-7 * (self.calls - 1) as f64,
            _ => 1.0,
        };
        if self.compiled.fault == Fault::ChangesItsInput {
            let mut input = content(&inputs[0]).lock().unwrap();
            let zeros = vec![0.0; input.ty().elements()];
            *input = Tensor::from_f64(input.ty().dtype, input.ty().shape.clone(), &zeros);
        }
        if self.compiled.fault != Fault::ForgetsTheState {
            for (name, value) in &states {
                *content(&state.buffers[name]).lock().unwrap() = value.to_tensor();
            }
        }
        if self.compiled.fault != Fault::WritesNothing {
            for (output, result) in outputs.iter().zip(&results) {
                *content(output).lock().unwrap() = result.map(|x| x * off).to_tensor();
            }
        }
        Ok(Box::new(Ready))
    }

    fn sample(&mut self, _: Arguments<'_>, _: Protocol) -> Result<Vec<TimedSample>, BackendError> {
        unreachable!("the check times nothing")
    }

    fn memory(&self) -> MemoryReport {
        MemoryReport::default()
    }

    fn profile(&mut self, _: Arguments<'_>, _: u32) -> Result<Vec<StepProfile>, BackendError> {
        unreachable!("the check profiles nothing")
    }
}

#[derive(Copy, Clone, PartialEq)]
enum Memoryless {
    Yes,
    No,
}

fn verdict(fault: Fault, memoryless: Memoryless) -> Result<(), Disagreement> {
    let b = Builder::new("model");
    let x = b.input("x", TensorType::new(DType::F32, [5usize, 3]));
    let y = x.softmax(1);
    if memoryless == Memoryless::No {
        let sum = b.state("sum", TensorType::new(DType::F32, [5usize, 3]), Init::ZEROS);
        b.update("sum", sum + y);
    }
    b.output("y", y);
    let graph = b.finish().unwrap();
    let x = Array::build(DType::F32, &[5, 3], |at| at[0] as f64 - at[1] as f64);
    check_backend(&Definition(fault), Mode::Eager, &graph, &[x])
}

#[test]
fn the_definition_passes() {
    for memoryless in [Memoryless::Yes, Memoryless::No] {
        verdict(Fault::None, memoryless).unwrap();
    }
}

#[test]
fn every_fault_is_found_and_named() {
    for (fault, memoryless, reason) in [
        (Fault::WritesNothing, Memoryless::Yes, "found NaN"),
        (Fault::ChangesItsInput, Memoryless::Yes, "input `x` was overwritten"),
        (Fault::Imprecise, Memoryless::Yes, "of 15 elements"),
        (Fault::ForgetsTheState, Memoryless::No, "`sum`: 15 of 15 elements"),
        (Fault::DiffersFromCallToCall, Memoryless::Yes, "a second call gives other bits"),
    ] {
        match verdict(fault, memoryless) {
            Err(Disagreement::Wrong(what)) => assert!(what.contains(reason), "{fault:?}: {what}"),
            other => panic!("{fault:?} is not found: {other:?}"),
        }
    }
    assert!(matches!(verdict(Fault::Refuses, Memoryless::Yes), Err(Disagreement::Refused(_))));
}
