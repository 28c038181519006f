//! `overdrive models`: what is built in.

use crate::cli::Json;
use crate::failure::Failure;
use crate::terminal::{say, width};
use overdrive::bench::exit::Exit;
use overdrive::bench::table::{Align, Table, terminal_table};
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
    let titles = [
        ("model", Align::Left),
        ("parameters", Align::Right),
        ("GFLOP a call", Align::Right),
        ("weights", Align::Left),
        ("what it is", Align::Left),
    ];
    let mut table = Table::new(&titles);
    for (model, parameters, flops) in rows {
        table.push(vec![
            model.name.to_owned(),
            format!("{:.3} M", parameters as f64 / 1e6),
            format!("{:.3}", flops as f64 / 1e9),
            weights(model.name).to_owned(),
            model.summary.to_owned(),
        ]);
    }
    say!("{}", terminal_table(&table, width()))?;
    say!(
        "`builtin:NAME` is the built-in model where a folder has its name; `train` starts from \
         new weights"
    )?;
    Ok(Exit::Fine)
}

/// Which weights every command but `train` takes.
fn weights(name: &str) -> &'static str {
    if trained(name).is_some() { "trained" } else { "random" }
}
