//! `overdrive export`: the model for other engines, and for a server.

use crate::cli::Export;
use crate::failure::Failure;
use crate::freeing::Freed;
use crate::model::{self, Model};
use crate::terminal::{note, say};
use overdrive::bench::exit::Exit;
use overdrive::files::{Place, PlaceRequest};
use overdrive::formats::onnx::{Dialect, WeightPlace};
use overdrive::formats::triton::ServedModel;
use overdrive::formats::{self, onnx, stablehlo, triton};
use overdrive::ir::{Dim, Graph, Port, Shape, Tensor, TensorType};
use overdrive::studies::Workload;
use overdrive_process::Stop;
use std::collections::BTreeMap;
use std::path::Path;

pub(crate) fn export(arguments: &Export, stop: &Stop) -> Result<Exit, Failure> {
    let inputs: Vec<&Path> =
        [Path::new(&arguments.model)].into_iter().chain(arguments.inputs.as_deref()).collect();
    let file = |path: Option<&Path>, option| {
        let claim = |path| Place::file(request((arguments, inputs.as_slice()), path, option));
        path.map(claim).transpose().map_err(Failure::bad_input)
    };
    let onnx = file(arguments.onnx.as_deref(), "--onnx")?;
    let stablehlo = file(arguments.stablehlo.as_deref(), "--stablehlo")?;
    let repository = |path| {
        Place::folder(request((arguments, inputs.as_slice()), path, "--triton"), triton::CONTENTS)
    };
    let triton =
        arguments.triton.as_deref().map(repository).transpose().map_err(Failure::bad_input)?;
    let model = model::load(&arguments.model)?;
    let dialect = if arguments.standard_ops { Dialect::Standard } else { Dialect::Microsoft };
    let sizes: BTreeMap<String, usize> = arguments.shapes.iter().cloned().collect();
    let graph = || -> Result<Graph, Failure> {
        match &arguments.inputs {
            Some(inputs) => model.fitting(&formats::read(inputs).map_err(Failure::bad_input)?),
            None => Ok(model.bind(&sizes)?.graph),
        }
    };
    if let Some(place) = onnx {
        let file = place.path().to_owned();
        let (made, said) = match &arguments.inputs {
            Some(_) => (
                onnx::made(&file, &graph()?, dialect).map_err(Failure::bad_input)?,
                "sizes of the inputs".into(),
            ),
            None => {
                let freed = freed((&model, dialect), &file, &sizes)?;
                freed.note();
                let said = freed.said();
                (freed.file, said)
            }
        };
        let weights =
            if arguments.external_data { WeightPlace::Beside } else { WeightPlace::Within };
        let _whole = stop.heed();
        place.fill(|file| made.write(file, weights)).map_err(Failure::bad_input)?;
        say!("{} as ONNX, {said}: {}", model.name()?, file.display())?;
    }
    if let Some(place) = stablehlo {
        let (graph, file) = (graph()?, place.path().to_owned());
        let _whole = stop.heed();
        place.fill(|file| stablehlo::write(file, &graph)).map_err(Failure::bad_input)?;
        say!(
            "{} as StableHLO, states as arguments after the inputs: {}",
            graph.name(),
            file.display()
        )?;
    }
    if let Some(place) = triton {
        let (served, folder) =
            (served((&model, dialect), &sizes, &model.bind(&sizes)?)?, place.path().to_owned());
        let _whole = stop.heed();
        place.fill(|folder| triton::write(folder, &served)).map_err(Failure::bad_input)?;
        let batch = served
            .max_batch
            .map_or("a fixed batch".to_owned(), |most| format!("batches of up to {most}"));
        say!("{} for Triton, {batch}: {}", served.name, folder.display())?;
    }
    Ok(Exit::Fine)
}

/// A place to export to.
fn request<'a>(
    (arguments, inputs): (&Export, &'a [&'a Path]),
    path: &'a Path,
    option: &'static str,
) -> PlaceRequest<'a> {
    PlaceRequest { path, option, existing: arguments.replacing.into(), inputs }
}

