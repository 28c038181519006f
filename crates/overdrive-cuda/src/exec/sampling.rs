//! Timed samples by the device's own clock, after section 3 of the measurement protocol.
//!
//! A sample has two times. The host's: from the call to its completion, as a caller sees it. The
//! device's: between two events on the work stream, with a gate before the first so that launches
//! cost nothing in between. A call shorter than `SHORT_NS` is captured so many times that they last
//! `SPAN_NS`, and replayed. The reason is that an event has a cost and a resolution of its own.
//! `Cold` flushes twice the L2 before each call, and gives captured calls buffers of their own.
//! Invariant: a sample that could not be taken cold says `warm`.

use super::caller::Caller;
use super::clocks::Clocks;
use super::copies::Copies;
use super::enqueuer::Enqueuer;
use super::gate::{CAPACITY, Gate};
use super::replay::Captured;
use crate::launch::{Addresses, Launch};
use crate::memory::DeviceBytes;
use crate::{Device, Error};
use cudarc::driver::CudaEvent;
use cudarc::driver::sys::CUdeviceptr;
use overdrive_ir::BackendError;
use overdrive_ir::backend::{CacheState, Protocol, TimedSample};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// Calls shorter than this are captured several times.
const SHORT_NS: f64 = 50e3;

/// Shortest total time of the captured calls.
const SPAN_NS: f64 = 200e3;

/// Captured calls, at most.
const MOST_CALLS: usize = 256;

/// Calls that the first estimate is the fastest of.
const TRIALS: usize = 3;

/// Data that an executable keeps for its samples.
#[derive(Default)]
pub(super) struct Sampling {
    tools: Option<Tools>,
    /// Device time of a warm call.
    estimate_ns: Option<f64>,
    batch: Option<Batch>,
}

/// Resources for taking a sample, in addition to the session.
struct Tools {
    device: Arc<Device>,
    gate: Gate,
    clocks: Clocks,
    /// Twice the L2.
    flush: DeviceBytes,
    start: CudaEvent,
    end: CudaEvent,
}

/// Several calls in one graph.
struct Batch {
    /// The caller's buffers and the cache state that it was captured for.
    key: (BTreeMap<CUdeviceptr, usize>, CacheState),
    captured: Captured,
    calls: usize,
    /// Whether each call has buffers that no other one warmed.
    is_cold: bool,
    _copies: Vec<Copies>,
}

/// Time on the device, per call.
struct OnDevice {
    ns: f64,
    frequency: Option<f64>,
    is_cold: bool,
}

impl Sampling {
    /// Samples of what `caller` has entered; `passed` are the caller's buffers.
    pub(super) fn take_samples(
        &mut self,
        caller: &mut Caller,
        passed: BTreeMap<CUdeviceptr, usize>,
        protocol: Protocol,
    ) -> Result<Vec<TimedSample>, BackendError> {
        let failed = |e: Error| e.during("sampling");
        if self.tools.is_none() {
            self.tools = Some(Tools::new(&caller.enqueuer.device).map_err(failed)?);
        }
        let mut samples = Vec::with_capacity(protocol.samples as usize);
        for _ in 0..protocol.samples {
            let host_ns = self.host_time(caller, protocol)?;
            let time = self.device_time(caller, &passed, protocol)?;
            let mut flags = Vec::new();
            if protocol.cache == CacheState::Cold && !time.is_cold {
                flags.push("warm".to_owned());
            }
            let cycles = time.frequency.map(|per_ns| per_ns * time.ns);
            samples.push(TimedSample { device_ns: Some(time.ns), host_ns, cycles, flags });
        }
        Ok(samples)
    }

    fn tools(&mut self) -> &mut Tools {
        self.tools.as_mut().expect("made before the first sample")
    }

