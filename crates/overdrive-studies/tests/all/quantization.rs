//! A trained model in every step that the study takes: it stays right, GPTQ repeats by block, too
//! few samples are refused.

use overdrive_bench::failure::Failure;
use overdrive_bench::runner::Stop;
use overdrive_cpu::CpuBackend;
use overdrive_ir::Granularity::Channel;
use overdrive_ir::ops::quantized_linear::Activations;
use overdrive_ir::{BlockFormat, DType, Graph, Init};
use overdrive_passes::{Preparation, Quantization, QuantizationMode, Rounding, bind, quantize};
use overdrive_studies::quantization::{
    Going, Judge, Metric, Task, Trial, apply, apply_in_parts, apply_while, calibrate, calibration,
    outputs, sensitivities, to_the_end, trained_as_long,
};
use overdrive_train::data::{Split, Subset, open};
use overdrive_train::tuning_of;
use std::cell::Cell;
use std::sync::Arc;

fn task(backend: &CpuBackend) -> Task {
    Task::trained(backend, overdrive_models::find("digits-mlp").unwrap(), Trial::CARRIED, [4, 32])
        .unwrap()
}

fn mode(name: &str) -> &'static QuantizationMode {
    QuantizationMode::find(name).unwrap()
}

fn codes(graph: &Graph, name: &str) -> Vec<f64> {
    let state = graph.states().iter().find(|state| state.name == name).unwrap();
    match &state.init {
        Init::Value(tensor) => tensor.to_f64(),
        other => panic!("{name} begins as {other:?}"),
    }
}

/// The sum of squared errors of a graph's outputs against those of the float model, on the samples
/// that calibrate.
fn error_of<'a>(backend: &'a CpuBackend, task: &'a Task) -> impl Fn(&Graph) -> f64 + 'a {
    let run = |graph: &Graph| {
        let bound = bind(graph, &task.template.dimensions).unwrap();
        let found = outputs(backend, &bound, &task.seen).unwrap();
        found.iter().flat_map(|outputs| outputs[0].to_f64()).collect::<Vec<_>>()
    };
    let float = run(&task.template.graph);
    move |graph| float.iter().zip(run(graph)).map(|(a, b)| (a - b).powi(2)).sum::<f64>()
}

#[test]
fn eight_bits_keep_what_a_trained_model_knows() {
    let backend = CpuBackend::new(Some(1)).unwrap();
    let task = task(&backend);
    let scores =
        |graph: &Graph| vec![Metric::Top1.scores(0, &task.evaluate(&backend, graph).unwrap())];
    let float = scores(&task.template.graph);
    assert!(Metric::Top1.of(&float).low > 95.0, "{:?}", Metric::Top1.of(&float));
    for name in ["int8-static", "int8-dynamic", "fp8", "mxfp8"] {
        let made = task.apply(&backend, mode(name)).unwrap();
        let lost = Metric::Top1.loss(&float, &scores(&made.graph));
        assert!(lost.value.abs() < 1.0 && lost.low < 0.3, "{name}: {lost:?}");
        assert!(lost.high > lost.value, "an interval has a width: {lost:?}");
    }
}

#[test]
fn gptq_calibrates_each_block_on_the_quantized_ones_before_it() {
    let backend = CpuBackend::new(Some(1)).unwrap();
    let task = task(&backend);
    let quantization = mode("int4-gptq").quantization();
    let repeated =
        apply(&backend, &task.template, (Preparation::None, &quantization), &task.seen).unwrap();
    assert_eq!(repeated.layers.len(), 3);
    assert!(repeated.skipped.is_empty() && repeated.simplified.is_empty());
    let bound = bind(&task.template.graph, &task.template.dimensions).unwrap();
    let evidence = calibrate(&backend, &bound, &quantization.statistics(), &task.seen).unwrap();
    let once = quantize(&task.template.graph, &quantization, &evidence).unwrap();
    let both = |name: &str| [&repeated.graph, &once.graph].map(|graph| codes(graph, name));
    let [first, first_once] = both("fc1.weight");
    assert_eq!(first, first_once, "nothing comes before the first block");
    let [second, second_once] = both("fc2.weight");
    assert_ne!(second, second_once, "the second sees what the first became");
}

