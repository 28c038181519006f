//! Buffers of engines. A buffer is aligned bytes of the host that stay where they are, or the
//! result that a call has put on a device.
//!
//! Invariants:
//! - Every byte is initialised from the start.
//! - No two contents of a process have the same stamp. An engine thus knows without looking whether
//!   a state is still the one that it was compiled with.
//! - The bytes on a device are the only content of their buffer, and stay there.
#![allow(unsafe_code)] // Lines of memory are seen as bytes.

use crate::device::Allocation;
#[cfg(feature = "onnxruntime")]
use crate::device::DeviceAllocator;
use overdrive_ir::backend::Memory;
use overdrive_ir::plan::new_stamp;
use overdrive_ir::{BackendError, Buffer, Tensor, TensorType};
use std::any::Any;
use std::borrow::Cow;
use std::hash::{DefaultHasher, Hasher};
use std::sync::OnceLock;

/// A cache line, which is as aligned as any engine asks for.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct CacheLine([u8; LINE]);
const LINE: usize = 64;

/// The bytes of a buffer.
pub(crate) struct HostMemory {
    lines: Vec<CacheLine>,
    len: usize,
    stamp: u64,
    /// A hash of the bytes, where they came from a tensor.
    fingerprint: Option<u64>,
    /// Their allocation on a device, once a call has put them there. Weights, which engines make
    /// constants of, never get there.
    allocation: OnceLock<Box<dyn Allocation>>,
}

impl HostMemory {
    fn filled(len: usize, fill: u8) -> Self {
        Self {
            lines: vec![CacheLine([fill; LINE]); len.div_ceil(LINE)],
            len,
            stamp: new_stamp(),
            fingerprint: None,
            allocation: OnceLock::new(),
        }
    }

    /// The bytes, of memory that no call has put on a device.
    pub(crate) fn bytes(&self) -> &[u8] {
        assert!(
            self.allocation.get().is_none(),
            "an engine on the host was given memory of a device"
        );
        // SAFETY: the lines are initialised, plain bytes, and hold at least `len` of them.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(
            self.allocation.get().is_none(),
            "an engine on the host was given memory of a device"
        );
        (self.stamp, self.fingerprint) = (new_stamp(), None);
        // SAFETY: the lines are initialised, plain bytes, at least `len` of them, and `self` is
        // borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }

    fn fill_from(&mut self, tensor: &Tensor) -> Result<(), BackendError> {
        match self.allocation.get_mut() {
            Some(allocation) => {
                (self.stamp, self.fingerprint) = (new_stamp(), None);
                allocation.fill_from(tensor.bytes())
            }
            None => {
                self.bytes_mut().copy_from_slice(tensor.bytes());
                Ok(())
            }
        }
    }

    /// The bytes, wherever they are.
    fn content(&self) -> Result<Cow<'_, [u8]>, BackendError> {
        let Some(allocation) = self.allocation.get() else {
            return Ok(Cow::Borrowed(self.bytes()));
        };
        let mut bytes = vec![0; self.len];
        allocation.copy_to(&mut bytes)?;
        Ok(Cow::Owned(bytes))
    }

    /// Differs from that of every other content.
    pub(crate) fn stamp(&self) -> u64 {
        self.stamp
    }

    /// The `fingerprint` of the content.
    pub(crate) fn fingerprint(&self) -> Result<u64, BackendError> {
        match self.fingerprint {
            Some(known) => Ok(known),
            None => Ok(fingerprint(&self.content()?)),
        }
    }
}

/// For engines that work on a device.
#[cfg(feature = "onnxruntime")]
impl HostMemory {
    /// Number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Address of the bytes on a device, to be read: the first time they are copied there.
    pub(crate) fn on(&self, device: &dyn DeviceAllocator) -> Result<*mut u8, BackendError> {
        if let Some(allocation) = self.allocation.get() {
            return Ok(allocation.address());
        }
        let mut allocation = device.allocate(self.len)?;
        allocation.fill_from(self.bytes())?;
        Ok(self.allocation.get_or_init(|| allocation).address())
    }

    /// The address of the bytes on a device, to be written to.
    pub(crate) fn on_mut(&mut self, device: &dyn DeviceAllocator) -> Result<*mut u8, BackendError> {
        (self.stamp, self.fingerprint) = (new_stamp(), None);
        self.on(device)
    }
}

