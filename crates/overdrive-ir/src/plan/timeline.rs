//! How long a plan takes at least, by its streams, its events, the device's peaks and the links
//! between ranks.
//!
//! It serves to choose between plans of one graph: recomputing values has a cost, and copies may or
//! may not hide behind work. And it predicts the step of a rank on more ranks than there are. It is
//! an estimate, never a measurement. A measured step and measured links make it a better one.

use super::{Plan, SlotId, Space, Step, StepKind};
use crate::fabric::sent_bytes;
use crate::{Cluster, DType, Description, Mesh, Prim};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Share of the peaks that kernels reach, as a rule.
const REACHED: f64 = 0.6;

/// Bandwidth of the memory of a device that does not tell its own, in bytes per second.
const NOMINAL_BYTES_PER_SECOND: f64 = 1e12;

/// How fast a rank works and exchanges.
#[derive(Copy, Clone, Debug)]
pub struct Pace<'a> {
    /// Its device.
    pub device: &'a Description,
    /// Seconds of work for each second of the estimate: measured over estimated, or 1 if nothing
    /// was measured.
    pub work_factor: f64,
    /// The ranks that it exchanges with. Without them a collective takes as long as the device
    /// reads and writes its bytes.
    pub cluster: Option<Cluster<'a>>,
}

impl<'a> Pace<'a> {
    /// The pace of one rank, by the peaks of its device.
    pub fn of(device: &'a Description) -> Self {
        Self { device, work_factor: 1.0, cluster: None }
    }
}

/// The estimated times of a call. `seconds` is the sum of work, of what slows it, of exposed
/// exchange, and of waiting for copies and for other stages.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Timeline {
    /// Seconds of the call.
    pub seconds: f64,
    /// Seconds of all steps that compute, with nothing beside them.
    pub work_seconds: f64,
    /// How much longer work takes because collectives run beside it, in seconds.
    pub slowed_seconds: f64,
    /// Seconds of all collectives, whether hidden or not.
    pub exchange_seconds: f64,
    /// Seconds in which a collective runs and no work does.
    pub exposed_seconds: f64,
    /// Seconds in which nothing runs: the stage waits for another one.
    pub idle_seconds: f64,
    /// Collectives by the name of their primitive.
    pub collectives: BTreeMap<String, Exchanged>,
}

/// Collectives of one kind. A bucket is one collective.
#[derive(Copy, Clone, PartialEq, Debug, Default, Serialize)]
pub struct Exchanged {
    /// Number of them.
    pub count: usize,
    /// Bytes that the rank sends.
    pub sent_bytes: f64,
    /// Seconds of all of them, one after another.
    pub seconds: f64,
}

impl Timeline {
    /// Bytes that the rank sends in a call.
    pub fn sent_bytes(&self) -> f64 {
        self.collectives.values().fold(0.0, |sum, kind| sum + kind.sent_bytes)
    }
}

/// The use that a step makes of the device.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Activity {
    Work,
    /// A copy, or work in other memory.
    Aside,
    Exchange,
}

/// A step that is still to be done.
struct Pending {
    /// Its position in the plan.
    at: usize,
    activity: Activity,
    /// Seconds that are left of it, at full speed.
    seconds: f64,
    /// Earlier steps that end before it begins.
    after: Vec<usize>,
    /// The channel of a collective in which stages of a pipeline meet.
    meets: Option<u64>,
}

/// A rank whose call is under way.
struct Underway {
    timeline: Timeline,
    streams: BTreeMap<u16, VecDeque<Pending>>,
    ended: Vec<bool>,
}

impl Underway {
    /// The next steps of its streams that wait for none of its own.
    fn ready(&self) -> impl Iterator<Item = (u16, &Pending)> {
        let next =
            self.streams.iter().filter_map(|(stream, steps)| Some((*stream, steps.front()?)));
        next.filter(|(_, step)| step.after.iter().all(|&before| self.ended[before]))
    }
}

