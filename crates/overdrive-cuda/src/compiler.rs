//! From CUDA C++ to machine code by NVRTC, for the device's own architecture or, with no GPU, for
//! any.

mod resources;

pub use resources::Resources;

use crate::Error;
use crate::cache::Cache;
use crate::libraries::Library;
use cudarc::nvrtc::{result, sys};
use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// Our headers, which every source may include by name: nothing of the CUDA toolkit is needed.
const HEADERS: [(&CStr, &str); 4] = [
    (c"number.cuh", include_str!("headers/number.cuh")),
    (c"scalar.cuh", include_str!("headers/scalar.cuh")),
    (c"loop.cuh", include_str!("headers/loop.cuh")),
    (c"hopper.cuh", include_str!("headers/hopper.cuh")),
];

/// The architecture that machine code is made for.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Architecture {
    /// Ampere.
    Sm80,
    /// Ada.
    Sm89,
    /// Hopper, with its own instructions.
    Sm90a,
    /// Blackwell, with its own instructions.
    Sm100a,
    /// Any other, by compute capability times ten.
    Other(u32),
}

impl Architecture {
    /// Those that every kernel is compiled for where there is no GPU.
    pub const DECLARED: [Architecture; 4] = [Self::Sm80, Self::Sm89, Self::Sm90a, Self::Sm100a];

    /// The best for a device of this compute capability.
    pub fn of_device(major: u32, minor: u32) -> Self {
        match (major, minor) {
            (8, 0) => Self::Sm80,
            (8, 9) => Self::Sm89,
            (9, 0) => Self::Sm90a,
            (10, 0) => Self::Sm100a,
            _ => Self::Other(major * 10 + minor),
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sm80 => f.write_str("sm_80"),
            Self::Sm89 => f.write_str("sm_89"),
            Self::Sm90a => f.write_str("sm_90a"),
            Self::Sm100a => f.write_str("sm_100a"),
            Self::Other(capability) => write!(f, "sm_{capability}"),
        }
    }
}

/// CUDA C++ with its specialisation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct KernelSource {
    /// Name, as in profiles and messages.
    pub name: Cow<'static, str>,
    /// The text; entries are `extern "C"`.
    pub text: Cow<'static, str>,
    /// `-D` values.
    pub defines: Vec<(&'static str, String)>,
}

/// Compiles a source to a cubin.
///
/// # Errors
/// `Missing` without libnvrtc; `Compile` with the compiler's words.
pub fn compile(source: &KernelSource, architecture: Architecture) -> Result<Vec<u8>, Error> {
    run(source, &options(source, architecture)).map(|(code, _)| code)
}

/// The code of a source, once it is there. Whoever needs it meanwhile waits.
type Code = Arc<Mutex<Option<Arc<[u8]>>>>;

/// What this process has compiled. Its ranks, and steps that are compiled beside one another, often
/// have the same kernels.
static COMPILED: LazyLock<Mutex<HashMap<(KernelSource, Architecture), Code>>> =
    LazyLock::new(Mutex::default);

/// As `compile`, once in a process, and by way of the cache.
///
/// # Errors
/// Those of `compile`. The cache adds none.
pub fn compile_cached(
    source: &KernelSource,
    architecture: Architecture,
    cache: Option<&Cache>,
) -> Result<Arc<[u8]>, Error> {
    let code = {
        let mut all = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry((source.clone(), architecture)).or_default())
    };
    let mut code = code.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(code) = &*code {
        return Ok(Arc::clone(code));
    }
    let found: Arc<[u8]> = compile_or_read(source, architecture, cache)?.into();
    *code = Some(Arc::clone(&found));
    Ok(found)
}

