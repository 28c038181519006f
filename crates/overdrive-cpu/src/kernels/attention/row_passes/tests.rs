//! The passes against their definition in f64.
#![allow(unsafe_code)] // Raw rows.

use super::*;

/// Rows of 16 · 4 + 16 + 3 channels: every kind of part.
const CHANNELS: usize = 83;
const KEYS: usize = 37;

/// Codes `[keys, channels]` in no order, no NaN among them, and a scale of each row.
fn given() -> (Vec<u8>, Vec<f32>) {
    let codes = (0..KEYS * CHANNELS).map(|i| (i * 37 % 256) as u8);
    let codes = codes.map(|code| if code & 0x7f == 0x7f { 5 } else { code }).collect();
    (codes, (0..KEYS).map(|i| 0.01 + 0.002 * i as f32).collect())
}

fn rows_of(codes: &[u8], scales: &[f32]) -> CodedRows {
    CodedRows {
        codes: codes.as_ptr(),
        row: CHANNELS,
        channels: CHANNELS,
        scales: scales.as_ptr(),
        scale_row: 1,
    }
}

/// All passes of a query over two blocks on every instruction set, against the definition in
/// f64.
#[test]
fn every_instruction_set_computes_what_the_definition_says() {
    let (codes, scales) = given();
    let query: Vec<f32> = (0..CHANNELS).map(|i| ((i * 29 % 17) as f32 - 8.0) * 0.004).collect();
    let visible: Vec<u8> = (0..KEYS).map(|i| u8::from(i % 5 != 3)).collect();
    type Number = fn(u8) -> f32;
    let numbers: [(DType, Number); 2] =
        [(DType::I8, Integer::number), (DType::F8E4M3, Float::number)];
    for (dtype, number) in numbers {
        let row = |key: usize, c: usize| {
            f64::from(number(codes[key * CHANNELS + c])) * f64::from(scales[key])
        };
        let score = |key: usize| -> f64 {
            (0..CHANNELS).map(|c| f64::from(query[c]) * row(key, c)).sum::<f64>()
        };
        let seen = || (0..KEYS).filter(|&key| visible[key] != 0);
        let max = seen().map(score).fold(f64::NEG_INFINITY, f64::max);
        let weight = |key: usize| (score(key) - max).exp2();
        let total: f64 = seen().map(weight).sum();
        let largest = codes.iter().map(|&code| f64::from(number(code).abs()));
        let largest = largest.fold(0.0, f64::max) * f64::from(scales[KEYS - 1]);
        for level in Level::supported() {
            let passes = CodedPasses::at_level(dtype, level).unwrap();
            let rows = rows_of(&codes, &scales);
            let (mut weighing, mut sums) = (Weighing::new(1.0), vec![0.0; CHANNELS]);
            for block in [0..20, 20..KEYS] {
                let mut scores = vec![0.0; block.len()];
                let rows = rows.from(block.start);
                // SAFETY: the block has its rows.
                unsafe {
                    passes.products(&rows, &query, &mut scores);
                    passes.weigh(&mut weighing, &rows, &mut scores, Some(&visible[block]));
                    passes.sum(&rows, (&scores, weighing.shrink), &mut sums);
                }
            }
            for (c, &sum) in sums.iter().enumerate() {
                let expected = seen().map(|key| weight(key) * row(key, c)).sum::<f64>() / total;
                let error = (f64::from(sum / weighing.sum) - expected).abs();
                assert!(error < 1e-5 * largest, "{dtype} {level:?} {c}: {error:e}");
            }
            assert!((f64::from(weighing.max) - max).abs() < 1e-4, "{dtype} {level:?}");
        }
    }
}

/// A block of which nothing is visible, first and later.
#[test]
fn hidden_blocks_change_nothing() {
    let (codes, scales) = given();
    let rows = rows_of(&codes, &scales);
    let passes = CodedPasses::of(DType::I8).unwrap();
    let (mut weighing, hidden) = (Weighing::new(1.0), [0; 3]);
    let mut weigh = |scores: &mut [f32; 3], visible: &[u8]| {
        // SAFETY: there are more rows than scores.
        unsafe { passes.weigh(&mut weighing, &rows, scores, Some(visible)) };
        [weighing.max, weighing.sum]
    };
    assert_eq!(weigh(&mut [1.0; 3], &hidden), [f32::NEG_INFINITY, 0.0]);
    assert_eq!(weigh(&mut [1.0; 3], &[1; 3]), [1.0, 3.0]);
    let mut scores = [9.0; 3];
    assert_eq!(weigh(&mut scores, &hidden), [1.0, 3.0]);
    assert_eq!(scores, [0.0; 3]);
}
