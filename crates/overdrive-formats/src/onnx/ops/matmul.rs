//! Contractions: MatMul, Gemm, Einsum and their integer forms.

use crate::onnx::axes::{broadcast, common, sizes};
use crate::onnx::call::{Call, Outcome, one};
use crate::onnx::coded::Summed;
use crate::onnx::fault::{Fault, invalid};
use crate::onnx::item::ItemValue;
use overdrive_ir::{Compare, DType, DotGeneral, Expr, Precision, Prim, Reducer};

/// `dot` of any arithmetic type; integers are summed and given in `out`.
pub(super) fn dot<'b>(
    x: Expr<'b>,
    y: Expr<'b>,
    batch: &[(usize, usize)],
    contract: &[(usize, usize)],
    out: DType,
) -> Expr<'b> {
    let accumulate = if x.dtype().is_float() { x.dtype().accumulation() } else { out };
    let (batch, contract) = (batch.to_vec(), contract.to_vec());
    let dot = DotGeneral { batch, contract, accumulate, out, precision: Precision::Exact };
    x.builder().op1(Prim::DotGeneral(dot), &[x, y])
}

/// NumPy's matmul: vectors are rows or columns, batch dimensions broadcast.
pub(super) fn matmul<'b>(x: Expr<'b>, y: Expr<'b>, out: DType) -> Result<Expr<'b>, Fault> {
    let (mut a, mut b) = (sizes(x)?, sizes(y)?);
    if a.is_empty() || b.is_empty() {
        return Err(invalid(
            "operands of one dimension or more",
            format!("{} and {}", x.ty(), y.ty()),
        ));
    }
    if b.len() == 1 {
        return Ok(dot(x, y, &[], &[(a.len() - 1, 0)], out));
    }
    if b.len() == 2 {
        return Ok(dot(x, y, &[], &[(a.len() - 1, 0)], out));
    }
    let row = a.len() == 1;
    if row {
        a.insert(0, 1);
    }
    let lead = common(&a[..a.len() - 2], &b[..b.len() - 2])?;
    let rank = lead.len() + 2;
    let x = x.reshape(a.clone());
    a.splice(..a.len() - 2, lead.iter().copied());
    b.splice(..b.len() - 2, lead.iter().copied());
    let batch: Vec<(usize, usize)> = (0..lead.len()).map(|i| (i, i)).collect();
    let z = dot(broadcast(x, &a), broadcast(y, &b), &batch, &[(rank - 1, rank - 2)], out);
    if !row {
        return Ok(z);
    }
    let mut shape = sizes(z)?;
    shape.remove(rank - 2);
    Ok(z.reshape(shape))
}

pub(super) fn mat_mul<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    if let Some(product) = of_codes(c, x, Summed::Rows)? {
        return one(product);
    }
    one(matmul(x, c.x(1)?, x.dtype())?)
}

/// The product with the second operand, where that is known by its codes.
fn of_codes<'b>(c: &Call<'_, 'b>, x: Expr<'b>, summed: Summed) -> Result<Option<Expr<'b>>, Fault> {
    Ok(match c.value(1)? {
        ItemValue::Coded(w) => w.product(x, summed),
        _ => None,
    })
}

/// `alpha A B + beta C`, either transposed: `linear` where that is all.
pub(super) fn gemm<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    c.ignore(&["broadcast"]);
    let (alpha, beta) = (c.float_or("alpha", 1.0), c.float_or("beta", 1.0));
    let turned = |index: usize, name| {
        Ok::<_, Fault>(if c.flag(name, 0) { c.x(index)?.t() } else { c.x(index)? })
    };
    let a = turned(0, "transA")?;
    let plain = alpha == 1.0 && beta == 1.0 && a.dtype().is_arithmetic_float();
    let summed = if c.flag("transB", 0) { Summed::Columns } else { Summed::Rows };
    let by_codes = if plain && a.rank() == 2 { of_codes(c, a, summed)? } else { None };
    if let Some(product) = by_codes {
        return one(match c.maybe(2)? {
            None => product,
            Some(bias) => product + broadcast(bias, &sizes(product)?),
        });
    }
    let b = turned(1, "transB")?;
    if a.rank() != 2 || b.rank() != 2 {
        return Err(invalid("two matrices", format!("{} and {}", a.ty(), b.ty())));
    }
    let bias = c.maybe(2)?;
    let columns = sizes(b)?[1];
    if plain && bias.is_none_or(|bias| bias.shape() == [columns].into()) {
        return one(a.linear(b, bias));
    }
    let scaled = |x: Expr<'b>, by: f64| match by {
        1.0 => x,
        by if x.dtype().is_float() => x * by,
        by => (x.convert(DType::F64) * by).convert(x.dtype()),
    };
    let product = scaled(dot(a, b, &[], &[(1, 0)], a.dtype()), alpha);
    match bias {
        None => one(product),
        Some(bias) => one(product + broadcast(scaled(bias, beta), &sizes(product)?)),
    }
}

