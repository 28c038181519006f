//! Random bits: Philox 4x32-10 as the reference defines it, in integer arithmetic, so that every
//! engine draws the same.

use super::writer::{Term, Writer};
use overdrive_ir::{DType, TensorType};

/// Factors on the two multiplied words of the counter, each round.
const FACTORS: [i128; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// Increments of the two words of the key after each round.
const STEPS: [i128; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// The bits of `site` for the scalar `seed`: four for each block of the counter.
pub(super) fn bits(w: &mut Writer, seed: &Term, site: u64, ty: &TensorType) -> Term {
    let count = ty.elements();
    if count == 0 {
        return w.full(ty, 0.0);
    }
    let blocks = count.div_ceil(4);
    let wide = TensorType::new(DType::U64, [blocks]);
    let index = w.apply("iota", &[], "iota_dimension = 0 : i64", wide.clone());
    let seed =
        w.apply("broadcast_in_dim", &[seed], "broadcast_dimensions = array<i64>", wide.clone());
    let site = w.full_int(&wide, site.into());
    let mut counter = [halves(w, &index), halves(w, &site)].concat();
    let mut key = halves(w, &seed);
    for _ in 0..ROUNDS {
        let [low0, high0] = product(w, &counter[0], FACTORS[0]);
        let [low1, high1] = product(w, &counter[2], FACTORS[1]);
        let first = w.map("xor", &[&high1, &counter[1]]);
        let third = w.map("xor", &[&high0, &counter[3]]);
        counter =
            vec![w.map("xor", &[&first, &key[0]]), low1, w.map("xor", &[&third, &key[1]]), low0];
        for (word, step) in key.iter_mut().zip(STEPS) {
            let step = w.full_int(&word.ty, step);
            *word = w.map("add", &[word, &step]);
        }
    }
    let columns: Vec<Term> = counter.iter().map(|word| w.reshape(word, &[blocks, 1])).collect();
    let columns: Vec<&Term> = columns.iter().collect();
    let rows = w.apply("concatenate", &columns, "dimension = 1 : i64", ty.with_shape([blocks, 4]));
    let all = w.reshape(&rows, &[4 * blocks]);
    let attributes = format!(
        "limit_indices = array<i64: {count}>, start_indices = array<i64: 0>, strides = array<i64: \
         1>"
    );
    let drawn = w.apply("slice", &[&all], &attributes, ty.with_shape([count]));
    w.reshape(&drawn, &ty.sizes())
}

/// The low and the high 32 bits of u64 elements.
fn halves(w: &mut Writer, x: &Term) -> Vec<Term> {
    let places = w.full(&x.ty, 32.0);
    let high = w.map("shift_right_logical", &[x, &places]);
    vec![w.cast(x, DType::U32), w.cast(&high, DType::U32)]
}

/// The low and the high word of a product of 32-bit numbers.
fn product(w: &mut Writer, x: &Term, factor: i128) -> [Term; 2] {
    let x = w.cast(x, DType::U64);
    let factor = w.full_int(&x.ty, factor);
    let whole = w.map("multiply", &[&x, &factor]);
    halves(w, &whole).try_into().expect("there are two halves")
}
