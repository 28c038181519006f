//! RNN, GRU and LSTM, step by step: a sequence's length is known, so its steps are nodes.

use crate::onnx::axes::{exactly, sizes};
use crate::onnx::call::{Call, Outcome};
use crate::onnx::fault::{Fault, invalid, unsupported};
use crate::onnx::item::ItemValue;
use overdrive_ir::{Compare, DType, Expr, Shape, Unary};

/// Steps at most: each is a dozen nodes.
const MOST_STEPS: usize = 4096;

/// The operands of one direction; `[T, B, I]` in, hidden size H.
struct Direction<'b> {
    w: Expr<'b>,
    r: Expr<'b>,
    bias: Option<Expr<'b>>,
    h: Expr<'b>,
    c: Option<Expr<'b>>,
    peepholes: Option<Expr<'b>>,
    activations: Vec<String>,
}

/// A step: gates of x and the present state to the next one.
type RecurrentStep<'b> =
    fn(&Direction<'b>, Expr<'b>, &Settings) -> Result<[Option<Expr<'b>>; 2], Fault>;

struct Settings {
    hidden: usize,
    linear_before_reset: bool,
    input_forget: bool,
    clip: Option<f64>,
}

fn activation<'b>(name: &str, x: Expr<'b>) -> Result<Expr<'b>, Fault> {
    Ok(match name.to_ascii_lowercase().as_str() {
        "sigmoid" => x.unary(Unary::Logistic),
        "tanh" => x.tanh(),
        "relu" => x.relu(),
        "softsign" => super::activation::softsign(x),
        "softplus" => super::activation::softplus(x),
        other => return Err(unsupported(format!("activation `{other}`"))),
    })
}

impl<'b> Direction<'b> {
    fn activate(&self, number: usize, x: Expr<'b>, settings: &Settings) -> Result<Expr<'b>, Fault> {
        let clipped =
            settings.clip.map_or(x, |limit| x.max(x.constant(-limit)).min(x.constant(limit)));
        activation(self.activations.get(number).map_or("", String::as_str), clipped)
    }

    /// Part `i` of a parameter that stacks H rows per gate.
    fn part(&self, x: Expr<'b>, i: usize, h: usize) -> Expr<'b> {
        x.slice_axis(0, i * h, (i + 1) * h)
    }

    /// `x Wᵀ + b` of all gates.
    fn input_gates(&self, x: Expr<'b>) -> Result<Expr<'b>, Fault> {
        let rows = sizes(self.w)?[0];
        let y = x.dot(self.w, &[], &[(x.rank() - 1, 1)]);
        Ok(self.bias.map_or(y, |bias| y + bias.slice_axis(0, 0, rows)))
    }

    fn recurrent_bias(&self) -> Result<Option<Expr<'b>>, Fault> {
        let rows = sizes(self.w)?[0];
        Ok(self.bias.map(|bias| bias.slice_axis(0, rows, 2 * rows)))
    }

    /// `h Rᵀ + b`
    fn recurrent_gates(&self, h: Expr<'b>) -> Result<Expr<'b>, Fault> {
        let y = h.dot(self.r, &[], &[(1, 1)]);
        Ok(self.recurrent_bias()?.map_or(y, |bias| y + bias))
    }
}

fn rnn_step<'b>(
    d: &Direction<'b>,
    x: Expr<'b>,
    s: &Settings,
) -> Result<[Option<Expr<'b>>; 2], Fault> {
    Ok([Some(d.activate(0, x + d.recurrent_gates(d.h)?, s)?), None])
}

/// Gates z, r, h.
fn gru_step<'b>(
    d: &Direction<'b>,
    x: Expr<'b>,
    s: &Settings,
) -> Result<[Option<Expr<'b>>; 2], Fault> {
    let n = s.hidden;
    let gate = |x: Expr<'b>, i: usize| x.slice_axis(1, i * n, (i + 1) * n);
    let all = d.recurrent_gates(d.h)?;
    let z = d.activate(0, gate(x, 0) + gate(all, 0), s)?;
    let r = d.activate(0, gate(x, 1) + gate(all, 1), s)?;
    let inner = if s.linear_before_reset {
        r * gate(all, 2)
    } else {
        let reset = (r * d.h).dot(d.part(d.r, 2, n), &[], &[(1, 1)]);
        d.recurrent_bias()?.map_or(reset, |bias| reset + d.part(bias, 2, n))
    };
    let new = d.activate(1, gate(x, 2) + inner, s)?;
    Ok([Some((1.0 - z) * new + z * d.h), None])
}

/// Gates i, o, f, c; peepholes i, o, f.
fn lstm_step<'b>(
    d: &Direction<'b>,
    x: Expr<'b>,
    s: &Settings,
) -> Result<[Option<Expr<'b>>; 2], Fault> {
    let n = s.hidden;
    let gates = x + d.recurrent_gates(d.h)?;
    let gate = |i: usize| gates.slice_axis(1, i * n, (i + 1) * n);
    let cell = d.c.ok_or(Fault::Built)?;
    let peep = |i: usize, cell: Expr<'b>| match d.peepholes {
        Some(p) => gate(i) + d.part(p, i, n) * cell,
        None => gate(i),
    };
    let input = d.activate(0, peep(0, cell), s)?;
    let forget = if s.input_forget { 1.0 - input } else { d.activate(0, peep(2, cell), s)? };
    let next = forget * cell + input * d.activate(1, gate(3), s)?;
    let output = d.activate(0, peep(1, next), s)?;
    Ok([Some(output * d.activate(2, next, s)?), Some(next)])
}

