//! Sources of samples: a data set with labels, a text, the user's inputs, or random ones.

use super::apart::Apart;
use super::judged::{Asked, Judging, More, Samples, judged_by_labels};
use super::text;
use crate::cli::MetricName;
use crate::failure::Failure;
use crate::terminal::note;
use overdrive::formats::{self, Tensors};
use overdrive::ir::{Backend, Dim, Tensor, TensorType};
use overdrive::passes::Indices;
use overdrive::studies::pretrained::{ModelTask, Pretrained};
use overdrive::studies::quantization::Judge;
use overdrive::studies::{Template, Workload};
use overdrive::train::data::{Reading, open_as};
use std::collections::BTreeMap;
use std::path::Path;

/// Seeds of random batches that choose begin this far after those that calibrate. Those of batches
/// that judge begin as far again: further than `--batches` reaches.
const APART: u64 = 1 << 32;
/// Batches that `--batches` allows.
const MOST_BATCHES: u32 = 1024;

/// The samples that the command line asks for, in batches of the template's own size.
pub(in crate::commands) fn samples<'a>(
    asked: Asked<'_>,
    (backend, template): (&'a dyn Backend, &'a Template),
    published: Option<&Pretrained>,
) -> Result<Samples<'a>, Failure> {
    let data = asked.data;
    match published {
        Some(model) if model.architecture.task() == ModelTask::Other => of_other(model, data)?,
        Some(model) if model.tokenizer.is_some() && !data.is_some_and(holds_tensors) => {
            return text::samples(asked, (backend, template), model);
        }
        Some(model) if data.is_some_and(|data| !holds_tensors(data)) => {
            return Err(Failure::bad_input(format!(
                "--data: `{}` has no tokenizer.json to read a text with: put it into the folder, \
                 or give token ids by \
                 name (.npz)",
                model.name
            )));
        }
        _ => {}
    }
    let workload = template.bind(&BTreeMap::new()).map_err(Failure::bad_input)?;
    let workload = match template.vocabulary {
        None => workload.with_proven_bounds(),
        Some(_) => workload,
    };
    match data.filter(|data| has_labels(data, &workload)) {
        Some(data) => labelled(asked, (backend, template), data),
        None => by_outputs(asked, (backend, template), data.map(Path::new), workload),
    }
}

/// Errs where a model that reads more than text is given a text.
fn of_other(model: &Pretrained, data: Option<&str>) -> Result<(), Failure> {
    match data {
        Some(data) if !holds_tensors(data) => Err(Failure::bad_input(format!(
            "--data: `{}` takes more than text: expected its inputs by name (.npz), found `{data}`",
            model.name
        ))),
        Some(_) | None => Ok(()),
    }
}

/// Whether a file holds tensors by name.
fn holds_tensors(data: &str) -> bool {
    Path::new(data).extension().is_some_and(|e| e == "npz" || e == "safetensors")
}

/// Whether a data set has labels: one of ours, or any file but one that holds the model's inputs
/// alone.
fn has_labels(data: &str, workload: &Workload) -> bool {
    let path = Path::new(data);
    if !holds_tensors(data) {
        return true;
    }
    let labels = |tensors: Tensors| ["y", "labels"].iter().any(|name| tensors.contains_key(*name));
    let is_input =
        workload.graph.inputs().iter().any(|port| port.name == "y" || port.name == "labels");
    formats::read(path).is_ok_and(labels) && !is_input
}

fn labelled<'a>(
    asked: Asked<'_>,
    (backend, template): (&'a dyn Backend, &'a Template),
    data: &str,
) -> Result<Samples<'a>, Failure> {
    let reading = Reading { like: template.columns.clone(), ..Reading::default() };
    let set = open_as(data, &reading).map_err(Failure::bad_input)?;
    let parts = set.parts(&template.graph, 0).map_err(Failure::bad_input)?;
    judged_by_labels(asked, (backend, template), parts, u64::MAX)
}

fn by_outputs<'a>(
    asked: Asked<'_>,
    (backend, template): (&'a dyn Backend, &'a Template),
    file: Option<&Path>,
    workload: Workload,
) -> Result<Samples<'a>, Failure> {
    if let Some(metric) = asked.metric.filter(|metric| *metric != MetricName::Cosine) {
        let text = format!(
            "--metric {} needs labels: expected --data digits, text or a file with labels, found \
             {}",
            metric.name(),
            file.map_or("no --data".to_owned(), |file| format!(
                "`{}` with inputs alone",
                file.display()
            ))
        );
        return Err(Failure::bad_input(text));
    }
    let ([seen, chosen, judged], more, source) = match file {
        Some(file) => {
            let parts = in_parts(file, (template, &workload), asked.judging)?;
            (parts, Some(More::Data), "held-out samples")
        }
        None => {
            let workload = &workload;
            note!(
                "note: calibrated and judged on random inputs ({}); --data FILE.npz takes your own",
                workload.drawn()
            );
            let draw = |part: u64| -> Batches {
                let seed = asked.seed.wrapping_add(part * APART);
                let batches = 0..u64::from(asked.batches);
                batches.map(|i| workload.inputs(seed.wrapping_add(i))).collect()
            };
            let more = match asked.batches {
                MOST_BATCHES => More::OwnData,
                _ => More::Batches,
            };
            ([draw(0), draw(1), draw(2)], Some(more), "random inputs")
        }
    };
    let judge = |batches: Batches| Judge::by_outputs((backend, template), batches);
    let [chooser, judge] = [chosen, judged.clone()].map(judge);
    Ok(Samples {
        chooser,
        least: judge.samples(),
        judge,
        more,
        compared: judged,
        seen,
        draw: Box::new(move |seed| workload.inputs(seed)),
        source,
        parts: None,
    })
}

