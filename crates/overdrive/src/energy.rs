//! The counters of energy that this machine lets us read.

use overdrive::bench::clock::Clock;
use overdrive::bench::energy::{EnergyProbe, Gpu, Meter, Rapl};
use overdrive::bench::failure::Failure;
use overdrive::studies::EnergyProbes;
use std::cell::RefCell;

/// A counter, with the name of the device that it sees as its back end's `Description` have it.
type NamedMeter = (String, Box<dyn Meter>);

/// Each counter, or what is missing.
pub(crate) fn meters() -> [Result<NamedMeter, Failure>; 2] {
    let cpu = Rapl::open().map(|rapl| ("cpu".to_owned(), Box::new(rapl) as Box<dyn Meter>));
    let gpu = Gpu::only().and_then(|gpu| Ok((gpu.name()?, Box::new(gpu) as Box<dyn Meter>)));
    [cpu, gpu]
}

/// The same after a look at the idle machine, which takes two seconds for each.
pub(crate) fn probes(clock: &dyn Clock) -> EnergyProbes {
    let probe = |(name, meter): NamedMeter| {
        let probe = EnergyProbe::at_rest(meter, clock, std::thread::sleep).ok()?;
        Some((name, RefCell::new(probe)))
    };
    meters().into_iter().flatten().filter_map(probe).collect()
}
