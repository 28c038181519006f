//! The library: loaded when the first collective is compiled, with the few functions that are used.
//!
//! `cudarc` has NCCL too, but its loader panics where the library is missing. Names and numbers are
//! those of `nccl.h`, whose interface is stable.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

/// The file that the loader looks for.
pub(crate) const FILE: &str = "libnccl.so.2";

/// A communicator of NCCL: one rank of one group.
pub(super) type Comm = *mut c_void;

/// Names a group: made by its first rank, shown to all.
#[repr(C)]
#[derive(Copy, Clone)]
pub(super) struct UniqueId(pub(super) [u8; Self::BYTES]);

impl UniqueId {
    pub(super) const BYTES: usize = 128;
}

/// Results of its functions. The second is a state of a communicator alone.
pub(super) const SUCCESS: c_int = 0;
pub(super) const IN_PROGRESS: c_int = 7;

type StreamHandle = *mut c_void;

/// The functions.
#[derive(Debug)]
pub(super) struct Library {
    get_version: unsafe extern "C" fn(*mut c_int) -> c_int,
    get_error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    get_last_error: unsafe extern "C" fn(Comm) -> *const c_char,
    pub(super) get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    pub(super) init_rank: unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int) -> c_int,
    pub(super) async_error: unsafe extern "C" fn(Comm, *mut c_int) -> c_int,
    pub(super) finalize: unsafe extern "C" fn(Comm) -> c_int,
    pub(super) destroy: unsafe extern "C" fn(Comm) -> c_int,
    pub(super) abort: unsafe extern "C" fn(Comm) -> c_int,
    pub(super) group_start: unsafe extern "C" fn() -> c_int,
    pub(super) group_end: unsafe extern "C" fn() -> c_int,
    pub(super) all_reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        Comm,
        StreamHandle,
    ) -> c_int,
    pub(super) reduce_scatter: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        Comm,
        StreamHandle,
    ) -> c_int,
    pub(super) all_gather:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Comm, StreamHandle) -> c_int,
    pub(super) send:
        unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Comm, StreamHandle) -> c_int,
    pub(super) receive:
        unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Comm, StreamHandle) -> c_int,
    /// Never unloaded: NCCL has threads of its own.
    _library: std::mem::ManuallyDrop<libloading::Library>,
}

/// Features of NCCL that are off unless the user says otherwise, and why.
const DEFAULTS: [(&str, &str); 2] = [
    // Multicast in NVLink switches: what a process leaves behind there outlives it.
    ("NCCL_NVLS_ENABLE", "0"),
    // Blocks of a memory pool cannot be reached from another GPU of the same process.
    ("NCCL_P2P_DIRECT_DISABLE", "1"),
];

impl Library {
    /// The library, loaded at the first call, where this machine has it.
    pub(super) fn get() -> Option<&'static Self> {
        static LOADED: OnceLock<Option<Library>> = OnceLock::new();
        LOADED.get_or_init(Self::load).as_ref()
    }

    fn load() -> Option<Self> {
        for (name, value) in DEFAULTS {
            if std::env::var_os(name).is_none() {
                // SAFETY: this happens once, before the library that reads the variable is loaded.
                // Rust's own reads of the environment hold a lock.
                unsafe { std::env::set_var(name, value) };
            }
        }
        // SAFETY: NCCL's library, whose start does nothing but to start.
        let library = unsafe { libloading::Library::new(FILE) }.ok()?;
        macro_rules! find {
            ($name:literal) => {{
                // SAFETY: the function of this name has this type since version 2.14.
                let found = unsafe { library.get($name.as_bytes()) };
                *found.ok()?
            }};
        }
        Some(Self {
            get_version: find!("ncclGetVersion"),
            get_error_string: find!("ncclGetErrorString"),
            get_last_error: find!("ncclGetLastError"),
            get_unique_id: find!("ncclGetUniqueId"),
            init_rank: find!("ncclCommInitRank"),
            async_error: find!("ncclCommGetAsyncError"),
            finalize: find!("ncclCommFinalize"),
            destroy: find!("ncclCommDestroy"),
            abort: find!("ncclCommAbort"),
            group_start: find!("ncclGroupStart"),
            group_end: find!("ncclGroupEnd"),
            all_reduce: find!("ncclAllReduce"),
            reduce_scatter: find!("ncclReduceScatter"),
            all_gather: find!("ncclAllGather"),
            send: find!("ncclSend"),
            receive: find!("ncclRecv"),
            _library: std::mem::ManuallyDrop::new(library),
        })
    }

    /// The library's text for a result, and its last error.
    pub(super) fn words(&self, result: c_int) -> String {
        // SAFETY: both give texts that the library owns, of any result. The last error is the
        // process's: no communicator is looked at.
        let [what, why] = unsafe {
            let last = (self.get_last_error)(std::ptr::null_mut());
            [(self.get_error_string)(result), last].map(|text| {
                if text.is_null() {
                    String::new()
                } else {
                    CStr::from_ptr(text).to_string_lossy().trim().to_owned()
                }
            })
        };
        if why.is_empty() { what } else { format!("{what} ({why})") }
    }
}

/// The version of the library, where it is.
pub(crate) fn version() -> Option<(u32, u32)> {
    let library = Library::get()?;
    let mut version = 0;
    // SAFETY: the pointer is to an integer that outlives the call.
    let result = unsafe { (library.get_version)(&raw mut version) };
    let version = version as u32;
    (result == SUCCESS).then_some((version / 10_000, version % 10_000 / 100))
}