    /// From call to completion, in nanoseconds per call.
    fn host_time(&mut self, caller: &mut Caller, protocol: Protocol) -> Result<f64, BackendError> {
        let calls = protocol.calls_per_sample.max(1);
        let (parts, each) = match protocol.cache {
            CacheState::Warm => (1, calls),
            CacheState::Cold => (calls, 1),
        };
        let mut spent_ns = 0.0;
        for part in 0..parts {
            let tools = self.tools();
            if protocol.cache == CacheState::Cold {
                tools.flush.fill(part as u8).map_err(|e| e.during("flushing"))?;
            }
            tools.wait()?;
            let start = Instant::now();
            for _ in 0..each {
                caller.call()?;
                tools.wait()?;
            }
            spent_ns += start.elapsed().as_nanos() as f64;
        }
        Ok(spent_ns / f64::from(calls))
    }

    fn device_time(
        &mut self,
        caller: &mut Caller,
        passed: &BTreeMap<CUdeviceptr, usize>,
        protocol: Protocol,
    ) -> Result<OnDevice, BackendError> {
        if self.estimate_ns.is_none() {
            // The first call in a mode with graphs captures, which waits for the device: not behind
            // a closed gate.
            caller.call()?;
            self.tools().wait()?;
            let mut fastest = f64::INFINITY;
            for _ in 0..TRIALS {
                fastest = fastest.min(self.tools().one(caller, CacheState::Warm)?.ns);
            }
            self.estimate_ns = Some(fastest);
        }
        let estimate = self.estimate_ns.expect("estimated above");
        let is_short = estimate < SHORT_NS;
        let is_long_to_launch = caller.enqueuer.tasks.len() > CAPACITY;
        // Copies between ranks count themselves, and write where the others said: no other buffers.
        let is_of_ranks = caller.enqueuer.ranks.is_some();
        if caller.enqueuer.has_host_steps() || is_of_ranks || !(is_short || is_long_to_launch) {
            return self.mean_of_single_calls(caller, protocol);
        }
        let wanted = if is_short { (SPAN_NS / estimate).ceil() as usize } else { 1 };
        let fitting = (8 * CAPACITY / caller.enqueuer.tasks.len().max(1)).max(1);
        let calls = wanted.min(MOST_CALLS).min(fitting);
        let key = (passed.clone(), protocol.cache);
        if self.batch.as_ref().is_none_or(|batch| batch.key != key) {
            self.batch = None;
            self.batch = Some(Batch::capture(&caller.enqueuer, key, calls)?);
        }
        let batch = self.batch.take().expect("captured above");
        let timed = self.tools().timed(protocol.cache, true, || batch.captured.launch());
        let time = timed.map(|time| OnDevice {
            ns: time.ns / batch.calls as f64,
            is_cold: batch.is_cold && time.is_cold,
            ..time
        });
        self.batch = Some(batch);
        time
    }

    fn mean_of_single_calls(
        &mut self,
        caller: &mut Caller,
        protocol: Protocol,
    ) -> Result<OnDevice, BackendError> {
        let calls = protocol.calls_per_sample.max(1);
        let mut sum = self.tools().one(caller, protocol.cache)?;
        for _ in 1..calls {
            let time = self.tools().one(caller, protocol.cache)?;
            sum.ns += time.ns;
            sum.frequency = time.frequency.or(sum.frequency);
        }
        sum.ns /= f64::from(calls);
        Ok(sum)
    }
}

impl Tools {
    fn new(device: &Arc<Device>) -> Result<Self, Error> {
        Ok(Self {
            device: Arc::clone(device),
            gate: Gate::new(device)?,
            clocks: Clocks::new(device)?,
            flush: DeviceBytes::new(device, 2 * device.properties().l2_bytes)?,
            start: device.event()?,
            end: device.event()?,
        })
    }

    fn wait(&self) -> Result<(), BackendError> {
        self.device
            .stream()
            .synchronize()
            .map_err(|e| Error::from(e).during("waiting for a timed call"))
    }

    /// One call by the means of the mode.
    fn one(&mut self, caller: &mut Caller, cache: CacheState) -> Result<OnDevice, BackendError> {
        let is_gated = !caller.enqueuer.has_host_steps() && caller.enqueuer.tasks.len() <= CAPACITY;
        self.timed(cache, is_gated, || caller.call())
    }