/// An operand of an einsum: its expression and a label for each axis.
struct Labelled<'b> {
    x: Expr<'b>,
    labels: Vec<u32>,
}

/// Labels of `...` count up from here, so that they never meet a letter.
const ELLIPSIS: u32 = 1 << 24;

pub(super) fn einsum<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let text = c.text_or("equation", "").replace(' ', "");
    let operands = c.rest(0)?;
    let (left, right) = match text.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (text.as_str(), None),
    };
    let terms: Vec<&str> = left.split(',').collect();
    if terms.len() != operands.len() || operands.is_empty() {
        return Err(invalid(
            format!("{} operands of `{text}`", terms.len()),
            operands.len().to_string(),
        ));
    }
    let is_label = |c: char| c.is_ascii_alphabetic() || c == '.';
    let known = |c: char| c == '.' || is_label(c) && left.contains(c);
    let once = |term: &str, c: char| c == '.' || term.matches(c).count() == 1;
    if !left.chars().all(|c| c == ',' || is_label(c))
        || !right.is_none_or(|r| r.chars().all(|c| known(c) && once(r, c)))
    {
        return Err(invalid(
            "an equation of letters and `...`, each letter of the result once and in an operand",
            format!("`{text}`"),
        ));
    }
    let mut widest = 0;
    let mut parts = Vec::new();
    for (x, term) in operands.into_iter().zip(terms) {
        let letters = term.chars().filter(|c| *c != '.').count();
        let hidden = if term.contains("...") { x.rank().checked_sub(letters) } else { Some(0) };
        let hidden = hidden.filter(|hidden| hidden + letters == x.rank());
        let hidden =
            hidden.ok_or_else(|| invalid(format!("an operand of `{term}`"), x.ty().to_string()))?;
        widest = widest.max(hidden);
        parts.push(diagonal(Labelled { x, labels: labels(term, hidden) })?);
    }
    let output = match right {
        Some(term) => labels(term, if term.contains("...") { widest } else { 0 }),
        None => {
            let all: Vec<u32> = left.chars().filter(|c| c.is_alphabetic()).map(u32::from).collect();
            let mut single: Vec<u32> = all
                .iter()
                .copied()
                .filter(|l| all.iter().filter(|m| *m == l).count() == 1)
                .collect();
            single.sort_unstable();
            (0..widest as u32).rev().map(|i| ELLIPSIS + i).chain(single).collect()
        }
    };
    let mut rest = parts.into_iter();
    let mut sum = rest.next().ok_or_else(|| invalid("an operand", "none"))?;
    let mut pending: Vec<Labelled<'b>> = rest.collect();
    while !pending.is_empty() {
        let next = pending.remove(0);
        let needed: Vec<u32> =
            output.iter().chain(pending.iter().flat_map(|p| &p.labels)).copied().collect();
        sum = contract(sum, next, &needed)?;
    }
    let dropped: Vec<usize> =
        (0..sum.labels.len()).filter(|&i| !output.contains(&sum.labels[i])).collect();
    let x = sum.x.reduce(Reducer::Sum, &dropped);
    sum.labels.retain(|l| output.contains(l));
    let place = |label: &u32| sum.labels.iter().position(|l| l == label);
    let perm: Option<Vec<usize>> = output.iter().map(place).collect();
    let perm = perm.filter(|p| p.len() == sum.labels.len());
    one(x.transpose(&perm.ok_or_else(|| invalid("output labels of the operands", text))?))
}

