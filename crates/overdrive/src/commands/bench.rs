//! `overdrive bench`: one model across back ends, modes, precisions and batch sizes.

use super::eval::given;
use super::output;
use super::run::start_peers;
use crate::cli::{Bench, ModeName, Precision};
use crate::engines::{Contestants, Whose};
use crate::failure::Failure;
use crate::invoked::command_line;
use crate::model::{self, Model};
use crate::progress::Spinner;
use crate::terminal::{Volume, say, tell, volume};
use crate::{devices, text};
use overdrive::bench::clock::{Clock, SystemClock};
use overdrive::bench::exit::Exit;
use overdrive::bench::json::to_json;
use overdrive::bench::results::{Note, Results};
use overdrive::bench::rules::Rules;
use overdrive::files::Place;
use overdrive::formats::{self, Tensors};
use overdrive::ir::{Backend, DType, Mode};
use overdrive::passes::{Recipe, precision};
use overdrive::report::result_line;
use overdrive::studies::{
    Allowance, Context, Device, Entry, Journal, PEER_MODES, Parties, Peer, Probes, Progress,
    Sampling, Workload, measure,
};
use overdrive_foreign::OriginalFile;
use overdrive_process::Stop;
use std::cell::RefCell;
use std::collections::BTreeMap;

pub(crate) fn bench(arguments: &Bench, stop: &Stop) -> Result<Exit, Failure> {
    // Heeded before the folder appears, so that an interruption at any later time reports what was
    // measured.
    let _whole = stop.heed();
    let place = |folder| output::place(folder, arguments.replacing.into(), output::REPORT);
    let place = arguments.out.as_deref().map(place).transpose()?;
    let model = model::load(&arguments.model)?;
    let ids = arguments
        .text
        .as_ref()
        .map(|text| text::encode(text::tokenizer(&model)?, text))
        .transpose()?;
    let inputs =
        arguments.inputs.as_deref().map(formats::read).transpose().map_err(Failure::bad_input)?;
    let contestants = Contestants::choose(
        arguments.backends.as_deref(),
        &arguments.machine,
        &arguments.libraries,
    )?;
    // Beside other modes, one that a device lacks is a row with the reason.
    if let Some([ModeName::Graph]) = arguments.modes.as_deref() {
        contestants.own().try_for_each(|own| {
            devices::check_mode(Mode::Graph, own.backend.description(), "--modes")
        })?;
    }
    let reference = devices::reference(&arguments.machine)?;
    let clock = SystemClock::new();
    let spinner = Spinner::over(arguments.batch.len().max(1));
    let own: Vec<Device<'_>> = contestants
        .own()
        .map(|own| Device { backend: own.backend.as_ref(), threads: own.threads })
        .collect();
    let threads = devices::threads(&arguments.machine) as u32;
    let reference_device = [Device { backend: &reference, threads }];
    let measured = if own.is_empty() { &reference_device[..] } else { &own };
    let peers = start_peers(&arguments.peers, &measured[0], stop)?;
    let rules = match arguments.trials {
        Some(trials) => Rules::full().with_trials(arguments.warmup as usize, trials as usize),
        None => Rules::full(),
    };
    let modes: Option<Vec<Mode>> =
        arguments.modes.as_ref().map(|modes| modes.iter().map(|&mode| mode.into()).collect());
    let peer_modes: Option<Vec<&str>> =
        modes.as_ref().map(|modes| modes.iter().map(|m| m.name()).collect());
    let (tuning, allowance) = (RefCell::default(), Allowance::default());
    let context = Context {
        parties: Parties {
            peers: &peers,
            peer_modes: peer_modes.as_deref().unwrap_or(&PEER_MODES),
            ..Parties::alone(measured)
        },
        reference: &reference,
        tuning: &tuning,
        sampling: Sampling {
            seed: arguments.machine.seed,
            stop: stop.clone(),
            ..Sampling::new(&clock, rules, &allowance)
        },
        probes: Probes { heap: Some(&crate::out_of_memory::HEAP), ..Probes::default() },
        journal: Journal { progress: &spinner, ..Journal::silent(command_line()) },
    };
    let mut results = Results::begin(command_line(), arguments.machine.seed);
    devices::describe_all(&mut results.environment, contestants.own(), &arguments.machine);
    let described =
        |peer: &Peer| format!("{} {} on {}", peer.name(), peer.version(), peer.device());
    for text in contestants.described().into_iter().chain(peers.iter().map(described)) {
        results.notes.push(Note { study: "bench".to_owned(), text });
    }
    spinner.study("bench");
    let batches: Vec<Option<u32>> = match arguments.batch.as_slice() {
        [] => vec![None],
        sizes => sizes.iter().map(|&n| Some(n)).collect(),
    };
    for batch in batches {
        let batch = batch.map(|n| model.batch(n)).transpose()?;
        let mut sizes: BTreeMap<String, usize> =
            arguments.shapes.iter().cloned().chain(batch).collect();
        if let Some(ids) = ids.as_ref().filter(|_| model.has_dimension("tokens")) {
            sizes.insert("tokens".to_owned(), ids.len());
        }
        let given = (inputs.as_ref(), ids.as_deref());
        let ReadModel { workload, load_ns, original } = read(&model, sizes, given, &clock)?;
        spinner.next();
        spinner.workload(&workload.key.to_string());
        let gpu = contestants
            .own()
            .find(|own| own.described.is_some())
            .map(|own| own.backend.description());
        let started = contestants.start(original.as_ref(), (reference.description(), gpu))?;
        let devices = contestants.devices(&started);
        let asked = (modes.as_deref(), load_ns);
        let entries = entries(&arguments.dtype, &workload, &devices, asked, &mut results.notes)?;
        results.records.extend(measure(&context, "bench", &entries, &mut []));
        if context.sampling.stop.is_requested() {
            break;
        }
    }
    spinner.finish();
    told(arguments, place.as_ref(), &results, stop)
}

