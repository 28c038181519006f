//! `Occupancy`: how much of a device's memory is taken, as NVIDIA's management library sees it from
//! outside of a context.
//!
//! Only this library can be asked before a context is there, and so tells the bytes that the
//! context itself takes. Bytes that other processes take meanwhile are counted along: a device that
//! is measured is not shared. Invariant: nothing here fails; a figure that cannot be told is
//! absent.

use cudarc::driver::{result, sys};
use nvml_wrapper::Nvml;
use std::ffi::OsStr;

/// The library's name where the driver is installed without its development package.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// A device at some moment.
pub(crate) struct Occupancy {
    nvml: Nvml,
    uuid: String,
    used_bytes: u64,
}

impl Occupancy {
    /// Device `ordinal` before this process has a context on it; `None` where it has one, or the
    /// library does not tell.
    pub(crate) fn before(ordinal: usize) -> Option<Self> {
        result::init().ok()?;
        let device = result::device::get(i32::try_from(ordinal).ok()?).ok()?;
        let (mut flags, mut active) = (0, 0);
        // SAFETY: the device is there, and both places outlive the call.
        unsafe { sys::cuDevicePrimaryCtxGetState(device, &mut flags, &mut active).result().ok()? };
        if active != 0 {
            return None;
        }
        let bytes = result::device::get_uuid(device).ok()?.bytes.map(|byte| byte as u8);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let [a, b, c, d, e] = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
        let uuid = format!("GPU-{a}-{b}-{c}-{d}-{e}");
        let nvml = Nvml::builder().lib_path(OsStr::new(LIBRARY)).init().ok()?;
        let used_bytes = used_bytes(&nvml, &uuid)?;
        Some(Self { nvml, uuid, used_bytes })
    }

    /// Bytes by which the use of the device has grown since.
    pub(crate) fn grown_bytes(&self) -> Option<u64> {
        used_bytes(&self.nvml, &self.uuid)?.checked_sub(self.used_bytes)
    }
}

fn used_bytes(nvml: &Nvml, uuid: &str) -> Option<u64> {
    Some(nvml.device_by_uuid(uuid).ok()?.memory_info().ok()?.used)
}
