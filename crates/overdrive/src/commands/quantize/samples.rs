//! Samples to calibrate on and samples to judge by: the user's, or random ones.

use crate::cli::Quantize;
use crate::failure::Failure;
use overdrive::formats::{self, Tensors};
use overdrive::ir::{Tensor, TensorType};
use overdrive::studies::Workload;
use std::path::Path;

/// Seeds of random batches that judge begin this far after those that calibrate.
const HELD_OUT: u64 = 1000;

/// Batches of inputs in the order of the graph's.
pub(super) struct Samples {
    /// What calibration sees.
    pub seen: Vec<Vec<Tensor>>,
    /// What judges; no calibration saw it.
    pub held_out: Vec<Vec<Tensor>>,
    /// Where they are from, in words.
    pub source: &'static str,
}

/// The samples that the command line asks for, in batches of the workload.
pub(super) fn samples(arguments: &Quantize, workload: &Workload) -> Result<Samples, Failure> {
    let Some(file) = &arguments.data else {
        let draw = |from: u64| {
            (0..u64::from(arguments.batches))
                .map(|i| workload.inputs(arguments.machine.seed + from + i))
                .collect()
        };
        return Ok(Samples { seen: draw(0), held_out: draw(HELD_OUT), source: "random inputs" });
    };
    let tensors = formats::read(file).map_err(Failure::bad_input)?;
    let mut seen = batches(file, &tensors, workload)?;
    if seen.len() < 2 {
        let batch = batch_of(workload);
        let text = format!(
            "{}: expected at least {} samples, half of them to calibrate and half to judge, found fewer",
            file.display(),
            2 * batch
        );
        return Err(Failure::bad_input(text));
    }
    let held_out = seen.split_off(seen.len() / 2);
    Ok(Samples { seen, held_out, source: "held-out samples" })
}

/// Samples in a batch of the workload.
fn batch_of(workload: &Workload) -> usize {
    let graph = &workload.graph;
    graph.inputs().first().and_then(|port| graph.ty(port.value).sizes().first().copied()).unwrap_or(1).max(1)
}

/// The whole batches that the tensors hold along their first axis.
fn batches(file: &Path, tensors: &Tensors, workload: &Workload) -> Result<Vec<Vec<Tensor>>, Failure> {
    let graph = &workload.graph;
    let mut columns = Vec::new();
    for port in graph.inputs() {
        let ty = graph.ty(port.value);
        let expected = format!("`{}` of {} with any number of rows", port.name, ty);
        let wrong = |found: String| {
            Failure::bad_input(format!("{}: expected {expected}, found {found}", file.display()))
        };
        let tensor = tensors.get(&port.name).ok_or_else(|| wrong("none of that name".to_owned()))?;
        let (sizes, wanted) = (tensor.ty().sizes(), ty.sizes());
        if tensor.ty().dtype != ty.dtype || sizes.len() != wanted.len() || sizes[1..] != wanted[1..] {
            return Err(wrong(tensor.ty().to_string()));
        }
        if tensor.ty().dtype.is_float() && !tensor.to_f64().iter().all(|x| x.is_finite()) {
            return Err(wrong("values that are not finite".to_owned()));
        }
        columns.push(split(tensor, ty));
    }
    let count = columns.iter().map(Vec::len).min().unwrap_or(0);
    Ok((0..count).map(|i| columns.iter().map(|column| column[i].clone()).collect()).collect())
}

/// The whole batches of type `ty` in a tensor; types of a graph's inputs have whole bytes.
fn split(tensor: &Tensor, ty: &TensorType) -> Vec<Tensor> {
    let chunks = tensor.bytes().chunks_exact(ty.bytes().max(1));
    chunks.map(|bytes| Tensor::from_bytes(ty.clone(), bytes.to_vec()).expect("a chunk is a batch")).collect()
}
