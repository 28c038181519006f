//! Times a collective of one size by copies and by NCCL, all members of its group together.

use super::collective::{Collective, NcclCollective};
use super::group::NcclGroup;
use super::ranks::Ranks;
use crate::Error;
use crate::launch::{Addresses, Launch, PeerAddresses};
use crate::memory::DeviceBytes;
use crate::peers::{CollectivePart, Copies, ExportedBytes, Movement, PeerGroup};
use overdrive_ir::{Choice, Exchange, SlotId};
use std::sync::Arc;

/// The two ways, as choices name them.
pub(super) const COPIES: &str = "copies";
pub(super) const NCCL: &str = "nccl";

/// Samples of each way, after one that warms up.
const SAMPLES: usize = 5;

/// Calls of a sample, after one behind which all members begin.
const CALLS: usize = 8;

/// The operand and the result of the timed collective.
const OPERAND: SlotId = SlotId(0);
const RESULT: SlotId = SlotId(1);

/// The faster way of a movement with results of `bytes` bytes. All members come here at the same
/// time, and have the same choice.
///
/// # Errors
/// When another rank fails meanwhile; the driver's error.
pub(super) fn measured(
    ranks: &Ranks,
    (nccl, peers): (&Arc<NcclGroup>, &Arc<PeerGroup>),
    movement: Movement,
    bytes: usize,
) -> Result<Choice, Error> {
    let (device, members, own) = (ranks.device(), peers.members().len(), peers.position());
    let block = bytes.div_ceil(members);
    let (movement, sizes) = match movement {
        Movement::AllGather => (movement, [block, block * members]),
        Movement::AllToAll => (movement, [block * members; 2]),
        // A ring, whatever the pairs: all links are in use at once.
        Movement::Permute { .. } => {
            let [to, from] = [1, members - 1].map(|step| Some((own + step) % members));
            (Movement::Permute { to, from }, [bytes; 2])
        }
    };
    let operand = DeviceBytes::new(device, sizes[0])?;
    operand.fill(0)?;
    let result = ExportedBytes::new(device, sizes[1])?;
    let others = peers.introduce((&result, &[]), "memory to time copies in")?;
    let mut addresses = Addresses::new(2, 0);
    addresses.set(OPERAND, operand.address());
    addresses.set(RESULT, result.address());
    let places = others.iter().map(|member| member.block.address()).collect();
    addresses.set_peers(PeerAddresses::from([(RESULT, places)]));
    let part =
        CollectivePart { operand: OPERAND, result: RESULT, bytes: sizes, elements: sizes[1] };
    let copies = Copies { group: Arc::clone(peers), movement, parts: vec![part] };
    let kind = NcclCollective::Move(movement);
    let nccl = Collective { group: Arc::clone(nccl), kind, parts: vec![part] };
    let by_copies = samples(ranks, &copies, &addresses)?;
    let by_nccl = samples(ranks, &nccl, &addresses)?;
    // Their owners free these blocks after the next exchange.
    drop(others);
    let own: Vec<u8> = by_copies.iter().chain(&by_nccl).flat_map(|ns| ns.to_le_bytes()).collect();
    let mut slowest = [0.0; 2 * SAMPLES];
    let exchange =
        Exchange { group: peers.members(), what: "the times of copies and NCCL", bytes: &own };
    ranks.communicator().share(&exchange, &mut |_, bytes| {
        for (slowest, ns) in slowest.iter_mut().zip(bytes.chunks_exact(size_of::<f64>())) {
            let ns = f64::from_le_bytes(ns.try_into().expect("chunks of a number"));
            *slowest = f64::max(*slowest, ns);
        }
    })?;
    let (by_copies, by_nccl) = slowest.split_at_mut(SAMPLES);
    let timings = [(COPIES, median(by_copies)), (NCCL, median(by_nccl))];
    let timings = timings.into_iter().map(|(way, ns)| (way.to_owned(), ns)).collect();
    Ok(Choice::fastest(timings).expect("two ways were timed"))
}

/// Nanoseconds of a call, in each sample.
fn samples(
    ranks: &Ranks,
    launch: &dyn Launch,
    addresses: &Addresses,
) -> Result<[f64; SAMPLES], Error> {
    let (device, mut times) = (ranks.device(), [0.0; SAMPLES]);
    let (start, end) = (device.event()?, device.event()?);
    for sample in 0..=SAMPLES {
        let stream = device.stream();
        launch.launch(stream, addresses)?;
        start.record(stream)?;
        for _ in 0..CALLS {
            launch.launch(stream, addresses)?;
        }
        end.record(stream)?;
        ranks.wait(&end)?;
        if let Some(measured) = sample.checked_sub(1) {
            times[measured] = f64::from(start.elapsed_ms(&end)?) * 1e6 / CALLS as f64;
        }
    }
    device.recycle(start);
    device.recycle(end);
    Ok(times)
}

/// The one in the middle.
fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
