//! `overdrive info`: this machine, and the back ends that it has.

use crate::cli::Info;
use crate::devices;
use crate::energy;
use crate::engines;
use crate::failure::Failure;
use crate::terminal::say;
use overdrive::bench::environment::{Environment, Revision};
use overdrive::bench::exit::Exit;
use overdrive::cpu::{CpuBackend, InstructionSet};
use overdrive::cuda::cache::Cache;
use overdrive::cuda::choices::{Choices, Remembered};
use overdrive::cuda::{CudaBackend, Library};
use overdrive::ir::Backend;
use overdrive_foreign::{ENGINES, Engine, FoundEngine, LEFT_OUT, Missing};
use overdrive_process::Stop;

pub(crate) fn info(arguments: &Info, stop: &Stop) -> Result<Exit, Failure> {
    if let Some(part) = &arguments.choices {
        return choices(part, arguments);
    }
    if let Some(package) = &arguments.install {
        return install(package, arguments, stop);
    }
    let backend = devices::processor(None, arguments.isa)?;
    let sets = InstructionSet::available().map(InstructionSet::name).collect();
    let found = Found {
        environment: Environment::probe(),
        sets,
        gpus: (0..overdrive::cuda::gpus()).map(CudaBackend::new).collect(),
        backend,
    };
    if arguments.json {
        print_json(&found, arguments)?;
    } else {
        print_text(&found, arguments)?;
    }
    Ok(Exit::Fine)
}

/// The processor, its instruction sets and the GPUs of this machine.
struct Found {
    environment: Environment,
    backend: CpuBackend,
    /// Instruction sets that the processor has.
    sets: Vec<&'static str>,
    gpus: Vec<Result<CudaBackend, overdrive::cuda::Error>>,
}

impl Found {
    /// Names of the formats that the processor's products take.
    fn contractions(&self) -> Vec<&'static str> {
        self.backend.description().contraction_dtypes.iter().map(|d| d.name()).collect()
    }
}

fn print_json(found: &Found, arguments: &Info) -> Result<(), Failure> {
    let (backend, description) = (&found.backend, found.backend.description());
    let libraries: Vec<_> = Library::ALL
        .iter()
        .map(|library| {
            let remedy = library.require().err().map(|missing| missing.to_string());
            serde_json::json!({
                "file": library.file(),
                "version": library.version().map(|(major, minor)| format!("{major}.{minor}")),
                "remedy": remedy,
            })
        })
        .collect();
    let devices: Vec<_> = found.gpus.iter().flatten().map(devices::describe).collect();
    let json = serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "revision": Revision::current(),
        "environment": found.environment,
        "backends": [{
            "name": backend.name(),
            "device": description.device,
            "instruction_set": backend.instruction_set().name(),
            "instruction_sets": found.sets,
            "memory_bytes": description.memory_bytes,
            "contractions": found.contractions(),
            "kernels": description.kernels,
        }],
        "cuda": { "libraries": libraries, "devices": devices, "cache": cache_json() },
        "engines": engines_json(arguments),
    });
    say!("{}", serde_json::to_string_pretty(&json).expect("plain data"))?;
    Ok(())
}

fn print_text(found: &Found, arguments: &Info) -> Result<(), Failure> {
    say!("overdrive {}", env!("CARGO_PKG_VERSION"))?;
    print_processor(found)?;
    for (ordinal, gpu) in found.gpus.iter().enumerate() {
        match gpu {
            Ok(gpu) => print_gpu(gpu)?,
            Err(error) => say!("cuda:{ordinal}        {error}")?,
        }
    }
    for library in Library::ALL {
        match library.version() {
            Some((major, minor)) => say!("{:<13} {major}.{minor}", library.name())?,
            None => say!("{:<13} not found: {}", library.name(), library.remedy())?,
        }
    }
    print_engines(arguments)?;
    for meter in energy::meters() {
        match meter {
            Ok((name, meter)) => say!("energy        {name}, by {}", meter.source())?,
            Err(missing) => say!("energy        not measured: {}", missing.reason)?,
        }
    }
    print_caches()?;
    for warning in found.environment.warnings() {
        say!("note          {warning}")?;
    }
    Ok(())
}

/// The processor, and our back end for it.
fn print_processor(found: &Found) -> Result<(), Failure> {
    let (backend, description) = (&found.backend, found.backend.description());
    let cpu = &found.environment.cpu;
    say!("processor     {} ({} logical CPUs)", cpu.model, cpu.logical.unwrap_or(0))?;
    say!("features      {}", cpu.features.join(" "))?;
    for cache in &cpu.caches {
        say!("cache L{}      {} KiB", cache.level, cache.bytes >> 10)?;
    }
    if let Some(bytes) = found.environment.memory_bytes {
        say!("memory        {:.1} GiB", bytes as f64 / (1u64 << 30) as f64)?;
    }
    say!("back end      {}: {}", backend.name(), description.device)?;
    say!("  instruction set {} of {}", backend.instruction_set(), found.sets.join(", "))?;
    say!("  products in {}", found.contractions().join(", "))?;
    say!("  kernels for {}", description.kernels.join(", "))?;
    Ok(())
}

