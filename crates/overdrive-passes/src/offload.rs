//! Offload: values that are not needed for a while wait in other memory of the machine, to fit a
//! limit.
//!
//! States come first. The moments of an optimizer are read and written once a call, in the update.
//! They live in pinned host memory, come in before the update and go out after it (ZeRO-Offload,
//! Ren et al., 2021). Next are the values that the forward hands to the backward. They go out after
//! their last use in the forward and come in before their first use in the backward (vDNN, Rhu et
//! al., 2016).
//!
//! Copies run beside the work, on one stream for each direction. Two things decide how early they
//! start: the time that they are estimated to take, and the room that the limit leaves. Invariants:
//! the computation and its order stay the same. Without a limit, without other memory, or if the
//! plan fits, nothing changes.

mod copies;
mod ledger;
mod states;
mod values;

use crate::plan::overwrite::placed;
use copies::Copies;
use ledger::Ledger;
use overdrive_ir::plan::{Plan, Space};
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
        states::move_out(plan, (&mut ledger, &mut copies), tuning);
        return copies.insert(plan);
    }
    let Some(limit) = tuning.memory_limit else { return };
    let mut best = (plain.peak_bytes(Space::MAIN), None);
    let mut room = limit;
    for left in (0..TRIES).rev() {
        if best.0 <= limit {
            break;
        }
        let mut tried = plan.clone();
        let mut copies = Copies::default();
        let mut ledger = Ledger::new(&plain, device, room);
        states::move_out(&mut tried, (&mut ledger, &mut copies), tuning);
        values::move_out(&mut tried, (&mut ledger, &mut copies));
        copies.insert(&mut tried);
        let peak = placed(&tried).peak_bytes(Space::MAIN);
        if peak < best.0 {
            best = (peak, Some(tried));
        }
        room = if left == 1 { 0 } else { room.saturating_sub(peak.saturating_sub(limit)) };
    }
    if let Some(found) = best.1 {
        *plan = found;
    }
}
