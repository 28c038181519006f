//! The streams of a plan besides the work stream, and its events.
//!
//! A call begins on all of them once the work stream has come to it. The work stream continues once
//! all of them are done. So calls follow one another as if there were one stream, and a capture
//! that begins on the work stream takes in the others. Invariant: an event is recorded in the same
//! call before anything waits for it.

use crate::entry::begin_call;
use crate::{Device, Error};
use cudarc::driver::result::stream::get_priority_range;
use cudarc::driver::{CudaEvent, CudaStream};
use overdrive_ir::plan::{Plan, Step};
use std::sync::Arc;

/// Streams and events of an executable; none where all is work.
pub(super) struct Queues {
    work: Arc<CudaStream>,
    /// From stream 1 on, each with the event of its end.
    others: Vec<(Arc<CudaStream>, CudaEvent)>,
    begun: CudaEvent,
    events: Vec<CudaEvent>,
}

impl Queues {
    pub(super) fn new(device: &Device, plan: &Plan) -> Result<Self, Error> {
        let context = device.context();
        let streams = plan.steps.iter().map(|step| step.stream).max().unwrap_or(0);
        let events = plan.steps.iter().filter_map(|step| step.records).max();
        // Kernels of collectives go first where both could: work waits for them in the end.
        let (_, highest) = get_priority_range()?;
        let other = |_| {
            let stream = context.new_stream_with_priority(highest)?;
            Ok::<_, Error>((stream, context.new_event(None)?))
        };
        let event = |_| Ok::<_, Error>(context.new_event(None)?);
        Ok(Self {
            work: Arc::clone(device.stream()),
            others: (0..streams).map(other).collect::<Result<_, _>>()?,
            begun: context.new_event(None)?,
            events: (0..events.map_or(0, |last| last + 1)).map(event).collect::<Result<_, _>>()?,
        })
    }

    /// The stream that a step is enqueued on.
    pub(super) fn of(&self, step: &Step) -> &Arc<CudaStream> {
        match usize::from(step.stream).checked_sub(1) {
            Some(other) => &self.others[other].0,
            None => &self.work,
        }
    }

    /// Enqueues the beginning of a call.
    pub(super) fn begin(&self) -> Result<(), Error> {
        begin_call();
        if !self.others.is_empty() {
            self.begun.record(&self.work)?;
        }
        Ok(self.others.iter().try_for_each(|(stream, _)| stream.wait(&self.begun))?)
    }

    /// Enqueues what a step waits for.
    pub(super) fn before(&self, step: &Step) -> Result<(), Error> {
        for &event in &step.waits {
            self.of(step).wait(&self.events[event as usize])?;
        }
        if !step.waits.is_empty() && step.stream == 0 {
            // A kernel that began under the one before it would begin before the copy has ended.
            begin_call();
        }
        Ok(())
    }

    /// Enqueues the event of a step's end.
    pub(super) fn after(&self, step: &Step) -> Result<(), Error> {
        match step.records {
            Some(event) => Ok(self.events[event as usize].record(self.of(step))?),
            None => Ok(()),
        }
    }

    /// Enqueues the end of a call.
    pub(super) fn end(&self) -> Result<(), Error> {
        for (stream, ended) in &self.others {
            ended.record(stream)?;
            self.work.wait(ended)?;
        }
        Ok(())
    }
}