/// The file in which all dimensions without a size are free, as far as they can be.
fn freed(
    (model, dialect): (&Model, Dialect),
    path: &Path,
    sizes: &BTreeMap<String, usize>,
) -> Result<Freed, Failure> {
    let dimensions = model.dimensions()?;
    model.built(|build| Freed::encode(path, &dimensions, sizes, (build, dialect)))?
}

/// The model for a server: a file for any batch, where the model has a dimension for it.
pub(super) fn served(
    (model, dialect): (&Model, Dialect),
    sizes: &BTreeMap<String, usize>,
    workload: &Workload,
) -> Result<triton::Served, Failure> {
    let graph = &workload.graph;
    let name = workload.key.name.replace(|c: char| !c.is_alphanumeric() && !"_-.".contains(c), "_");
    let path = Path::new(&name);
    let warm_up =
        graph.inputs().iter().map(|port| port.name.clone()).zip(workload.inputs(1)).collect();
    let fixed = |file: ServedModel| triton::Served {
        name: name.clone(),
        model: file,
        inputs: ports(graph, graph.inputs()),
        outputs: ports(graph, graph.outputs()),
        max_batch: None,
        warm_up,
    };
    let Some(batch) = model.batch_dimension()? else {
        note!("note: no dimension of the model is its batch, so the server does not batch");
        return Ok(fixed(file_of((model, dialect), path, graph)?));
    };
    let most = first_size(graph);
    // The size of the batch is the largest that the server collects: in the file it is free.
    let sizes: BTreeMap<String, usize> = sizes
        .iter()
        .filter(|(name, _)| **name != batch)
        .map(|(name, &size)| (name.clone(), size))
        .collect();
    let freed = freed((model, dialect), path, &sizes)?;
    freed.note();
    let first =
        |(_, ty): &(String, TensorType)| ty.shape.0.first() == Some(&Dim::from(batch.as_str()));
    if !freed.inputs.iter().chain(&freed.outputs).all(first) {
        note!("note: not every output has a row for each sample, so the server does not batch");
        return Ok(fixed(file_of((model, dialect), path, graph)?));
    }
    let sample = |ty: &TensorType| TensorType::new(ty.dtype, Shape(ty.shape.0[1..].to_vec()));
    let of = |ports: &[(String, TensorType)]| -> Vec<(String, TensorType)> {
        ports.iter().map(|(name, ty)| (name.clone(), sample(ty))).collect()
    };
    let one = model
        .bind(&sizes.iter().map(|(k, &v)| (k.clone(), v)).chain([(batch.clone(), 1)]).collect())?;
    let warm_up = one.graph.inputs().iter().zip(one.inputs(1)).map(|(port, tensor)| {
        let tensor = Tensor::from_bytes(sample(tensor.ty()), tensor.bytes());
        (port.name.clone(), tensor.expect("one row has the bytes of a sample"))
    });
    let file = match model.file() {
        Some(file) => ServedModel::Copied(file.to_owned()),
        None => ServedModel::Made(Box::new(freed.file)),
    };
    Ok(triton::Served {
        inputs: of(&freed.inputs),
        outputs: of(&freed.outputs),
        max_batch: Some(most),
        warm_up: warm_up.collect(),
        name,
        model: file,
    })
}

/// The user's own file, or ours for a fixed batch.
fn file_of(
    (model, dialect): (&Model, Dialect),
    path: &Path,
    graph: &Graph,
) -> Result<ServedModel, Failure> {
    match model.file() {
        Some(file) => Ok(ServedModel::Copied(file.to_owned())),
        None => {
            let made = onnx::made(path, graph, dialect).map_err(Failure::bad_input)?;
            Ok(ServedModel::Made(Box::new(made)))
        }
    }
}

fn first_size(graph: &Graph) -> usize {
    graph
        .inputs()
        .first()
        .and_then(|port| graph.ty(port.value).sizes().first().copied())
        .unwrap_or(1)
}

fn ports(graph: &Graph, ports: &[Port]) -> Vec<(String, TensorType)> {
    ports.iter().map(|port| (port.name.clone(), graph.ty(port.value).clone())).collect()
}