pub(super) fn rnn<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    run(c, rnn_step, (1, &["Tanh"]))
}

pub(super) fn gru<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    run(c, gru_step, (3, &["Sigmoid", "Tanh"]))
}

pub(super) fn lstm<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    run(c, lstm_step, (4, &["Sigmoid", "Tanh", "Tanh"]))
}

fn run<'b>(
    c: &Call<'_, 'b>,
    step: RecurrentStep<'b>,
    (gates, defaults): (usize, &[&str]),
) -> Outcome<'b> {
    let batch_first = c.flag("layout", 0);
    let swap = |x: Expr<'b>| if batch_first { x.transpose(&[1, 0, 2]) } else { x };
    let x = c.x(0)?;
    exactly::<3>(x, "x")?;
    let x = swap(x);
    let [steps, batch, _] = exactly(x, "x")?;
    let (w, r) = (c.x(1)?, c.x(2)?);
    let [directions, rows, _] = exactly(w, "w")?;
    let hidden = rows / gates;
    if exactly::<3>(r, "r")? != [directions, rows, hidden] || rows != gates * hidden {
        return Err(invalid(format!("r of [{directions}, {rows}, {hidden}]"), r.ty().to_string()));
    }
    if directions > 2 {
        return Err(invalid("one direction or two", directions.to_string()));
    }
    if steps > MOST_STEPS {
        return Err(unsupported(format!("a sequence of more than {MOST_STEPS} steps")));
    }
    c.ignore(&["hidden_size", "output_sequence"]);
    let named: Vec<String> = match c.attribute("activations") {
        Some(a) => a.strings.iter().map(|s| String::from_utf8_lossy(s).into_owned()).collect(),
        None => defaults
            .iter()
            .cycle()
            .take(defaults.len() * directions)
            .map(|s| (*s).to_owned())
            .collect(),
    };
    if c.attribute("activation_alpha").is_some() || c.attribute("activation_beta").is_some() {
        return Err(unsupported("activations with parameters"));
    }
    let direction = c.text_or("direction", "forward");
    let settings = Settings {
        hidden,
        linear_before_reset: c.flag("linear_before_reset", 0),
        input_forget: c.flag("input_forget", 0),
        clip: c.attribute("clip").map(|a| f64::from(a.f())),
    };
    let lengths = c.maybe(4)?.map(|l| l.convert(DType::I64));
    let pick = |x: Expr<'b>, d: usize| -> Result<Expr<'b>, Fault> {
        let mut shape = sizes(x)?;
        if shape.first() != Some(&directions) {
            return Err(invalid(
                format!("parameters of {directions} directions"),
                x.ty().to_string(),
            ));
        }
        shape.remove(0);
        Ok(x.slice_axis(0, d, d + 1).reshape(shape))
    };
    let initial = |i: usize, d: usize| match c.maybe(i)? {
        Some(x) => {
            exactly::<3>(x, "an initial state")?;
            pick(swap(x), d)
        }
        None => Ok(c.b.full(x.dtype(), [batch, hidden], 0.0)),
    };
    let mut ends: [Vec<Expr<'b>>; 2] = [vec![], vec![]];
    let mut sequences = Vec::new();
    for d in 0..directions {
        let per = defaults.len();
        let mut state = Direction {
            w: pick(w, d)?,
            r: pick(r, d)?,
            bias: c.maybe(3)?.map(|b| pick(b, d)).transpose()?,
            h: initial(5, d)?,
            c: if gates == 4 { Some(initial(6, d)?) } else { None },
            peepholes: if gates == 4 { c.maybe(7)?.map(|p| pick(p, d)).transpose()? } else { None },
            activations: named.iter().skip(d * per).take(per).cloned().collect(),
        };
        let mut order: Vec<usize> = (0..steps).collect();
        if direction == "reverse" || d == 1 {
            order.reverse();
        }
        sequences.push(unrolled(c, step, (&mut state, &settings), (x, lengths), &order)?);
        ends[0].push(state.h.reshape([1, batch, hidden]));
        ends[1].extend(state.c.map(|cell| cell.reshape([1, batch, hidden])));
    }
    let y = c.b.concat(&sequences, 1);
    let y = if batch_first { y.transpose(&[2, 0, 1, 3]) } else { y };
    let mut results = vec![ItemValue::from(y)];
    results.extend(
        ends.iter().filter(|e| !e.is_empty()).map(|e| ItemValue::from(swap(c.b.concat(e, 0)))),
    );
    Ok(results)
}

