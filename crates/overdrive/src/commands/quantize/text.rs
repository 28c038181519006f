//! Samples of text for a published model, in its own tokens. Perplexity judges a decoder, the
//! cosine of its outputs an encoder, and labels a classifier that is given some.

use super::chosen::refused;
use super::judged::{
    Asked, Judging, More, Samples, comparable, held_out, judged_by_labels, of_parts,
};
use crate::cli::MetricName;
use crate::commands::texts;
use crate::failure::Failure;
use crate::terminal::note;
use overdrive::ir::{Backend, Graph, Tensor};
use overdrive::studies::Template;
use overdrive::studies::pretrained::{ModelTask, Pretrained, Problem};
use overdrive::studies::quantization::{Judge, Metric, batch_of, calibration};
use overdrive::train::data::{Dataset, Parts, Split, Subset, Texts, open};
use std::sync::Arc;

/// Windows of held-out text that choose, and that judge where a figure is wanted soon. Both models
/// read each of them, the float one and the quantized one.
const FEW: u64 = 64;

/// The same of labelled texts: a share of hits needs more of them.
const FEW_LABELS: u64 = 1000;

/// The text that is read unless the user names another.
const DEFAULT: &str = "text";

/// The samples that judge, in words.
const SOURCE: &str = "windows of held-out text";

/// Samples of a text, in batches of the template's own size.
pub(super) fn samples<'a>(
    asked: Asked<'_>,
    (backend, template): (&'a dyn Backend, &'a Template),
    model: &Pretrained,
) -> Result<Samples<'a>, Failure> {
    let name = asked.data.unwrap_or(DEFAULT);
    if asked.data.is_none() {
        note!(
            "note: calibrated on the text that comes with Overdrive; --data FILE.txt takes your own"
        );
    }
    let is_classifier = model.architecture.task() == ModelTask::Classifier;
    if is_classifier && asked.data.is_some_and(Texts::are_in) {
        return classifier(asked, (backend, template), model);
    }
    let wrong = |found: &str| {
        Failure::bad_input(format!(
            "--data: `{}` reads text: expected `text`, a file of UTF-8 text, or token ids by name \
             (.npz), found {found}",
            model.name
        ))
    };
    if name == "digits" || ["csv", "gz"].iter().any(|ending| name.ends_with(&format!(".{ending}")))
    {
        return Err(wrong(&format!("`{name}`, which is labelled samples")));
    }
    let Dataset::Text(text) = open(name).map_err(Failure::bad_input)? else {
        return Err(wrong(&format!("`{name}`, which is labelled samples")));
    };
    let tokenizer = model.tokenizer.as_ref().expect("only a model with a tokenizer reads text");
    let text = Dataset::Text(text.encoded(tokenizer).map_err(Failure::bad_input)?);
    let graph = template.graph_of(&template.dimensions).map_err(Failure::bad_input)?;
    let tokens = template.dimensions["tokens"];
    match model.architecture.task() {
        ModelTask::Decoder => {
            decoder(asked, (backend, template), text.windows(tokens).map_err(Failure::bad_input)?)
        }
        ModelTask::Encoder | ModelTask::Classifier | ModelTask::Other => {
            if let Some(metric) = asked.metric.filter(|metric| *metric != MetricName::Cosine) {
                return Err(Failure::bad_input(format!(
                    "--metric {}: `{}` gives vectors and no next token: expected cosine, or no \
                     --metric",
                    metric.name(),
                    model.name
                )));
            }
            if model.labels.as_ref().is_some_and(|labels| labels.names.len() == 1) {
                note!(
                    "note: of one output the cosine says no more than its sign: --data FILE.csv \
                     with `text` and `label` judges by the squared error"
                );
            }
            let around = around(model)?;
            let parts =
                text.windows(tokens.saturating_sub(around.iter().map(Vec::len).sum()).max(1));
            encoder(
                asked,
                (backend, template),
                (&graph, &around),
                &parts.map_err(Failure::bad_input)?,
            )
        }
    }
}

/// Whether the largest output of a model is the class of a text.
pub(super) fn gives_a_class(model: &Pretrained) -> bool {
    model.labels.as_ref().is_some_and(|labels| labels.problem == Problem::OneClass)
}

