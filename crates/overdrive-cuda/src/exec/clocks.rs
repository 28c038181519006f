//! The SM clock during a sample: cycles and nanoseconds of each multiprocessor before and after it.
//!
//! Both readings lie outside of the two events that time the sample. Invariant: a frequency is
//! given only where a multiprocessor was read on both sides.

use crate::compiler::KernelSource;
use crate::memory::DeviceBytes;
use crate::{Device, Error};
use cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg};
use std::borrow::Cow;
use std::sync::Arc;

/// Multiprocessor ids are below this on every device there is.
const MOST: usize = 512;

/// Threads of a block: so many that no two fit on a multiprocessor of 2,048 threads.
const THREADS: u32 = 1024;

const READING: usize = 2 * 8 * MOST;

/// Two readings of all clocks.
#[derive(Debug)]
pub(super) struct Clocks {
    device: Arc<Device>,
    read: CudaFunction,
    readings: DeviceBytes,
}

impl Clocks {
    pub(super) fn new(device: &Arc<Device>) -> Result<Self, Error> {
        let source = KernelSource {
            name: Cow::Borrowed("clocks"),
            text: Cow::Borrowed(include_str!("clocks.cu")),
            defines: vec![],
        };
        let read = device.function(&source, "read_clocks")?;
        Ok(Self {
            device: Arc::clone(device),
            read,
            readings: DeviceBytes::new(device, 2 * READING)?,
        })
    }

    /// Forgets both readings.
    pub(super) fn clear(&self) -> Result<(), Error> {
        self.readings.fill(0)
    }

    /// Enqueues the reading before (0) or after (1) the sample.
    pub(super) fn read(&self, side: u64) -> Result<(), Error> {
        let to = self.readings.address() + side * READING as u64;
        let blocks = self.device.properties().multiprocessors;
        let config = LaunchConfig {
            grid_dim: (blocks, 1, 1),
            block_dim: (THREADS, 1, 1),
            shared_mem_bytes: 0,
        };
        let mut launch = self.device.stream().launch_builder(&self.read);
        launch.arg(&to);
        // SAFETY: the kernel takes one pointer, to a reading of this size.
        unsafe { launch.launch(config)? };
        Ok(())
    }

    /// The median frequency between the two readings, in cycles per nanosecond, once the stream is
    /// done.
    pub(super) fn frequency(&self) -> Result<Option<f64>, Error> {
        let mut bytes = vec![0; 2 * READING];
        self.device.download(self.readings.address(), &mut bytes)?;
        let word =
            |at: usize| u64::from_le_bytes(bytes[8 * at..][..8].try_into().expect("eight bytes"));
        let mut found: Vec<f64> = (0..MOST).filter_map(|sm| frequency_of(word, sm)).collect();
        found.sort_unstable_by(f64::total_cmp);
        Ok(found.get(found.len() / 2).copied())
    }
}

fn frequency_of(word: impl Fn(usize) -> u64, multiprocessor: usize) -> Option<f64> {
    let [before, after] = [2 * multiprocessor, 2 * (MOST + multiprocessor)];
    let (start, end) = (word(before + 1), word(after + 1));
    let was_read = start != 0 && end > start;
    was_read.then(|| word(after).wrapping_sub(word(before)) as f64 / (end - start) as f64)
}
