//! `cargo xtask kernels`: the resources of a multiprocessor that every kernel takes, on each
//! architecture that it is for. No GPU is needed.
//!
//! Kernels by name and of products come by their representative specialisations. Fused loops and
//! printed regions come by the plans of built-in models. The example fails where a kernel does not
//! compile, or spills more registers than its source admits. The source admits them by a line
//! `// spills at most N bytes`, beside the reason.

use overdrive_cuda::compiler::{Architecture, KernelSource, Resources, resources};
use overdrive_cuda::device::Properties;
use overdrive_cuda::loops::{self, PrinterMachine};
use overdrive_cuda::{Error, Gpu, kernels};
use overdrive_ir::plan::{Plan, StepKind};
use overdrive_ir::{DType, Mode, Tuning};
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::thread;

/// Models whose plans represent all others: one of each kind, forward.
const MODELS: [&str; 4] = ["mlp", "conv", "transformer", "text-transformer"];
/// Multiprocessors of the machine that plans are made for; an H200.
const MULTIPROCESSORS: u32 = 132;

fn plans() -> Vec<Plan> {
    let properties = Properties {
        name: "paper".to_owned(),
        architecture: Architecture::Sm90a,
        multiprocessors: MULTIPROCESSORS,
        l2_bytes: 50 << 20,
        memory_bytes: 1 << 40,
        clock_hertz: 1.98e9,
        bytes_per_second: 4.8e12,
        cuda: (13, 0),
        driver: None,
    };
    let (gpu, tuning) = (Gpu::new(&properties), Tuning::default());
    let plan = |name: &&str| {
        let model = overdrive_models::find(name).unwrap_or_else(|e| panic!("{e}"));
        let graph = (model.build)().unwrap_or_else(|e| panic!("{name}: {e}"));
        let sizes =
            model.dimensions.iter().map(|(name, size)| ((*name).to_owned(), *size)).collect();
        let graph =
            overdrive_passes::bind(&graph, &sizes).unwrap_or_else(|e| panic!("{name}: {e}"));
        let recipe = overdrive_passes::Recipe { contractions: DType::BF16 };
        let half =
            overdrive_passes::precision(&graph, &recipe).unwrap_or_else(|e| panic!("{name}: {e}"));
        [graph, half].map(|graph| {
            overdrive_passes::plan(&graph, Mode::Compile, &gpu, &tuning)
                .unwrap_or_else(|e| panic!("{name}: {e}"))
        })
    };
    MODELS.iter().flat_map(plan).collect()
}

/// Every source with its architecture, each once.
fn sources() -> Vec<(KernelSource, Architecture)> {
    let mut all = Vec::new();
    for (source, architectures) in kernels::sources() {
        all.extend(architectures.iter().map(|&architecture| (source.clone(), architecture)));
    }
    for plan in plans() {
        let regions = kernels::sources_of(&plan).unwrap_or_else(|e| panic!("{}: {e}", plan.name));
        for (source, architectures) in regions {
            all.extend(architectures.iter().map(|&architecture| (source.clone(), architecture)));
        }
        for step in &plan.steps {
            let StepKind::Loop(program) = &step.kind else { continue };
            for architecture in Architecture::DECLARED {
                let machine = PrinterMachine { multiprocessors: MULTIPROCESSORS, architecture };
                let printed = loops::sources(program, &step.aliases, machine);
                let printed =
                    printed.unwrap_or_else(|e| panic!("`{}` at {}: {e}", step.name, step.scope));
                all.extend(printed.into_iter().map(|source| (source, architecture)));
            }
        }
    }
    let mut seen = BTreeSet::new();
    all.retain(|(source, architecture)| {
        seen.insert((
            source.name.clone(),
            source.text.clone(),
            source.defines.clone(),
            *architecture,
        ))
    });
    all
}

/// Bytes that a source says it spills.
fn declared_spill(source: &KernelSource) -> u32 {
    let declared =
        source.text.lines().filter_map(|line| line.trim().strip_prefix("// spills at most "));
    declared.filter_map(|rest| rest.split(' ').next()?.parse().ok()).max().unwrap_or(0)
}

/// Resources that each source takes, in their order. All processors compile.
fn compiled(
    sources: &[(KernelSource, Architecture)],
) -> impl Iterator<Item = Result<Vec<Resources>, Error>> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let part = |first| {
        let sources = sources.iter().skip(first).step_by(threads);
        let used = sources.map(|(source, architecture)| resources(source, *architecture));
        used.collect::<Vec<_>>().into_iter()
    };
    let mut parts: Vec<_> = thread::scope(|scope| {
        let started: Vec<_> = (0..threads).map(|first| scope.spawn(move || part(first))).collect();
        started.into_iter().map(|part| part.join().expect("the compiler returns")).collect()
    });
    (0..sources.len()).map(move |at| parts[at % threads].next().expect("one for each source"))
}

fn main() -> ExitCode {
    let sources = sources();
    let (mut wrong, mut count) = (0, 0);
    println!(
        "{:<28} {:<22} {:<8} {:>9} {:>13} {:>8}",
        "source", "entry", "for", "registers", "shared bytes", "spilled"
    );
    for ((source, architecture), used) in sources.iter().zip(compiled(&sources)) {
        let used = match used {
            Ok(used) => used,
            Err(missing @ Error::Missing { .. }) => {
                testkit::require(testkit::Needs::Nvrtc, &missing);
                println!("SKIPPED: {missing}");
                return ExitCode::SUCCESS;
            }
            Err(error) => {
                println!("{error}\n{:?}\n{}", source.defines, source.text);
                wrong += 1;
                continue;
            }
        };
        for entry in used {
            count += 1;
            let undeclared = entry.spilled_bytes > declared_spill(source);
            wrong += u32::from(undeclared);
            println!(
                "{:<28} {:<22} {:<8} {:>9} {:>13} {:>8}{}",
                source.name,
                entry.entry,
                architecture.to_string(),
                entry.registers,
                entry.shared_bytes,
                entry.spilled_bytes,
                if undeclared { "  UNDECLARED" } else { "" }
            );
            if undeclared {
                println!("{:?}\n{}", source.defines, source.text);
            }
        }
    }
    println!("{count} kernels of {} sources, {wrong} of them wrong", sources.len());
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
