//! `overdrive explain`: how a model becomes a plan, pass by pass, and the plan; nothing runs.

mod planner;
mod predicted;

use crate::asked_graph::AskedModel;
use crate::cli::Explain;
use crate::failure::Failure;
use crate::terminal::{say, tell, width};
use crate::{devices, limit};
use overdrive::bench::digits;
use overdrive::bench::exit::Exit;
use overdrive::bench::table::{Align, Table, terminal_table};
use overdrive::cuda::Gpu;
use overdrive::ir::plan::{Note, Plan, SlotPlace, Space, Step, StepKind};
use overdrive::ir::{Mesh, Mode, Target, Tuning};
use overdrive::passes::{PASSES, PassChange};
use planner::Planner;
use predicted::Prediction;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;

pub(crate) fn explain(arguments: &Explain) -> Result<Exit, Failure> {
    let model = AskedModel::load(&arguments.subject)?;
    let mesh = arguments.ranks.mesh.clone().unwrap_or_default();
    let batches = arguments.accumulate as usize;
    if batches > 1 && !mesh.axes.iter().any(|(axis, _)| *axis == Mesh::PIPELINE.into()) {
        return Err(Failure::bad_input(format!(
            "--accumulate {batches}: expected stages that work on several batches at once, found \
             the mesh {mesh}; add `pipeline` to --mesh, or leave --accumulate out: the plan of a \
             batch is then the same for each"
        )));
    }
    let (workload, whole) = model.of_ranks(arguments.subject.batch, (&mesh, batches))?;
    model.note_left_in_float(arguments.subject.batch)?;
    let (described, opened);
    let target: &dyn Target = match arguments.gpu {
        Some(name) => {
            described = Gpu::from(name);
            &described
        }
        None => {
            opened = devices::open(&arguments.subject.machine)?;
            opened.backend.target()
        }
    };
    let name = &workload.key.name;
    let mode: Mode = arguments.subject.mode.into();
    let description = target.description();
    devices::check_mode(mode, description, "--mode")?;
    let tuning = Tuning { memory_limit: arguments.memory_limit, ..Tuning::default() };
    let planner = Planner { arguments, model, target, mode, tuning };
    let parts =
        arguments.ranks.mesh.as_ref().map(|mesh| planner.parts(&whole, mesh)).transpose()?;
    let part = parts.as_ref().and_then(|parts| parts.first());
    // A plan that does not exist is the model's or the user's doing.
    let (plan, changes) =
        overdrive::passes::explain(part.unwrap_or(&whole), mode, target, &planner.tuning)
            .map_err(Failure::bad_input)?;
    let mut plans = vec![plan.clone()];
    plans.extend(planner.plans(parts.iter().flatten().skip(1))?);
    let meant = arguments.ranks.mesh.as_ref().zip(arguments.fabric.as_ref());
    let predict = |(mesh, fabric): (&Mesh, &String)| {
        Prediction::new(&planner, (&whole, mesh, &plans), fabric)
    };
    let prediction = meant.map(predict).transpose()?;
    let spaces = || (0..plan.arena_bytes.len() as u8).map(Space);
    if arguments.json {
        let mut json = json!({
            "model": name,
            "device": description.device,
            "mode": mode.name(),
            "passes": PASSES.iter().map(|pass| pass_json(pass.name, pass.does, &changes))
                .collect::<Vec<_>>(),
            "steps": plan.steps.iter().map(|step| step_json(&plan, step)).collect::<Vec<_>>(),
            "memory": {
                "peak_bytes": spaces().map(|space| plan.peak_bytes(space)).collect::<Vec<_>>(),
                "state_bytes": spaces().map(|space| plan.state_bytes(space)).collect::<Vec<_>>(),
                "arena_bytes": plan.arena_bytes,
                "live_bytes": plan.live_bytes,
                "persistent_bytes": plan.persistent_bytes,
                "scratch_bytes": plan.scratch_bytes(),
            },
            "notes": plan.notes.iter().map(note_json).collect::<Vec<_>>(),
        });
        if plans.len() > 1 {
            json["stages"] = plans.iter().map(stage_json).collect();
        }
        if let Some(prediction) = &prediction {
            json["predicted"] = json!(prediction);
        }
        say!("{}", serde_json::to_string_pretty(&json).expect("plain data"))?;
        return Ok(Exit::Fine);
    }
    say!("{}\n", terminal_table(&passes(mode, &changes), width()))?;
    for change in changes.iter().filter(|change| !change.notes.is_empty()) {
        say!("notes of `{}`\n{}\n", change.pass.name, terminal_table(&notes(change), width()))?;
    }
    say!("{}\n", terminal_table(&steps(&plan), width()))?;
    for space in spaces() {
        let at = usize::from(space.0);
        let name = at.checked_sub(1).and_then(|other| description.spaces.get(other));
        let bytes = |all: &[usize]| digits::bytes(all.get(at).copied().unwrap_or(0) as u64);
        let live = match space {
            Space::MAIN => format!(" ({} live at once)", digits::bytes(plan.live_bytes as u64)),
            Space(_) => String::new(),
        };
        let name = name.map_or("main", |space| space.name);
        let (peak, states) = (plan.peak_bytes(space), plan.state_bytes(space));
        say!(
            "{name} memory: peak {}, with states of {}",
            digits::bytes(peak),
            digits::bytes(states)
        )?;
        let scratch = match space {
            Space::MAIN => format!(", scratch {}", digits::bytes(plan.scratch_bytes() as u64)),
            Space(_) => String::new(),
        };
        let (arena, kept) = (bytes(&plan.arena_bytes), bytes(&plan.persistent_bytes));
        say!("  transient {arena}{live}, prepared {kept}{scratch}")?;
    }
    if let Some(mesh) = &arguments.ranks.mesh {
        say!("this is one of {} ranks; {}", mesh.ranks(), exchanged(&plan))?;
        if plans.len() > 1 {
            say!(
                "\nranks along `{}`\n{}\n",
                Mesh::PIPELINE,
                terminal_table(&stages(&plans), width())
            )?;
        }
        if let Some(prediction) = &prediction {
            prediction.lines(&planner).iter().try_for_each(|line| say!("{line}"))?;
            if let Some((title, table)) = prediction.table(mesh) {
                say!("\n{title}\n{}\n", terminal_table(&table, width()))?;
            }
        }
    }
    if let Some(told) = limit::told(&plan) {
        say!("{told}")?;
    }
    let (count, cost) = (plan.steps.len(), plan.cost());
    tell!(
        "{name} {mode}: {count} steps, {}, {} moved",
        digits::flops(cost.flops),
        digits::bytes(cost.bytes)
    )?;
    Ok(Exit::Fine)
}

