//! Evidence equals what the definition says of the same values, over one batch and over two.

use overdrive_ir::eval::{eval_tensors, philox};
use overdrive_ir::{Builder, DType, Graph, Init, Tensor, TensorType};
use overdrive_passes::{Evidence, Statistic, observe, sites};
use std::slice::from_ref;

/// Two layers in scopes of their own, the second applied twice.
fn model() -> Graph {
    let b = Builder::new("model");
    let x = b.input("x", TensorType::new(DType::F32, [3usize, 2, 4]));
    let w =
        b.state("w", TensorType::new(DType::F32, [4usize, 4]), Init::Normal { std: 1.0, seed: 1 });
    let first = {
        let _scope = b.scope("first");
        x.linear(w, None).relu()
    };
    let second = {
        let _scope = b.scope("second");
        first.linear(w, None).linear(w, None)
    };
    b.output("y", second);
    b.finish().unwrap()
}

fn batch(seed: u64) -> Tensor {
    let values: Vec<f64> = philox::normals(seed, 0).take(24).collect();
    Tensor::from_f64(DType::F32, [3usize, 2, 4], &values)
}

#[test]
fn a_site_is_named_by_its_scope_and_numbered_within() {
    let graph = model();
    let found = sites(&graph);
    let names: Vec<&str> = found.iter().map(|site| site.name.as_str()).collect();
    assert!(names[0].contains("first") && names[2] == format!("{}#1", names[1]), "{names:?}");
    assert!(found.iter().all(|site| site.axis == 2 || site.axis == 1), "{found:?}");
}

#[test]
fn evidence_of_two_batches_is_that_of_both() {
    let graph = model();
    let observed = observe(&graph, &Statistic::ALL).unwrap();
    let batches = [batch(1), batch(2)];
    let mut evidence = Evidence::default();
    for x in &batches {
        let outputs = eval_tensors(&observed, from_ref(x));
        assert_eq!(outputs[0], eval_tensors(&graph, from_ref(x))[0], "the model's own output");
        evidence.add(&observed, &outputs);
    }
    assert_eq!(evidence.batches, 2);
    let rows: Vec<f64> = batches.iter().flat_map(Tensor::to_f64).collect();
    let site = &sites(&graph)[0].name;
    let fold = |f: fn(f64, f64) -> f64, start| rows.iter().copied().fold(start, f);
    let range = [fold(f64::min, f64::INFINITY), fold(f64::max, f64::NEG_INFINITY)];
    assert_eq!(evidence.get(site, Statistic::Range).unwrap(), range);
    let magnitude = |k: usize| rows.iter().skip(k).step_by(4).fold(0.0, |m: f64, x| m.max(x.abs()));
    assert_eq!(
        evidence.get(site, Statistic::ChannelMagnitude).unwrap(),
        [0, 1, 2, 3].map(magnitude)
    );
    let gram = evidence.get(site, Statistic::Gram).unwrap();
    for (i, j) in (0..4).flat_map(|i| (0..4).map(move |j| (i, j))) {
        let expected: f64 = rows.chunks(4).map(|row| row[i] * row[j]).sum();
        assert!((gram[i * 4 + j] - expected).abs() < 1e-5 * (1.0 + expected.abs()), "{i} {j}");
    }
    let text = serde_json::to_string(&evidence).unwrap();
    assert_eq!(serde_json::from_str::<Evidence>(&text).unwrap(), evidence, "evidence is data");
}