    /// The device time of what `enqueue` enqueues.
    fn timed(
        &mut self,
        cache: CacheState,
        is_gated: bool,
        enqueue: impl FnOnce() -> Result<(), BackendError>,
    ) -> Result<OnDevice, BackendError> {
        let failed = |e: Error| e.during("timing on the device");
        let is_cold = cache == CacheState::Cold;
        if is_cold {
            self.flush.fill(0x55).map_err(failed)?;
        }
        self.clocks.clear().map_err(failed)?;
        if is_gated {
            self.gate.close().map_err(failed)?;
        }
        let enqueued = self.between(enqueue);
        // In any case: a stream that waits for ever could not even be destroyed.
        self.gate.open();
        enqueued?;
        self.wait()?;
        let ms = self.start.elapsed_ms(&self.end).map_err(|e| failed(e.into()))?;
        let frequency = self.clocks.frequency().map_err(failed)?;
        Ok(OnDevice { ns: f64::from(ms) * 1e6, frequency, is_cold })
    }

    fn between(
        &self,
        enqueue: impl FnOnce() -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let failed = |e: Error| e.during("timing on the device");
        let record = |event: &CudaEvent| {
            event.record(self.device.stream()).map_err(|e| failed(Error::from(e)))
        };
        self.clocks.read(0).map_err(failed)?;
        record(&self.start)?;
        enqueue()?;
        record(&self.end)?;
        self.clocks.read(1).map_err(failed)
    }
}

impl Batch {
    fn capture(
        enqueuer: &Enqueuer,
        key: (BTreeMap<CUdeviceptr, usize>, CacheState),
        calls: usize,
    ) -> Result<Self, BackendError> {
        let failed = |e: Error| e.during("copying buffers for timed calls");
        let wants_copies = key.1 == CacheState::Cold && calls > 1;
        let is_cold = wants_copies && fits(enqueuer, &key.0, calls).map_err(failed)?;
        let mut copies = Vec::new();
        if is_cold {
            for _ in 0..calls {
                copies.push(Copies::new(enqueuer, &key.0).map_err(failed)?);
            }
        } else {
            copies.push(Copies::in_place(enqueuer).map_err(failed)?);
        }
        enqueuer.device.stream().synchronize().map_err(|e| failed(e.into()))?;
        let captured = Captured::new(&enqueuer.device, || {
            (0..calls)
                .try_for_each(|call| enqueue_at(enqueuer, &copies[call % copies.len()].addresses))
        })?;
        Ok(Self { key, captured, calls, is_cold: is_cold || calls == 1, _copies: copies })
    }
}

/// Whether so many copies leave most of the memory free.
fn fits(
    enqueuer: &Enqueuer,
    passed: &BTreeMap<CUdeviceptr, usize>,
    calls: usize,
) -> Result<bool, Error> {
    let arena: usize = enqueuer.plan.arena_bytes.iter().sum();
    let kept: usize = enqueuer.kept().map(DeviceBytes::len).sum();
    let bytes = passed.values().sum::<usize>() + arena + kept;
    let (free, _) = enqueuer.device.context().mem_get_info()?;
    Ok(bytes.saturating_mul(calls) < free / 2)
}

/// Enqueues one call whose slots lie at `addresses`, arena slots included.
fn enqueue_at(enqueuer: &Enqueuer, addresses: &Addresses) -> Result<(), BackendError> {
    let queues = &enqueuer.queues;
    queues.begin().map_err(|e| e.during("starting a call"))?;
    let steps = enqueuer.tasks.iter().zip(&enqueuer.plan.steps);
    for (task, step) in steps.filter(|(_, step)| !step.prepare) {
        let run = || {
            queues.before(step)?;
            task.run(&enqueuer.device, queues.of(step), addresses)?;
            queues.after(step)
        };
        run().map_err(|e| e.during(format!("`{}` at {}", step.name, step.scope)))?;
    }
    let stream = enqueuer.device.stream();
    let copies = || enqueuer.deliveries.iter().try_for_each(|copy| copy.launch(stream, addresses));
    let delivered = queues.end().and_then(|()| copies());
    delivered.map_err(|e| e.during("delivering results"))
}
