//! `overdrive eval`: one forward pass on the user's own inputs.

mod expectation;

use crate::asked_attention;
use crate::cli::Eval;
use crate::devices;
use crate::failure::Failure;
use crate::model::{self, input};
use crate::terminal::{note, say};
use overdrive::bench::deviation::Tolerance;
use overdrive::bench::exit::Exit;
use overdrive::files::{Place, PlaceRequest};
use overdrive::formats::{self, Tensors};
use overdrive::ir::plan::StepKind;
use overdrive::ir::{Graph, Mode, Plan, Port, State, Tensor, TensorType, Tuning};
use overdrive::passes::Indices;
use overdrive_process::Stop;
use std::collections::BTreeSet;
use std::path::Path;

pub(crate) fn eval(arguments: &Eval, stop: &Stop) -> Result<Exit, Failure> {
    let place = arguments.out.as_deref().map(|path| place(arguments, path)).transpose()?;
    let model = model::load(&arguments.model)?;
    let inputs = formats::read(&arguments.inputs).map_err(Failure::bad_input)?;
    let expected =
        arguments.expect.as_deref().map(formats::read).transpose().map_err(Failure::bad_input)?;
    let graph = model.fitting(&inputs)?;
    let graph = asked_attention::applied(arguments.attention, (&arguments.model, &model), graph)?;
    if graph.inputs().is_empty() {
        note!("note: no input is left, so the outputs are constants");
    }
    if let (Some(expected), Some(file)) = (&expected, &arguments.expect) {
        check_expected(&graph, expected, file)?;
    }
    // All that does not fit is said before anything is built: weights may be most of the memory.
    let given = given(&graph, &inputs)?;
    let parameters = arguments.parameters.as_deref().map(formats::read).transpose();
    let parameters = parameters.map_err(Failure::bad_input)?;
    if let Some(parameters) = &parameters {
        replace_parameters(&graph, parameters, |_, _| Ok(()))?;
    }
    let incomparable =
        expected.as_ref().map_or_else(Vec::new, |expected| incomparable(&graph, expected));
    if !incomparable.is_empty() {
        incomparable.iter().try_for_each(|line| say!("{line}: DISAGREES"))?;
        note!("note: the model was not run, since no values could agree");
        return Ok(Exit::WrongOutputs);
    }
    let opened = devices::open(&arguments.machine)?;
    let backend = opened.backend.as_ref();
    let mode: Mode = arguments.mode.into();
    devices::check_mode(mode, backend.description(), "--mode")?;
    let mut session = backend
        .compile(&graph, mode, &Tuning::default())
        .map_err(devices::failure)?
        .session()
        .map_err(devices::failure)?;
    note_host_steps(session.plan());

    let mut state = State::initial(&graph, backend).map_err(devices::failure)?;
    if let Some(parameters) = &parameters {
        replace_parameters(&graph, parameters, |name, tensor| {
            let buffer = backend.upload(tensor).map_err(devices::failure)?;
            state.buffers.insert(name.to_owned(), buffer);
            Ok(())
        })?;
    }
    let upload = |tensor: &Tensor| backend.upload(tensor).map_err(devices::failure);
    let buffers = given.iter().map(upload).collect::<Result<Vec<_>, _>>()?;
    let types = graph.outputs().iter().map(|o| graph.ty(o.value));
    let mut results = types
        .map(|ty| backend.output(ty))
        .collect::<Result<Vec<_>, _>>()
        .map_err(devices::failure)?;
    let pending = session.run(state.with(&buffers, &mut results)).map_err(devices::failure)?;
    pending.wait().map_err(devices::failure)?;
    let mut outputs = Tensors::new();
    for (port, buffer) in graph.outputs().iter().zip(&results) {
        outputs.insert(port.name.clone(), backend.download(buffer).map_err(devices::failure)?);
    }
    for (name, tensor) in &outputs {
        say!("{name}: {}", tensor.ty())?;
    }
    warn_of_not_finite(&outputs);
    if let Some(place) = place {
        let _whole = stop.heed();
        place.fill(|file| formats::write(file, &outputs)).map_err(Failure::bad_input)?;
    }
    match expected {
        Some(expected) => compare(&outputs, &expected, arguments),
        None => Ok(Exit::Fine),
    }
}

/// Claims the place of the outputs.
fn place(arguments: &Eval, path: &Path) -> Result<Place, Failure> {
    formats::check_name(path).map_err(Failure::bad_input)?;
    let mut inputs = vec![Path::new(&arguments.model), arguments.inputs.as_path()];
    inputs.extend(arguments.parameters.as_deref().into_iter().chain(arguments.expect.as_deref()));
    let request =
        PlaceRequest { path, option: "-o", existing: arguments.replacing.into(), inputs: &inputs };
    Place::file(request).map_err(Failure::bad_input)
}

