//! How much each layer alone costs: the model with one layer quantized, for each layer and each
//! mode.

use super::calibrate::calibrate;
use super::estimate::Estimate;
use super::judge::{Judge, bound};
use overdrive_bench::failure::Failure;
use overdrive_bench::runner::Stop;
use overdrive_ir::Tensor;
use overdrive_passes::{
    Biases, Evidence, Preparation, Quantization, QuantizationMode, Statistic, layers, quantize,
};

/// A layer in a mode, all others in f32.
#[derive(Clone, PartialEq, Debug)]
pub struct Sensitivity {
    /// The layer.
    pub layer: String,
    /// The mode.
    pub mode: &'static str,
    /// The loss of the model, paired over the judge's samples.
    pub lost: Estimate,
    /// Bytes of its weight in f32.
    pub float_bytes: u64,
    /// Bytes of its codes and scales.
    pub bytes: u64,
}

/// Every layer in every mode that it can take, in the order of the graph. All see the same
/// evidence, that of the float model on `seen`.
///
/// # Errors
/// When a mode changes the graph before it rounds, so that no layer has it alone, or the back end
/// cannot run a graph.
pub fn sensitivities(
    judge: &Judge<'_>,
    modes: &[(&'static QuantizationMode, Quantization)],
    seen: &[Vec<Tensor>],
    stop: &Stop,
) -> Result<Vec<Sensitivity>, Failure> {
    let failed = |e: overdrive_ir::GraphError| Failure::failed(e.to_string());
    let changes = |mode: &QuantizationMode| {
        mode.preparation != Preparation::None
            || mode.is_trained()
            || mode.quantization().biases != Biases::Kept
    };
    if let Some((mode, _)) = modes.iter().find(|(mode, _)| changes(mode)) {
        return Err(Failure::failed(format!(
            "mode `{}` changes the model before it rounds or after, or trains it: expected modes \
             that a layer can have alone",
            mode.name
        )));
    }
    let graph = &judge.template.graph;
    let (found, _) = layers(graph).map_err(failed)?;
    let names: Vec<&str> = found.iter().map(|layer| layer.name.as_str()).collect();
    let mut statistics: Vec<Statistic> =
        modes.iter().flat_map(|(_, meant)| meant.statistics()).collect();
    statistics.sort();
    statistics.dedup();
    let evidence: Evidence =
        calibrate(judge.backend, &bound(judge.template, graph)?, &statistics, seen)?;
    let float = [judge.scores(graph)?];
    let mut scanned = Vec::new();
    for layer in &names {
        for (mode, meant) in modes {
            if stop.is_requested() {
                return Ok(scanned);
            }
            let alone = meant.only(&[layer], &names);
            let made = quantize(graph, &alone, &evidence).map_err(failed)?;
            let Some(report) = made.layers.first() else { continue };
            let lost = judge.metric.loss(&float, &[judge.scores(&made.graph)?]);
            let elements: usize =
                found.iter().find(|l| l.name == *layer).map_or(0, |l| l.shape[0] * l.shape[1]);
            scanned.push(Sensitivity {
                layer: (*layer).to_owned(),
                mode: mode.name,
                lost,
                float_bytes: 4 * elements as u64,
                bytes: report.code_bytes + report.scale_bytes,
            });
        }
    }
    Ok(scanned)
}
