//! Offload: values that are not needed for a while wait in other memory of the machine, to fit a
//! limit.
//!
//! States come first. The moments of an optimizer are read and written once a call, in the update.
//! They live in pinned host memory, come in before the update and go out after it (ZeRO-Offload,
//! Ren et al., 2021). Next are the values that the forward hands to the backward. They go out after
//! their last use in the forward and come in before their first use in the backward (vDNN, Rhu et
//! al., 2016).
//!
//! Some updates run where their states wait, if that is estimated to take less time. Then the
//! gradient and the parameter go out and the parameter comes in, and the moments stay.
//!
//! Copies run beside the work, on one stream for each direction. Two things decide how early they
//! start: the time that they are estimated to take, and the room that the limit leaves. Invariants:
//! the computation and its order stay the same. Without a limit, without other memory, or if the
//! plan fits, nothing changes.

mod candidate;
mod copies;
mod ledger;
mod states;
mod updates;
mod values;

use crate::plan::overwrite::placed;
use copies::Copies;
use ledger::{Ledger, OTHER};
use overdrive_ir::plan::{Plan, Space, Step, StepKind};
use overdrive_ir::{Description, Tuning};

/// Plans that are tried, each with less room than the one before, until one fits. The arena of a
/// plan is a little larger than what lives at once. The last plan has no room at all and moves
/// everything that it can. So the peak that it reaches can itself be given as a limit.
const TRIES: usize = 5;

/// Moves states and values of a plan whose buffers are not yet placed.
pub(crate) fn offload(plan: &mut Plan, device: &Description, tuning: &Tuning) {
    if device.spaces.is_empty() {
        return;
    }
    let plain = placed(plan);
    if tuning.blocking_copies {
        // Without room no copy starts before its value is needed, or ends after.
        let (mut ledger, mut copies) = (Ledger::new(&plain, device, 0), Copies::default());
        states::move_out(plan, (&mut ledger, &mut copies), tuning, false);
        return copies.insert(plan);
    }
    let Some(limit) = tuning.memory_limit else { return };
    let within = |room: u64, there: bool| {
        let mut tried = plan.clone();
        let mut copies = Copies::default();
        let mut ledger = Ledger::new(&plain, device, room);
        states::move_out(&mut tried, (&mut ledger, &mut copies), tuning, there);
        values::move_out(&mut tried, (&mut ledger, &mut copies));
        copies.insert(&mut tried);
        let placed = placed(&tried);
        (placed.peak_bytes(Space::MAIN), tried, placed)
    };
    let mut best = (plain.peak_bytes(Space::MAIN), None);
    let mut room = limit;
    for left in (0..TRIES).rev() {
        if best.0 <= limit {
            break;
        }
        let (peak, tried, placed) = within(room, false);
        if peak < best.0 {
            best = (peak, Some((tried, placed, room)));
        }
        room = if left == 1 { 0 } else { room.saturating_sub(peak.saturating_sub(limit)) };
    }
    let (_, Some((found, found_placed, room))) = best else { return };
    // Ranks of one host would share its processor, and must have one plan.
    let meets = |step: &Step| matches!(step.kind, StepKind::CollectiveStart { .. });
    let alone = !plan.steps.iter().any(meets);
    let there = device.spaces[0].loop_bytes_per_second.filter(|_| alone);
    let there = there.map(|_| within(room, true));
    let faster = there.filter(|(peak, _, placed)| {
        *peak <= limit
            && placed.peak_bytes(OTHER) <= device.spaces[0].bytes
            && placed.seconds(device) < found_placed.seconds(device)
    });
    *plan = faster.map_or(found, |(_, tried, _)| tried);
}
