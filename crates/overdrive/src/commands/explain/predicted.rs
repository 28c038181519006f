//! The predicted step of a rank among others, over links that the user names: for one mesh, and for
//! other sizes of its first axis.
//!
//! Every number here is an estimate and says so. A row plans the step anew, since the parts that a
//! rank holds depend on the mesh.

use super::planner::Planner;
use crate::failure::{Failure, unknown};
use overdrive::bench::digits;
use overdrive::bench::table::{Align, Table};
use overdrive::cuda::fabrics;
use overdrive::files::{SETTINGS, read_text};
use overdrive::ir::plan::{Pace, Plan, Space, Timeline, timelines};
use overdrive::ir::{Axis, Cluster, Fabric, Graph, Mesh, Tuning};
use overdrive::train::DATA;
use serde::Serialize;
use std::path::Path;

/// A predicted step, as JSON holds it.
#[derive(Serialize)]
pub(super) struct Prediction {
    fabric: Fabric,
    /// Samples in each part of the batch.
    samples: usize,
    /// Seconds of a step of one rank on so many samples: measured, or else estimated.
    one_rank_seconds: f64,
    /// Whether the user gave them.
    one_rank_measured: bool,
    step: PredictedStep,
    scale: Vec<PredictedStep>,
}

/// The step of each rank of a mesh.
#[derive(Serialize)]
struct PredictedStep {
    mesh: String,
    ranks: usize,
    batch: usize,
    /// Samples a second of each rank, over those of one rank alone.
    efficiency: f64,
    /// Main memory that the plan takes on each rank.
    peak_bytes: u64,
    /// Bytes that each rank sends.
    sent_bytes: f64,
    #[serde(flatten)]
    timeline: Timeline,
}

/// The things that all rows share.
struct Predictor<'a> {
    planner: &'a Planner<'a>,
    fabric: Fabric,
    samples: usize,
    one_rank_seconds: f64,
    work_factor: f64,
}

impl Prediction {
    /// The prediction that the user asked for. `whole` is the step of the whole batch, `plans`
    /// are those of the ranks of `mesh` that differ.
    pub(super) fn new(
        planner: &Planner<'_>,
        (whole, mesh, plans): (&Graph, &Mesh, &[Plan]),
        fabric: &str,
    ) -> Result<Self, Failure> {
        let arguments = planner.arguments;
        let fabric = named(fabric)?;
        let batch = samples(whole)?;
        let samples = batch / parts(mesh);
        let estimated = planner.one_rank(samples)?.seconds(planner.target.description());
        let one_rank_seconds = arguments.step_ms.map_or(estimated, |ms| ms / 1e3);
        let work_factor = one_rank_seconds / estimated;
        let predictor = Predictor { planner, fabric, samples, one_rank_seconds, work_factor };
        let step = predictor.step(mesh, plans)?;
        let at = |size: &u32| predictor.at_size(mesh, *size as usize);
        let scale = arguments.scale.iter().map(at).collect::<Result<_, _>>()?;
        Ok(Self {
            fabric: predictor.fabric,
            samples,
            one_rank_seconds,
            one_rank_measured: arguments.step_ms.is_some(),
            step,
            scale,
        })
    }

    /// In sentences.
    pub(super) fn lines(&self, planner: &Planner<'_>) -> Vec<String> {
        let PredictedStep { ranks, efficiency, sent_bytes, timeline, .. } = &self.step;
        let kinds =
            timeline.collectives.iter().map(|(name, kind)| format!("{} {name}", kind.count));
        let kinds = kinds.collect::<Vec<_>>().join(", ");
        let peaks = &planner.target.description().peaks;
        let work = if self.one_rank_measured {
            "measured on one rank"
        } else if peaks.levels.is_empty() && peaks.flops_per_second.is_empty() {
            "by nominal rates, since the device reports no peaks; better give --step-ms"
        } else {
            "estimated by the peaks of the device; better give --step-ms"
        };
        let idle = match timeline.idle_seconds {
            0.0 => String::new(),
            idle => {
                format!("; stages idle {}, {:.1} %", time(idle), 100.0 * idle / timeline.seconds)
            }
        };
        vec![
            format!(
                "predicted step of {ranks} ranks: {}, efficiency {:.1} % against one rank of {}",
                time(timeline.seconds),
                100.0 * efficiency,
                time(self.one_rank_seconds),
            ),
            format!(
                "  collectives take {}, of which exposed {}, {:.1} % of the step; they slow work \
                 by {}{idle}",
                time(timeline.exchange_seconds),
                time(timeline.exposed_seconds),
                100.0 * timeline.exposed_seconds / timeline.seconds,
                time(timeline.slowed_seconds),
            ),
            format!("  each rank sends {}: {kinds}", digits::bytes(*sent_bytes as u64)),
            format!("  work: {work}"),
            format!("  links: {}, {}", self.fabric.name, self.fabric.source),
        ]
    }