/// Axes behind `...` count from the right, so that operands of different ranks align.
fn labels(term: &str, hidden: usize) -> Vec<u32> {
    let mut labels = Vec::new();
    let mut rest = term;
    while let Some(first) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("...") {
            labels.extend((0..hidden as u32).rev().map(|i| ELLIPSIS + i));
            rest = after;
        } else {
            labels.push(u32::from(first));
            rest = &rest[first.len_utf8()..];
        }
    }
    labels
}

/// Keeps the diagonal of axes with equal labels.
fn diagonal(mut part: Labelled<'_>) -> Result<Labelled<'_>, Fault> {
    while let Some((i, j)) = (0..part.labels.len())
        .flat_map(|i| (i + 1..part.labels.len()).map(move |j| (i, j)))
        .find(|&(i, j)| part.labels[i] == part.labels[j])
    {
        let shape = part.x.shape();
        let [rows, columns] = [i, j].map(|a| part.x.builder().iota(DType::I32, shape.clone(), a));
        let on = rows.compare(Compare::Eq, columns);
        part.x = on.select(part.x, part.x.constant(0.0)).reduce(Reducer::Sum, &[j]);
        part.labels.remove(j);
        sizes(part.x)?;
    }
    Ok(part)
}

fn contract<'b>(
    mut a: Labelled<'b>,
    mut b: Labelled<'b>,
    needed: &[u32],
) -> Result<Labelled<'b>, Fault> {
    // Extents of 1 stretch to those of the other side.
    for (i, label) in a.labels.iter().enumerate() {
        let Some(j) = b.labels.iter().position(|l| l == label) else { continue };
        let (mut x, mut y) = (sizes(a.x)?, sizes(b.x)?);
        let n = common(&x[i..=i], &y[j..=j])?[0];
        (x[i], y[j]) = (n, n);
        (a.x, b.x) = (broadcast(a.x, &x), broadcast(b.x, &y));
    }
    let alone = |part: &Labelled<'_>, other: &Labelled<'_>| -> Vec<usize> {
        let gone = |l: &u32| !needed.contains(l) && !other.labels.contains(l);
        (0..part.labels.len()).filter(|&i| gone(&part.labels[i])).collect()
    };
    let (drop_a, drop_b) = (alone(&a, &b), alone(&b, &a));
    for (part, dropped) in [(&mut a, drop_a), (&mut b, drop_b)] {
        part.x = part.x.reduce(Reducer::Sum, &dropped);
        let labels = part.labels.iter().enumerate().filter(|(i, _)| !dropped.contains(i));
        part.labels = labels.map(|(_, l)| *l).collect();
    }
    let pairs = |kept: bool| -> Vec<(usize, usize)> {
        let matching = a.labels.iter().enumerate().filter(|(_, l)| needed.contains(l) == kept);
        matching.filter_map(|(i, l)| Some((i, b.labels.iter().position(|m| m == l)?))).collect()
    };
    let (batch, summed) = (pairs(true), pairs(false));
    let free = |side: &Labelled<'_>, taken: Vec<usize>| -> Vec<u32> {
        (0..side.labels.len()).filter(|i| !taken.contains(i)).map(|i| side.labels[i]).collect()
    };
    let both = || batch.iter().chain(&summed);
    let mut labels: Vec<u32> = batch.iter().map(|&(i, _)| a.labels[i]).collect();
    labels.extend(free(&a, both().map(|p| p.0).collect()));
    labels.extend(free(&b, both().map(|p| p.1).collect()));
    let x = dot(a.x, b.x, &batch, &summed, a.x.dtype());
    Ok(Labelled { x, labels })
}

/// com.microsoft: a scaled product with either side transposed.
pub(super) fn fused_mat_mul<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    c.ignore(&["transBatchA", "transBatchB"]);
    if c.flag("transBatchA", 0) || c.flag("transBatchB", 0) {
        return Err(crate::onnx::fault::unsupported("transposed batches"));
    }
    let alpha = c.float_or("alpha", 1.0);
    let (x, y) = (c.x(0)?, c.x(1)?);
    let x = if c.flag("transA", 0) { x.t() } else { x };
    let y = if c.flag("transB", 0) { y.t() } else { y };
    let z = matmul(x, y, x.dtype())?;
    one(if alpha == 1.0 { z } else { z * alpha })
}
