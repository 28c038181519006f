//! The part of PJRT's C interface that is called here, after `xla/pjrt/c/pjrt_c_api.h`
//! (Apache-2.0).
//!
//! A plugin exports `GetPjrtApi`, which gives a table. The table holds its size, its version, and
//! functions in an order that only ever grows at the end. Each function takes a pointer to one
//! block of arguments that opens with its size.
//!
//! Plugins check that a block is as large as their own header has it. Every block here is therefore
//! longer than in any header, and holds zeros past the fields that we know. New fields are
//! optional, and zero means that they are not used. Invariant: a slot is read only if it is within
//! the table's size.
#![allow(unsafe_code)] // The interface is C.

use std::ffi::{c_char, c_int, c_void};

/// Words after the fields that we know: more than any header has added.
const SPARE_WORDS: usize = 48;

/// A block of arguments, or a structure that one points to.
#[repr(C)]
pub(super) struct ApiStruct<T> {
    size: usize,
    extension: *mut c_void,
    pub(super) fields: T,
    spare: [usize; SPARE_WORDS],
}

impl<T> ApiStruct<T> {
    pub(super) fn new(fields: T) -> Self {
        Self {
            size: size_of::<Self>(),
            extension: std::ptr::null_mut(),
            fields,
            spare: [0; SPARE_WORDS],
        }
    }
}

/// The beginning of the table, before its functions.
#[repr(C)]
pub(super) struct Header {
    /// Bytes of the table.
    pub(super) size: usize,
    extension: *mut c_void,
    version_size: usize,
    version_extension: *mut c_void,
    pub(super) major: c_int,
    pub(super) minor: c_int,
}

/// Something that belongs to the plugin.
pub(super) type Object = *mut c_void;

/// A function of the table; gives an error, or null.
pub(super) type Function = unsafe extern "C" fn(*mut c_void) -> Object;

/// The fields of a function's arguments.
pub(super) trait ApiArguments {
    /// The function's place in the table.
    const SLOT: usize;
    /// Its name, for messages.
    const NAME: &'static str;
}

macro_rules! arguments {
    ($($name:ident = $slot:literal { $($field:ident: $ty:ty),* $(,)? })*) => {$(
        #[repr(C)]
        pub(super) struct $name {
            $(pub(super) $field: $ty,)*
        }
        impl ApiArguments for $name {
            const SLOT: usize = $slot;
            const NAME: &'static str = stringify!($name);
        }
    )*};
}

arguments! {
    ErrorDestroy = 0 { error: Object }
    ErrorMessage = 1 { error: Object, text: *const c_char, length: usize }
    PluginInitialize = 3 {}
    EventDestroy = 5 { event: Object }
    EventAwait = 8 { event: Object }
    ClientCreate = 10 {
        options: *const ApiStruct<NamedFlag>,
        option_count: usize,
        get: *mut c_void,
        get_argument: *mut c_void,
        put: *mut c_void,
        put_argument: *mut c_void,
        client: Object,
    }
    ClientDestroy = 11 { client: Object }
    ClientPlatformName = 12 { client: Object, text: *const c_char, length: usize }
    ClientPlatformVersion = 14 { client: Object, text: *const c_char, length: usize }
    ClientAddressableDevices = 16 { client: Object, devices: *const Object, count: usize }
    ClientCompile = 20 {
        client: Object,
        program: *const ApiStruct<Program>,
        options: *const u8,
        options_length: usize,
        executable: Object,
    }
    ClientBufferFromHostBuffer = 22 {
        client: Object,
        data: *const u8,
        element: c_int,
        dims: *const i64,
        rank: usize,
        strides: *const i64,
        stride_count: usize,
        semantics: c_int,
        device: Object,
        memory: Object,
        layout: Object,
        done: Object,
        buffer: Object,
    }
    DeviceDescriptionKind = 26 { description: Object, text: *const c_char, length: usize }
    DeviceGetDescription = 29 { device: Object, description: Object }
    DeviceMemoryStats = 34 { device: Object, bytes_in_use: i64, stats: MemoryStats }
    ExecutableDestroy = 40 { executable: Object }
    ExecutableNumOutputs = 44 { executable: Object, count: usize }
    LoadedExecutableDestroy = 50 { executable: Object }
    LoadedExecutableGetExecutable = 51 { loaded: Object, executable: Object }
    LoadedExecutableExecute = 55 {
        executable: Object,
        options: *mut ApiStruct<ExecuteOptions>,
        arguments: *const *const Object,
        device_count: usize,
        argument_count: usize,
        outputs: *const *mut Object,
        events: *mut Object,
        device: Object,
    }
    BufferDestroy = 58 { buffer: Object }
    BufferToHostBuffer = 70 {
        buffer: Object,
        layout: Object,
        data: *mut u8,
        length: usize,
        event: Object,
    }
    BufferReadyEvent = 72 { buffer: Object, event: Object }
    ExecutableGetCompiledMemoryStats = 96 {
        executable: Object,
        code_bytes: i64,
        argument_bytes: i64,
        output_bytes: i64,
        alias_bytes: i64,
        transient_bytes: i64,
    }
}

/// Each number with a flag that says whether it is known.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct KnownNumber {
    pub(super) value: i64,
    pub(super) is_set: bool,
}

/// Memory statistics of a device, after the bytes in use.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct MemoryStats {
    pub(super) peak_bytes: KnownNumber,
    allocations: KnownNumber,
    largest_bytes: KnownNumber,
    pub(super) limit_bytes: KnownNumber,
    reserved_bytes: KnownNumber,
}

/// A program to compile.
#[repr(C)]
pub(super) struct Program {
    pub(super) code: *const u8,
    pub(super) code_length: usize,
    pub(super) format: *const u8,
    pub(super) format_length: usize,
}

/// An option that is on or off.
#[repr(C)]
pub(super) struct NamedFlag {
    pub(super) name: *const u8,
    pub(super) name_length: usize,
    pub(super) kind: c_int,
    /// A union: the flag is its first byte.
    pub(super) value: u64,
    pub(super) value_count: usize,
}

/// `NamedFlag::kind` of a flag.
pub(super) const KIND_FLAG: c_int = 4;

/// How a program is run; all zeros is one device, nothing to send or receive.
#[repr(C)]
#[derive(Default)]
pub(super) struct ExecuteOptions {
    callbacks: [usize; 4],
    launch_id: c_int,
}

/// The host's bytes may change once the call has returned.
pub(super) const ONLY_DURING_CALL: c_int = 0;

/// The interface's number for an element type; none where it has none.
pub(super) const fn element(dtype: overdrive_ir::DType) -> Option<c_int> {
    use overdrive_ir::DType::*;
    Some(match dtype {
        Bool => 1,
        I8 => 2,
        I16 => 3,
        I32 => 4,
        I64 => 5,
        U8 => 6,
        U16 => 7,
        U32 => 8,
        U64 => 9,
        F16 => 10,
        F32 => 11,
        F64 => 12,
        BF16 => 13,
        F8E5M2 => 16,
        F8E4M3 => 17,
        I4 => 21,
        E8M0 => 28,
        F4E2M1 => 29,
        _ => return None,
    })
}
