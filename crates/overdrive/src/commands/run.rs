//! `overdrive run`: the main job.

mod brought;

use super::{output, resume};
use crate::cli::Run;
use crate::devices::{self, ForRanks, Opened};
use crate::energy;
use crate::engines::Contestants;
use crate::failure::{Failure, unknown};
use crate::invoked::{command_line, command_with, quoted};
use crate::progress::Spinner;
use crate::terminal::say;
use brought::Brought;
use overdrive::bench::clock::SystemClock;
use overdrive::bench::exit::Exit;
use overdrive::bench::harness;
use overdrive::bench::results::{Note, Results, Variant};
use overdrive::bench::rules::Rules;
use overdrive::files::{Existing, Place};
use overdrive::ir::Backend;
use overdrive::passes::{MODES, QuantizationMode};
use overdrive::report::markdown;
use overdrive::studies::{
    Allowance, CeilingWork, Context, Device, EnergyProbes, Journal, Matmul, MatmulPeer, OpenRank,
    PEER_MODES, Parties, Peer, Probes, Progress, RankDevices, RanksMeter, STUDIES, Sampling, Study,
    ceilings,
};
use overdrive::train::FORMATS;
use overdrive_process::Stop;
use overdrive_process::python::interpreter;
use std::cell::RefCell;
use std::path::Path;

/// Studies whose variants are number formats of a training step.
const TRAINING: [&str; 2] = ["training", "memory"];

/// Nanoseconds that an engine or framework may spend on compiling and first calls, in a study with
/// `--quick` and without named cases. XLA takes 23 s for a transformer on a GPU.
const GUEST_NS: u64 = 30_000_000_000;

pub(crate) fn run(arguments: &Run, stop: &Stop) -> Result<Exit, Failure> {
    let brought =
        arguments.model.as_deref().map(|name| Brought::load(name, arguments)).transpose()?;
    let job = match &brought {
        Some(brought) => Job::Model(brought, Brought::chosen(&arguments.studies)?),
        None => Job::Studies(chosen(&arguments.studies)?),
    };
    let opened = devices::open_all(&arguments.machine)?;
    let reference = devices::reference(&arguments.machine)?;
    let mut results = Results::begin(command_line(), arguments.machine.seed);
    devices::describe_all(&mut results.environment, &opened, &arguments.machine);
    let earlier =
        arguments.resume.as_deref().map(|folder| resume::earlier(folder, &results)).transpose()?;
    let folder = arguments.out.as_deref().or(arguments.resume.as_deref());
    // A resumed run replaces its own files.
    let existing =
        if arguments.resume.is_some() { Existing::Replace } else { arguments.replacing.into() };
    let place = output::place_or_new(folder, existing, (&results, output::REPORT))?;
    let _whole = stop.heed();

    let devices: Vec<Device<'_>> =
        opened.iter().map(|d| Device { backend: d.backend.as_ref(), threads: d.threads }).collect();
    let products = products(&opened);
    let matmul_peers: Vec<MatmulPeer<'_>> = products
        .iter()
        .map(|(name, threads, run)| MatmulPeer { name, threads: *threads, run: run.as_ref() })
        .collect();
    let for_ranks = ForRanks::beside(&opened[0], &arguments.machine, &arguments.ranks)?;
    let open: &OpenRank<'_> = &|rank| for_ranks.as_ref().expect("there are ranks").open(rank);
    let meter: &RanksMeter<'_> = &|ranks| for_ranks.as_ref()?.meter(ranks);
    let ranks = for_ranks.as_ref().map(|of| RankDevices { counts: &of.counts, open, meter });
    let contestants = Contestants::beside(&opened[0], &arguments.machine);
    let gpu = opened[0].described.as_ref().map(|_| opened[0].backend.description());
    let original = brought.as_ref().and_then(Brought::original);
    let started = contestants.start(original.as_ref(), (reference.description(), gpu))?;
    let engines: Vec<Device<'_>> =
        contestants.devices(&started).into_iter().map(|(_, device)| device).collect();
    let peers = start_peers(&arguments.peers, &devices[0], stop)?;
    results.notes.extend(who_takes_part(&contestants, &peers));
    let clock = SystemClock::new();
    let spinner = if arguments.ci { Spinner::silent() } else { Spinner::over(job.studies().len()) };
    let tuning = RefCell::default();
    let allowance = Allowance::of(is_limited(arguments).then_some(GUEST_NS));
    let probes = if arguments.quick { EnergyProbes::new() } else { energy::probes(&clock) };
    // A failed write is reported when the run ends.
    let keep = |results: &Results| drop(output::write_results(&place, results));
    let mut context = Context {
        parties: Parties {
            devices: &devices,
            engines: &engines,
            matmul_peers: &matmul_peers,
            peers: &peers,
            peer_modes: &PEER_MODES,
            ranks,
        },
        reference: &reference,
        tuning: &tuning,
        sampling: Sampling {
            seed: arguments.machine.seed,
            stop: stop.clone(),
            ..Sampling::new(
                &clock,
                if arguments.quick { Rules::quick() } else { Rules::full() },
                &allowance,
            )
        },
        probes: Probes {
            ceilings: vec![],
            heap: Some(&crate::out_of_memory::HEAP),
            energy: Some(&probes),
        },
        journal: Journal {
            command: rerun(arguments),
            progress: &spinner,
            only: &arguments.case,
            earlier: earlier.as_ref().map_or(&[], |earlier| &earlier.records),
            keep: &keep,
        },
    };
    results.harness_overhead = harness::overhead(&context.sampling.runner()).ok();
    spinner.study("ceilings");
    let measured = || ceilings(&context, &CeilingWork::ALL);
    context.probes.ceilings = earlier.as_ref().map_or_else(measured, |e| e.ceilings.clone());
    results.ceilings.clone_from(&context.probes.ceilings);
    run_studies(&job, arguments, (&mut context, &mut results), &spinner);
    spinner.finish();
    results.variants = variants(&results, arguments);
    told(arguments, &place, &results, stop)
}

