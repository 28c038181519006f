//! The loss that models are trained on.

use overdrive_ir::eval::{States, eval};
use overdrive_ir::{Array, DType, Graph, verify};
use overdrive_models::find;
use overdrive_passes::bind;
use overdrive_train::data::Target;
use overdrive_train::with_loss;

fn build(name: &str) -> Graph {
    (find(name).unwrap().build)().unwrap()
}

#[test]
fn the_loss_is_the_mean_cross_entropy_of_the_logits() {
    let graph = with_loss(&build("digits-mlp"), Target::Classes).unwrap();
    verify(&graph).unwrap();
    let graph = bind(&graph, &[("batch".to_owned(), 3)].into()).unwrap();
    let x =
        Array::float(DType::F32, &[3, 64], (0..192).map(|i| f64::from(i % 17) / 16.0).collect());
    let labels = Array::int(DType::I32, &[3], vec![3, 0, 9]);
    let results = eval(&graph, &[x, labels], &mut States::new());
    let y = results[0].to_f64();
    let row = |i: usize, label: usize| {
        let row = &y[i * 10..][..10];
        row.iter().map(|v| v.exp()).sum::<f64>().ln() - row[label]
    };
    let expected = (row(0, 3) + row(1, 0) + row(2, 9)) / 3.0;
    assert!((results[1].to_f64()[0] - expected).abs() < 1e-12);

    let language = with_loss(&build("gpt-350m"), Target::Classes).unwrap();
    let ty = |value| language.ty(value).to_string();
    assert_eq!(ty(language.inputs()[1].value), "i32[batch, 1024]");
    assert_eq!(ty(language.outputs()[1].value), "f32[]");
    assert!(with_loss(&language, Target::Classes).unwrap_err().to_string().contains("`labels`"));
}
