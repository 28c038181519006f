//! `overdrive models`: what is built in.

use crate::cli::Json;
use crate::failure::Failure;
use crate::terminal::say;
use comfy_table::{Cell, CellAlignment, Table, presets};
use overdrive::bench::exit::Exit;
use overdrive::models::MODELS;
use overdrive::studies::Workload;
use overdrive::train::trained;
use std::collections::BTreeMap;

pub(crate) fn models(arguments: &Json) -> Result<Exit, Failure> {
    let mut rows = Vec::new();
    for model in MODELS {
        let workload = Workload::of_model(model, &BTreeMap::new()).map_err(Failure::harness)?;
        let parameters: usize =
            workload.graph.states().iter().map(|s| workload.graph.ty(s.value).elements()).sum();
        rows.push((model, parameters, workload.work().flops));
    }
    if arguments.json {
        let list: Vec<serde_json::Value> = rows
            .iter()
            .map(|(model, parameters, flops)| {
                serde_json::json!({
                    "name": model.name,
                    "summary": model.summary,
                    "parameters": parameters,
                    "flops_per_call": flops,
                    "weights": weights(model.name),
                    "dimensions": model.dimensions.iter().copied().collect::<BTreeMap<_, _>>(),
                })
            })
            .collect();
        say!("{}", serde_json::to_string_pretty(&list).expect("plain data"))?;
        return Ok(Exit::Fine);
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["model", "parameters", "GFLOP a call", "weights", "what it is"]);
    for (model, parameters, flops) in rows {
        let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
        table.add_row([
            Cell::new(model.name),
            right(format!("{:.3} M", parameters as f64 / 1e6)),
            right(format!("{:.3}", flops as f64 / 1e9)),
            Cell::new(weights(model.name)),
            Cell::new(model.summary),
        ]);
    }
    say!("{table}")?;
    say!(
        "`builtin:NAME` is the built-in model where a folder has its name; `train` starts from new weights"
    )?;
    Ok(Exit::Fine)
}

/// Which weights every command but `train` takes.
fn weights(name: &str) -> &'static str {
    if trained(name).is_some() { "trained" } else { "random" }
}
