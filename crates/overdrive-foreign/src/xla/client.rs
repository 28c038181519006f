//! A client of a plugin, with one of its devices, and what lives there: buffers, programs, events.
//!
//! Invariant: an object is destroyed once, and not before its client is still there to do so.
#![allow(unsafe_code)] // The interface is C.

use super::api::{
    self, ApiStruct, BufferDestroy, BufferReadyEvent, BufferToHostBuffer, ClientAddressableDevices,
    ClientBufferFromHostBuffer, ClientCompile, ClientCreate, ClientDestroy, ClientPlatformName,
    ClientPlatformVersion, DeviceDescriptionKind, DeviceGetDescription, DeviceMemoryStats,
    EventAwait, EventDestroy, ExecutableDestroy, ExecutableGetCompiledMemoryStats,
    ExecutableNumOutputs, ExecuteOptions, LoadedExecutableDestroy, LoadedExecutableExecute,
    LoadedExecutableGetExecutable, MemoryStats, NamedFlag, Object, Program,
};
use super::nibbles;
use super::plugin::{Plugin, failed, text};
use overdrive_ir::{BackendError, Tensor, TensorType};
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::Arc;

/// Whether XLA may keep more digits than a conversion leaves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rounding {
    /// XLA's default: a value that is narrowed and widened again may stay unrounded.
    Loose,
    /// As the graph says.
    Strict,
}

impl Rounding {
    /// `CompileOptionsProto` with `executable_build_options` (field 3) of one replica and one
    /// partition, and for `Strict` an entry of `env_option_overrides` (field 7) that turns an
    /// option off.
    fn compile_options(self) -> Vec<u8> {
        let mut proto = vec![0x1A, 4, 0x20, 1, 0x28, 1];
        if self == Self::Strict {
            let name = b"xla_allow_excess_precision";
            let off = [0x12, 2, 0x10, 0];
            proto.extend([0x3A, (2 + name.len() + off.len()) as u8, 0x0A, name.len() as u8]);
            proto.extend(name);
            proto.extend(off);
        }
        proto
    }
}

/// The option of clients for GPUs to reserve most of the memory when they start.
const PREALLOCATE: &str = "preallocate";

/// A client with these options off.
fn create(plugin: Plugin, off: &[&str]) -> Result<Object, BackendError> {
    let option = |name: &&str| {
        let (name, name_length) = (name.as_ptr(), name.len());
        let kind = api::KIND_FLAG;
        ApiStruct::new(NamedFlag { name, name_length, kind, value: 0, value_count: 1 })
    };
    let options: Vec<ApiStruct<NamedFlag>> = off.iter().map(option).collect();
    let none = null_mut();
    let create = ClientCreate {
        options: options.as_ptr(),
        option_count: options.len(),
        get: none,
        get_argument: none,
        put: none,
        put_argument: none,
        client: none,
    };
    // SAFETY: the options and their names outlive the call.
    unsafe { plugin.call(create) }.map(|created| created.client)
}

/// A device of a plugin.
pub(super) struct Client {
    plugin: Plugin,
    client: Object,
    device: Object,
}

// SAFETY: clients and devices may be used from any thread, as the interface promises.
unsafe impl Send for Client {}
// SAFETY: clients and devices take calls from several threads at a time, as the interface promises.
unsafe impl Sync for Client {}

impl Client {
    /// A client of the plugin at `path`, for its device number `ordinal`.
    ///
    /// # Errors
    /// `Device` with the words of the loader or of the plugin, which has none where it sees no
    /// device.
    pub(super) fn open(path: &Path, ordinal: usize) -> Result<Self, BackendError> {
        let plugin = Plugin::load(path)?;
        // Others use the device too: memory is taken when it is needed, not three quarters of it at
        // once. A plugin without such a pool refuses the option by its name.
        let client = match create(plugin, &[PREALLOCATE]) {
            Err(BackendError::Device { message, .. }) if message.contains(PREALLOCATE) => {
                create(plugin, &[])
            }
            outcome => outcome,
        }?;
        let mut opened = Self { plugin, client, device: null_mut() };
        let devices = ClientAddressableDevices { client, devices: null(), count: 0 };
        // SAFETY: the client is alive.
        let devices = unsafe { plugin.call(devices) }?;
        if ordinal >= devices.count {
            let words =
                format!("the plugin sees {} devices, number {ordinal} is asked for", devices.count);
            return Err(failed("choosing a device", words));
        }
        // SAFETY: the list has that many entries and lives as long as the client.
        opened.device = unsafe { devices.devices.add(ordinal).read() };
        Ok(opened)
    }

    /// Version of the interface, `major.minor`.
    pub(super) fn interface(&self) -> String {
        let (major, minor) = self.plugin.version();
        format!("{major}.{minor}")
    }

