//! `bind` reaches every place where a dimension can be named, and its errors name mismatches.

use overdrive_ir::{Builder, DType, Dim, Graph, Init, TensorType, verify};
use overdrive_passes::bind;
use std::collections::BTreeMap;

fn named(dims: &[Dim]) -> TensorType {
    TensorType::new(DType::F32, dims.to_vec())
}

fn model() -> Graph {
    let branch = || {
        let b = Builder::new("branch");
        let x = b.input("0", named(&["batch".into(), 4.into()]));
        b.output(
            "0",
            x.broadcast_in(&named(&["time".into(), "batch".into(), 4.into()]).shape, &[1, 2]),
        );
        b.finish().unwrap()
    };
    let b = Builder::new("model");
    let x = b.input("x", named(&["batch".into(), 4.into()]));
    let cache = b.state("cache", named(&["time".into()]), Init::ZEROS);
    b.update("cache", cache + 1.0);
    let yes = b.full(DType::Bool, Vec::<usize>::new(), 1.0);
    b.output("y", b.if_else(yes, &[x + 2.0], [branch(), branch()])[0]);
    b.finish().unwrap()
}

fn sizes(pairs: &[(&str, usize)]) -> BTreeMap<String, usize> {
    pairs.iter().map(|(name, size)| (name.to_string(), *size)).collect()
}

#[test]
fn names_become_sizes_everywhere() {
    let graph = model();
    assert!(!graph.is_bound());
    let bound = bind(&graph, &sizes(&[("batch", 2), ("time", 3)])).unwrap();
    verify(&bound).unwrap();
    assert!(bound.is_bound());
    let regions: Vec<&Graph> = bound.nodes().iter().flat_map(|n| &n.regions).collect();
    assert!(regions.len() == 2 && regions.iter().all(|r| r.is_bound()));
    assert_eq!(bound.ty(bound.outputs()[0].value).sizes(), [3, 2, 4]);
    assert_eq!(bound.ty(bound.states()[0].value).sizes(), [3]);
    assert_eq!(bind(&bound, &BTreeMap::new()).unwrap(), bound);
}

#[test]
fn missing_and_unknown_names_are_named_with_the_nearest() {
    let missing = bind(&model(), &sizes(&[("batchs", 2), ("time", 3)])).unwrap_err().to_string();
    assert!(missing.contains("`batch`") && missing.contains("did you mean `batchs`"), "{missing}");
    let unknown =
        bind(&model(), &sizes(&[("batch", 2), ("time", 3), ("tmie", 4)])).unwrap_err().to_string();
    assert!(unknown.contains("`tmie`") && unknown.contains("did you mean `time`"), "{unknown}");
}
