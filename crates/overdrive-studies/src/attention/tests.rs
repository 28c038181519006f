//! Every variant agrees with its reference on the CPU, is known to the peers, and has the work that
//! papers count.

use super::*;
use crate::{Allowance, Device, Journal, Parties, Probes, Sampling};
use overdrive_bench::clock::SystemClock;
use overdrive_bench::rules::Rules;
use overdrive_cpu::CpuBackend;
use std::cell::RefCell;

#[test]
fn every_variant_agrees_with_its_reference_and_is_related_to_causal() {
    let cpu = CpuBackend::new(Some(1)).unwrap();
    let devices = [Device { backend: &cpu, threads: 1 }];
    let (clock, tuning, allowance) = (SystemClock::new(), RefCell::default(), Allowance::default());
    let context = Context {
        parties: Parties::alone(&devices),
        reference: &cpu,
        tuning: &tuning,
        sampling: Sampling::new(&clock, Rules::quick().with_trials(1, 3), &allowance),
        probes: Probes::default(),
        journal: Journal::silent("overdrive run"),
    };
    let mut results = Results::begin("overdrive run attention", 1);
    // More samples than are compared, and tiles of which a threshold can skip half.
    let lengths = [(Forward, 256), (Both, 40)];
    for (part, t) in lengths {
        let above =
            session(&context, &mut results, (part, [3, 2, t, 16]), &AttentionVariant::ALL).unwrap();
        assert!(above > 0.0, "{above}");
    }
    let expected: Vec<String> = lengths
        .iter()
        .flat_map(|&(part, t)| {
            let is_run = move |variant: &AttentionVariant| {
                variant.has(part) && variant.too_short(t).is_none()
            };
            AttentionVariant::ALL
                .into_iter()
                .filter(is_run)
                .map(move |variant| variant.name() + part.suffix())
        })
        .collect();
    let found: Vec<&String> = results.records.iter().map(|r| &r.case.workload.name).collect();
    assert_eq!(found, expected.iter().collect::<Vec<_>>());
    for record in &results.records {
        let name = &record.case.workload.name;
        let measurement = record.outcome.measurement();
        let measurement = measurement.unwrap_or_else(|| panic!("{name}: {:?}", record.outcome));
        let is_first = name.starts_with(&Causal.name());
        let quantities = &measurement.quantities;
        assert_eq!(quantities.contains_key("time_over_causal"), !is_first, "{name}");
        let has_threshold = name.starts_with("threshold");
        let is_sparse = name.starts_with("block-sparse") || has_threshold;
        assert_eq!(quantities.contains_key("time_over_full"), is_sparse, "{name}");
        assert_eq!(quantities.contains_key("skipped_percent"), has_threshold, "{name}");
    }
}

#[test]
fn names_say_the_share_that_is_skipped() {
    let left_out = |t| -> Vec<String> {
        let all = AttentionVariant::ALL.into_iter();
        all.filter(|&v| v.too_short(t).is_some()).map(AttentionVariant::name).collect()
    };
    let [most, all] = [75, 90].map(|percent| Threshold(percent).name());
    // Two tiles along a side at the quick size of a processor, four at its shortest.
    assert_eq!(left_out(HOST_QUICK[0][2]), [most, all.clone()]);
    assert_eq!(left_out(512), [all]);
    for sizes in ACCELERATOR_QUICK.iter().chain(&ACCELERATOR).chain(&HOST[1..]) {
        assert_eq!(left_out(sizes[2]), [""; 0], "{sizes:?}");
    }
}

#[test]
fn work_is_that_of_the_pairs_that_are_seen() {
    let sizes = [2, 2, 1024, 64];
    let share = |variant| {
        let workload = workload((variant, Forward), (DType::F32, sizes), SAMPLES).unwrap();
        workload.work().flops as f64 / workload.graph.cost().flops as f64
    };
    let near = |variant, expected: f64| {
        let found = share(variant);
        assert!((found - expected).abs() < 1e-3, "{variant:?}: {found}, not {expected}");
    };
    [Causal, Full, Grouped, SoftCap, Alibi, RelativeBias]
        .iter()
        .for_each(|&variant| near(variant, 1.0));
    // 128 keys of each query, but of the first 128.
    near(Window, (1024.0 * 128.0 - 128.0 * 127.0 / 2.0) / (1024.0 * 1025.0 / 2.0));
    near(BlockSparse(75), 0.25);
    near(Threshold(75), 0.625);
    let ids = documents(2, 1024).to_ints();
    let seen_of = |q: usize| ids[q / 1024 * 1024..=q].iter().filter(|&&id| id == ids[q]).count();
    let seen: usize = (0..2 * 1024).map(seen_of).sum();
    near(Documents, seen as f64 / (1024.0 * 1025.0));
}