/// Estimated times of a call of ranks that are stages of one pipeline, each with its own plan. A
/// collective between stages begins when all of its ranks have come to it.
///
/// # Panics
/// When the plans wait for each other.
pub fn timelines(plans: &[Plan], pace: &Pace<'_>) -> Vec<Timeline> {
    let beside = pace.cluster.map_or(1.0, |cluster| cluster.work_beside());
    let mut ranks: Vec<Underway> = vec![];
    let mut members: HashMap<u64, usize> = HashMap::new();
    for plan in plans {
        let mut timeline = Timeline::default();
        let streams = plan.pending(pace, &mut timeline);
        for channel in streams.values().flatten().filter_map(|step| step.meets) {
            *members.entry(channel).or_default() += 1;
        }
        ranks.push(Underway { timeline, streams, ended: vec![false; plan.steps.len()] });
    }
    loop {
        let mut come: HashMap<u64, usize> = HashMap::new();
        for channel in ranks.iter().flat_map(Underway::ready).filter_map(|(_, step)| step.meets) {
            *come.entry(channel).or_default() += 1;
        }
        let may_run =
            |step: &Pending| step.meets.is_none_or(|channel| come[&channel] == members[&channel]);
        let running: Vec<Vec<u16>> = ranks
            .iter()
            .map(|rank| {
                rank.ready().filter(|(_, step)| may_run(step)).map(|(stream, _)| stream).collect()
            })
            .collect();
        let speed = |step: &Pending, exchanges: bool| match step.activity {
            Activity::Work if exchanges => beside,
            _ => 1.0,
        };
        let has = |rank: &Underway, running: &[u16], activity| {
            running.iter().any(|stream| rank.streams[stream][0].activity == activity)
        };
        let lengths = ranks.iter().zip(&running).flat_map(|(rank, running)| {
            let exchanges = has(rank, running, Activity::Exchange);
            running.iter().map(move |stream| {
                let step = &rank.streams[stream][0];
                step.seconds / speed(step, exchanges)
            })
        });
        // The first step that is left can always run: it waits for earlier ones alone.
        let Some(passed) = lengths.reduce(f64::min) else { break };
        for (rank, running) in ranks.iter_mut().zip(&running) {
            if rank.streams.values().all(VecDeque::is_empty) {
                continue;
            }
            let works = has(rank, running, Activity::Work);
            let exchanges = has(rank, running, Activity::Exchange);
            let timeline = &mut rank.timeline;
            timeline.seconds += passed;
            match (works, exchanges) {
                (true, true) => timeline.slowed_seconds += passed * (1.0 - beside),
                (false, true) => timeline.exposed_seconds += passed,
                (false, false) if running.is_empty() => timeline.idle_seconds += passed,
                (_, false) => {}
            }
            for stream in running {
                let steps = rank.streams.get_mut(stream).expect("it runs");
                let speed = speed(&steps[0], exchanges);
                if steps[0].seconds / speed <= passed {
                    rank.ended[steps[0].at] = true;
                    steps.pop_front();
                } else {
                    steps[0].seconds -= passed * speed;
                }
            }
        }
    }
    let left = ranks.iter().any(|rank| rank.streams.values().any(|steps| !steps.is_empty()));
    assert!(!left, "stages wait for each other");
    ranks.into_iter().map(|rank| rank.timeline).collect()
}

/// The channel of a collective in which stages of a pipeline meet.
fn between_stages(step: &Step) -> Option<u64> {
    let StepKind::CollectiveStart { prim } = &step.kind else { return None };
    prim.channel().filter(|channel| channel.joins_stages()).map(|channel| channel.id)
}

impl Plan {
    /// Estimated seconds of a call on one rank.
    pub fn seconds(&self, device: &Description) -> f64 {
        self.timeline(&Pace::of(device)).seconds
    }

    /// Estimated times of a call. The plan's groups are those of the mesh of `pace`.
    pub fn timeline(&self, pace: &Pace<'_>) -> Timeline {
        timelines(std::slice::from_ref(self), pace).remove(0)
    }