fn compile_or_read(
    source: &KernelSource,
    architecture: Architecture,
    cache: Option<&Cache>,
) -> Result<Vec<u8>, Error> {
    Library::Nvrtc.require()?;
    let Some(cache) = cache else { return compile(source, architecture) };
    let (major, minor) = version()?;
    let mut key = format!(
        "NVRTC {major}.{minor}\n{}\n{}\n",
        options(source, architecture).join("\n"),
        source.name
    );
    HEADERS.iter().for_each(|(_, text)| key.push_str(text));
    key.push_str(&source.text);
    if let Some(code) = cache.get(&key) {
        return Ok(code);
    }
    let code = compile(source, architecture)?;
    cache.put(&key, &code);
    Ok(code)
}

/// The resources of a multiprocessor that each entry of a source takes.
///
/// # Errors
/// As `compile`.
pub fn resources(
    source: &KernelSource,
    architecture: Architecture,
) -> Result<Vec<Resources>, Error> {
    let mut options = options(source, architecture);
    options.push("--ptxas-options=-v".to_owned());
    run(source, &options).map(|(_, log)| resources::parse(&log))
}

/// The compiler's version, `(major, minor)`.
fn version() -> Result<(i32, i32), Error> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both are places for an integer.
    unsafe { sys::nvrtcVersion(&mut major, &mut minor).result()? };
    Ok((major, minor))
}

fn options(source: &KernelSource, architecture: Architecture) -> Vec<String> {
    let mut options = vec![
        format!("--gpu-architecture={architecture}"),
        "--std=c++17".to_owned(),
        "--device-as-default-execution-space".to_owned(),
    ];
    options.extend(source.defines.iter().map(|(key, value)| format!("-D{key}={value}")));
    options
}

/// The cubin and the compiler's words.
fn run(source: &KernelSource, options: &[String]) -> Result<(Vec<u8>, String), Error> {
    Library::Nvrtc.require()?;
    let text = CString::new(source.text.as_bytes()).expect("sources have no zero bytes");
    let name = CString::new(format!("{}.cu", source.name)).expect("names have no zero bytes");
    let headers = HEADERS.map(|(_, text)| CString::new(text).expect("headers have no zero bytes"));
    let program = create(&text, &name, &headers)?;
    // SAFETY: the program is alive until it is destroyed below, and the buffers have the sizes that
    // NVRTC asks for.
    unsafe {
        let compiled = result::compile_program(program, options);
        let log = log(program);
        let code = match compiled {
            Ok(()) => cubin(program),
            Err(_) => Err(Error::Compile {
                kernel: source.name.to_string(),
                architecture: options[0].trim_start_matches("--gpu-architecture=").to_owned(),
                log: log.clone()?,
            }),
        };
        result::destroy_program(program)?;
        Ok((code?, log?))
    }
}

fn create(text: &CStr, name: &CStr, headers: &[CString]) -> Result<sys::nvrtcProgram, Error> {
    let texts: Vec<*const c_char> = headers.iter().map(|header| header.as_ptr()).collect();
    let names: Vec<*const c_char> = HEADERS.iter().map(|(name, _)| name.as_ptr()).collect();
    let mut program = std::ptr::null_mut();
    // SAFETY: the strings end with zero and outlive the call; there are as many texts as names.
    unsafe {
        let count = texts.len() as i32;
        let (texts, names) = (texts.as_ptr(), names.as_ptr());
        sys::nvrtcCreateProgram(&mut program, text.as_ptr(), name.as_ptr(), count, texts, names)
            .result()?;
    }
    Ok(program)
}

unsafe fn cubin(program: sys::nvrtcProgram) -> Result<Vec<u8>, Error> {
    let mut size = 0;
    // SAFETY: the caller's program was compiled.
    unsafe { sys::nvrtcGetCUBINSize(program, &mut size).result()? };
    let mut code = vec![0u8; size];
    // SAFETY: the program was compiled, and the buffer has the size that the library reported.
    unsafe { sys::nvrtcGetCUBIN(program, code.as_mut_ptr().cast()).result()? };
    Ok(code)
}

unsafe fn log(program: sys::nvrtcProgram) -> Result<String, Error> {
    // SAFETY: the caller's program is alive.
    let raw = unsafe { result::get_program_log(program)? };
    let bytes: Vec<u8> = raw.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
    Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
}
