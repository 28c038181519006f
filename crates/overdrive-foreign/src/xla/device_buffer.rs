//! Buffers of this back end: a value on the device, or none yet.
//!
//! A call gives results as new values, so that a buffer that is written holds another value than
//! before and nothing is copied. Invariant: no two contents of a process have the same stamp.

use super::client::DeviceBuffer;
use overdrive_ir::backend::Memory;
use overdrive_ir::plan::{Addressed, new_stamp};
use std::any::Any;

/// The memory behind a buffer.
pub(super) struct XlaMemory {
    /// `None`: nothing was written yet.
    value: Option<DeviceBuffer>,
    stamp: u64,
}

impl XlaMemory {
    pub(super) fn new(value: Option<DeviceBuffer>) -> Self {
        Self { value, stamp: new_stamp() }
    }

    pub(super) fn value(&self) -> Option<&DeviceBuffer> {
        self.value.as_ref()
    }

    pub(super) fn replace(&mut self, value: DeviceBuffer) {
        self.value = Some(value);
        self.touch();
    }
}

impl Memory for XlaMemory {
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

impl Addressed for XlaMemory {
    /// The value, for the arguments of a call; `None` before the first write.
    type Address = Option<super::api::Object>;

    fn address(&self) -> Self::Address {
        self.value.as_ref().map(DeviceBuffer::object)
    }

    fn stamp(&self) -> u64 {
        self.stamp
    }

    fn touch(&mut self) {
        self.stamp = new_stamp();
    }
}
