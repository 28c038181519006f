//! Losses and hits of held-out samples, against their formulas.

use overdrive_cpu::CpuBackend;
use overdrive_formats::Tensors;
use overdrive_ir::{Builder, DType, Graph, Tensor, TensorType};
use overdrive_train::data::{Batch, Split};
use overdrive_train::{TrainError, evaluate};

const T: usize = 3;
const V: usize = 5;

/// Five windows of T positions; the model passes their numbers on as logits.
struct Windows {
    x: Vec<f64>,
    labels: Vec<i128>,
    /// The shape of the labels of one window.
    shape: Vec<usize>,
}

impl Split for Windows {
    fn len(&self) -> u64 {
        (self.labels.len() / T) as u64
    }

    fn batch(&self, samples: &[u64]) -> Result<Batch, TrainError> {
        let pick =
            |of: usize| samples.iter().flat_map(move |&s| s as usize * of..(s as usize + 1) * of);
        let x: Vec<f64> = pick(T * V).map(|i| self.x[i]).collect();
        let labels: Vec<i128> = pick(T).map(|i| self.labels[i]).collect();
        let shape: Vec<usize> = [samples.len()].into_iter().chain(self.shape.clone()).collect();
        Ok(Batch {
            x: Tensor::from_f64(DType::F32, [samples.len(), T, V], &x),
            labels: Tensor::from_ints(DType::I32, shape, &labels),
            mask: None,
            text_bytes: vec![],
        })
    }

    fn hash(&self) -> Result<String, TrainError> {
        Ok(String::new())
    }
}

fn windows() -> Windows {
    let x = (0..5 * T * V).map(|i| f64::from((i * 37 % 23) as f32 * 0.37 - 3.0)).collect();
    Windows { x, labels: (0..5 * T).map(|i| (i * 3 % V) as i128).collect(), shape: vec![T] }
}

fn backend() -> CpuBackend {
    CpuBackend::new(Some(2)).unwrap()
}

/// A model with two windows a batch, so that the last batch is padded.
fn model() -> Graph {
    let b = Builder::new("as given");
    let x = b.input("x", TensorType::new(DType::F32, [2, T, V]));
    b.output("y", x);
    b.finish().unwrap()
}

#[test]
fn losses_and_hits_are_those_of_the_formulas() {
    let mut windows = windows();
    // The first of equal logits counts as the largest.
    windows.x[..V].copy_from_slice(&[1.0, 2.0, 2.0, 0.0, 2.0]);
    windows.labels[0] = 1;
    windows.x[V..2 * V].copy_from_slice(&[1.0, 2.0, 2.0, 0.0, 2.0]);
    windows.labels[1] = 2;
    let found = evaluate(&backend(), &model(), &Tensors::new(), &windows).unwrap();
    assert_eq!((found.losses.len(), found.hits.len(), found.positions), (5, 5, T));
    for sample in 0..5 {
        let (mut loss, mut hits) = (0.0, 0);
        for row in sample * T..(sample + 1) * T {
            let (logits, label) = (&windows.x[row * V..][..V], windows.labels[row] as usize);
            loss += logits.iter().map(|v| v.exp()).sum::<f64>().ln() - logits[label];
            let best = (0..V).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
            hits += u32::from(best == label);
        }
        assert!((found.losses[sample] - loss).abs() < 1e-9 * loss, "sample {sample}");
        assert_eq!(found.hits[sample], hits, "sample {sample}");
    }
}

#[test]
fn a_row_that_is_not_finite_is_no_hit_and_its_loss_says_so() {
    let mut windows = windows();
    windows.x[0] = f64::NAN;
    windows.labels[0] = 0;
    let found = evaluate(&backend(), &model(), &Tensors::new(), &windows).unwrap();
    assert!(found.losses[0].is_nan() && found.losses[1..].iter().all(|loss| loss.is_finite()));
    let whole = evaluate(&backend(), &model(), &Tensors::new(), &self::windows()).unwrap();
    assert_eq!(found.hits[1..], whole.hits[1..]);
}

#[test]
fn labels_of_another_kind_are_refused() {
    let windows = Windows { shape: vec![T, 1], ..windows() };
    evaluate(&backend(), &model(), &Tensors::new(), &windows).expect("as many labels");
    let few = Windows { labels: vec![0; 5 * T], shape: vec![T], ..self::windows() };
    let b = Builder::new("classes");
    let x = b.input("x", TensorType::new(DType::F32, [2, T, V]));
    b.output("y", x.sum(&[1]));
    let error = evaluate(&backend(), &b.finish().unwrap(), &Tensors::new(), &few).unwrap_err();
    assert!(error.to_string().contains("i32[2, 3]"), "{error}");
}
