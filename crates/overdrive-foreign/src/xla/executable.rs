//! A graph that XLA compiled: one program, and one for what parameters alone decide.
//!
//! Invariant: values computed ahead of time are recomputed before a call if a parameter that they
//! depend on has changed.

use super::ahead::Split;
use super::api::Object;
use super::client::{Client, DeviceBuffer, Event, Executable as Program, Rounding};
use super::device_buffer::XlaMemory;
use crate::host_backend::{timed_on_the_host, unsupported};
use overdrive_formats::stablehlo;
use overdrive_ir::backend::{
    CacheState, Heap, MemoryReport, Pending, Protocol, StepProfile, TimedSample,
};
use overdrive_ir::plan::{Layout, Signature, Slot, SlotPlace, Space};
use overdrive_ir::{
    Arguments, BackendError, Buffer, Executable, Graph, Mode, Plan, Port, Session, SlotId,
};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Values that depend on parameters alone.
struct Ahead {
    program: Program,
    /// States, by their place among those of the plan.
    sources: Vec<usize>,
    /// Stamps of the sources when it last ran.
    seen: Vec<u64>,
    values: Vec<DeviceBuffer>,
    bytes: u64,
}

/// A compiled graph.
pub(super) struct XlaExecutable {
    plan: Plan,
    program: Program,
    /// The values computed ahead of time; one call at a time reads them.
    ahead: Mutex<Option<Ahead>>,
    /// Names of inputs and outputs that users see.
    names: [Vec<String>; 2],
    /// Slot of each state, in the order of the plan's states, which is by name.
    states: Vec<SlotId>,
    /// The same in order of declaration.
    declared: Vec<SlotId>,
    /// Names of the states that a call replaces, in the order of its results.
    updated: Vec<String>,
    translation_ns: u64,
}

impl XlaExecutable {
    /// Writes the graph down and has it compiled.
    ///
    /// # Errors
    /// `Unsupported` with all that StableHLO or XLA cannot say; `Device` with the compiler's words.
    pub(super) fn new(
        client: &Arc<Client>,
        graph: &Graph,
        mode: Mode,
    ) -> Result<Self, BackendError> {
        let start = Instant::now();
        let split =
            super::ahead::split(graph).map_err(|e| unsupported("xla", "graph", graph.name(), e))?;
        let text = |part: &Graph| {
            stablehlo::text(part).map_err(|e| unsupported("xla", "graph", graph.name(), e))
        };
        let (rest, early) = match &split {
            Some(Split { ahead, rest }) => (text(rest)?, Some((text(ahead)?, ahead))),
            None => (text(graph)?, None),
        };
        let translation_ns = start.elapsed().as_nanos() as u64;
        let rounding = rounding(&rest);
        let program = client.compile(&rest, rounding)?;
        let plan = plan(graph, mode);
        let names = |ports: &[Port]| -> Vec<String> {
            ports.iter().map(|port| port.name.clone()).collect()
        };
        let names = [names(graph.inputs()), names(graph.outputs())];
        let signature = Signature::new(&plan, &names[0], &names[1]);
        let order: Vec<String> = signature.state_names().into_iter().map(str::to_owned).collect();
        let place = |name: &str| {
            order.iter().position(|state| state == name).expect("every state has a slot")
        };
        let slot_of = |name: &str| {
            let is_it = |slot: &Slot| slot.place == SlotPlace::State(name.to_owned());
            let at = plan.slots.iter().position(is_it).expect("every state has a slot");
            SlotId(at as u32)
        };
        let ahead = early.map(|(text, part)| {
            let bytes = part.outputs().iter().map(|port| part.ty(port.value).bytes() as u64).sum();
            let sources: Vec<usize> = part.inputs().iter().map(|port| place(&port.name)).collect();
            let program = client.compile(&text, rounding)?;
            Ok::<_, BackendError>(Ahead {
                program,
                seen: vec![0; sources.len()],
                sources,
                values: Vec::new(),
                bytes,
            })
        });
        let updated = graph.states().iter().filter(|state| state.update.is_some());
        Ok(Self {
            program,
            ahead: Mutex::new(ahead.transpose()?),
            states: order.iter().map(|name| slot_of(name)).collect(),
            declared: graph.states().iter().map(|state| slot_of(&state.name)).collect(),
            updated: updated.map(|state| state.name.clone()).collect(),
            names,
            plan,
            translation_ns,
        })
    }
}

/// Data that calls of an executable are checked against; XLA keeps the arena to itself.
struct XlaSession {
    executable: Arc<XlaExecutable>,
    signature: Signature,
}