/// How much a rank sends.
fn exchanged(plan: &Plan) -> String {
    let is_start = |step: &&Step| matches!(step.kind, StepKind::CollectiveStart { .. });
    let count = plan.steps.iter().filter(is_start).count();
    format!("{count} collectives exchange {} a step", digits::bytes(plan.sent_bytes()))
}

/// The parts of the model that stages hold and compute.
fn stages(plans: &[Plan]) -> Table {
    let titles = ["stage", "states", "peak memory", "FLOP", "sent"];
    let mut table = Table::new(&titles.map(|title| (title, Align::Right)));
    for (stage, plan) in plans.iter().enumerate() {
        table.push(vec![
            stage.to_string(),
            digits::bytes(plan.state_bytes(Space::MAIN)),
            digits::bytes(plan.peak_bytes(Space::MAIN)),
            digits::flops(plan.cost().flops),
            digits::bytes(plan.sent_bytes()),
        ]);
    }
    table
}

fn stage_json(plan: &Plan) -> Value {
    json!({
        "state_bytes": plan.state_bytes(Space::MAIN),
        "peak_bytes": plan.peak_bytes(Space::MAIN),
        "flops": plan.cost().flops,
        "sent_bytes": plan.sent_bytes(),
    })
}

fn passes(mode: Mode, changes: &[PassChange]) -> Table {
    let titles = [
        ("pass", Align::Left),
        ("nodes", Align::Right),
        ("steps", Align::Right),
        ("notes", Align::Right),
        ("what it does", Align::Left),
    ];
    let mut table = Table::new(&titles);
    let range = |before: usize, after: usize| match before == after {
        true => after.to_string(),
        false => format!("{before} -> {after}"),
    };
    for pass in PASSES {
        let cells = match changes.iter().find(|change| change.pass.name == pass.name) {
            Some(PassChange { before, after, notes, .. }) => [
                range(before.nodes, after.nodes),
                range(before.steps, after.steps),
                notes.len().to_string(),
                pass.does.to_owned(),
            ],
            None => [
                String::new(),
                String::new(),
                String::new(),
                format!("(not in mode {mode}) {}", pass.does),
            ],
        };
        table.push([vec![pass.name.to_owned()], cells.to_vec()].concat());
    }
    table
}