impl Memory for HostMemory {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// A hash by which contents are told apart.
pub(crate) fn fingerprint(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// A buffer with the elements of a tensor.
pub(crate) fn upload(tensor: &Tensor) -> Buffer {
    let mut memory = HostMemory::filled(tensor.bytes().len(), 0);
    memory.bytes_mut().copy_from_slice(tensor.bytes());
    // Now, since nobody times an upload, and states are checked in the first call.
    memory.fingerprint = Some(fingerprint(tensor.bytes()));
    Buffer { ty: tensor.ty().clone(), memory: Box::new(memory) }
}

/// The elements of a buffer.
pub(crate) fn download(buffer: &Buffer) -> Result<Tensor, BackendError> {
    let bytes = of(buffer)?.content()?;
    Ok(Tensor::from_bytes(buffer.ty.clone(), bytes).expect("a buffer has the bytes of its type"))
}

/// The owner of these buffers, as errors name it. The text stands behind `of`.
const OWNER: &str = "an engine, in host memory";

/// A buffer of NaN, or of all ones.
pub(crate) fn output(ty: &TensorType) -> Buffer {
    Buffer { ty: ty.clone(), memory: Box::new(HostMemory::filled(ty.bytes(), 0xFF)) }
}

/// Overwrites a buffer.
pub(crate) fn write(buffer: &mut Buffer, tensor: &Tensor) -> Result<(), BackendError> {
    buffer.check_type("tensor to write", tensor.ty())?;
    of_mut(buffer)?.fill_from(tensor)
}

/// The memory behind a buffer.
pub(crate) fn of(buffer: &Buffer) -> Result<&HostMemory, BackendError> {
    buffer.memory_of(OWNER)
}

/// The memory behind a buffer, to write to.
pub(crate) fn of_mut(buffer: &mut Buffer) -> Result<&mut HostMemory, BackendError> {
    buffer.memory_of_mut(OWNER)
}

/// Errs where two types differ.
pub(crate) fn check(
    what: &str,
    expected: &TensorType,
    found: &TensorType,
) -> Result<(), BackendError> {
    if expected == found {
        return Ok(());
    }
    Err(BackendError::Mismatch {
        what: what.to_owned(),
        expected: expected.to_string(),
        found: found.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(feature = "onnxruntime")]
    use crate::device::Beside;
    use overdrive_ir::DType;

    #[test]
    fn what_goes_up_comes_down_and_every_write_has_its_stamp() {
        let tensor = Tensor::from_f32([3, 7], &[1.5; 21]);
        let mut buffer = upload(&tensor);
        assert_eq!(download(&buffer), Ok(tensor.clone()));
        let (stamp, hash) =
            (of(&buffer).unwrap().stamp(), of(&buffer).unwrap().fingerprint().unwrap());
        write(&mut buffer, &Tensor::from_f32([3, 7], &[2.5; 21])).unwrap();
        assert_ne!(of(&buffer).unwrap().stamp(), stamp);
        assert_ne!(of(&buffer).unwrap().fingerprint(), Ok(hash));
        write(&mut buffer, &tensor).unwrap();
        assert_eq!(of(&buffer).unwrap().fingerprint(), Ok(hash));
        assert!(write(&mut buffer, &Tensor::from_f32([21], &[2.5; 21])).is_err());
        assert_eq!(of(&buffer).unwrap().bytes().as_ptr() as usize % LINE, 0);
        let empty = output(&TensorType::new(DType::BF16, [0, 4]));
        assert_eq!(of(&empty).unwrap().bytes(), [0u8; 0]);
        let unwritten = download(&output(&TensorType::new(DType::F32, [2]))).unwrap();
        assert!(unwritten.to_f64().iter().all(|x| x.is_nan()));
    }

    #[test]
    #[cfg(feature = "onnxruntime")]
    fn what_a_call_puts_on_a_device_is_written_and_read_there() {
        let (first, second) =
            (Tensor::from_f32([3], &[1.0, 2.0, 3.0]), Tensor::from_f32([3], &[4.0, 5.0, 6.0]));
        let device = Beside::default();
        let mut buffer = upload(&first);
        let hash = of(&buffer).unwrap().fingerprint();
        let address = of(&buffer).unwrap().on(&device).unwrap();
        assert_eq!(device.copies(), [12, 0]);
        assert_eq!(
            (download(&buffer), of(&buffer).unwrap().fingerprint()),
            (Ok(first), hash.clone())
        );
        // A write goes there at once, so that the call after it copies nothing.
        write(&mut buffer, &second).unwrap();
        let before = device.copies();
        assert_eq!(of_mut(&mut buffer).unwrap().on_mut(&device), Ok(address));
        assert_eq!(device.copies(), before);
        assert_eq!(download(&buffer), Ok(second));
        assert_ne!(of(&buffer).unwrap().fingerprint(), hash);
        // Unwritten bytes are all ones there too.
        let mut fresh = output(&TensorType::new(DType::F32, [2]));
        of_mut(&mut fresh).unwrap().on_mut(&device).unwrap();
        assert!(download(&fresh).unwrap().to_f64().iter().all(|x| x.is_nan()));
    }
}
