//! The weights in the program are those of the built-in models, and reach their published scores.

use overdrive_cpu::CpuBackend;
use overdrive_formats::Differences;
use overdrive_models::find;
use overdrive_passes::bind;
use overdrive_train::{data, evaluate, trained};

#[test]
fn they_fit_their_models() {
    for name in ["digits-mlp", "digits-conv", "text-transformer"] {
        let graph =
            bind(&(find(name).unwrap().build)().unwrap(), &[("batch".to_owned(), 1)].into())
                .unwrap();
        let differences = Differences::between(&graph, &trained(name).unwrap());
        assert!(differences.is_empty(), "{differences}");
    }
    assert!(trained("mlp").is_none());
}

#[test]
fn they_know_digits_that_they_have_not_seen() {
    let backend = CpuBackend::new(Some(1)).unwrap();
    for (name, percent) in [("digits-mlp", 97.78), ("digits-conv", 99.44)] {
        let model = (find(name).unwrap().build)().unwrap();
        let parts = data::open("digits").unwrap().parts(&model, 0).unwrap();
        let forward = bind(&model, &[("batch".to_owned(), 64)].into()).unwrap();
        let test =
            evaluate(&backend, &forward, &trained(name).unwrap(), parts.test.as_ref()).unwrap();
        // Another processor may round one sample of 360 to the other side.
        assert!((100.0 * test.accuracy() - percent).abs() < 0.3, "{name}: {}", test.accuracy());
    }
}
