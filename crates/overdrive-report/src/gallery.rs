//! Results that feed every chart, for the tests of charts, page and pictures: what studies record
//! of quantization, training, scaling and sparsity, written by hand.

use overdrive_bench::case::{Configuration, Workload};
use overdrive_bench::ceilings::{Ceiling, CeilingKind};
use overdrive_bench::failure::Failure;
use overdrive_bench::ladder::{LadderKey, Rung};
use overdrive_bench::measurement::Curve;
use overdrive_bench::memory::MemoryUse;
use overdrive_bench::record::Record;
use overdrive_bench::results::{Note, Results, Variant};
use overdrive_bench::series::Series;
use overdrive_bench::testing::{conditions, record, results, samples};
use overdrive_bench::work::Work;

/// Twenty samples around `ns`, skewed as timings are.
fn spans(ns: u64) -> Vec<u64> {
    (0..20).map(|i| ns + (i * i * 7919) % (ns / 50)).collect()
}

/// A case of one study.
pub(super) struct Gallery {
    study: &'static str,
}

impl Gallery {
    fn case(&self, (name, sizes): (&str, &[(&str, u64)]), mode: &str, ns: u64) -> Record {
        let mut made = record(mode, &spans(ns));
        made.case.study = self.study.into();
        made.case.workload = Workload::new(name, sizes.iter().copied());
        made
    }
}

fn quantity(record: &mut Record, values: &[(&str, f64)]) {
    let measurement = record.outcome.measurement_mut().expect("a record with a figure");
    measurement.quantities.extend(values.iter().map(|(name, value)| ((*name).to_owned(), *value)));
}

fn against(record: &mut Record, baseline: &Record) {
    record.baseline = Some(baseline.case.id());
}

fn configure(record: &mut Record, change: impl FnOnce(&mut Configuration)) {
    change(&mut record.case.configuration);
}

/// One of everything, in six studies.
pub(crate) fn gallery() -> Results {
    let mut found = results();
    found.records.extend(quantization());
    found.records.extend(kernels());
    found.records.extend(training());
    found.records.extend(sparsity());
    let ladder = cumulative();
    found.ladders.push(LadderKey {
        title: "transformer, from eager f32".into(),
        rungs: ["eager", "planned", "fused"]
            .iter()
            .zip(&ladder)
            .map(|(change, record)| Rung { change: (*change).into(), case: record.case.id() })
            .collect(),
    });
    found.records.extend(ladder);
    for (name, kind, amount) in [
        ("stream t1", CeilingKind::Bandwidth, 20_000_000),
        ("matmul f32 t1", CeilingKind::Compute, 200_000_000),
    ] {
        let series = Series::new(conditions(), samples(&spans(1_000_000))).expect("positive spans");
        let method = "the fastest".into();
        found.ceilings.push(Ceiling {
            name: name.into(),
            kind,
            amount_per_call: amount,
            threads: 1,
            method,
            series,
        });
    }
    found.notes.push(Note { study: "kernels".into(), text: "No GPU here.".into() });
    found.variants.push(Variant {
        name: "int8".into(),
        about: "int8 weights by channel".into(),
        made_by: Some("overdrive quantize digits-mlp --mode int8 -o digits-mlp-int8".into()),
    });
    found
}

fn quantization() -> Vec<Record> {
    let study = Gallery { study: "quantization" };
    let model = ("digits-mlp", &[("B", 64)][..]);
    let mut full = study.case(model, "compile", 400_000);
    let measured = |record: &mut Record, (bytes, top1, loss): (f64, f64, f64)| {
        quantity(
            record,
            &[
                ("file_bytes", bytes),
                ("top1_percent", top1),
                ("top1_percent.low", top1 - 0.6),
                ("top1_percent.high", top1 + 0.5),
                ("top1_percent.n", 1797.0),
            ],
        );
        quantity(
            record,
            &[
                ("loss", loss),
                ("loss.low", loss - 0.01),
                ("loss.high", loss + 0.01),
                ("loss.n", 1797.0),
            ],
        );
    };
    measured(&mut full, (104_488.0, 97.4, 0.101));
    let mut made = Vec::new();
    for (mode, bytes, top1, loss) in [
        ("int8", 27_180.0, 97.2, 0.104),
        ("int4", 14_900.0, 95.1, 0.162),
        ("int8-naive", 28_000.0, 96.0, 0.140),
    ] {
        let mut record = study.case(model, "compile", 300_000);
        configure(&mut record, |c| c.variant = Some(mode.into()));
        against(&mut record, &full);
        measured(&mut record, (bytes, top1, loss));
        made.push(record);
    }
    quantity(
        &mut made[0],
        &[
            ("file_bytes.weights", 26_112.0),
            ("file_bytes.scales", 832.0),
            ("file_bytes.header", 236.0),
        ],
    );
    let mut failed = study.case(model, "compile", 1_000);
    configure(&mut failed, |c| c.variant = Some("f8e4m3".into()));
    against(&mut failed, &full);
    failed.outcome = Failure::unsupported("no fp8 product on this device").into();
    made.push(failed);
    made.insert(0, full);
    made
}