/// Labelled texts; a fifth of them judges, all or few.
fn classifier<'a>(
    asked: Asked<'_>,
    (backend, template): (&'a dyn Backend, &'a Template),
    model: &Pretrained,
) -> Result<Samples<'a>, Failure> {
    let tokenizer = model.tokenizer.as_ref().expect("only a model with a tokenizer reads text");
    let data = asked.data.expect("only a file has labelled texts");
    let length = texts::Length::Exactly(template.dimensions["tokens"]);
    let of = texts::TextsSource { data, label: None, fold: 0 };
    let (parts, _) = texts::parts((model, tokenizer), of, length)?;
    let few = Arc::new(Subset::evenly(parts.validation, FEW_LABELS));
    let parts = Parts { validation: few, ..parts };
    judged_by_labels(asked, (backend, template), parts, FEW_LABELS)
}

fn decoder<'a>(
    asked: Asked<'_>,
    (backend, template): (&'a dyn Backend, &'a Template),
    parts: Parts,
) -> Result<Samples<'a>, Failure> {
    let metric = match asked.metric {
        Some(MetricName::Top1) => Metric::Top1,
        Some(MetricName::Cosine) => Metric::Cosine,
        Some(MetricName::Perplexity) | None => Metric::Perplexity,
        Some(MetricName::Mse) => {
            return Err(Failure::bad_input(
                "--metric mse: the labels of text are tokens: expected perplexity, top1 or cosine",
            ));
        }
    };
    of_parts(asked, (backend, template), parts, (metric, SOURCE, FEW))
}

fn encoder<'a>(
    asked: Asked<'_>,
    (backend, template): (&'a dyn Backend, &'a Template),
    (graph, around): (&Graph, &[Vec<i128>; 2]),
    parts: &Parts,
) -> Result<Samples<'a>, Failure> {
    let batch = batch_of(template);
    let inputs = |split: &Arc<dyn Split>, batches: usize| -> Result<Vec<Vec<Tensor>>, Failure> {
        let found = calibration(split, batch, batches).map_err(refused)?;
        Ok(found.iter().map(|x| inputs_of(graph, around, &x[0])).collect())
    };
    let seen = calibration(&parts.train, batch, asked.batches as usize).map_err(refused)?;
    let [validation, test] = held_out(asked, (&seen, batch), parts, FEW)?;
    let whole = |split: &Arc<dyn Split>| (split.len() as usize / batch).max(1);
    let most = match asked.judging {
        Judging::Few => FEW,
        Judging::All => comparable(template)?,
    };
    let at_most = |samples: u64| whole(&test).min((samples as usize / batch).max(1));
    let (compared, judged) = (inputs(&test, at_most(FEW))?, inputs(&test, at_most(most))?);
    let judge = |batches: Vec<Vec<Tensor>>| Judge::by_outputs((backend, template), batches);
    let timed = compared.clone();
    Ok(Samples {
        seen: seen.iter().map(|x| inputs_of(graph, around, &x[0])).collect(),
        chooser: judge(inputs(&validation, whole(&validation))?),
        judge: judge(judged),
        least: FEW,
        more: Some(More::of(asked.data)).filter(|_| test.len() < most),
        compared,
        draw: Box::new(move |seed| timed[seed as usize % timed.len()].clone()),
        source: SOURCE,
        parts: None,
    })
}

/// The tokens that a model expects before and behind a text.
fn around(model: &Pretrained) -> Result<[Vec<i128>; 2], Failure> {
    let tokenizer = model.tokenizer.as_ref();
    let empty = tokenizer.map_or(Ok(vec![]), |tokenizer| tokenizer.encode(""));
    let empty = empty.map_err(Failure::bad_input)?;
    let (before, behind) = empty.split_at(empty.len().div_ceil(2));
    Ok([before, behind].map(|ids| ids.iter().map(|&id| id.into()).collect()))
}

/// The inputs of an encoder that reads these rows, each with the tokens around it; every token is
/// seen.
fn inputs_of(graph: &Graph, [before, behind]: &[Vec<i128>; 2], rows: &Tensor) -> Vec<Tensor> {
    let width = rows.ty().sizes()[1];
    let ids = rows.to_ints();
    let whole: Vec<i128> =
        ids.chunks(width).flat_map(|row| [before, row, behind].concat()).collect();
    let input = |port: &overdrive::ir::Port| {
        let ty = graph.ty(port.value);
        let values = if port.name == "mask" { &vec![1; ty.elements()] } else { &whole };
        Tensor::from_ints(ty.dtype, ty.shape.clone(), values)
    };
    graph.inputs().iter().map(input).collect()
}
