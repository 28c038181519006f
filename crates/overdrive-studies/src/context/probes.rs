//! `Probes`: quantities measured in addition to time, and the ceilings that times are compared
//! with.

use overdrive_bench::ceilings::Ceiling;
use overdrive_bench::energy::EnergyProbe;
use overdrive_bench::memory::CountingAllocator;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Counters of energy by the name of what they see.
pub type EnergyProbes = BTreeMap<String, RefCell<EnergyProbe>>;

/// Probes of the machine; by default none.
#[derive(Clone, Default)]
pub struct Probes<'a> {
    /// Ceilings measured in this run, for shares.
    pub ceilings: Vec<Ceiling>,
    /// The process's allocator, if it counts.
    pub heap: Option<&'a CountingAllocator>,
    /// Counters of energy by the device's name in its `Description`; a device without one has no
    /// energy column.
    pub energy: Option<&'a EnergyProbes>,
}