/// Prints the caches of the kernels that earlier runs compiled and of the choices that they made
/// for GPUs.
fn print_caches() -> Result<(), Failure> {
    if let Some(cache) = Cache::of_user() {
        match cache.size() {
            Ok((count, bytes)) => say!(
                "kernel cache  {} ({count} kernels, {:.1} MiB; OVERDRIVE_CACHE moves it)",
                cache.folder().display(),
                bytes as f64 / (1u64 << 20) as f64
            )?,
            Err(error) => say!("kernel cache  {}: {error}", cache.folder().display())?,
        }
    }
    if let Some(choices) = Choices::of_user() {
        let count = choices.all().map_or(0, |all| all.len());
        say!(
            "choices       {} ({count} products; --choices says why)",
            choices.folder().display()
        )?;
    }
    Ok(())
}

/// Unpacks an engine's libraries into the cache.
fn install(package: &str, arguments: &Info, stop: &Stop) -> Result<Exit, Failure> {
    let root = engines::places(&[]).installed;
    let root = root.ok_or_else(|| {
        Failure::bad_input("no place for engines is known: set OVERDRIVE_CACHE to a folder")
    })?;
    let wheel = arguments.wheel.as_deref();
    let _whole = stop.heed();
    let installed = overdrive_foreign::install(package, wheel, &root, stop);
    let installed = installed.map_err(|missing| match stop.is_requested() {
        true => Failure::interrupted("nothing was installed"),
        false => Failure::bad_input(missing),
    })?;
    say!("{package} in {}", installed.folder.display())?;
    for (name, hash) in &installed.checksums {
        say!("  sha256 {hash}  {name}")?;
    }
    Ok(Exit::Fine)
}

/// Other engines: which were found and where, and how to install the rest.
fn print_engines(arguments: &Info) -> Result<(), Failure> {
    let places = engines::places(&arguments.libraries);
    for engine in ENGINES {
        let name = engine.name();
        match engine.find(&places) {
            Ok(FoundEngine { version, library }) => {
                let from = library
                    .map_or("part of this program".to_owned(), |path| path.display().to_string());
                say!("{name:<20} {version}, {}; {from}", engine.about())?;
            }
            Err(Missing { reason, remedy, .. }) => {
                say!("{name:<20} not found: {reason}; {remedy}")?
            }
        }
    }
    for (name, feature) in LEFT_OUT {
        say!("{name:<20} not in this build: build with --features {feature}")?;
    }
    Ok(())
}

fn engines_json(arguments: &Info) -> serde_json::Value {
    let places = engines::places(&arguments.libraries);
    let engine = |engine: &&dyn Engine| match engine.find(&places) {
        Ok(found) => {
            serde_json::json!({ "name": engine.name(), "version": found.version,
                "library": found.library })
        }
        Err(missing) => {
            serde_json::json!({ "name": engine.name(), "missing": missing.reason,
                "remedy": missing.remedy })
        }
    };
    let left_out =
        |(name, feature): &(&str, &str)| serde_json::json!({ "name": name, "feature": feature });
    ENGINES.iter().map(engine).chain(LEFT_OUT.iter().map(left_out)).collect()
}

/// The remembered choices that contain `part`, each with what it was chosen from.
fn choices(part: &str, arguments: &Info) -> Result<Exit, Failure> {
    let Some(choices) = Choices::of_user() else {
        return Err(Failure::bad_input(
            "no place for choices is known: set OVERDRIVE_CACHE to a folder",
        ));
    };
    let unreadable = |e| Failure::bad_input(format!("{}: {e}", choices.folder().display()));
    let mut all = choices.all().map_err(unreadable)?;
    all.retain(|known| known.key.contains(part) || known.choice.candidate.contains(part));
    if arguments.json {
        let json = |known: &Remembered| {
            let Remembered { place, key, choice } = known;
            serde_json::json!({ "place": place, "key": key, "choice": choice })
        };
        let all: Vec<_> = all.iter().map(json).collect();
        say!("{}", serde_json::to_string_pretty(&all).expect("plain data"))?;
        return Ok(Exit::Fine);
    }
    say!("{} choices in {}", all.len(), choices.folder().display())?;
    for Remembered { place, key, choice } in &all {
        say!("{key}\n  {choice}\n  on {place}")?;
    }
    Ok(Exit::Fine)
}

/// The folder of compiled kernels, and their number.
fn cache_json() -> serde_json::Value {
    let Some(cache) = Cache::of_user() else { return serde_json::Value::Null };
    let size = cache.size().ok();
    serde_json::json!({
        "folder": cache.folder(),
        "kernels": size.map(|(count, _)| count),
        "bytes": size.map(|(_, bytes)| bytes),
    })
}

fn print_gpu(gpu: &CudaBackend) -> Result<(), Failure> {
    let (properties, description) = (gpu.device().properties(), gpu.description());
    say!(
        "{:<13} {}, {}, {} multiprocessors, {:.1} GiB, L2 {} MiB",
        gpu.name(),
        properties.name,
        properties.architecture,
        properties.multiprocessors,
        properties.memory_bytes as f64 / (1u64 << 30) as f64,
        properties.l2_bytes >> 20
    )?;
    let contractions: Vec<&str> = description.contraction_dtypes.iter().map(|d| d.name()).collect();
    let kernels: Vec<&str> = description.kernels.clone();
    say!("  products in {}", contractions.join(", "))?;
    say!("  kernels for {}", kernels.join(", "))
}