impl XlaSession {
    /// Checks the caller's arguments, and recomputes values ahead of time if parameters changed.
    /// Returns the program's arguments.
    fn enter(
        &mut self,
        call: Arguments<'_>,
        ahead: &mut Option<Ahead>,
    ) -> Result<Vec<Object>, BackendError> {
        let mut values = vec![None; self.signature.slot_count()];
        self.signature.enter::<XlaMemory>(call, |slot, value| values[slot.0 as usize] = value)?;
        let XlaExecutable { plan, states, declared, .. } = &*self.executable;
        let in_slot = |&slot: &SlotId| {
            values[slot.0 as usize].ok_or_else(|| BackendError::Mismatch {
                what: format!("{:?}", plan.slot(slot).place),
                expected: "a value".to_owned(),
                found: "a buffer that nothing was written to".to_owned(),
            })
        };
        let mut given = plan.inputs.iter().map(in_slot).collect::<Result<Vec<_>, _>>()?;
        if let Some(ahead) = ahead {
            let stamps: Vec<u64> =
                ahead.sources.iter().map(|&source| self.signature.stamps()[source]).collect();
            if ahead.values.is_empty() || stamps != ahead.seen {
                let sources = ahead.sources.iter().map(|&source| in_slot(&states[source]));
                let (made, event) =
                    ahead.program.execute(&sources.collect::<Result<Vec<_>, _>>()?)?;
                event.wait()?;
                (ahead.values, ahead.seen) = (made, stamps);
            }
            given.extend(ahead.values.iter().map(DeviceBuffer::object));
        }
        for slot in declared {
            given.push(in_slot(slot)?);
        }
        Ok(given)
    }

    /// Enqueues one call.
    fn call(&mut self, mut call: Arguments<'_>) -> Result<Event, BackendError> {
        let executable = Arc::clone(&self.executable);
        let mut ahead = executable.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        let given = self.enter(call.again(), &mut ahead)?;
        let (results, event) = executable.program.execute(&given)?;
        let mut results = results.into_iter();
        for (buffer, result) in call.outputs.iter_mut().zip(results.by_ref()) {
            entered(buffer).replace(result);
        }
        for (name, result) in executable.updated.iter().zip(results) {
            let buffer = call.state.buffers.get_mut(name).expect("`enter` found every state");
            entered(buffer).replace(result);
        }
        Ok(event)
    }
}

/// The memory of a buffer that `enter` has accepted.
fn entered(buffer: &mut Buffer) -> &mut XlaMemory {
    buffer.memory.as_any_mut().downcast_mut().expect("`enter` refuses buffers of other back ends")
}

/// Strict if a module quantizes, since its rounding matters; else XLA's default.
fn rounding(module: &str) -> Rounding {
    let formats = ["f8E4M3FN", "f8E5M2", "f8E8M0FNU", "f4E2M1FN"];
    if formats.iter().any(|format| module.contains(format)) {
        Rounding::Strict
    } else {
        Rounding::Loose
    }
}

/// The known part of a plan that XLA keeps to itself: the values that are passed, and that updated
/// states are replaced.
fn plan(graph: &Graph, mode: Mode) -> Plan {
    let mut plan = crate::host_backend::plan(graph, mode);
    for state in graph.states() {
        let slot = SlotId(plan.slots.len() as u32);
        let (ty, place) = (graph.ty(state.value).clone(), SlotPlace::State(state.name.clone()));
        plan.slots.push(Slot { ty, layout: Layout::RowMajor, place });
        plan.updates.extend(state.update.map(|_| (state.name.clone(), slot, slot)));
    }
    plan
}

impl Pending for Event {
    fn wait(self: Box<Self>) -> Result<(), BackendError> {
        Event::wait(*self)
    }
}

impl Executable for XlaExecutable {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn translation_ns(&self) -> u64 {
        self.translation_ns
    }

    fn session(self: Arc<Self>) -> Result<Box<dyn Session>, BackendError> {
        let signature = Signature::new(&self.plan, &self.names[0], &self.names[1]);
        Ok(Box::new(XlaSession { executable: self, signature }))
    }
}

impl Session for XlaSession {
    /// XLA allocates for itself, on the host too: our heap sees nothing of a call.
    fn heap(&self) -> Heap {
        Heap::Library
    }

    fn plan(&self) -> &Plan {
        &self.executable.plan
    }

    fn run(&mut self, call: Arguments<'_>) -> Result<Box<dyn Pending>, BackendError> {
        Ok(Box::new(self.call(call)?))
    }

    /// XLA lends no events of its stream, so a sample has the host's time alone: from each call to
    /// its completion.
    fn sample(
        &mut self,
        mut call: Arguments<'_>,
        protocol: Protocol,
    ) -> Result<Vec<TimedSample>, BackendError> {
        let mut samples = timed_on_the_host(protocol, || self.call(call.again())?.wait())?;
        if protocol.cache == CacheState::Cold {
            samples.iter_mut().for_each(|sample| sample.flags.push("warm".to_owned()));
        }
        Ok(samples)
    }

    fn memory(&self) -> MemoryReport {
        let executable = &self.executable;
        let ahead = executable.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        MemoryReport {
            transient_bytes: executable.program.transient_bytes().unwrap_or(0),
            persistent_bytes: ahead.as_ref().map_or(0, |ahead| ahead.bytes),
            state_bytes: executable.plan.state_bytes(Space::MAIN),
            ..MemoryReport::default()
        }
    }

    fn profile(&mut self, _: Arguments<'_>, _: u32) -> Result<Vec<StepProfile>, BackendError> {
        let reason = "XLA's steps are its own; use the profiler that comes with JAX";
        Err(unsupported("xla", "profile", &self.executable.plan.name, reason))
    }
}
