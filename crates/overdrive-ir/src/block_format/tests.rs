//! Formats against the ops that define them, and against figures that were published.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::eval::philox;
use crate::{Builder, TensorType, eval};

fn values(seed: u64, count: usize) -> Vec<f64> {
    // As f32 holds them, with blocks of very different size.
    let drawn = philox::normals(seed, 1).take(count).enumerate();
    drawn
        .map(|(i, x)| DType::F32.round(x * 10f64.powi((i / 32 % 7) as i32 - 3), Overflow::Ieee))
        .collect()
}

fn formats() -> Vec<BlockFormat> {
    let mut all = vec![BlockFormat::NVFP4];
    for block in [Granularity::Tensor, Granularity::Channel, Granularity::Group(32)] {
        for element in [DType::I8, DType::I4, DType::F8E4M3, DType::F8E5M2] {
            all.push(BlockFormat::plain(element, block));
        }
    }
    for element in
        [DType::F8E4M3, DType::F8E5M2, DType::F6E2M3, DType::F6E3M2, DType::F4E2M1, DType::I8]
    {
        all.extend(
            [ScaleFormat::E8m0Floor, ScaleFormat::E8m0Up]
                .map(|scale| BlockFormat::mx(element, scale)),
        );
    }
    all
}

/// The same by the ops: block_scale; and, of the scales as stored, quantize and dequantize.
fn by_ops(
    format: &BlockFormat,
    values: &[f64],
    [n, k]: [usize; 2],
    stored: &Tensor,
) -> Vec<Tensor> {
    let b = Builder::new("ops");
    let x = b.input("x", TensorType::new(DType::F32, [n, k]));
    let tensor_scale = format.tensor_scale(values);
    let of_blocks =
        tensor_scale.map_or(x, |scale| x / b.constant(Tensor::scalar(DType::F32, scale)));
    let counts = format.block.counts([n, k]).unwrap();
    let scale = of_blocks.block_scale(
        &[Some(n / counts[0]), Some(k / counts[1])],
        format.element,
        format.scale,
    );
    let stored = b.constant(stored.clone());
    let codes = of_blocks.quantize(stored, None, format.element);
    let decoded = codes.dequantize(stored, None);
    ["codes", "scale", "decoded"]
        .iter()
        .zip([codes, scale, decoded])
        .for_each(|(name, y)| b.output(name, y));
    eval::eval_tensors(&b.finish().unwrap(), &[Tensor::from_f64(DType::F32, [n, k], values)])
}

#[test]
fn codes_and_scales_are_those_of_the_ops() {
    let shape = [8, 64];
    for format in formats() {
        let values = values(5, 512);
        let encoded = format.encode(&values, shape).unwrap();
        let [codes, scale, decoded] =
            by_ops(&format, &values, shape, &encoded.scale).try_into().unwrap();
        assert!(encoded.scale == scale, "scales of {format:?}");
        if encoded.tensor_scale.is_none() {
            assert!(encoded.codes == codes, "codes of {format:?}");
            assert!(
                Tensor::from_f64(DType::F32, shape, &encoded.decode()) == decoded,
                "values of {format:?}"
            );
        }
    }
}

#[test]
fn rounding_errs_by_at_most_half_a_step_where_nothing_is_clipped() {
    for format in formats()
        .into_iter()
        .filter(|f| f.scale == ScaleFormat::Wide || f.scale == ScaleFormat::E8m0Up)
    {
        let values = values(7, 512);
        let encoded = format.encode(&values, [8, 64]).unwrap();
        let index = BlockIndex::new([8, 64], format.block.counts([8, 64]).unwrap());
        let scales = encoded.scale.to_f64();
        for (i, (x, y)) in values.iter().zip(encoded.decode()).enumerate() {
            let scale = scales[index.at(i)];
            let unit = format.element.epsilon() / 2.0;
            let smallest = format.element.float_format().map_or(1.0, |f| f.decode(1));
            let bound = (x.abs() * unit).max(scale * smallest / 2.0) * (1.0 + 1e-6);
            assert!((x - y).abs() <= bound, "{format:?}: {x} became {y}, scale {scale}");
        }
    }
}

#[test]
fn zero_points_make_use_of_a_range_that_is_not_centred() {
    for element in [DType::I8, DType::I4, DType::U8] {
        let format = BlockFormat::plain(element, Granularity::Group(32)).asymmetric();
        let values: Vec<f64> = values(9, 256).into_iter().map(|x| x.abs().min(3.0) + 0.5).collect();
        let encoded = format.encode(&values, [4, 64]).unwrap();
        let steps = (element.int_range().unwrap().1 - element.int_range().unwrap().0) as f64;
        let error =
            values.iter().zip(encoded.decode()).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
        // Half a step, and the rounding of the zero point.
        assert!(error <= 3.5 / steps * 1.01, "{element}: {error}");
        let symmetric =
            BlockFormat::plain(element, Granularity::Group(32)).encode(&values, [4, 64]).unwrap();
        let of = |encoded: &Encoded| -> f64 {
            values.iter().zip(encoded.decode()).map(|(x, y)| (x - y).powi(2)).sum()
        };
        assert!(element == DType::U8 || of(&encoded) < of(&symmetric), "{element}");
    }
}

#[test]
fn scales_have_the_published_values() {
    // OCP: 2^(floor(log2 amax) - emax), emax of e2m1 2, of e4m3 8, of int8 (as whole numbers) 6.
    let scale = |element, format, amax: f64| {
        BlockFormat::mx(element, format).grid([-amax, amax], 1.0).scale
    };
    assert_eq!(scale(DType::F4E2M1, ScaleFormat::E8m0Floor, 7.9), 1.0);
    assert_eq!(scale(DType::F4E2M1, ScaleFormat::E8m0Up, 7.9), 2.0);
    assert_eq!(scale(DType::F4E2M1, ScaleFormat::E8m0Up, 6.0), 1.0);
    assert_eq!(scale(DType::F8E4M3, ScaleFormat::E8m0Floor, 448.0), 1.0);
    assert_eq!(scale(DType::F8E4M3, ScaleFormat::E8m0Floor, 255.0), 0.5);
    assert_eq!(scale(DType::I8, ScaleFormat::E8m0Floor, 1.0), 1.0 / 64.0);
    // NVFP4: the largest magnitude is 6 of the largest scale.
    let encoded = BlockFormat::NVFP4.encode(&[&[12.0][..], &[0.25; 15]].concat(), [1, 16]).unwrap();
    assert_eq!(encoded.scale.to_f64(), [448.0]);
    assert!((encoded.decode()[0] - 12.0).abs() < 1e-5);
    // 4 bits, and 8 or 16 for each scale: 4.25, 4.5 bits a value.
    assert_eq!(
        BlockFormat::mx(DType::F4E2M1, ScaleFormat::E8m0Floor)
            .encode(&[1.0; 64], [1, 64])
            .unwrap()
            .bytes(),
        [32, 2]
    );
}

#[test]
fn what_cannot_be_held_is_refused() {
    let format = BlockFormat::plain(DType::I4, Granularity::Group(128));
    assert!(format.encode(&[0.0; 200], [1, 200]).unwrap_err().expected.contains("multiple of 128"));
    assert!(format.encode(&[f64::NAN; 4], [1, 4]).unwrap_err().found.contains("NaN at element 0"));
    assert!(format.encode(&[0.0; 4], [1, 4]).unwrap().decode().iter().all(|x| *x == 0.0));
}
