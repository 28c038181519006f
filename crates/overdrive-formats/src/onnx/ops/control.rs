//! If, Loop and Scan, resolved while reading. Shapes must be known then, so trips and branches must
//! be known too.
//!
//! If data decides a branch, both sides are computed and one is selected, since a value has no side
//! effects. If one side cannot be built for the sizes at hand, the condition must be known. A
//! branch that is not taken is not looked at. A loop runs as often as its count says. Its body
//! stands in the graph once for each turn.

use crate::onnx::axes::{axis, reverse, sizes};
use crate::onnx::call::Call;
use crate::onnx::fault::{Fault, invalid, unsupported};
use crate::onnx::item::{Item, ItemValue, union};
use crate::onnx::proto::{GraphProto, ValueInfoProto};
use crate::onnx::types::tensor_type;
use crate::onnx::walk::{Env, Frame, Walk};
use overdrive_ir::{DType, Dim, Expr, Shape, Tensor};

/// Turns of a loop at most.
const MOST_TURNS: i64 = 1 << 16;

type Items<'b> = Result<Vec<Item<'b>>, Fault>;

pub(super) fn branch<'b>(
    walk: &Walk<'_, 'b>,
    frame: &Frame<'_>,
    env: &Env<'_, 'b>,
    c: &Call<'_, 'b>,
) -> Items<'b> {
    let run = |name| {
        let graph = c.graph(name)?;
        walk.check_known(graph)?;
        Ok::<_, Fault>(walk.body(graph, &frame.inner(), Env::inside(env))?)
    };
    c.ignore(&["then_branch", "else_branch"]);
    if let Ok(condition) = c.number(0) {
        return run(if condition != 0.0 { "then_branch" } else { "else_branch" });
    }
    let condition = c.x(0)?.reshape(Shape::default());
    let mark = c.b.mark();
    let (yes, no) = match run("then_branch").and_then(|yes| Ok((yes, run("else_branch")?))) {
        Ok(both) => both,
        Err(fault) => {
            // The branch that cannot be built may be meant for other sizes or another rate, and
            // never be taken. Whoever decides the condition is therefore asked for it. The fault
            // stays only where nobody can give the condition.
            return match c.known(0) {
                Err(Fault::Undecided { what, sources }) if !sources.is_empty() => {
                    c.b.undo(mark);
                    Err(Fault::Undecided { what, sources })
                }
                _ => Err(fault),
            };
        }
    };
    yes.into_iter()
        .zip(no)
        .map(|(yes, no)| {
            let (a, b) = (yes.value.expr(c.b), no.value.expr(c.b));
            if a.ty() != b.ty() {
                // Only the condition's value can say which type it is.
                c.known(0)?;
            }
            let sources = union(
                [&yes, &no, &Item { value: condition.into(), sources: c.sources() }].into_iter(),
            );
            Ok(Item { value: condition.select(a, b).into(), sources })
        })
        .collect()
}

fn body_of<'a>(c: &Call<'a, '_>) -> Result<&'a GraphProto, Fault> {
    c.graph("body")
}

fn flag(item: &Item<'_>, what: &str) -> Result<bool, Fault> {
    match item.tensor().filter(|t| t.ty().elements() == 1) {
        Some(tensor) => Ok(tensor.to_f64()[0] != 0.0),
        None => Err(Fault::Undecided { what: what.to_owned(), sources: item.sources.clone() }),
    }
}

fn input(graph: &GraphProto, index: usize) -> Result<&str, Fault> {
    let info = graph.input.get(index);
    info.map(|info| info.name()).ok_or_else(|| {
        invalid("a body with as many inputs as the node", graph.input.len().to_string())
    })
}

pub(super) fn repeat<'b>(
    walk: &Walk<'_, 'b>,
    frame: &Frame<'_>,
    env: &Env<'_, 'b>,
    c: &Call<'_, 'b>,
) -> Items<'b> {
    let body = body_of(c)?;
    let trips = if c.has(0) { c.integer(0)? } else { i64::MAX };
    let mut goes_on = if c.has(1) { c.number(1)? != 0.0 } else { true };
    let mut carried: Vec<Item<'b>> = c.operands.iter().skip(2).flatten().cloned().collect();
    let scans = body.output.len().checked_sub(carried.len() + 1);
    let scans = scans.ok_or_else(|| {
        invalid(
            "a body that gives a condition and every carried value",
            body.output.len().to_string(),
        )
    })?;
    let mut collected: Vec<Vec<Item<'b>>> = vec![vec![]; scans];
    let mut turn = 0;
    while goes_on && turn < trips {
        if turn >= MOST_TURNS {
            return Err(unsupported(format!("a loop of more than {MOST_TURNS} turns")));
        }
        let mut inside = Env::inside(env);
        inside.insert(
            input(body, 0)?,
            Item::known(Tensor::from_ints(DType::I64, Shape::default(), &[turn.into()])),
        );
        inside.insert(
            input(body, 1)?,
            Item::known(Tensor::from_ints(DType::Bool, Shape::default(), &[1])),
        );
        for (i, item) in carried.into_iter().enumerate() {
            inside.insert(input(body, 2 + i)?, item);
        }
        let mut results = walk.body(body, &frame.inner(), inside)?;
        let rows = results.split_off(results.len() - scans);
        carried = results.split_off(1);
        goes_on = flag(&results[0], body.output[0].name())?;
        collected.iter_mut().zip(rows).for_each(|(all, row)| all.push(row));
        turn += 1;
    }
    let outputs = &body.output[body.output.len() - scans..];
    for (rows, info) in collected.into_iter().zip(outputs) {
        carried.push(stacked(c, rows, declared(info), 0)?);
    }
    Ok(carried)
}

