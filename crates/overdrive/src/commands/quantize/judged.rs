//! Samples to calibrate on and samples to judge by, and those of a data set with labels.

use super::apart::Apart;
use super::chosen::refused;
use crate::cli::{MetricName, Quantize};
use crate::failure::Failure;
use overdrive::ir::{Backend, Tensor};
use overdrive::studies::Template;
use overdrive::studies::quantization::{Judge, Metric, batch_of, calibration};
use overdrive::train::data::{Parts, Split, Subset, Target};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Bytes of outputs that stay in memory while others are compared with them.
const OUTPUTS_BYTES: u64 = 1 << 30;
/// Samples whose outputs are compared however large these are.
const COMPARED: u64 = 64;

/// Which held-out samples judge.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(in crate::commands) enum Judging {
    /// As many as give a figure soon.
    Few,
    /// All, each once, without those that equal a sample that calibrates or chooses: a verdict
    /// needs as many as there are, and no other ones.
    All,
}

/// How the user has more samples judge.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::commands) enum More {
    /// More of her data.
    Data,
    /// Data of her own, in place of those that come with Overdrive.
    OwnData,
    /// More random inputs.
    Batches,
}

impl More {
    /// The way to more samples of this data; random inputs have none.
    pub(super) fn of(data: Option<&str>) -> Self {
        match data {
            None | Some("digits" | "text" | "builtin:digits" | "builtin:text") => Self::OwnData,
            Some(_) => Self::Data,
        }
    }

    /// As advice.
    pub(in crate::commands) fn advice(self) -> &'static str {
        match self {
            Self::Data => "give more --data",
            Self::OwnData => "give --data of your own",
            Self::Batches => "give more --batches, or --data of your own",
        }
    }
}

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
    /// Which held-out samples judge.
    pub judging: Judging,
}

impl<'a> Asked<'a> {
    /// Those of a command line.
    pub(super) fn of(arguments: &'a Quantize) -> Self {
        let (data, metric) = (arguments.data.as_deref(), arguments.metric);
        let (batches, seed) = (arguments.batches, arguments.machine.seed);
        Self { data, metric, batches, seed, judging: Judging::Few }
    }
}

/// Samples that calibrate, choose and judge, and inputs for timing.
pub(in crate::commands) struct Samples<'a> {
    /// Batches of inputs that calibration sees.
    pub seen: Vec<Vec<Tensor>>,
    /// Judges while a search chooses, on other samples than those that calibrate.
    pub chooser: Judge<'a>,
    /// The final judge; neither calibration nor a search saw its samples.
    pub judge: Judge<'a>,
    /// How many samples of the final judge judge at least; a verdict may need more of them.
    pub least: u64,
    /// How the user has more samples judge; `None` where more would not be looked at.
    pub more: Option<More>,
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
    few: u64,
) -> Result<Samples<'a>, Failure> {
    let metric = metric(asked.metric, &parts.test)?;
    of_parts(asked, (backend, template), parts, (metric, "test samples", few))
}

/// Calibrates on the training samples, and judges by the rest. At most `few` samples choose; as
/// many judge, unless all are to.
pub(super) fn of_parts<'a>(
    asked: Asked<'_>,
    (backend, template): (&'a dyn Backend, &'a Template),
    parts: Parts,
    (metric, source, few): (Metric, &'static str, u64),
) -> Result<Samples<'a>, Failure> {
    let batch = batch_of(template);
    let seen = calibration(&parts.train, batch, asked.batches as usize).map_err(refused)?;
    let [validation, mut test] = held_out(asked, (&seen, batch), &parts, few)?;
    let mut more = Some(More::of(asked.data));
    if metric == Metric::Cosine && asked.judging == Judging::All {
        let most = comparable(template)?;
        more = more.filter(|_| test.len() < most);
        test = Arc::new(Subset::evenly(test, most));
    }
    let wide = if asked.judging == Judging::All { &test } else { &parts.test };
    let some = (wide.len() as usize / batch).clamp(1, asked.batches as usize);
    let compared = calibration(wide, batch, some).map_err(refused)?;
    let judge = |split: &Arc<dyn Split>| {
        Judge::labelled((backend, template), metric, Arc::clone(split)).map_err(refused)
    };
    let timed = compared.clone();
    Ok(Samples {
        seen,
        chooser: judge(&validation)?,
        judge: judge(&test)?,
        least: few.min(test.len()),
        more,
        compared,
        draw: Box::new(move |seed| timed[seed as usize % timed.len()].clone()),
        source,
        parts: Some(parts),
    })
}

/// Samples whose outputs are compared, at most: those of the float model stay in memory.
pub(super) fn comparable(template: &Template) -> Result<u64, Failure> {
    let graph = template.graph_of(&template.dimensions).map_err(Failure::bad_input)?;
    let bytes = graph.outputs().iter().map(|port| graph.ty(port.value).bytes() as u64).sum::<u64>();
    let batch = batch_of(template) as u64;
    Ok((batch * (OUTPUTS_BYTES / bytes.max(1))).max(COMPARED))
}

/// The samples that choose and those that judge.
pub(super) fn held_out(
    asked: Asked<'_>,
    (seen, batch): (&[Vec<Tensor>], usize),
    parts: &Parts,
    few: u64,
) -> Result<[Arc<dyn Split>; 2], Failure> {
    let some =
        |split: &Arc<dyn Split>| -> Arc<dyn Split> { Arc::new(Subset::evenly(split.clone(), few)) };
    let validation = some(&parts.validation);
    if asked.judging == Judging::Few {
        return Ok([validation, some(&parts.test)]);
    }
    let mut apart = Apart::of(seen, batch);
    let held_out = [apart.kept("choose", &validation)?, apart.kept("judge", &parts.test)?];
    apart.told();
    Ok(held_out)
}