    /// The sizes that the user listed, with a title; `None` without a list.
    pub(super) fn table(&self, mesh: &Mesh) -> Option<(String, Table)> {
        if self.scale.is_empty() {
            return None;
        }
        let axis = &mesh.axes[0].0;
        let kept = match *axis == Axis::from(DATA) {
            true => format!("{} samples a rank (weak scaling)", self.samples),
            false => format!("a batch of {} (strong scaling)", self.step.batch),
        };
        let titles = ["ranks", "batch", "step", "efficiency", "exposed", "sent", "memory"];
        let mut table = Table::new(&titles.map(|title| (title, Align::Right)));
        for step in &self.scale {
            let PredictedStep { timeline, .. } = step;
            table.push(vec![
                step.ranks.to_string(),
                step.batch.to_string(),
                time(timeline.seconds),
                format!("{:.1} %", 100.0 * step.efficiency),
                format!("{:.1} %", 100.0 * timeline.exposed_seconds / timeline.seconds),
                digits::bytes(step.sent_bytes as u64),
                digits::bytes(step.peak_bytes),
            ]);
        }
        Some((format!("predicted for other sizes of `{axis}`, {kept}"), table))
    }
}

impl Predictor<'_> {
    /// The step of the mesh whose first axis has another size.
    fn at_size(&self, mesh: &Mesh, size: usize) -> Result<PredictedStep, Failure> {
        let mut mesh = mesh.clone();
        mesh.axes[0].1 = size;
        let refused = |error: Failure| Failure {
            message: format!("--scale {size}: {}", error.message),
            ..error
        };
        if mesh.ranks() > Mesh::MAX_RANKS {
            let (most, found) = (Mesh::MAX_RANKS, mesh.ranks());
            let text = format!("expected at most {most} ranks, found {found}");
            return Err(refused(Failure::bad_input(text)));
        }
        let whole = self.planner.whole(self.samples * parts(&mesh), &mesh).map_err(refused)?;
        let parts = self.planner.parts(&whole, &mesh).map_err(refused)?;
        let plans = self.planner.plans(parts.iter()).map_err(refused)?;
        self.step(&mesh, &plans).map_err(refused)
    }

    fn step(&self, mesh: &Mesh, plans: &[Plan]) -> Result<PredictedStep, Failure> {
        let cluster = Some(Cluster::new(&self.fabric, mesh).map_err(Failure::bad_input)?);
        let device = self.planner.target.description();
        let pace = Pace { device, work_factor: self.work_factor, cluster };
        // The last stage to end, which is not always the last one.
        let slowest = timelines(plans, &pace).into_iter();
        let slowest = slowest.max_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let timeline = slowest.expect("a mesh has a rank");
        let peak = plans.iter().map(|plan| plan.peak_bytes(Space::MAIN)).max();
        let (ranks, parts) = (mesh.ranks(), parts(mesh));
        let share = parts as f64 / ranks as f64;
        Ok(PredictedStep {
            mesh: mesh.to_string(),
            ranks,
            batch: self.samples * parts,
            efficiency: share * self.one_rank_seconds / timeline.seconds,
            peak_bytes: peak.unwrap_or_default(),
            sent_bytes: timeline.sent_bytes(),
            timeline,
        })
    }
}

impl Planner<'_> {
    /// The plan of the batches that one rank takes alone, with as much memory as it needs.
    fn one_rank(&self, samples: usize) -> Result<Plan, Failure> {
        let (graph, tuning) = (self.whole(samples, &Mesh::default())?, Tuning::default());
        overdrive::passes::plan(&graph, self.mode, self.target, &tuning).map_err(Failure::bad_input)
    }
}

/// Parts into which ranks cut a batch.
fn parts(mesh: &Mesh) -> usize {
    mesh.size(&DATA.into())
}

/// Samples in a batch: each input but numbers has one a row.
fn samples(whole: &Graph) -> Result<usize, Failure> {
    let mut sizes = whole.inputs().iter().map(|port| whole.ty(port.value).sizes());
    sizes.find_map(|sizes| sizes.first().copied()).ok_or_else(|| {
        Failure::bad_input("--fabric: expected a model with a batch, found no input that has rows")
    })
}

/// A built-in fabric, or the one in a file.
fn named(name: &str) -> Result<Fabric, Failure> {
    let all = fabrics::all();
    if let Some(known) = all.iter().find(|fabric| fabric.name == name) {
        return Ok(known.clone());
    }
    let path = Path::new(name);
    if !path.exists() && !name.contains(['.', '/']) {
        let known: Vec<&str> = all.iter().map(|fabric| fabric.name.as_str()).collect();
        let text = unknown("fabric", name, &known);
        return Err(Failure::bad_input(text).and("A file of links is meant by its path"));
    }
    let text = read_text(path, SETTINGS)?;
    Fabric::of_json(&text).map_err(|error| Failure::bad_input(format!("`{name}`: {error}")))
}

/// Seconds, for people.
fn time(seconds: f64) -> String {
    if seconds == 0.0 { "0 s".to_owned() } else { digits::time(1e9 * seconds, None) }
}