/// Products of other people's libraries, which run on the processor, by the threads that they use.
fn products(opened: &[Opened]) -> Vec<(&'static str, u32, Box<Matmul>)> {
    let processors = opened.iter().filter(|device| device.described.is_none());
    let thread_counts: Vec<u32> = processors.map(|device| device.threads).collect();
    overdrive_foreign::MATMULS
        .iter()
        .flat_map(|&(name, matmul)| thread_counts.iter().map(move |&n| (name, n, matmul)))
        .map(|(name, n, matmul)| {
            let call = move |a: &[f32], b: &[f32], c: &mut [f32], shape: [usize; 3]| {
                matmul(n as usize, a, b, c, shape)
            };
            let call: Box<Matmul> = Box::new(call);
            (name, n, call)
        })
        .collect()
}

/// Notes on the engines and frameworks that are measured beside ours.
fn who_takes_part(contestants: &Contestants, peers: &[Peer]) -> Vec<Note> {
    let note = |study: &str, text| Note { study: study.to_owned(), text };
    let engines = contestants.described().into_iter().map(|text| note("compilation", text));
    let frameworks = peers.iter().map(|peer| {
        let (name, version, device) = (peer.name(), peer.version(), peer.device());
        note("peers", format!("{name} {version} on {device} beside ours, by --peers"))
    });
    engines.chain(frameworks).collect()
}

/// Whether the run has a share of time for each study. Cases that were named are taken, however
/// long they take, by whoever takes part.
fn is_limited(arguments: &Run) -> bool {
    arguments.quick && arguments.case.is_empty()
}

/// Runs the studies of a job one after the other, until a request to end.
fn run_studies(
    job: &Job<'_>,
    arguments: &Run,
    (context, results): (&mut Context<'_>, &mut Results),
    spinner: &Spinner,
) {
    for (name, quick_seconds) in job.studies() {
        if context.sampling.stop.is_requested() {
            let text = "interrupted: what had been measured by then is kept".to_owned();
            results.notes.push(Note { study: name.to_owned(), text });
            break;
        }
        spinner.next();
        spinner.study(name);
        let deadline_ns = || context.sampling.clock.now_ns() + quick_seconds * 1_000_000_000;
        context.sampling.deadline_ns = is_limited(arguments).then(deadline_ns);
        context.sampling.allowance.renew();
        match job {
            Job::Studies(studies) => {
                let study = studies.iter().find(|study| study.name() == name);
                study.expect("its own name").run(context, results);
            }
            Job::Model(brought, _) => brought.study(name, arguments, (&*context, &mut *results)),
        }
    }
}

/// Writes and tells the results of a run, whole or interrupted.
fn told(arguments: &Run, place: &Place, results: &Results, stop: &Stop) -> Result<Exit, Failure> {
    if stop.is_requested() && !output::has_measurements(results) {
        return Err(Failure::interrupted("nothing was measured by then"));
    }
    let folder = place.path();
    let written = output::write(place, results);
    if arguments.ci {
        say!("{}", markdown(results))?;
    } else {
        output::tell(results)?;
    }
    written?;
    if !arguments.ci {
        output::lies_in(folder)?;
    }
    if stop.is_requested() {
        let place = folder.display().to_string();
        let again =
            command_with(&["-o", "--out", "--resume"], &format!("--resume {}", quoted(&place)));
        return Err(Failure::interrupted(format!(
            "what was measured by then is in `{place}`; go on with: {again}"
        )));
    }
    if results.records.is_empty() && !arguments.case.is_empty() {
        return Err(Failure::harness(unmatched(&arguments.case)));
    }
    Ok(results.exit())
}

/// Descriptions of the variants among the results: number formats of training steps, and quantized
/// models with the commands that make them of the user's.
fn variants(results: &Results, arguments: &Run) -> Vec<Variant> {
    let found = |name: &str, of_training: bool| {
        results.records.iter().map(|record| &record.case).any(|case| {
            let trains = TRAINING.contains(&case.study.as_str());
            trains == of_training && case.configuration.variant.as_deref() == Some(name)
        })
    };
    let quantized = |mode: &QuantizationMode| Variant {
        name: mode.name.to_owned(),
        about: mode.summary.to_owned(),
        made_by: arguments.model.as_ref().and_then(|model| {
            let stem = Path::new(model).file_stem()?.to_string_lossy();
            let (from, to) = (quoted(model), quoted(&format!("{stem}-{}", mode.name)));
            let data = arguments.data.as_ref().map(|data| format!(" --data {}", quoted(data)));
            let data = data.unwrap_or_default();
            Some(format!("overdrive quantize {from} --mode {}{data} -o {to}", mode.name))
        }),
    };
    let modes = MODES.iter().filter(|mode| found(mode.name, false));
    let mut variants: Vec<Variant> = modes.map(quantized).collect();
    for formats in FORMATS.iter().filter(|formats| found(formats.name, true)) {
        let (name, about) = (formats.name.to_owned(), formats.help.to_owned());
        match variants.iter_mut().find(|mode| mode.name == name) {
            Some(mode) => mode.about += &format!("; in training: {about}"),
            None => variants.push(Variant { name, about, made_by: None }),
        }
    }
    variants
}

/// The work of a run.
enum Job<'a> {
    /// Studies of built-in models.
    Studies(Vec<&'static dyn Study>),
    /// Those of the user's model that have these names.
    Model(&'a Brought, Vec<&'static str>),
}

impl Job<'_> {
    /// Names of the studies, with the share of the time that `--quick` has, in seconds.
    fn studies(&self) -> Vec<(&'static str, u64)> {
        match self {
            Self::Studies(studies) => {
                studies.iter().map(|s| (s.name(), s.quick_seconds())).collect()
            }
            Self::Model(_, names) => {
                names.iter().map(|name| (*name, brought::QUICK_SECONDS)).collect()
            }
        }
    }
}

