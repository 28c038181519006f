//! The resources of a call beside its time: memory, copies to and from its device, energy.
//!
//! Invariant: none of it is measured in a call whose time counts.

use super::entry::{Entry, ReadyEntry};
use crate::Context;
use overdrive_bench::clock::Clock;
use overdrive_bench::energy::EnergyUse;
use overdrive_bench::failure::Failure;
use overdrive_bench::measurement::Copies;
use overdrive_bench::memory::{MemoryUse, peak_during};
use overdrive_bench::oracle::Oracle;
use overdrive_ir::backend::{Heap, MemoryReport};
use overdrive_ir::{Backend, Buffer, Tensor};

/// Resources of a call in addition to time.
pub(super) struct Resources {
    pub(super) memory: MemoryUse,
    pub(super) copies: Option<Copies>,
    pub(super) energy: Option<EnergyUse>,
}

/// Peaks of one more call, copies around it, and energy of many more; none of them is part of a
/// latency. A screening has no time for energy.
pub(super) fn resources(
    context: &Context<'_>,
    (entry, oracle): (&Entry<'_>, &Oracle<'_>),
    ready: &mut ReadyEntry,
) -> Result<Resources, Failure> {
    let backend = entry.device.backend;
    let device = &backend.description().device;
    let tensors = oracle.inputs(context.sampling.seed);
    let mut inputs = tensors.iter().map(|t| backend.upload(t)).collect::<Result<Vec<_>, _>>()?;
    let types = entry.graph.outputs().iter().map(|o| entry.graph.ty(o.value));
    let mut outputs = types.map(|ty| backend.output(ty)).collect::<Result<Vec<_>, _>>()?;
    let ReadyEntry { session, state, .. } = ready;
    let copies = match device == HOST {
        true => None,
        false => {
            // The first call puts the buffers where the engine wants them.
            session.run(state.with(&inputs, &mut outputs))?.wait()?;
            Some(copies(context.sampling.clock, backend, (&tensors, &mut inputs), &outputs)?)
        }
    };
    drop(tensors);
    let mut call =
        || -> Result<(), Failure> { Ok(session.run(state.with(&inputs, &mut outputs))?.wait()?) };
    let (ran, mut memory) = peak_during(context.probes.heap, &mut call);
    ran?;
    let probe = context
        .probes
        .energy
        .and_then(|probes| probes.get(device))
        .filter(|_| !context.sampling.is_quick());
    let energy =
        probe.and_then(|probe| probe.borrow_mut().of_calls(context.sampling.clock, call).ok());
    let report = ready.session.memory();
    // Engines plan no arena that we would know of.
    let is_planned = !ready.session.plan().arena_bytes.is_empty();
    memory.planned_arena_bytes = is_planned.then_some(report.transient_bytes);
    // On the host the heap and the kernel are the better witnesses, where the heap is ours.
    let memory = match (device == HOST, ready.session.heap()) {
        (true, Heap::Process) => memory,
        (true, Heap::Library) => memory.with_library(&report),
        (false, _) if !is_planned && report == MemoryReport::default() => {
            memory.unknown_on_device()
        }
        (false, _) => memory.with_device(&report),
    };
    Ok(Resources { memory, copies, energy })
}

/// Most timings of a copy; their median is its time.
const ROUNDS: usize = 5;
/// If copies took this long, those that were made are enough.
const LONG_NS: u64 = 1_000_000_000;

/// Copies of the inputs to the device, and of the outputs from it.
fn copies(
    clock: &dyn Clock,
    backend: &dyn Backend,
    (tensors, inputs): (&[Tensor], &mut [Buffer]),
    outputs: &[Buffer],
) -> Result<Copies, Failure> {
    let word = Tensor::from_f32([1], &[1.0]);
    let mut last = backend.upload(&word)?;
    let (mut to, mut back) = (Vec::with_capacity(ROUNDS), Vec::with_capacity(ROUNDS));
    let mut spent_ns = 0;
    for _ in 0..ROUNDS {
        let start = clock.now_ns();
        for (buffer, tensor) in inputs.iter_mut().zip(tensors) {
            backend.write(buffer, tensor)?;
        }
        // Enqueued copies have arrived once this round trip is done.
        backend.write(&mut last, &word)?;
        backend.download(&last)?;
        let arrived = clock.now_ns();
        for buffer in outputs {
            backend.download(buffer)?;
        }
        let end = clock.now_ns();
        to.push(arrived - start);
        back.push(end - arrived);
        spent_ns += end - start;
        if spent_ns >= LONG_NS {
            break;
        }
    }
    let median = |mut times: Vec<u64>| {
        times.sort_unstable();
        times[times.len() / 2]
    };
    let bytes = |buffers: &[Buffer]| buffers.iter().map(|buffer| buffer.ty.bytes() as u64).sum();
    Ok(Copies {
        in_bytes: bytes(inputs),
        in_ns: median(to),
        out_bytes: bytes(outputs),
        out_ns: median(back),
    })
}

/// The name of the device that this process itself runs on.
const HOST: &str = "cpu";

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_cpu::CpuBackend;
    use overdrive_ir::{DType, TensorType};
    use std::cell::Cell;

    /// A clock that advances by one step more at each reading: 1, 2, 3...
    struct Slowing {
        step_ns: u64,
        readings: Cell<u64>,
        now_ns: Cell<u64>,
    }

    fn slowing(step_ns: u64) -> Slowing {
        Slowing { step_ns, readings: Cell::default(), now_ns: Cell::default() }
    }

    impl Clock for Slowing {
        fn name(&self) -> &'static str {
            "slowing"
        }

        fn now_ns(&self) -> u64 {
            self.readings.set(self.readings.get() + 1);
            self.now_ns.set(self.now_ns.get() + self.step_ns * self.readings.get());
            self.now_ns.get()
        }
    }

    #[test]
    fn copies_are_the_median_of_their_rounds_and_bring_the_inputs() {
        let backend = CpuBackend::new(Some(1)).unwrap();
        let backend: &dyn Backend = &backend;
        let tensors =
            [Tensor::from_f32([3], &[1.0, 2.0, 3.0]), Tensor::from_f32([2, 2], &[4.0; 4])];
        let mut inputs: Vec<Buffer> =
            tensors.iter().map(|t| backend.output(t.ty()).unwrap()).collect();
        let outputs = [backend.output(&TensorType::new(DType::BF16, [5])).unwrap()];
        let clock = slowing(1);
        let copies = copies(&clock, backend, (&tensors, &mut inputs), &outputs).unwrap();
        // Readings of the third round are the seventh to the ninth.
        assert_eq!(copies, Copies { in_bytes: 28, in_ns: 8, out_bytes: 10, out_ns: 9 });
        for (buffer, tensor) in inputs.iter().zip(&tensors) {
            assert_eq!(backend.download(buffer), Ok(tensor.clone()));
        }
    }

    #[test]
    fn copies_that_take_long_are_few() {
        let backend = CpuBackend::new(Some(1)).unwrap();
        let backend: &dyn Backend = &backend;
        let mut inputs = [backend.output(&TensorType::new(DType::F32, [1])).unwrap()];
        let tensors = [Tensor::from_f32([1], &[1.0])];
        let clock = slowing(LONG_NS / 12);
        copies(&clock, backend, (&tensors, &mut inputs), &[]).unwrap();
        // Rounds of 5 and 11 steps come to more than the twelve that are long.
        assert_eq!(clock.readings.get(), 6);
    }
}