#[test]
fn gptaq_comes_nearer_to_the_float_model_than_gptq_also_in_parts() {
    let backend = CpuBackend::new(Some(1)).unwrap();
    let task = task(&backend);
    let error = error_of(&backend, &task);
    let [gptq, gptaq] = ["int4-gptq", "int4-gptaq"].map(|name| mode(name).quantization());
    let whole = |quantization| {
        let how = (Preparation::None, quantization);
        apply(&backend, &task.template, how, &task.seen).unwrap().graph
    };
    let how = (Preparation::None, &gptaq);
    let mut done = 0;
    let going: (&Going<'_>, &mut dyn FnMut(usize, usize)) = (&to_the_end, &mut |_, _| done += 1);
    let parts = apply_in_parts(&backend, &task.template, how, &task.seen, going).unwrap();
    assert_eq!(done, 3, "layers without a number are parts of their own");
    let [plain, found, parts] = [&whole(&gptq), &whole(&gptaq), &parts.graph].map(error);
    assert!(found < 0.9 * plain, "GPTAQ errs by {found}, GPTQ by {plain}");
    assert!(parts < 0.9 * plain, "in parts it errs by {parts}, GPTQ by {plain}");
}

#[test]
fn auto_round_moves_codes_towards_the_float_model_and_repeats() {
    let backend = CpuBackend::new(Some(1)).unwrap();
    for name in ["digits-mlp", "digits-conv"] {
        let model = overdrive_models::find(name).unwrap();
        let task = Task::trained(&backend, model, Trial::CARRIED, [4, 32]).unwrap();
        let int4 = Quantization::new(BlockFormat::plain(DType::I4, Channel), Activations::Float);
        let made = |rounding: Rounding| {
            let quantization = int4.clone().rounded(rounding);
            apply(&backend, &task.template, (Preparation::None, &quantization), &task.seen).unwrap()
        };
        let [gptq, descended, again] =
            [Rounding::Gptq, Rounding::AutoRound, Rounding::AutoRound].map(made);
        assert_eq!(descended.graph, again.graph, "{name}: the same samples give the same codes");
        assert!(descended.skipped.is_empty() && descended.simplified.is_empty(), "{name}");
        assert_eq!(descended.layers.len(), gptq.layers.len(), "{name}");
        let error = error_of(&backend, &task);
        let [gptq, found] = [&gptq.graph, &descended.graph].map(error);
        assert!(found < gptq, "{name}: the descent errs by {found}, GPTQ by {gptq}");
    }
}

#[test]
fn long_work_ends_between_two_steps() {
    let backend = CpuBackend::new(Some(1)).unwrap();
    let task = task(&backend);
    let template = &task.template;
    let asked = Cell::new(0);
    // Goes on so often, and no more.
    let going = |times: usize| {
        asked.set(0);
        let asked = &asked;
        move || {
            asked.set(asked.get() + 1);
            if asked.get() > times { Err(Failure::skipped("no more")) } else { Ok(()) }
        }
    };
    // The second block of GPTQ; the ninth step of AutoRound's first block.
    for (name, times) in [("int4-gptq", 1), ("int4-autoround", 9)] {
        let quantization = mode(name).quantization();
        let how = (Preparation::None, &quantization);
        let ended = apply_while(&backend, template, how, &task.seen, &going(times));
        assert_eq!(ended.unwrap_err().reason, "no more", "{name}");
        assert_eq!(asked.get(), times + 1, "{name}");
    }
    let parts = open("digits").unwrap().parts(&template.graph, 0).unwrap();
    let learnt = (&parts, &tuning_of("digits-mlp"));
    let ended = trained_as_long((&backend, template), learnt, &going(2));
    assert_eq!((ended.unwrap_err().reason.as_str(), asked.get()), ("no more", 3));
}

fn meant(name: &str) -> (&'static QuantizationMode, Quantization) {
    (mode(name), mode(name).quantization())
}

#[test]
fn a_scan_changes_one_layer_at_a_time() {
    let backend = CpuBackend::new(Some(1)).unwrap();
    let task = task(&backend);
    let judge =
        Judge::labelled((&backend, &task.template), Metric::Top1, Arc::clone(&task.held_out))
            .unwrap();
    let screening = judge.screening(64);
    let scanned = sensitivities(
        &screening,
        &[meant("int4-rtn"), meant("int8-weights")],
        &task.seen,
        &Stop::default(),
    )
    .unwrap();
    let names: Vec<(&str, &str)> = scanned.iter().map(|s| (s.layer.as_str(), s.mode)).collect();
    assert_eq!(names[..3], [("fc1", "int4-rtn"), ("fc1", "int8-weights"), ("fc2", "int4-rtn")]);
    let of = |layer: &str, mode: &str| {
        scanned
            .iter()
            .find(|s| s.layer == layer && s.mode == mode)
            .map(|s| s.lost.value.abs())
            .unwrap()
    };
    assert!(of("fc2", "int4-rtn") > of("fc2", "int8-weights"), "four bits move more than eight");
    assert!(
        sensitivities(&screening, &[meant("int4-awq")], &task.seen, &Stop::default())
            .unwrap_err()
            .reason
            .contains("alone")
    );
    let refused =
        sensitivities(&screening, &[meant("int8-corrected")], &task.seen, &Stop::default());
    assert!(refused.unwrap_err().reason.contains("alone"));
}

#[test]
fn biases_of_convolutions_are_corrected_and_their_channels_equalized() {
    let backend = CpuBackend::new(Some(1)).unwrap();
    let model = overdrive_models::find("digits-conv").unwrap();
    let task = Task::trained(&backend, model, Trial::CARRIED, [4, 32]).unwrap();
    let scores =
        |graph: &Graph| vec![Metric::Top1.scores(0, &task.evaluate(&backend, graph).unwrap())];
    let float = scores(&task.template.graph);
    let plain = task.apply(&backend, mode("int8-static")).unwrap();
    for (name, is_equalized) in [("int8-corrected", false), ("int8-equalized", true)] {
        let made = task.apply(&backend, mode(name)).unwrap();
        assert!(made.skipped.is_empty() && made.layers.len() == 4, "{:?}", made.skipped);
        let lost = Metric::Top1.loss(&float, &scores(&made.graph));
        assert!(lost.value.abs() < 1.0, "{name}: {lost:?}");
        for layer in ["conv1", "conv2", "conv3", "head"] {
            let [weight, bias] = ["weight", "bias"].map(|part| format!("{layer}.{part}"));
            let differ = |state| codes(&plain.graph, state) != codes(&made.graph, state);
            assert!(differ(&bias), "{name}: the bias of {layer} stayed");
            // Rows have scales of their own, so codes of the first layer do not tell.
            assert!(layer == "conv1" || differ(&weight) == is_equalized, "{name}: {layer}");
        }
        let kept: Vec<&str> = made.simplified.iter().map(|kept| kept.layer.as_str()).collect();
        assert_eq!(kept, if is_equalized { vec!["conv1"] } else { vec![] }, "{name}");
    }
}

#[test]
fn calibration_takes_whole_batches_or_says_how_many_samples_it_lacks() {
    let backend = CpuBackend::new(Some(1)).unwrap();
    let task = task(&backend);
    let few: Arc<dyn Split> = Arc::new(Subset::evenly(Arc::clone(&task.held_out), 40));
    assert_eq!(calibration(&few, 10, 4).unwrap().len(), 4);
    let refused = calibration(&few, 32, 4).unwrap_err().reason;
    assert!(refused.contains("at least 128 samples") && refused.contains("found 40"), "{refused}");
    let picked = few.batch(&[0, 39]).unwrap();
    let all = task.held_out.batch(&[0, 351]).unwrap();
    assert_eq!(picked, all, "samples lie evenly over the part");
}
