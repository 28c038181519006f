//! Contractions and convolutions as nodes of the default domain.

use super::pad::pad;
use super::signature::Signature;
use super::writer::{Unsaid, Writer, extents, int, list, text};
use overdrive_ir::{Convolution, DType, DotGeneral, Pad};

/// MatMul where the operands lie so, else Einsum. Short formats are multiplied in the accumulation
/// type.
pub(super) fn contraction(
    w: &mut Writer,
    x: [&str; 2],
    dot: &DotGeneral,
    types: &Signature,
) -> Result<String, Unsaid> {
    if dot.out == DType::I32
        && types.operands.iter().all(|ty| matches!(ty.dtype, DType::I8 | DType::U8))
    {
        return Ok(integer_contraction(w, x, dot, types));
    }
    let (a, b) = (types.operands[0].rank(), types.operands[1].rank());
    let wide = if dot.out.is_float() { dot.accumulate } else { DType::I32 };
    let mut sides = x.map(str::to_owned);
    for (side, ty) in sides.iter_mut().zip(&types.operands) {
        if ty.dtype != wide {
            *side = w.cast(side, wide)?;
        }
    }
    let leading = dot.batch.iter().enumerate().all(|(i, &pair)| pair == (i, i));
    let batch = dot.batch.len();
    let plain = leading
        && a >= 2
        && b == batch + 2
        && dot.contract == [(a - 1, batch)]
        && (batch == 0 || a == b);
    let y = if plain {
        w.one("MatMul", &[&sides[0], &sides[1]], vec![])
    } else {
        let letter =
            |n: usize| char::from_u32('a' as u32 + n as u32).filter(char::is_ascii_lowercase);
        let mut left: Vec<usize> = (0..a).collect();
        let mut right: Vec<usize> = (a..a + b).collect();
        for &(i, j) in dot.batch.iter().chain(&dot.contract) {
            right[j] = left[i];
        }
        let mut out: Vec<usize> = dot.batch.iter().map(|&(i, _)| left[i]).collect();
        let taken: Vec<usize> =
            dot.batch.iter().chain(&dot.contract).map(|&(i, _)| left[i]).collect();
        out.extend(left.iter().chain(&right).filter(|l| !taken.contains(l)));
        let mut all = Vec::new();
        for part in [&mut left, &mut right, &mut out] {
            let word: Option<String> = part.iter().map(|&n| letter(n)).collect();
            all.push(word.ok_or_else(|| Unsaid("more than 26 dimensions".into()))?);
        }
        let equation = format!("{},{}->{}", all[0], all[1], all[2]);
        w.one("Einsum", &[&sides[0], &sides[1]], vec![text("equation", &equation)])
    };
    if dot.out == wide { Ok(y) } else { w.cast(&y, dot.out) }
}

/// MatMulInteger of codes as they are; the operands are turned to `[batch, M, K]` and `[batch, K,
/// N]`.
fn integer_contraction(
    w: &mut Writer,
    x: [&str; 2],
    dot: &DotGeneral,
    types: &Signature,
) -> String {
    let sides: [Vec<(usize, usize)>; 2] = [dot.batch.clone(), dot.contract.clone()];
    let [batch, contract] = &sides;
    let free = |side: usize| -> Vec<usize> {
        let taken =
            |&axis: &usize| batch.iter().chain(contract).any(|&(i, j)| [i, j][side] == axis);
        (0..types.operands[side].rank()).filter(|axis| !taken(axis)).collect()
    };
    let (left, right) = (free(0), free(1));
    let of =
        |pairs: &[(usize, usize)], side: usize| pairs.iter().map(|&(i, j)| [i, j][side]).collect();
    let extent = |side: usize, axes: &[usize]| -> usize {
        axes.iter().map(|&a| types.sizes(side)[a]).product()
    };
    let (a_batch, a_inner): (Vec<usize>, Vec<usize>) = (of(batch, 0), of(contract, 0));
    let (b_batch, b_inner): (Vec<usize>, Vec<usize>) = (of(batch, 1), of(contract, 1));
    let count = extent(0, &a_batch);
    let a = w.transpose(x[0], &[&a_batch[..], &left, &a_inner].concat());
    let a = w.reshape(&a, &[count, extent(0, &left), extent(0, &a_inner)]);
    let b = w.transpose(x[1], &[&b_batch[..], &b_inner, &right].concat());
    let b = w.reshape(&b, &[count, extent(1, &b_inner), extent(1, &right)]);
    let y = w.one("MatMulInteger", &[&a, &b], vec![]);
    w.reshape(&y, &types.results[0].sizes())
}

/// Spread and negative padding are a Pad before a Conv of non-negative pads.
pub(super) fn convolution(
    w: &mut Writer,
    x: [&str; 2],
    conv: &Convolution,
    types: &Signature,
) -> Result<String, Unsaid> {
    let wide = if conv.out.is_float() { conv.accumulate } else { DType::F32 };
    let mut sides = x.map(str::to_owned);
    for (side, ty) in sides.iter_mut().zip(&types.operands) {
        if ty.dtype != wide {
            *side = w.cast(side, wide)?;
        }
    }
    let simple =
        conv.window.iter().all(|d| d.input_dilation == 1 && d.pad_low >= 0 && d.pad_high >= 0);
    let mut pads: Vec<i64> = conv.window.iter().map(|d| d.pad_low).collect();
    pads.extend(conv.window.iter().map(|d| d.pad_high));
    if !simple {
        let edges = conv.window.iter().map(|d| Pad {
            low: d.pad_low,
            high: d.pad_high,
            interior: d.input_dilation - 1,
        });
        let all: Vec<Pad> = [Pad::default(); 2].into_iter().chain(edges).collect();
        let zero = w.number(wide, 0.0)?;
        sides[0] = pad(w, [&sides[0], &zero], &types.sizes(0), &all);
        pads.fill(0);
    }
    let attributes = vec![
        extents("kernel_shape", &types.sizes(1)[2..]),
        extents("strides", &conv.window.iter().map(|d| d.stride).collect::<Vec<usize>>()),
        extents(
            "dilations",
            &conv.window.iter().map(|d| d.kernel_dilation).collect::<Vec<usize>>(),
        ),
        list("pads", pads),
        int("group", conv.groups as i64),
        text("auto_pad", "NOTSET"),
    ];
    let y = w.one("Conv", &[&sides[0], &sides[1]], attributes);
    if conv.out == wide { Ok(y) } else { w.cast(&y, conv.out) }
}
