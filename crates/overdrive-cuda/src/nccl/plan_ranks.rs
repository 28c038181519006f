//! `PlanRanks`: the other ranks as the steps of one plan meet them, and which of its collectives go
//! by copies and not by NCCL.
//!
//! Copies write straight into the results of the other members. So a result must have one address
//! for as long as a session lives, which those in the arena have. Invariant: the choices are the
//! same on all members of a group.

use super::measure::{COPIES, NCCL, measured};
use super::ranks::{Group, Ranks};
use crate::Error;
use crate::launch::{Addresses, PeerAddresses};
use crate::memory::DeviceBytes;
use crate::peers::{ExportedBytes, Introduced, Movement, PeerGroup};
use cudarc::driver::CudaEvent;
use overdrive_ir::plan::{Note, Plan, SlotPlace, Space, Step, StepKind};
use overdrive_ir::{
    BackendError, Choice, Exchange, Mesh, Mode, Operation, Prim, SlotId, Tuning, check_mesh,
};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

/// The ranks of a plan.
#[derive(Debug)]
pub(crate) struct PlanRanks {
    ranks: Arc<Ranks>,
    /// By the first result: the groups of collectives that go by copies.
    peers: BTreeMap<SlotId, Arc<PeerGroup>>,
}

/// The way of a collective: copies in a group, or the reason against them.
type Way = Result<Arc<PeerGroup>, String>;

impl PlanRanks {
    /// Joins the groups of a plan and chooses the way of each collective. The order of the plan is
    /// the same on all ranks, which come here at the same time. The plan then says which
    /// collectives could go by copies and do not.
    ///
    /// # Errors
    /// `Mismatch` as `check_mesh`; `Device` without NCCL, or with CUDA's words; `Ranks`
    /// when another rank fails meanwhile.
    pub(crate) fn meet(
        ranks: &Arc<Ranks>,
        plan: &mut Plan,
        tuning: &Tuning,
    ) -> Result<Self, BackendError> {
        check_mesh(ranks.communicator().mesh(), plan)?;
        let (mut peers, mut notes) = (BTreeMap::new(), vec![]);
        for (at, step) in plan.steps.iter().enumerate() {
            let StepKind::CollectiveStart { prim } = &step.kind else { continue };
            let way = way(ranks, (plan, at, prim), tuning);
            match way.map_err(|e| e.during(format!("meeting for `{}`", plan.name)))? {
                None => {}
                Some(Ok(group)) => drop(peers.insert(step.writes[0], group)),
                Some(Err(reason)) => {
                    let what = format!("`{}` by copies between GPUs", step.name);
                    notes.push(Note::Declined { what, scope: step.scope.clone(), reason });
                }
            }
        }
        plan.notes.extend(notes);
        Ok(Self { ranks: Arc::clone(ranks), peers })
    }

    /// The group in which a step of the plan goes by copies; `None` where it goes by NCCL.
    pub(super) fn peers(&self, step: &Step) -> Option<&Arc<PeerGroup>> {
        self.peers.get(&step.writes[0])
    }

    pub(super) fn group(&self, axes: &Mesh) -> Result<Arc<Group>, Error> {
        self.ranks.group(axes)
    }

    /// Memory for the arena of a session that other ranks write into; `None` where none does.
    ///
    /// # Errors
    /// `OutOfMemory` when the device has no more.
    pub(crate) fn arena(&self, plan: &Plan) -> Result<Option<Arc<ExportedBytes>>, Error> {
        (!self.peers.is_empty()).then(|| self.ranks.block(plan.arena_bytes[0])).transpose()
    }

    /// The arena of a plan as memory of a session.
    pub(crate) fn lend(&self, plan: &Plan, block: &Arc<ExportedBytes>) -> DeviceBytes {
        let place = (block.address(), plan.arena_bytes[0]);
        DeviceBytes::lent(self.ranks.device(), place, Arc::<ExportedBytes>::clone(block))
    }

    /// Tells the other ranks of results in a session's arena, and enters the addresses of theirs.
    /// All ranks make their sessions at the same time.
    ///
    /// # Errors
    /// When another rank fails meanwhile; the driver's error.
    pub(crate) fn introduce(
        &self,
        plan: &Plan,
        arena: &ExportedBytes,
        addresses: &mut Addresses,
    ) -> Result<(), Error> {
        let mut groups: Vec<(&Arc<PeerGroup>, Vec<SlotId>)> = vec![];
        for step in &plan.steps {
            let StepKind::CollectiveStart { .. } = step.kind else { continue };
            let Some(peers) = self.peers(step) else { continue };
            match groups.iter_mut().find(|(other, _)| Arc::ptr_eq(other, peers)) {
                Some((_, slots)) => slots.extend(&step.writes),
                None => groups.push((peers, step.writes.clone())),
            }
        }
        let mut places = PeerAddresses::new();
        for (peers, slots) in groups {
            let offset = |&slot: &SlotId| addresses.of(slot) - arena.address();
            let offsets: Vec<u64> = slots.iter().map(offset).collect();
            let all = peers.introduce((arena, &offsets), "the arenas of peers")?;
            for (index, slot) in slots.into_iter().enumerate() {
                let of = |member: &Introduced| member.block.address() + member.offsets[index];
                places.insert(slot, all.iter().map(of).collect());
            }
            peers.keep(all.into_iter().map(|member| member.block));
        }
        addresses.set_peers(places);
        Ok(())
    }

