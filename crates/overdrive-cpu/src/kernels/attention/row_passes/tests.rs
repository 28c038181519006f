//! The passes against their definition in f64.
#![allow(unsafe_code)] // Raw rows.

use super::*;
use overdrive_ir::Tensor;

/// Rows of 16 · 4 + 16 + 3 channels: every kind of part.
const CHANNELS: usize = 83;
const KEYS: usize = 37;

/// Bytes of rows `[keys, channels]` of a type, the numbers of their codes in no order, and scales.
fn given(dtype: DType) -> (Vec<u8>, Vec<f64>, Vec<f32>) {
    let values = (0..KEYS * CHANNELS).map(|i| ((i * 37 % 255) as f64 - 127.0) / 2.0);
    let scales = (0..KEYS).map(|i| 0.01 + 0.002 * i as f32).collect();
    let rows = Tensor::from_f64(dtype, [KEYS, CHANNELS], &values.collect::<Vec<_>>());
    (rows.bytes().to_vec(), rows.to_f64(), scales)
}

fn rows_of(dtype: DType, bytes: &[u8], scales: &[f32]) -> Rows {
    Rows {
        start: bytes.as_ptr(),
        row: CHANNELS * dtype.bits() / 8,
        channels: CHANNELS,
        scales: (!scales.is_empty()).then_some(scales.as_ptr()),
        scale_row: 1,
    }
}

/// All passes of a query over two blocks on every instruction set, against the definition in
/// f64.
#[test]
fn every_instruction_set_computes_what_the_definition_says() {
    let query: Vec<f32> = (0..CHANNELS).map(|i| ((i * 29 % 17) as f32 - 8.0) * 0.004).collect();
    let visible: Vec<u8> = (0..KEYS).map(|i| u8::from(i % 5 != 3)).collect();
    for dtype in [DType::F32, DType::BF16, DType::F16, DType::I8, DType::F8E4M3] {
        let (bytes, numbers, mut scales) = given(dtype);
        if dtype.bits() > 8 {
            scales.clear();
        }
        let row = |key: usize, c: usize| {
            numbers[key * CHANNELS + c] * scales.get(key).map_or(1.0, |&scale| f64::from(scale))
        };
        let score = |key: usize| -> f64 {
            (0..CHANNELS).map(|c| f64::from(query[c]) * row(key, c)).sum::<f64>()
        };
        let seen = || (0..KEYS).filter(|&key| visible[key] != 0);
        let max = seen().map(score).fold(f64::NEG_INFINITY, f64::max);
        let weight = |key: usize| (score(key) - max).exp2();
        let total: f64 = seen().map(weight).sum();
        let largest = (0..KEYS * CHANNELS).map(|i| row(i / CHANNELS, i % CHANNELS).abs());
        let largest = largest.fold(0.0, f64::max);
        for level in Level::supported() {
            let passes = RowPasses::at_level(dtype, level).unwrap();
            let rows = rows_of(dtype, &bytes, &scales);
            let (mut weighing, mut sums) = (Weighing::new(1.0), vec![0.0; CHANNELS]);
            for block in [0..20, 20..KEYS] {
                let mut scores = vec![0.0; block.len()];
                let rows = rows.from(block.start);
                // SAFETY: the block has its rows.
                unsafe {
                    passes.products(&rows, &query, &mut scores);
                    passes.weigh(&mut weighing, &mut scores, Some(&visible[block]));
                    rows.scale_each(&mut scores);
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

#[test]
fn numbers_of_16_bits_are_widened_exactly() {
    for bits in 0..=u16::MAX {
        let (brain, half) = (bf16::from_bits(bits), f16::from_bits(bits));
        for (found, expected) in [(brain.widen(), brain.to_f32()), (half.widen(), half.to_f32())] {
            let same = found.to_bits() == expected.to_bits();
            assert!(same || found.is_nan() && expected.is_nan(), "{bits:#x}: {found} {expected}");
        }
    }
}

/// A block of which nothing is visible, first and later.
#[test]
fn hidden_blocks_change_nothing() {
    let passes = RowPasses::of(DType::I8).unwrap();
    let (mut weighing, hidden) = (Weighing::new(1.0), [0; 3]);
    let mut weigh = |scores: &mut [f32; 3], visible: &[u8]| {
        // SAFETY: there is a byte of visibility for each score.
        unsafe { passes.weigh(&mut weighing, scores, Some(visible)) };
        [weighing.max, weighing.sum]
    };
    assert_eq!(weigh(&mut [1.0; 3], &hidden), [f32::NEG_INFINITY, 0.0]);
    assert_eq!(weigh(&mut [1.0; 3], &[1; 3]), [1.0, 3.0]);
    let mut scores = [9.0; 3];
    assert_eq!(weigh(&mut scores, &hidden), [1.0, 3.0]);
    assert_eq!(scores, [0.0; 3]);
}