/// A model at given sizes.
struct ReadModel {
    workload: Workload,
    /// Time to read its file.
    load_ns: Option<u64>,
    /// Its file, for engines that read it themselves.
    original: Option<OriginalFile>,
}

/// Reads the model at these sizes, or at those of the inputs that are given: tensors, or ids of
/// tokens.
fn read(
    model: &Model,
    mut sizes: BTreeMap<String, usize>,
    (inputs, ids): (Option<&Tensors>, Option<&[u32]>),
    clock: &SystemClock,
) -> Result<ReadModel, Failure> {
    let start = clock.now_ns();
    let mut workload = match inputs {
        Some(inputs) => model.workload_of(inputs)?,
        None => model.bind(&sizes)?,
    };
    if inputs.is_some() {
        let named = workload.key.dimensions.iter();
        sizes = named.map(|(name, &size)| (name.clone(), size as usize)).collect();
    }
    let load_ns = model.file().map(|_| clock.now_ns() - start);
    let original = model.file().map(|path| OriginalFile {
        path: path.to_owned(),
        sizes,
        graph: workload.graph.clone(),
    });
    if let Some(ids) = ids {
        workload.given = text::inputs(&workload.graph, ids)?;
    }
    if let Some(inputs) = inputs {
        let given = given(&workload.graph, inputs)?;
        let names = workload.graph.inputs().iter().map(|port| port.name.clone());
        workload.given = names.zip(given).collect();
    }
    Ok(ReadModel { workload, load_ns, original })
}

/// The workload on every device, in every mode and number format; modes that a device lacks are
/// noted.
fn entries<'a>(
    dtypes: &[Precision],
    workload: &'a Workload,
    devices: &'a [(Whose, Device<'a>)],
    (modes, load_ns): (Option<&[Mode]>, Option<u64>),
    notes: &mut Vec<Note>,
) -> Result<Vec<Entry<'a>>, Failure> {
    let mut entries = Vec::new();
    for &dtype in dtypes {
        let dtype = DType::from(dtype);
        let graph = precision(&workload.graph, &Recipe { contractions: dtype })
            .map_err(Failure::harness)?;
        for (whose, device) in devices {
            let [modes, absent] = whose.modes(modes);
            if !absent.is_empty() {
                let names: Vec<&str> = absent.iter().map(|mode| mode.name()).collect();
                let text = format!("{}: no mode {} there", device.backend.name(), names.join(", "));
                let note = Note { study: "bench".to_owned(), text };
                if !notes.contains(&note) {
                    notes.push(note);
                }
            }
            let load_ns = load_ns.filter(|_| *whose == Whose::Ours);
            for mode in modes {
                let entry = Entry::plain(workload, device, mode);
                entries.push(Entry { dtype, graph: graph.clone(), load_ns, ..entry });
            }
        }
    }
    Ok(entries)
}

/// Writes and tells the results of a session, whole or interrupted.
fn told(
    arguments: &Bench,
    place: Option<&Place>,
    results: &Results,
    stop: &Stop,
) -> Result<Exit, Failure> {
    if stop.is_requested() && !output::has_measurements(results) {
        return Err(Failure::interrupted("nothing was measured by then"));
    }
    let written = place.map_or(Ok(()), |place| output::write(place, results));
    if arguments.json {
        say!("{}", to_json(results))?;
    } else {
        output::tell(results)?;
    }
    written?;
    match place {
        _ if arguments.json => {}
        Some(place) => output::lies_in(place.path())?,
        None if volume() == Volume::Quiet => say!("{}", result_line(results))?,
        None => tell!("report: none, -o DIR keeps one")?,
    }
    if stop.is_requested() {
        let place = arguments
            .out
            .as_ref()
            .map_or("shown above".to_owned(), |f| format!("in `{}`", f.display()));
        return Err(Failure::interrupted(format!("what was measured by then is {place}")));
    }
    Ok(results.exit())
}
