//! The study: every mode on models of three kinds, in one session a model.

use super::{Footprint, agreement, apply, latency, outputs};
use crate::{Context, Entry, Study, Template};
use overdrive_bench::outcome::{Failure, Outcome};
use overdrive_bench::record::{Measurement, Record};
use overdrive_bench::results::{Note, Results};
use overdrive_ir::{Graph, Mode, Tensor};
use overdrive_passes::{MODES, QuantizationMode, Quantized, bind};
use std::collections::BTreeMap;

/// The study.
pub(crate) struct Quantization;

/// Models, and the batches at which they are timed; the first is the one that outputs are judged at.
const MODELS: [(&str, [usize; 2]); 3] =
    [("digits-mlp", [32, 1]), ("digits-conv", [32, 1]), ("text-transformer", [8, 1])];
/// Modes that a screening has time for.
const QUICK: [&str; 6] = ["int8-dynamic", "int8-static", "int8-weights", "fp8", "int4-rtn", "int4-gptq"];
/// Batches that are seen in calibration, and as many others that judge.
const BATCHES: u64 = 4;
/// Seeds of batches that judge begin this far after those that calibrate.
const HELD_OUT: u64 = 1000;

/// A mode's graph at one batch size, with the exact quantities of the model that it is.
struct Variant {
    name: Option<&'static str>,
    graph: Graph,
    quantities: BTreeMap<String, f64>,
}

impl Study for Quantization {
    fn name(&self) -> &'static str {
        "quantization"
    }

    fn summary(&self) -> &'static str {
        "each quantization mode: bytes, agreement with the float model, latency"
    }

    fn quick_seconds(&self) -> u64 {
        45
    }

    fn run(&self, context: &Context<'_>, results: &mut Results) {
        let modes: Vec<&QuantizationMode> =
            MODES.iter().filter(|mode| !context.is_quick() || QUICK.contains(&mode.name)).collect();
        for (name, batches) in MODELS {
            context.progress.workload(name);
            for &batch in context.quick_or(&batches[..1], &batches[..]) {
                if let Some(reason) = context.over() {
                    self.note(results, format!("{name} at batch {batch}: {reason}"));
                    continue;
                }
                match self.model(context, results, (name, batch), &modes) {
                    Ok(records) => context.add(results, records),
                    Err(failure) => {
                        self.note(results, format!("{name} at batch {batch}: {}", failure.reason))
                    }
                }
            }
        }
    }
}

impl Quantization {
    fn note(&self, results: &mut Results, text: String) {
        results.notes.push(Note { study: "quantization".to_owned(), text });
    }

    fn model(
        &self,
        context: &Context<'_>,
        results: &mut Results,
        (name, batch): (&str, usize),
        modes: &[&'static QuantizationMode],
    ) -> Result<Vec<Record>, Failure> {
        let failed = |e: &dyn std::fmt::Display| Failure::failed(e.to_string());
        let model = overdrive_models::find(name).map_err(|e| failed(&e))?;
        let mut template = Template::built_in(model).map_err(|e| failed(&e))?;
        template.dimensions.insert("batch".to_owned(), batch);
        let workload = template.bind(&BTreeMap::new()).map_err(|e| failed(&e))?;
        let backend = context.device().backend;
        let draw =
            |from: u64| (0..BATCHES).map(|i| workload.inputs(context.seed + from + i)).collect::<Vec<_>>();
        let (seen, held_out) = (draw(0), draw(HELD_OUT));
        let float = outputs(backend, &workload.graph, &held_out)?;
        let float_bytes = super::footprint::state_bytes(&template.graph) as f64;
        let mut variants = vec![Variant {
            name: None,
            graph: workload.graph.clone(),
            quantities: BTreeMap::from([("parameter_bytes".to_owned(), float_bytes)]),
        }];
        for mode in modes {
            let quantization = mode.quantization();
            match apply(backend, &template, (mode.preparation, &quantization), &seen) {
                Ok(quantized) => {
                    for skipped in &quantized.skipped {
                        let text = format!(
                            "{name}, {}: `{}` stays as it is: {}",
                            mode.name, skipped.layer, skipped.reason
                        );
                        self.note(results, text);
                    }
                    let graph = bind(&quantized.graph, &template.dimensions).map_err(|e| failed(&e))?;
                    let found = outputs(backend, &graph, &held_out)?;
                    let quantities = quantities(&quantized, float_bytes, &float, &found);
                    variants.push(Variant { name: Some(mode.name), graph, quantities });
                }
                Err(failure) => self.note(results, format!("{name}, {}: {}", mode.name, failure.reason)),
            }
        }
        let graphs: Vec<&Graph> = variants.iter().map(|variant| &variant.graph).collect();
        let inputs = |seed: u64| workload.inputs(seed);
        let outcomes =
            latency(backend, &graphs, &inputs, (context.clock, context.rules.clone(), context.seed))?;
        let entry = Entry::plain(&workload, context.device(), Mode::Compile);
        let baseline = entry.case("quantization").id();
        let record = |(variant, mut outcome): (Variant, Outcome)| {
            let mut case = entry.case("quantization");
            case.configuration.variant = variant.name.map(str::to_owned);
            if let Some(Measurement { quantities, work, .. }) = outcome.measurement_mut() {
                *quantities = variant.quantities;
                *work = Some(workload.work());
            }
            Record {
                case,
                baseline: variant.name.is_some().then(|| baseline.clone()),
                seed: context.seed,
                command: format!("{} quantization", context.command),
                outcome,
            }
        };
        Ok(variants.into_iter().zip(outcomes).map(record).collect())
    }
}

fn quantities(
    quantized: &Quantized,
    float_bytes: f64,
    float: &[Vec<Tensor>],
    found: &[Vec<Tensor>],
) -> BTreeMap<String, f64> {
    let (footprint, agreement) = (Footprint::of(quantized), agreement(float, found));
    let named = [
        ("parameter_bytes", footprint.total() as f64),
        ("parameter_share", footprint.total() as f64 / float_bytes),
        ("layer_share", footprint.share_of_layers()),
        ("cosine", agreement.cosine),
        ("relative_error", agreement.relative_error),
        ("relative_error_half_width", agreement.relative_error_half_width),
    ];
    named.map(|(name, value)| (name.to_owned(), value)).into()
}