#[test]
fn functions_change_the_outputs() {
    let outputs = |variant| {
        let workload = workload((variant, Forward), (DType::F32, [2, 2, 40, 16]), 2).unwrap();
        let inputs = workload.inputs(1);
        overdrive_ir::eval::eval_tensors(&workload.graph, &inputs)[0].to_f64()
    };
    // Sequences that are so short have one tile.
    let longer = |variant: &AttentionVariant| !matches!(variant, Threshold(_));
    let all: Vec<_> = AttentionVariant::ALL.into_iter().filter(longer).map(outputs).collect();
    for (i, one) in all.iter().enumerate() {
        for (j, other) in all.iter().enumerate().skip(i + 1) {
            assert_ne!(one, other, "{} and {}", AttentionVariant::ALL[i].name(), j);
        }
    }
}

#[test]
fn peers_know_every_workload_by_its_name() {
    let plain = include_str!("../../../../peers/pytorch.py");
    let functions = include_str!("../../../../peers/attention_variants.py");
    // No peer skips tiles by their scores.
    let has_peer = |variant: &AttentionVariant| !matches!(variant, Threshold(_));
    for variant in AttentionVariant::ALL.into_iter().filter(has_peer) {
        let text = if AttentionVariant::PLAIN.contains(&variant) { plain } else { functions };
        assert!(text.contains(&format!("\"{}\":", variant.name())), "{}", variant.name());
    }
    assert!(functions.contains(&format!("\"{}\"", Both.suffix())), "{}", Both.suffix());
    let numbers = [("WINDOWS", WINDOWS), ("TILE", TILE), ("FEWEST_TILES", FEWEST_TILES)];
    let numbers = numbers.map(|(name, value)| (name, value as f64));
    for (name, value) in [("CAP", CAP)].into_iter().chain(numbers) {
        let line = functions.lines().find_map(|line| line.strip_prefix(&format!("{name} = ")));
        assert_eq!(line.and_then(|text| text.parse().ok()), Some(value), "{name}");
    }
}

#[test]
fn documents_follow_one_another_and_differ_in_length() {
    let t = 1000;
    let ids = documents(2, t).to_ints();
    let [first, second] = [&ids[..t], &ids[t..]];
    assert_ne!(first, second);
    for ids in [first, second] {
        assert!(ids.is_sorted() && ids[t - 1] == DOCUMENTS as i128 - 1, "{:?}", ids[t - 1]);
    }
}

#[test]
fn each_row_of_tiles_has_as_many_visible_ones() {
    for (percent, t, expected) in [(50, 4096, 16), (75, 4096, 8), (90, 4096, 3), (90, 40, 1)] {
        let side = t / tile(t);
        let tiles = visible_tiles(percent, [2, side]).to_ints();
        let rows: Vec<i128> = tiles.chunks(side).map(|row| row.iter().sum()).collect();
        assert_eq!(rows, vec![expected; 2 * side], "{percent} % of {side}");
        assert!(side == 1 || tiles[..side * side] != tiles[side * side..]);
    }
}

#[test]
fn the_work_of_the_graph_is_about_that_of_papers() {
    for variant in AttentionVariant::ALL {
        for part in [Forward, Both].into_iter().filter(|&part| variant.has(part)) {
            let sizes = [1, 2, 1024, 64];
            let workload = workload((variant, part), (DType::BF16, sizes), SAMPLES).unwrap();
            let above = above_convention((variant, part), (&workload, sizes));
            assert!((0.0..0.03).contains(&above), "{variant:?}, {part:?}: {above}");
        }
    }
}

#[test]
fn a_reference_that_stores_all_scores_has_as_many_samples_as_fit() {
    let host_bytes = 128 << 30;
    let fitting = |variant, sizes| samples((variant, Both), sizes, host_bytes);
    let found = ACCELERATOR.map(|sizes| fitting(Alibi, sizes));
    assert_eq!(found, [2, 2, 0, 1]);
    assert_eq!(ACCELERATOR.map(|sizes| fitting(SoftCap, sizes)), [SAMPLES; 4]);
    assert_eq!(samples((Alibi, Forward), ACCELERATOR[2], host_bytes), SAMPLES);
}

#[test]
fn thresholds_skip_the_tiles_that_queries_do_not_attend_to() {
    let cpu = CpuBackend::new(Some(1)).unwrap();
    for dtype in [DType::F32, DType::BF16] {
        for (percent, expected) in [(50, 50.0), (75, 75.0), (90, 87.5)] {
            let variant = Threshold(percent);
            let workload = workload((variant, Forward), (dtype, [1, 2, 1024, 64]), 1).unwrap();
            let found =
                threshold::skipped_percent(&cpu, &variant.attention(), &workload.given).unwrap();
            assert_eq!(found, expected, "{percent} % of {dtype}");
        }
    }
    let short = workload((Threshold(90), Forward), (DType::F32, [1, 2, 40, 16]), 1).unwrap();
    let attention = Threshold(90).attention();
    assert_eq!(threshold::skipped_percent(&cpu, &attention, &short.given).unwrap(), 0.0);
}
