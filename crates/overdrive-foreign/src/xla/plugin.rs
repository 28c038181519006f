//! A PJRT plugin: a shared library that is loaded when it is asked for, and its table of functions.
#![allow(unsafe_code)] // The interface is C.

use super::api::{
    ApiArguments, ApiStruct, ErrorDestroy, ErrorMessage, Function, Header, Object, PluginInitialize,
};
use libloading::Library;
use overdrive_ir::BackendError;
use std::ffi::{c_char, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The major version of the interface that is spoken here; another one is another interface.
const MAJOR: i32 = 0;

/// A loaded plugin. It stays loaded until the process ends: runtimes of this size do not survive
/// being unloaded.
#[derive(Clone, Copy)]
pub(super) struct Plugin {
    table: *const Header,
}

// SAFETY: the table is constant, and its functions may be called from any thread, as the interface
// promises.
unsafe impl Send for Plugin {}
// SAFETY: a constant table is shared freely, and its functions take calls from several threads.
unsafe impl Sync for Plugin {}

/// Stops XLA from writing tens of lines about its devices and memory to the terminal. A variable
/// that the user has set stays as it is.
fn log_errors_only() {
    const LEVEL: &str = "TF_CPP_MIN_LOG_LEVEL";
    if std::env::var_os(LEVEL).is_none() {
        // SAFETY: std's own readers hold a lock. Threads that run by now are workers of ours, which
        // read no environment; no plugin is loaded yet.
        unsafe { std::env::set_var(LEVEL, "2") };
    }
}

/// A failure in the plugin's, or the loader's, own words.
pub(super) fn failed(step: impl Into<String>, message: impl Into<String>) -> BackendError {
    BackendError::Device { step: step.into(), message: message.into() }
}

impl Plugin {
    /// Loads a library and initialises it, once a process.
    ///
    /// # Errors
    /// `Device` with the words of the loader or of the plugin.
    pub(super) fn load(path: &Path) -> Result<Self, BackendError> {
        static LOADED: Mutex<Vec<(PathBuf, Plugin)>> = Mutex::new(Vec::new());
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, plugin)) = loaded.iter().find(|(known, _)| known == path) {
            return Ok(*plugin);
        }
        let plugin = Self::open(path)?;
        loaded.push((path.to_owned(), plugin));
        Ok(plugin)
    }

    fn open(path: &Path) -> Result<Self, BackendError> {
        let step = || format!("loading {}", path.display());
        log_errors_only();
        // SAFETY: the initialisers of a library that the user chose are run; this is what loading
        // it means.
        let library = unsafe { Library::new(path) }.map_err(|e| failed(step(), e.to_string()))?;
        let library: &'static Library = Box::leak(Box::new(library));
        // SAFETY: a library that exports this name promises this signature.
        let get =
            unsafe { library.get::<unsafe extern "C" fn() -> *const Header>(b"GetPjrtApi\0") };
        let get =
            get.map_err(|_| failed(step(), "it exports no GetPjrtApi, so it is no PJRT plugin"))?;
        // SAFETY: the function takes nothing and may be called once the library is loaded.
        let plugin = Self { table: unsafe { get() } };
        if plugin.table.is_null() {
            return Err(failed(step(), "GetPjrtApi gives no table"));
        }
        let (major, minor) = plugin.version();
        if major != MAJOR {
            let words = format!(
                "it speaks version {major}.{minor} of the interface; {MAJOR}.x is spoken here"
            );
            return Err(failed(step(), words));
        }
        // SAFETY: there are no pointers among the arguments.
        unsafe { plugin.call(PluginInitialize {}) }.map_err(|e| renamed(e, &step()))?;
        Ok(plugin)
    }

    /// Version of its interface.
    pub(super) fn version(&self) -> (i32, i32) {
        // SAFETY: `open` found the table, which lives as long as the process.
        let header = unsafe { &*self.table };
        (header.major, header.minor)
    }

    /// The function in a slot; `None` where the plugin is older than it.
    fn function(&self, slot: usize) -> Option<Function> {
        let offset = size_of::<Header>() + slot * size_of::<usize>();
        // SAFETY: `open` found the table, which lives as long as the process.
        let size = unsafe { (*self.table).size };
        if offset + size_of::<usize>() > size {
            return None;
        }
        // SAFETY: the slot lies inside the table, all of whose slots are pointers to functions of
        // this form or null.
        unsafe { self.table.cast::<u8>().add(offset).cast::<Option<Function>>().read() }
    }

    /// Calls a function, and returns its arguments with the fields that it wrote.
    ///
    /// # Errors
    /// `Device` with the plugin's words.
    ///
    /// # Safety
    /// The pointers among the arguments must be what the interface asks for.
    pub(super) unsafe fn call<A: ApiArguments>(&self, arguments: A) -> Result<A, BackendError> {
        let function = self.function(A::SLOT);
        let function = function
            .ok_or_else(|| failed(A::NAME, "the plugin is too old to have this function"))?;
        let mut block = ApiStruct::new(arguments);
        // SAFETY: the block has the function's layout, and the caller answers for its pointers.
        let error = unsafe { function((&raw mut block).cast::<c_void>()) };
        if error.is_null() {
            Ok(block.fields)
        } else {
            Err(failed(A::NAME, self.take_words(error)))
        }
    }

    /// The words of an error, which is destroyed.
    fn take_words(&self, error: Object) -> String {
        let mut words = String::from("without a word");
        if let Some(message) = self.function(ErrorMessage::SLOT) {
            let mut block =
                ApiStruct::new(ErrorMessage { error, text: std::ptr::null(), length: 0 });
            // SAFETY: the error is alive; this function returns nothing, so that its result is not
            // looked at.
            unsafe { message((&raw mut block).cast()) };
            // SAFETY: the text lives as long as the error.
            words = unsafe { text(block.fields.text, block.fields.length) };
        }
        if let Some(destroy) = self.function(ErrorDestroy::SLOT) {
            let mut block = ApiStruct::new(ErrorDestroy { error });
            // SAFETY: the error is ours and is not used again.
            unsafe { destroy((&raw mut block).cast()) };
        }
        words
    }
}

/// The same failure under the name of the attempted step.
pub(super) fn renamed(error: BackendError, step: &str) -> BackendError {
    match error {
        BackendError::Device { message, .. } => failed(step, message),
        other => other,
    }
}

/// A copy of a plugin's text.
///
/// # Safety
/// `start` must be null or point to `length` bytes.
pub(super) unsafe fn text(start: *const c_char, length: usize) -> String {
    if start.is_null() {
        return String::new();
    }
    // SAFETY: as the caller promises.
    let bytes = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), length) };
    String::from_utf8_lossy(bytes).into_owned()
}