/// Inputs of a graph, call by call.
type Batches = Vec<Vec<Tensor>>;

/// The batches of a file: a quarter calibrates, a quarter chooses, and the others judge.
fn in_parts(
    file: &Path,
    (template, workload): (&Template, &Workload),
    judging: Judging,
) -> Result<[Batches; 3], Failure> {
    const PARTS: usize = 3;
    let tensors = formats::read(file).map_err(Failure::bad_input)?;
    let mut seen = batches(file, &tensors, workload)?;
    if seen.len() < PARTS {
        let graph = &workload.graph;
        let first =
            graph.inputs().first().and_then(|port| graph.ty(port.value).sizes().first().copied());
        let text = format!(
            "{}: expected at least {} samples, of which a third calibrates, a third chooses and a \
             third judges, found fewer: give more samples, or a smaller batch by --shape",
            file.display(),
            PARTS * first.unwrap_or(1).max(1)
        );
        return Err(Failure::bad_input(text));
    }
    let quarter = (seen.len() / 4).max(1);
    let judged = seen.split_off(2 * quarter);
    let chosen = seen.split_off(quarter);
    if judging == Judging::Few {
        return Ok([seen, chosen, judged]);
    }
    let mut apart = Apart::of(&seen, in_each(template));
    let held_out = [apart.batches("choose", chosen)?, apart.batches("judge", judged)?];
    apart.told();
    let [chosen, judged] = held_out;
    Ok([seen, chosen, judged])
}

/// Samples of a call: the size of the batch, if the first dimension of all inputs has one name.
/// Else a call is one sample, whatever its first dimension is.
fn in_each(template: &Template) -> usize {
    let graph = &template.graph;
    let mut firsts = graph.inputs().iter().map(|port| graph.ty(port.value).shape.0.first());
    let first = firsts.next().flatten().filter(|first| firsts.all(|dim| dim == Some(first)));
    let Some(Dim::Named(name)) = first else { return 1 };
    template.dimensions.get(&**name).copied().unwrap_or(1).max(1)
}

/// The whole batches that the tensors hold along their first axis.
fn batches(file: &Path, tensors: &Tensors, workload: &Workload) -> Result<Batches, Failure> {
    let graph = &workload.graph;
    let mut columns = Vec::new();
    for port in graph.inputs() {
        let ty = graph.ty(port.value);
        let expected = format!("`{}` of {} with any number of rows", port.name, ty);
        let wrong = |found: String| {
            Failure::bad_input(format!("{}: expected {expected}, found {found}", file.display()))
        };
        let tensor =
            tensors.get(&port.name).ok_or_else(|| wrong("none of that name".to_owned()))?;
        let (sizes, wanted) = (tensor.ty().sizes(), ty.sizes());
        if tensor.ty().dtype != ty.dtype || sizes.len() != wanted.len() || sizes[1..] != wanted[1..]
        {
            return Err(wrong(tensor.ty().to_string()));
        }
        if tensor.ty().dtype.is_float() && !tensor.to_f64().iter().all(|x| x.is_finite()) {
            return Err(wrong("values that are not finite".to_owned()));
        }
        columns.push(split(tensor, ty));
    }
    let count = columns.iter().map(Vec::len).min().unwrap_or(0);
    let batches: Batches =
        (0..count).map(|i| columns.iter().map(|column| column[i].clone()).collect()).collect();
    if let Some(indices) = Indices::of(graph) {
        let wrong = |(i, e)| Failure::bad_input(format!("{}: batch {i}: {e}", file.display()));
        let check =
            |(i, batch): (usize, &Vec<Tensor>)| indices.check(batch).map_err(|e| wrong((i, e)));
        batches.iter().enumerate().try_for_each(check)?;
    }
    Ok(batches)
}

/// The whole batches of type `ty` in a tensor; types of a graph's inputs have whole bytes.
fn split(tensor: &Tensor, ty: &TensorType) -> Vec<Tensor> {
    let chunks = tensor.bytes().chunks_exact(ty.bytes().max(1));
    chunks
        .map(|bytes| Tensor::from_bytes(ty.clone(), bytes.to_vec()).expect("a chunk is a batch"))
        .collect()
}