    /// `cuda`, `rocm`, `tpu`, `cpu`, ...
    pub(super) fn platform(&self) -> Result<String, BackendError> {
        let name = ClientPlatformName { client: self.client, text: null(), length: 0 };
        // SAFETY: the client is alive, and so is its name.
        unsafe { self.plugin.call(name).map(|said| text(said.text, said.length)) }
    }

    /// The plugin's version, in its own words.
    pub(super) fn platform_version(&self) -> Result<String, BackendError> {
        let version = ClientPlatformVersion { client: self.client, text: null(), length: 0 };
        // SAFETY: the client is alive, and so is its version.
        unsafe { self.plugin.call(version).map(|said| text(said.text, said.length)) }
    }

    /// The device's name.
    pub(super) fn device_kind(&self) -> Result<String, BackendError> {
        let get = DeviceGetDescription { device: self.device, description: null_mut() };
        // SAFETY: the device lives as long as the client, and so does its description.
        unsafe {
            let description = self.plugin.call(get)?.description;
            let kind = DeviceDescriptionKind { description, text: null(), length: 0 };
            self.plugin.call(kind).map(|said| text(said.text, said.length))
        }
    }

    /// Bytes that the device has for buffers; `None` where the plugin does not tell.
    pub(super) fn memory_limit(&self) -> Option<u64> {
        let stats = DeviceMemoryStats {
            device: self.device,
            bytes_in_use: 0,
            stats: MemoryStats::default(),
        };
        // SAFETY: the device lives as long as the client.
        let stats = unsafe { self.plugin.call(stats) }.ok()?.stats;
        stats.limit_bytes.is_set.then_some(stats.limit_bytes.value.max(0) as u64)
    }

    /// Compiles a module of StableHLO text.
    pub(super) fn compile(
        self: &Arc<Self>,
        module: &str,
        rounding: Rounding,
    ) -> Result<Executable, BackendError> {
        let compile_options = rounding.compile_options();
        let format = "mlir";
        let program = ApiStruct::new(Program {
            code: module.as_ptr(),
            code_length: module.len(),
            format: format.as_ptr(),
            format_length: format.len(),
        });
        let compile = ClientCompile {
            client: self.client,
            program: &program,
            options: compile_options.as_ptr(),
            options_length: compile_options.len(),
            executable: null_mut(),
        };
        // SAFETY: the program, its text and the options outlive the call.
        let object = unsafe { self.plugin.call(compile) }?.executable;
        let mut executable = Executable { client: Arc::clone(self), object, output_count: 0 };
        executable.output_count = executable.described(|plugin, executable| {
            // SAFETY: the description is alive.
            unsafe { plugin.call(ExecutableNumOutputs { executable, count: 0 }) }
                .map(|said| said.count)
        })?;
        Ok(executable)
    }

    /// Copies a tensor to the device and waits until it is there.
    pub(super) fn upload(self: &Arc<Self>, tensor: &Tensor) -> Result<DeviceBuffer, BackendError> {
        let ty = tensor.ty();
        let element = api::element(ty.dtype)
            .ok_or_else(|| failed("upload", format!("PJRT has no {}", ty.dtype)))?;
        let dims: Vec<i64> = ty.sizes().into_iter().map(|n| n as i64).collect();
        let spread = nibbles::spread(tensor);
        let bytes = spread.as_deref().unwrap_or(tensor.bytes());
        let upload = ClientBufferFromHostBuffer {
            client: self.client,
            data: bytes.as_ptr(),
            element,
            dims: dims.as_ptr(),
            rank: dims.len(),
            strides: null(),
            stride_count: 0,
            semantics: api::ONLY_DURING_CALL,
            device: self.device,
            memory: null_mut(),
            layout: null_mut(),
            done: null_mut(),
            buffer: null_mut(),
        };
        // SAFETY: bytes and dimensions outlive the call, and the bytes are as many as type and
        // dimensions say.
        let done = unsafe { self.plugin.call(upload) }?;
        let buffer = DeviceBuffer { client: Arc::clone(self), object: done.buffer };
        self.event(done.done).wait()?;
        let ready = BufferReadyEvent { buffer: buffer.object, event: null_mut() };
        // SAFETY: the buffer is alive.
        let ready = unsafe { self.plugin.call(ready) }?.event;
        self.event(ready).wait()?;
        Ok(buffer)
    }

    fn event(self: &Arc<Self>, object: Object) -> Event {
        Event { client: Arc::clone(self), object }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // SAFETY: every object of the client holds an `Arc` of it, so that this one is the last.
        // There is nobody to tell of an error.
        let _ = unsafe { self.plugin.call(ClientDestroy { client: self.client }) };
    }
}

/// Work of a device that may still be under way.
pub(super) struct Event {
    client: Arc<Client>,
    object: Object,
}

impl Event {
    /// Blocks until the work is done; its error, if there was one.
    pub(super) fn wait(self) -> Result<(), BackendError> {
        if self.object.is_null() {
            return Ok(());
        }
        // SAFETY: the event is alive.
        unsafe { self.client.plugin.call(EventAwait { event: self.object }) }.map(|_| ())
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if !self.object.is_null() {
            // SAFETY: the event is ours and is not used again.
            let _ = unsafe { self.client.plugin.call(EventDestroy { event: self.object }) };
        }
    }
}