/// Why nothing was measured although cases were named.
fn unmatched(cases: &[String]) -> String {
    let parts: Vec<String> = cases.iter().map(|part| format!("`{part}`")).collect();
    format!(
        "no case has {} in its name; a name is like `kernels: matmul k=512,m=512,n=512: cpu \
         compile f32 t2`",
        parts.join(" or ")
    )
}

/// The studies named, or all of them.
pub(super) fn chosen(names: &[String]) -> Result<Vec<&'static dyn Study>, Failure> {
    if names.is_empty() {
        return Ok(STUDIES.to_vec());
    }
    names
        .iter()
        .map(|name| {
            STUDIES.iter().copied().find(|study| study.name() == name).ok_or_else(|| {
                let known: Vec<&str> = STUDIES.iter().map(|study| study.name()).collect();
                Failure::bad_input(unknown("study", name, &known))
            })
        })
        .collect()
}

/// Other frameworks on the device that figures are about.
pub(super) fn start_peers(
    names: &[String],
    device: &Device<'_>,
    stop: &Stop,
) -> Result<Vec<Peer>, Failure> {
    let python = interpreter();
    let start =
        |name: &String| Peer::python(name, &python, (device.backend.name(), device.threads), stop);
    names
        .iter()
        .map(|name| start(name).map_err(|failure| Failure::bad_input(failure.reason)))
        .collect()
}

/// The command that reruns one study, up to its name.
fn rerun(arguments: &Run) -> String {
    let quick = if arguments.quick { " --quick" } else { "" };
    let peers = match arguments.peers.join(",") {
        none if none.is_empty() => none,
        names => format!(" --peers={names}"),
    };
    let ranks: Vec<String> = arguments.ranks.iter().map(u32::to_string).collect();
    let ranks = match ranks.join(",") {
        none if none.is_empty() => none,
        numbers => format!(" --ranks {numbers}"),
    };
    let machine = &arguments.machine;
    let threads = machine.threads.map_or(String::new(), |n| format!(" --threads {n}"));
    let device = if machine.device == "auto" {
        String::new()
    } else {
        format!(" --device {}", machine.device)
    };
    let cases: String =
        arguments.case.iter().map(|part| format!(" --case {}", quoted(part))).collect();
    let given = [("--model", &arguments.model), ("--data", &arguments.data)];
    let given: String = given
        .iter()
        .filter_map(|(option, value)| Some(format!(" {option} {}", quoted(value.as_ref()?))))
        .chain(
            arguments
                .shapes
                .iter()
                .map(|(name, size)| format!(" --shape {}", quoted(&format!("{name}={size}")))),
        )
        .collect();
    format!(
        "overdrive run{given}{quick}{peers}{ranks}{cases}{device}{threads} --seed {}",
        machine.seed
    )
}