/// Says which ops run in the slow reference for want of a kernel: whoever measures them should
/// know.
fn note_host_steps(plan: &Plan) {
    let host = plan.steps.iter().filter(|step| matches!(step.kind, StepKind::Host(_)));
    let names: BTreeSet<&str> = host.map(|step| step.name.as_str()).collect();
    if !names.is_empty() {
        let list: Vec<&str> = names.into_iter().collect();
        note!(
            "note: the f64 reference runs {} on the host: the device has no kernel",
            list.join(", ")
        );
    }
}

/// The graph's inputs in their order, of exactly its types, with indices that exist.
pub(crate) fn given(graph: &Graph, inputs: &Tensors) -> Result<Vec<Tensor>, Failure> {
    let matching = |port: &Port| matching(inputs, &port.name, graph.ty(port.value));
    let given = graph.inputs().iter().map(matching).collect::<Result<Vec<_>, _>>()?;
    Indices::of(graph)
        .map_or(Ok(()), |indices| indices.check(&given))
        .map_err(Failure::bad_input)?;
    Ok(given)
}

/// The tensor of this name, which must have exactly this type.
fn matching(tensors: &Tensors, name: &str, ty: &TensorType) -> Result<Tensor, Failure> {
    let tensor = input(tensors, name, ty)?;
    if tensor.ty() == ty {
        return Ok(tensor.clone());
    }
    let text = format!(
        "input `{name}`: expected {ty}, found {}; convert it, nothing is cast silently",
        tensor.ty()
    );
    Err(Failure::bad_input(text))
}

/// Hands each state its tensor from the file; errs with everything that is missing, unexpected or
/// of another type.
fn replace_parameters(
    graph: &Graph,
    parameters: &Tensors,
    mut put: impl FnMut(&str, &Tensor) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut problems = Vec::new();
    for state in graph.states() {
        let ty = graph.ty(state.value);
        match parameters.get(&state.name) {
            None => problems.push(format!("`{}` of {ty} is missing", state.name)),
            Some(tensor) if tensor.ty() != ty => {
                problems.push(format!("`{}`: expected {ty}, found {}", state.name, tensor.ty()));
            }
            Some(tensor) => put(&state.name, tensor)?,
        }
    }
    let known = |name: &&String| graph.states().iter().any(|s| s.name == **name);
    problems.extend(
        parameters
            .keys()
            .filter(|name| !known(name))
            .map(|name| format!("`{name}` is not a parameter")),
    );
    if problems.is_empty() {
        return Ok(());
    }
    Err(Failure::bad_input(format!(
        "the parameters do not fit `{}`: {}",
        graph.name(),
        problems.join("; ")
    )))
}

/// Errs if the file expects outputs that the model does not have, or expects none: comparing
/// nothing would agree.
fn check_expected(graph: &Graph, expected: &Tensors, file: &Path) -> Result<(), Failure> {
    let names: Vec<&str> = graph.outputs().iter().map(|port| port.name.as_str()).collect();
    let (file, given) = (file.display(), names.join(", "));
    if expected.is_empty() {
        return Err(Failure::bad_input(format!(
            "{file}: expected some of the outputs {given}, found none"
        )));
    }
    match expected.keys().find(|name| !names.contains(&name.as_str())) {
        Some(name) => {
            Err(Failure::bad_input(format!("{file} expects `{name}`, the model gives {given}")))
        }
        None => Ok(()),
    }
}

/// Outputs that no values could make as expected, with the reason.
fn incomparable(graph: &Graph, expected: &Tensors) -> Vec<String> {
    let ports = graph.outputs().iter();
    let found = ports.filter_map(|port| {
        let reason =
            expectation::incomparable(graph.ty(port.value), expected.get(&port.name)?.ty())?;
        Some(format!("{}: {reason}", port.name))
    });
    found.collect()
}

/// Compares what [`check_expected`] and [`incomparable`] let pass.
fn compare(outputs: &Tensors, expected: &Tensors, arguments: &Eval) -> Result<Exit, Failure> {
    let limit = Tolerance::of_elements(arguments.rtol, arguments.atol);
    let mut all_agree = true;
    for (name, reference) in expected {
        let (agrees, text) = expectation::verdict(&outputs[name], reference, limit);
        say!("{name}: {text}: {}", if agrees { "agrees" } else { "DISAGREES" })?;
        all_agree &= agrees;
    }
    Ok(if all_agree { Exit::Fine } else { Exit::WrongOutputs })
}

/// Warns of outputs that are no numbers: whoever reads a file of them later does not see where they
/// began.
fn warn_of_not_finite(outputs: &Tensors) {
    for (name, tensor) in outputs.iter().filter(|(_, tensor)| tensor.ty().dtype.is_float()) {
        let values = tensor.to_f64();
        let count = |is: fn(f64) -> bool| values.iter().filter(|x| is(**x)).count();
        let (nans, infinities) = (count(f64::is_nan), count(f64::is_infinite));
        if nans + infinities > 0 {
            let all = values.len();
            note!(
                "warning: output `{name}`: {nans} of {all} values are NaN, {infinities} infinite"
            );
        }
    }
}