    /// The steps of a call by stream, each with its time alone. Adds those times up in `timeline`.
    fn pending(
        &self,
        pace: &Pace<'_>,
        timeline: &mut Timeline,
    ) -> BTreeMap<u16, VecDeque<Pending>> {
        let mut streams: BTreeMap<u16, VecDeque<Pending>> = BTreeMap::new();
        let mut recorders: HashMap<u32, usize> = HashMap::new();
        let mut placements = HashMap::new();
        for (at, step) in self.steps.iter().enumerate().filter(|(_, step)| !step.prepare) {
            let alone = self.step_seconds(step, pace.device);
            let (activity, seconds) = match &step.kind {
                StepKind::CopyStart => (Activity::Aside, alone),
                _ if self.runs_in(step) != Space::MAIN => (Activity::Aside, alone),
                StepKind::CollectiveStart { prim } => {
                    let bytes = self.exchanged_bytes(step);
                    let seconds = pace.cluster.map_or(alone, |cluster| {
                        let group = group(prim);
                        let placed =
                            placements.entry(group).or_insert_with(|| cluster.placements(group));
                        cluster.seconds(prim, bytes, placed)
                    });
                    let kind = timeline.collectives.entry(prim.name()).or_default();
                    kind.count += 1;
                    kind.sent_bytes += sent_bytes(prim, bytes);
                    kind.seconds += seconds;
                    timeline.exchange_seconds += seconds;
                    (Activity::Exchange, seconds)
                }
                _ => {
                    let seconds = pace.work_factor * alone;
                    timeline.work_seconds += seconds;
                    (Activity::Work, seconds)
                }
            };
            let after = step.waits.iter().filter_map(|event| recorders.get(event).copied());
            let (after, meets) = (after.collect(), between_stages(step));
            let pending = Pending { at, activity, seconds, after, meets };
            streams.entry(step.stream).or_default().push_back(pending);
            recorders.extend(step.records.map(|event| (event, at)));
        }
        streams
    }

    /// Bytes of the whole value of a collective: of the operands or of the results, if these are
    /// more.
    fn exchanged_bytes(&self, step: &Step) -> f64 {
        let bytes =
            |slots: &[SlotId]| -> usize { slots.iter().map(|slot| self.slot(*slot).bytes()).sum() };
        bytes(&step.reads).max(bytes(&step.writes)) as f64
    }

    /// Estimated seconds of a step by itself, on one rank.
    pub fn step_seconds(&self, step: &Step, device: &Description) -> f64 {
        let own = device.peaks.levels.last().map(|(_, bytes_per_second)| bytes_per_second);
        let memory = REACHED * own.copied().unwrap_or(NOMINAL_BYTES_PER_SECOND);
        let described = |space: Space| device.spaces.get(usize::from(space.0).checked_sub(1)?);
        match &step.kind {
            StepKind::CopyStart => {
                let ends = [step.reads[0], step.writes[0]].map(|slot| self.space(slot));
                let other = ends.into_iter().find_map(described);
                step.cost.bytes as f64 / other.map_or(memory, |space| space.bytes_per_second)
            }
            StepKind::CopyDone | StepKind::CollectiveDone { .. } => 0.0,
            kind if kind.is_work() && self.runs_in(step) != Space::MAIN => {
                let own = described(self.runs_in(step)).and_then(|s| s.loop_bytes_per_second);
                step.cost.bytes as f64 / own.unwrap_or(memory)
            }
            kind => {
                let peak =
                    multiplied(kind).and_then(|dtype| device.peaks.flops_per_second.get(&dtype));
                let flops = peak.map_or(device.flops_per_byte * memory, |peak| REACHED * peak);
                let latency = device.bytes_of_latency as f64 / memory;
                let work = if flops > 0.0 { step.cost.flops as f64 / flops } else { 0.0 };
                work.max(step.cost.bytes as f64 / memory) + latency
            }
        }
    }
}

/// The axes over which a collective runs.
fn group(prim: &Prim) -> &Mesh {
    &prim.channel().expect("a collective has a channel").group
}

/// The type that a step multiplies matrices in.
fn multiplied(kind: &StepKind) -> Option<DType> {
    match kind {
        StepKind::Gemm(call) => Some(call.lhs.dtype),
        StepKind::Convolution(call) => Some(call.input.ty.dtype),
        StepKind::Chain(calls) => calls.first().map(|call| call.input.ty.dtype),
        StepKind::Kernel(call) => call.operands.first().map(|view| view.ty.dtype),
        StepKind::Joined(_, steps) => steps.iter().find_map(|step| multiplied(&step.kind)),
        _ => None,
    }
}
