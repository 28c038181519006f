//! The data that a call hands to ONNX Runtime: values around memory, names of memories, options.
//!
//! Invariant: each is released once, by its owner.
#![allow(unsafe_code)] // The interface is C.

use ort::{ortsys, sys};
use overdrive_formats::onnx::element_code;
use overdrive_ir::TensorType;
use std::ffi::CString;
use std::ptr;

/// An input or an output as the library wants to be told of it.
pub(super) struct BoundValue {
    pub(super) name: CString,
    sizes: Vec<i64>,
    element: sys::ONNXTensorElementDataType,
}

impl BoundValue {
    pub(super) fn new(name: &str, ty: &TensorType) -> Result<Self, String> {
        let code =
            element_code(ty.dtype).ok_or_else(|| format!("ONNX has no element type for {ty}"))?;
        Ok(Self {
            name: CString::new(name).map_err(|e| e.to_string())?,
            sizes: ty.sizes().into_iter().map(|size| size as i64).collect(),
            // SAFETY: the library numbers element types as ONNX does.
            element: unsafe { std::mem::transmute::<i32, sys::ONNXTensorElementDataType>(code) },
        })
    }

    /// A value of the library around these bytes, which it neither copies nor frees.
    pub(super) fn around(
        &self,
        memory: &MemoryInfo,
        start: *mut u8,
        bytes: usize,
    ) -> ort::Result<OrtValue> {
        let mut value = ptr::null_mut();
        ortsys![unsafe CreateTensorWithDataAsOrtValue(
            memory.0, start.cast(), bytes, self.sizes.as_ptr(), self.sizes.len(), self.element,
            &mut value
        )?];
        Ok(OrtValue(value))
    }
}

/// A value, released with its owner.
pub(super) struct OrtValue(pub(super) *mut sys::OrtValue);

impl Drop for OrtValue {
    fn drop(&mut self) {
        ortsys![unsafe ReleaseValue(self.0)];
    }
}

/// The library's name of a memory.
pub(super) struct MemoryInfo(pub(super) *mut sys::OrtMemoryInfo);

// SAFETY: it is never changed after it was made.
unsafe impl Send for MemoryInfo {}

impl MemoryInfo {
    pub(super) fn of_host() -> ort::Result<Self> {
        let mut info = ptr::null_mut();
        let kind = sys::OrtAllocatorType::OrtArenaAllocator;
        ortsys![unsafe CreateCpuMemoryInfo(kind, sys::OrtMemType::OrtMemTypeDefault, &mut info)?];
        Ok(Self(info))
    }

    pub(super) fn of_gpu(ordinal: usize) -> ort::Result<Self> {
        let mut info = ptr::null_mut();
        let device = i32::try_from(ordinal).expect("a machine has few GPUs");
        let kind = sys::OrtAllocatorType::OrtArenaAllocator;
        let default = sys::OrtMemType::OrtMemTypeDefault;
        ortsys![unsafe CreateMemoryInfo(c"Cuda".as_ptr(), kind, device, default, &mut info)?];
        Ok(Self(info))
    }
}

impl Drop for MemoryInfo {
    fn drop(&mut self) {
        ortsys![unsafe ReleaseMemoryInfo(self.0)];
    }
}

/// Options of a call, released with their owner.
pub(super) struct RunOptions(pub(super) *mut sys::OrtRunOptions);

// SAFETY: they are never changed after they were made.
unsafe impl Send for RunOptions {}

impl RunOptions {
    /// Those of calls that are captured, and then replayed, as the session's graph of this number.
    pub(super) fn of_capture(number: usize) -> ort::Result<Self> {
        let mut options = ptr::null_mut();
        ortsys![unsafe CreateRunOptions(&mut options)?];
        let options = Self(options);
        let number = CString::new(number.to_string()).expect("digits have no zero byte");
        ortsys![unsafe AddRunConfigEntry(options.0, c"gpu_graph_id".as_ptr(), number.as_ptr())?];
        Ok(options)
    }
}

impl Drop for RunOptions {
    fn drop(&mut self) {
        ortsys![unsafe ReleaseRunOptions(self.0)];
    }
}
