//! Models of tables: what the columns mean, classes or a quantity to predict, and a model that has
//! the size of the data.

use super::failure::failure;
use crate::failure::Failure;
use crate::terminal::note;
use overdrive::formats::TableColumns;
use overdrive::ir::Init;
use overdrive::models::{TABLE_MLP, table_mlp};
use overdrive::studies::Template;
use overdrive::train::data::{Dataset, Samples, Target, Targets};
use std::collections::BTreeMap;

/// Names that are listed at most.
const LISTED: usize = 6;

/// A model that is about to learn from these data: a new one standardises the features of a table.
pub(super) fn taught(
    mut template: Template,
    data: &Dataset,
    fold: usize,
) -> Result<Template, Failure> {
    let Some(columns) = data.columns() else { return Ok(template) };
    let has_learnt =
        template.graph.states().iter().any(|state| matches!(state.init, Init::Value(_)));
    if !has_learnt {
        template.graph = data.standardizing(&template.graph, fold).map_err(failure)?;
    }
    template.columns.get_or_insert_with(|| columns.clone());
    found(data, has_learnt);
    Ok(template)
}

/// A multi-layer perceptron with the features and classes of the data.
pub(super) fn sized(data: &Dataset, fold: usize) -> Result<Template, Failure> {
    let Dataset::Samples(samples) = data else {
        return Err(Failure::bad_input(
            "MODEL: expected a model of text, `text-transformer` say or a folder in Hugging Face's \
             format, found none; without one --data is a table (.csv) or labelled samples",
        ));
    };
    let targets = samples.targets();
    let (rows, classes) = (targets.len(), targets.outputs());
    if targets.kind() == Target::Classes && (classes < 2 || classes > rows / 2) {
        let end =
            if classes < 2 { "one class alone".to_owned() } else { format!("{classes} classes") };
        return Err(Failure::bad_input(format!(
            "--data: expected at least two classes with several samples each, found {end} in \
             {rows} samples; \
             name the column of classes with --label, or learn a quantity: --target quantity"
        )));
    }
    let features = samples.shape().iter().product();
    let template = Template {
        name: TABLE_MLP.to_owned(),
        graph: table_mlp(features, classes).map_err(Failure::harness)?,
        dimensions: [("batch".to_owned(), 16)].into(),
        limits: BTreeMap::new(),
        vocabulary: None,
        columns: None,
        config: None,
    };
    note!("note: the model is sized to the data: {features} -> 128 -> 128 -> {classes}");
    taught(template, data, fold)
}

/// Says what was found in a table.
fn found(data: &Dataset, has_learnt: bool) {
    let (Some(columns), Dataset::Samples(samples)) = (data.columns(), data) else { return };
    let (rows, features) = (samples.targets().len(), samples.shape().iter().product::<usize>());
    let head = if columns.label.is_some() { "a line of names" } else { "no line of names" };
    let how = match has_learnt {
        true => "as the model has learnt",
        false => "standardised by the training part",
    };
    let label = label(columns, samples);
    note!("note: {head}, {rows} samples; {label}; {features} features, {how}");
    if let (false, Some(other)) = (has_learnt, other(columns, samples)) {
        note!("note: {other}");
    }
}

/// Describes the labels.
fn label(columns: &TableColumns, samples: &Samples) -> String {
    let named = columns.label.as_ref();
    if let Targets::Quantities(of) = samples.targets() {
        let (low, high) = of
            .iter()
            .fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), x| (low.min(*x), high.max(*x)));
        let label = named.map_or("labels are".to_owned(), |label| format!("label `{label}` is"));
        return format!("{label} a quantity from {low} to {high} (regression)");
    }
    let label = named.map_or(String::new(), |label| format!("label `{label}` of "));
    let listed = columns.classes.iter().take(LISTED).cloned().collect::<Vec<_>>().join(", ");
    let more = if columns.classes.len() > LISTED { ", ..." } else { "" };
    let names = if listed.is_empty() { String::new() } else { format!(" ({listed}{more})") };
    format!("{label}{} classes{names}", samples.classes())
}

/// How to have the labels taken otherwise, where they could be.
fn other(columns: &TableColumns, samples: &Samples) -> Option<&'static str> {
    let is_number = |name: &String| name.parse::<f64>().is_ok_and(f64::is_finite);
    match samples.targets().kind() {
        Target::Quantity => Some("--target classes takes each number as a class instead"),
        Target::Classes if columns.classes.iter().all(is_number) => {
            Some("--target quantity takes the labels as a quantity (regression) instead")
        }
        Target::Classes => None,
    }
}