/// The outputs `[T, 1, B, H]` of one direction, whose steps are taken in this order; `state` ends
/// as that after the last. Past the end of a sequence of `lengths`, its outputs are 0 and its state
/// stays.
fn unrolled<'b>(
    c: &Call<'_, 'b>,
    step: RecurrentStep<'b>,
    (state, settings): (&mut Direction<'b>, &Settings),
    (x, lengths): (Expr<'b>, Option<Expr<'b>>),
    order: &[usize],
) -> Result<Expr<'b>, Fault> {
    // All steps' input gates in one product.
    let inputs = state.input_gates(x)?;
    let [_, batch, rows] = exactly(inputs, "gates")?;
    let hidden = settings.hidden;
    let mut outputs = vec![None; order.len()];
    for &at in order {
        let now = inputs.slice_axis(0, at, at + 1).reshape([batch, rows]);
        let [h, cell] = step(state, now, settings)?;
        let h = h.ok_or(Fault::Built)?;
        let (mut output, mut next, mut next_cell) = (h, h, cell);
        if let Some(lengths) = lengths {
            let inside = lengths.compare(Compare::Gt, super::conv::integer(c, at as i64));
            let inside = inside.broadcast_in(&Shape::from([batch, hidden]), &[0]);
            output = inside.select(h, h.constant(0.0));
            next = inside.select(h, state.h);
            next_cell = cell.zip(state.c).map(|(new, old)| inside.select(new, old));
        }
        outputs[at] = Some(output.reshape([1, 1, batch, hidden]));
        (state.h, state.c) = (next, next_cell);
    }
    let all: Vec<Expr<'b>> = outputs.into_iter().flatten().collect();
    Ok(match all.is_empty() {
        true => c.b.full(x.dtype(), [0, 1, batch, hidden], 0.0),
        false => c.b.concat(&all, 0),
    })
}