/// The type of a result, where the file says all of it.
fn declared(info: &ValueInfoProto) -> Option<(DType, Vec<usize>)> {
    let ty = tensor_type(info, |_| Dim::from("?")).ok()?;
    Some((ty.dtype, ty.shape.known()?))
}

/// Rows joined along a new axis; none of them makes an empty tensor of the declared type.
fn stacked<'b>(
    c: &Call<'_, 'b>,
    rows: Vec<Item<'b>>,
    declared: Option<(DType, Vec<usize>)>,
    along: usize,
) -> Result<Item<'b>, Fault> {
    let sources = union(rows.iter());
    let mut parts: Vec<Expr<'b>> = Vec::with_capacity(rows.len());
    for row in &rows {
        let row = row.value.expr(c.b);
        let mut shape = sizes(row)?;
        shape.insert(along.min(shape.len()), 1);
        parts.push(row.reshape(shape));
    }
    let value = if parts.is_empty() {
        let (dtype, mut shape) = declared.ok_or_else(|| {
            unsupported("a loop without turns whose results have no declared shape")
        })?;
        shape.insert(0, 0);
        c.b.full(dtype, shape, 0.0)
    } else {
        c.b.concat(&parts, along)
    };
    Ok(Item { value: ItemValue::from(value), sources })
}

pub(super) fn scan<'b>(
    walk: &Walk<'_, 'b>,
    frame: &Frame<'_>,
    env: &Env<'_, 'b>,
    c: &Call<'_, 'b>,
) -> Items<'b> {
    let body = body_of(c)?;
    let scanned = usize::try_from(c.int_or("num_scan_inputs", 0)).unwrap_or(0);
    c.ignore(&["directions"]);
    if c.opset < 9 {
        return Err(unsupported("Scan of opset 8, with a batch dimension of its own"));
    }
    let states = c.count().checked_sub(scanned).filter(|n| *n <= body.output.len() && scanned > 0);
    let states = states
        .ok_or_else(|| invalid("as many scanned inputs as the node has", scanned.to_string()))?;
    let list = |name| c.list(name).unwrap_or_default();
    let (axes, backwards) = (list("scan_input_axes"), list("scan_input_directions"));
    let (out_axes, out_backwards) = (list("scan_output_axes"), list("scan_output_directions"));
    let at = |list: &[i64], i: usize| list.get(i).copied().unwrap_or(0);
    let mut sequences = Vec::with_capacity(scanned);
    for i in 0..scanned {
        let mut x = c.x(states + i)?;
        let along = axis(at(&axes, i), sizes(x)?.len())?;
        if at(&backwards, i) != 0 {
            x = reverse(x, along)?;
        }
        sequences.push((x, along, sizes(x)?[along]));
    }
    let turns = sequences.first().map_or(0, |s| s.2);
    if sequences.iter().any(|s| s.2 != turns) || turns as i64 > MOST_TURNS {
        return Err(invalid(
            format!("sequences of one length up to {MOST_TURNS}"),
            format!("{turns} and others"),
        ));
    }
    let sources = c.sources();
    let mut carried: Vec<Item<'b>> = c.operands.iter().take(states).flatten().cloned().collect();
    if carried.len() != states {
        return Err(invalid("every initial state", "an absent one"));
    }
    let mut collected: Vec<Vec<Item<'b>>> = vec![vec![]; body.output.len() - states];
    for turn in 0..turns {
        let mut inside = Env::inside(env);
        for (i, item) in carried.into_iter().enumerate() {
            inside.insert(input(body, i)?, item);
        }
        for (i, (x, along, _)) in sequences.iter().enumerate() {
            let mut shape = sizes(*x)?;
            shape.remove(*along);
            let value = x.slice_axis(*along, turn, turn + 1).reshape(shape).into();
            inside.insert(input(body, states + i)?, Item { value, sources: sources.clone() });
        }
        let mut results = walk.body(body, &frame.inner(), inside)?;
        let rows = results.split_off(states);
        carried = results;
        collected.iter_mut().zip(rows).for_each(|(all, row)| all.push(row));
    }
    for (i, mut rows) in collected.into_iter().enumerate() {
        if at(&out_backwards, i) != 0 {
            rows.reverse();
        }
        let rank = rows.first().map_or(0, |row| row.value.expr(c.b).rank());
        let along = axis(at(&out_axes, i), rank + 1)?;
        carried.push(stacked(c, rows, declared(&body.output[states + i]), along)?);
    }
    Ok(carried)
}