/// A value on the device.
pub(super) struct DeviceBuffer {
    client: Arc<Client>,
    object: Object,
}

// SAFETY: buffers may be used from any thread, as the interface promises.
unsafe impl Send for DeviceBuffer {}
// SAFETY: buffers take calls from several threads at a time, as the interface promises.
unsafe impl Sync for DeviceBuffer {}

impl DeviceBuffer {
    /// For the arguments of a call.
    pub(super) fn object(&self) -> Object {
        self.object
    }

    /// Copies the value to the host.
    pub(super) fn download(&self, ty: &TensorType) -> Result<Tensor, BackendError> {
        let mut bytes = vec![0u8; nibbles::host_bytes(ty)];
        let mut copy = BufferToHostBuffer {
            buffer: self.object,
            layout: null_mut(),
            data: null_mut(),
            length: 0,
            event: null_mut(),
        };
        let plugin = self.client.plugin;
        // SAFETY: without a destination the plugin only says how long one has to be.
        let needed = unsafe { plugin.call(copy) }?.length;
        if needed != bytes.len() {
            let words =
                format!("the plugin has {needed} bytes of {ty}, which takes {}", bytes.len());
            return Err(failed("download", words));
        }
        copy = BufferToHostBuffer {
            buffer: self.object,
            layout: null_mut(),
            data: bytes.as_mut_ptr(),
            length: bytes.len(),
            event: null_mut(),
        };
        // SAFETY: the destination has that many bytes and outlives the event, which is waited for.
        let event = unsafe { plugin.call(copy) }?.event;
        self.client.event(event).wait()?;
        let bytes = nibbles::gather(ty, bytes);
        Tensor::from_bytes(ty.clone(), bytes).map_err(|e| failed("download", e.to_string()))
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // SAFETY: the buffer is ours and is not used again; work that still reads it holds it on
        // its own.
        let _ = unsafe { self.client.plugin.call(BufferDestroy { buffer: self.object }) };
    }
}

/// A compiled program, loaded on the device.
pub(super) struct Executable {
    client: Arc<Client>,
    object: Object,
    output_count: usize,
}

// SAFETY: programs may be used from any thread, as the interface promises.
unsafe impl Send for Executable {}
// SAFETY: programs take calls from several threads at a time, as the interface promises.
unsafe impl Sync for Executable {}

impl Executable {
    /// Enqueues one call; the results may be used at once.
    pub(super) fn execute(
        &self,
        arguments: &[Object],
    ) -> Result<(Vec<DeviceBuffer>, Event), BackendError> {
        let mut options = ApiStruct::new(ExecuteOptions::default());
        let mut results = vec![null_mut(); self.output_count];
        let (list, lists) = (arguments.as_ptr(), results.as_mut_ptr());
        let mut event = null_mut();
        let execute = LoadedExecutableExecute {
            executable: self.object,
            options: &mut options,
            arguments: &list,
            device_count: 1,
            argument_count: arguments.len(),
            outputs: &lists,
            events: &mut event,
            device: null_mut(),
        };
        // SAFETY: the lists outlive the call, hold live buffers, and have room for as many results
        // as the program has.
        unsafe { self.client.plugin.call(execute) }?;
        let buffer = |object| DeviceBuffer { client: Arc::clone(&self.client), object };
        Ok((results.into_iter().map(buffer).collect(), self.client.event(event)))
    }

    /// Bytes that a call needs beside arguments and results; `None` where the plugin does not tell.
    pub(super) fn transient_bytes(&self) -> Option<u64> {
        let asked = self.described(|plugin, executable| {
            let stats = ExecutableGetCompiledMemoryStats {
                executable,
                code_bytes: 0,
                argument_bytes: 0,
                output_bytes: 0,
                alias_bytes: 0,
                transient_bytes: 0,
            };
            // SAFETY: the description is alive.
            unsafe { plugin.call(stats) }
        });
        asked.ok().map(|said| said.transient_bytes.max(0) as u64)
    }

    /// Asks the program's description, which is an object of its own.
    fn described<T>(
        &self,
        ask: impl FnOnce(Plugin, Object) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        let plugin = self.client.plugin;
        let get = LoadedExecutableGetExecutable { loaded: self.object, executable: null_mut() };
        // SAFETY: the program is alive.
        let executable = unsafe { plugin.call(get) }?.executable;
        let answer = ask(plugin, executable);
        // SAFETY: the description is ours and is not used again.
        let destroyed = unsafe { plugin.call(ExecutableDestroy { executable }) };
        answer.and_then(|answer| destroyed.map(|_| answer))
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        // SAFETY: the program is ours and is not used again.
        let _ =
            unsafe { self.client.plugin.call(LoadedExecutableDestroy { executable: self.object }) };
    }
}