    /// Waits for an event that may come after work of other ranks.
    ///
    /// # Errors
    /// When one of them fails: no collective is under way any more then.
    pub(crate) fn wait(&self, event: &CudaEvent) -> Result<(), Error> {
        self.ranks.wait(event)
    }

    /// Ends what waits for other ranks, because this one has failed.
    pub(crate) fn abort(&self) {
        self.ranks.abort();
    }
}

/// A rank's word on a collective: whether copies can do it here, and the remembered choice.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Vote {
    Impossible,
    Open,
    Copies,
    Nccl,
}

impl Vote {
    fn new(plan: &Plan, step: &Step, chosen: Option<&Choice>) -> Self {
        let is_fixed = |slot: &SlotId| {
            matches!(plan.slot(*slot).place, SlotPlace::Arena { space: Space::MAIN, .. })
        };
        match chosen {
            _ if plan.mode == Mode::Eager || !step.writes.iter().all(is_fixed) => Self::Impossible,
            None => Self::Open,
            Some(choice) if choice.candidate == COPIES => Self::Copies,
            Some(_) => Self::Nccl,
        }
    }
}

/// By how much copies may take longer than NCCL where other work runs meanwhile. NCCL's kernel
/// holds up to 32 of 132 multiprocessors of an H100, so it costs that work up to a quarter of its
/// own time. Copies hold none, and are still no loss if all that they take longer is waited for.
const HELD: f64 = 1.25;

/// Whether work of this device runs between the start of a collective and its end. The plan is the
/// same on all ranks, and so is the answer.
fn is_hidden(steps: &[Step], at: usize) -> bool {
    let is_work = |step: &Step| step.kind.is_work();
    steps[at + 1..].iter().take_while(|step| !steps[at].starts(step)).any(is_work)
}

/// The way of the collective that step `at` starts; `None` where there is nothing to choose.
fn way(
    ranks: &Ranks,
    (plan, at, prim): (&Plan, usize, &Prim),
    tuning: &Tuning,
) -> Result<Option<Way>, Error> {
    let step = &plan.steps[at];
    let channel = prim.channel().expect("collectives have a channel");
    let group = ranks.group(&channel.group)?;
    if channel.joins_stages() {
        // Stages have plans of their own, so that they do not come to a choice together.
        return Ok(None);
    }
    let Some(movement) = Movement::of(prim, group.nccl.position) else { return Ok(None) };
    let peers = match &group.peers {
        Ok(peers) => peers,
        Err(reason) => return Ok(Some(Err(reason.clone()))),
    };
    let bytes = step.writes.iter().map(|slot| plan.slot(*slot).bytes()).sum();
    let bytes = measured_bytes(bytes);
    let name = Operation::Prim(prim.clone()).name();
    let key = format!("{name} of {bytes} bytes between {} GPUs", peers.members().len());
    let own = Vote::new(plan, step, tuning.choices.get(&key));
    let mut votes = vec![];
    let exchange = Exchange {
        group: peers.members(),
        what: "a choice between copies and NCCL",
        bytes: &[own as u8],
    };
    ranks.communicator().share(&exchange, &mut |_, bytes| votes.push(bytes[0]))?;
    let all = |vote: Vote| votes.iter().all(|other| *other == vote as u8);
    if let Some(member) = votes.iter().position(|vote| *vote == Vote::Impossible as u8) {
        let rank = peers.members()[member];
        return Ok(Some(Err(format!(
            "on rank {rank} its result is at no fixed address of the arena (it is an output or a \
             state, or the mode is eager)"
        ))));
    }
    if all(Vote::Copies) {
        return Ok(Some(Ok(Arc::clone(peers))));
    }
    if all(Vote::Nccl) {
        return Ok(Some(Err(format!("the tuning says {NCCL} for `{key}`"))));
    }
    let mut choices = group.choices.lock().unwrap_or_else(PoisonError::into_inner);
    let choice = match choices.get(&key) {
        Some(choice) => choice,
        None => {
            let choice = measured(ranks, (&group.nccl, peers), movement, bytes)?;
            choices.entry(key).or_insert(choice)
        }
    };
    let time = |way: &str| choice.timings_ns[way];
    let held = if is_hidden(&plan.steps, at) { HELD } else { 1.0 };
    Ok(Some(match time(COPIES) <= held * time(NCCL) {
        true => Ok(Arc::clone(peers)),
        false => Err(format!("they were timed: {choice}")),
    }))
}

/// The size that a collective is timed at. Beyond the largest both ways move bytes at full rate.
fn measured_bytes(bytes: usize) -> usize {
    bytes.clamp(4 << 10, 64 << 20).next_power_of_two()
}