fn steps(plan: &Plan) -> Table {
    let titles = [
        ("step", Align::Left),
        ("scope", Align::Left),
        ("FLOP", Align::Right),
        ("bytes", Align::Right),
        ("writes to", Align::Left),
    ];
    let mut table = Table::new(&titles);
    for step in &plan.steps {
        let once = if step.prepare { " (once)" } else { "" };
        let mut to = places(plan, step);
        if step.scratch_bytes > 0 {
            to.push(format!("scratch of {}", digits::bytes(step.scratch_bytes as u64)));
        }
        table.push(vec![
            format!("{}{once}", step.name),
            step.scope.clone(),
            digits::flops(step.cost.flops),
            digits::bytes(step.cost.bytes),
            to.join(", "),
        ]);
    }
    table
}

/// The notes of a pass. A note on several scopes in the same words stands once.
fn notes(change: &PassChange) -> Table {
    let mut alike: BTreeMap<(&str, &str, Cow<'_, str>), Vec<&str>> = BTreeMap::new();
    for note in &change.notes {
        let (kind, what, scope, reason) = parts(note);
        alike.entry((kind, what, reason)).or_default().push(scope);
    }
    let titles = [
        ("note", Align::Left),
        ("of", Align::Left),
        ("times", Align::Right),
        ("first at", Align::Left),
        ("why", Align::Left),
    ];
    let mut table = Table::new(&titles);
    for ((kind, what, reason), scopes) in alike {
        let (times, first) = (scopes.len().to_string(), scopes[0].to_owned());
        table.push(vec![kind.to_owned(), what.to_owned(), times, first, reason.into_owned()]);
    }
    table
}

/// Kind, subject, scope and reason.
fn parts(note: &Note) -> (&str, &str, &str, Cow<'_, str>) {
    match note {
        Note::Expanded { op, scope, reason } => ("expanded", op, scope, reason.into()),
        Note::Declined { what, scope, reason } => ("declined", what, scope, reason.into()),
        Note::Recomputed { op, scope, why } => ("recomputed", op, scope, why.to_string().into()),
        Note::Offloaded { what, scope, reason } => ("offloaded", what, scope, reason.into()),
        Note::RunsThere { step, scope, reason } => ("runs there", step, scope, reason.into()),
        Note::ByRows { op, scope, parts } => {
            ("by rows", op, scope, format!("its rows are made in {parts} parts").into())
        }
        Note::Cast { scope, reason } => ("cast", "contraction", scope, reason.into()),
    }
}

/// The places that a step writes to.
fn places(plan: &Plan, step: &Step) -> Vec<String> {
    let place = |place: &SlotPlace| match place {
        SlotPlace::Input(number) => format!("input {number}"),
        SlotPlace::Output(number) => format!("output {number}"),
        SlotPlace::State(name) => format!("state {name}"),
        SlotPlace::Constant(_) => "constant".to_owned(),
        SlotPlace::Arena { space, offset } => format!("arena{}+{offset}", space.0),
        SlotPlace::Persistent { space, offset } => format!("persistent{}+{offset}", space.0),
    };
    step.writes.iter().map(|slot| place(&plan.slot(*slot).place)).collect()
}

fn pass_json(name: &str, does: &str, changes: &[PassChange]) -> Value {
    let change = changes.iter().find(|change| change.pass.name == name);
    let mut json = json!({ "name": name, "does": does, "ran": change.is_some() });
    if let Some(change) = change {
        let pair = |before, after| json!({ "before": before, "after": after });
        json["nodes"] = pair(change.before.nodes, change.after.nodes);
        json["steps"] = pair(change.before.steps, change.after.steps);
        json["notes"] = change.notes.iter().map(note_json).collect();
    }
    json
}

fn step_json(plan: &Plan, step: &Step) -> Value {
    json!({
        "name": step.name,
        "scope": step.scope,
        "flops": step.cost.flops,
        "bytes": step.cost.bytes,
        "scratch_bytes": step.scratch_bytes,
        "writes": places(plan, step),
        "prepare": step.prepare,
    })
}

fn note_json(note: &Note) -> Value {
    let (kind, what, scope, reason) = parts(note);
    json!({ "kind": kind, "what": what, "scope": scope, "reason": reason })
}