fn kernels() -> Vec<Record> {
    let study = Gallery { study: "kernels" };
    let mut made = Vec::new();
    for t in [512_u64, 1024, 2048] {
        let work = Work { flops: 2 * 8 * 64 * t * t, bytes: 4 * 4 * 8 * 64 * t, items: None };
        let sizes = [("B", 1), ("H", 8), ("T", t), ("D", 64)];
        let mut expanded = study.case(("attention", &sizes), "compile", 20 * t * t);
        let mut tiled = study.case(("attention", &sizes), "compile", 8 * t * t);
        configure(&mut expanded, |c| c.variant = Some("expanded".into()));
        configure(&mut tiled, |c| c.variant = Some("tiled".into()));
        against(&mut tiled, &expanded);
        for (record, arena) in [(&mut expanded, 8 * 4 * t * t), (&mut tiled, 8 * 4 * 64 * t)] {
            let measurement = record.outcome.measurement_mut().expect("a record with a figure");
            measurement.work = Some(work.clone());
            measurement.memory =
                Some(MemoryUse { planned_arena_bytes: Some(arena), ..MemoryUse::default() });
            measurement.overhead.compile_ns = Some(3_000_000);
            measurement.overhead.first_call_ns = Some(60 * t * t);
        }
        made.extend([expanded, tiled]);
    }
    made
}

fn training() -> Vec<Record> {
    let study = Gallery { study: "training" };
    let model = ("digits-mlp", &[("B", 64)][..]);
    let mut made = Vec::new();
    for (dtype, rate, bytes) in [("f32", 0.05, 8e6), ("bf16", 0.048, 6e6)] {
        let mut record = study.case(model, "compile", 2_000_000);
        configure(&mut record, |c| c.dtype = dtype.into());
        quantity(&mut record, &[("planned_bytes", bytes)]);
        let measurement = record.outcome.measurement_mut().expect("a record with a figure");
        for seed in [1, 2] {
            let loss = |step: u32| {
                2.3 * (-rate * f64::from(step)).exp()
                    + 0.02 * f64::from((step * 7 + seed as u32) % 5)
            };
            for (over, each) in [("step", 1.0), ("time_ns", rate * 2e9 + seed as f64 * 1e6)] {
                let points = (0..40).map(|step| (each * f64::from(step), loss(step))).collect();
                measurement.curves.push(Curve {
                    quantity: "validation_loss_nats".into(),
                    over: over.into(),
                    seed: Some(seed),
                    points,
                });
            }
        }
        let points = (0..30).map(|i| (f64::from(i) * 1e5, f64::from(1 + i % 10) * 1e6)).collect();
        measurement.curves.push(Curve {
            quantity: "memory_bytes".into(),
            over: "time_ns".into(),
            seed: None,
            points,
        });
        made.push(record);
    }
    for ranks in [1_u32, 2, 4] {
        let mut record = study.case(
            ("gpt-125m", &[("B", 8)]),
            "graph",
            80_000_000 / u64::from(ranks) + 3_000_000,
        );
        configure(&mut record, |c| {
            c.backend = "cuda".into();
            c.device = format!("cuda x{ranks}");
        });
        quantity(&mut record, &[("ranks", f64::from(ranks))]);
        made.push(record);
    }
    made
}

fn sparsity() -> Vec<Record> {
    let study = Gallery { study: "attention" };
    let sizes = [("T", 4096)];
    let dense = study.case(("block mask", &sizes), "compile", 9_000_000);
    let mut made = vec![dense];
    for (percent, ns) in [(50, 5_000_000), (75, 2_900_000), (90, 1_600_000)] {
        let mut record = study.case(("block mask", &sizes), "compile", ns);
        configure(&mut record, |c| c.variant = Some(format!("{percent} % zeros")));
        against(&mut record, &made[0]);
        let cosine = 1.0 - f64::from(percent) * 1e-4;
        quantity(&mut record, &[("sparsity_percent", f64::from(percent)), ("cosine", cosine)]);
        made.push(record);
    }
    made
}

fn cumulative() -> Vec<Record> {
    let study = Gallery { study: "cumulative" };
    let model = ("transformer", &[("B", 8)][..]);
    let mut made: Vec<Record> = [("eager", 9_000_000), ("jit", 7_000_000), ("compile", 3_000_000)]
        .map(|(mode, ns)| study.case(model, mode, ns))
        .into();
    let baseline = made[0].clone();
    made[1..].iter_mut().for_each(|record| against(record, &baseline));
    made
}
