//! Samples to calibrate on and samples to judge by, and those of a data set with labels.

use super::chosen::refused;
use crate::cli::{MetricName, Quantize};
use crate::failure::Failure;
use overdrive::ir::{Backend, Tensor};
use overdrive::studies::Template;
use overdrive::studies::quantization::{Judge, Metric, batch_of, calibration};
use overdrive::train::data::{Parts, Split, Target};
use std::sync::Arc;

/// The user's settings for samples.
#[derive(Copy, Clone)]
pub(in crate::commands) struct Asked<'a> {
    /// `--data`.
    pub data: Option<&'a str>,
    /// `--metric`.
    pub metric: Option<MetricName>,
    /// `--batches`.
    pub batches: u32,
    /// `--seed`.
    pub seed: u64,
}

impl<'a> Asked<'a> {
    /// Those of a command line.
    pub(super) fn of(arguments: &'a Quantize) -> Self {
        let (data, metric) = (arguments.data.as_deref(), arguments.metric);
        Self { data, metric, batches: arguments.batches, seed: arguments.machine.seed }
    }
}

/// Samples that calibrate, choose and judge, and inputs for timing.
pub(in crate::commands) struct Samples<'a> {
    /// Batches of inputs that calibration sees.
    pub seen: Vec<Vec<Tensor>>,
    /// Judges while a search chooses; where there are labels, other samples than those of the final
    /// judge.
    pub chooser: Judge<'a>,
    /// The final judge; neither calibration nor a search saw its samples.
    pub judge: Judge<'a>,
    /// Held-out batches on which outputs are compared.
    pub compared: Vec<Vec<Tensor>>,
    /// Inputs of timed calls by seed.
    pub draw: Box<dyn Fn(u64) -> Vec<Tensor> + 'a>,
    /// The source of the samples, in words.
    pub source: &'static str,
    /// Data for a mode that learns; `None` without labels.
    pub parts: Option<Parts>,
}

/// The metric for samples with these labels, unless the user asks for another that fits.
fn metric(asked: Option<MetricName>, test: &Arc<dyn Split>) -> Result<Metric, Failure> {
    let text = test.batch(&[0]).map_err(Failure::bad_input)?.labels.ty().rank() > 1;
    match (asked, test.target()) {
        (Some(MetricName::Mse) | None, Target::Quantity) => Ok(Metric::SquaredError),
        (Some(MetricName::Top1), Target::Classes) => Ok(Metric::Top1),
        (Some(MetricName::Perplexity), Target::Classes) => Ok(Metric::Perplexity),
        (Some(MetricName::Cosine), Target::Classes) => Ok(Metric::Cosine),
        (None, Target::Classes) if text => Ok(Metric::Perplexity),
        (None, Target::Classes) => Ok(Metric::Top1),
        (Some(name), Target::Quantity) => Err(Failure::bad_input(format!(
            "--metric {}: the labels are quantities: expected mse, or no --metric",
            name.name()
        ))),
        (Some(MetricName::Mse), Target::Classes) => Err(Failure::bad_input(
            "--metric mse: the labels are classes: expected top1, perplexity or cosine, or no \
             --metric",
        )),
    }
}

/// Samples of a data set in three parts: the first calibrates, the others judge.
pub(super) fn judged_by_labels<'a>(
    asked: Asked<'_>,
    (backend, template): (&'a dyn Backend, &'a Template),
    parts: Parts,
) -> Result<Samples<'a>, Failure> {
    let metric = metric(asked.metric, &parts.test)?;
    of_parts(asked, (backend, template), parts, (metric, "test samples"), Arc::clone)
}

/// Calibrates on the training samples, and judges by those of the rest that `judged` names.
pub(super) fn of_parts<'a>(
    asked: Asked<'_>,
    (backend, template): (&'a dyn Backend, &'a Template),
    parts: Parts,
    (metric, source): (Metric, &'static str),
    judged: impl Fn(&Arc<dyn Split>) -> Arc<dyn Split>,
) -> Result<Samples<'a>, Failure> {
    let batch = batch_of(template);
    let seen = calibration(&parts.train, batch, asked.batches as usize).map_err(refused)?;
    let few = (parts.test.len() as usize / batch).clamp(1, asked.batches as usize);
    let compared = calibration(&parts.test, batch, few).map_err(refused)?;
    let judge = |split: &Arc<dyn Split>| {
        Judge::labelled((backend, template), metric, judged(split)).map_err(refused)
    };
    let timed = compared.clone();
    Ok(Samples {
        seen,
        chooser: judge(&parts.validation)?,
        judge: judge(&parts.test)?,
        compared,
        draw: Box::new(move |seed| timed[seed as usize % timed.len()].clone()),
        source,
        parts: Some(parts),
    })
}
