//! Random graphs for passes: the same for the same seed, small, and bounded in value. They are full
//! of what passes look for: repeated work, constants, neutral elements, movement that cancels, dead
//! ends, regions and states.

use overdrive_ir::eval::philox;
use overdrive_ir::{
    Array, Binary, Builder, Compare, DType, Expr, Graph, Init, Pad, Prim, Reducer, Tensor,
    TensorType, Unary,
};

/// Values with more elements than this are not made larger.
const MOST_ELEMENTS: usize = 64;

/// A random graph over `dtype` with two inputs, one state and two or more outputs.
pub fn random_graph(seed: u64, dtype: DType) -> Graph {
    let b = Builder::new("random");
    let mut draw = Draw { seed, next: 0 };
    let mut shape =
        || -> Vec<usize> { (0..1 + draw.below(3)).map(|_| 1 + draw.below(4)).collect() };
    let (first, second) = (shape(), shape());
    let x = b.input("x", TensorType::new(dtype, first.clone()));
    let y = b.input("y", TensorType::new(dtype, second));
    let w = b.state("w", TensorType::new(dtype, first), Init::Normal { std: 1.0, seed });
    let mut pool = vec![x, y, w];
    for step in 0..4 + draw.below(12) {
        let _scope = b.scope(&format!("step{step}"));
        let value = draw.step(&b, &pool);
        pool.push(value);
        // The same again: common subexpressions, and a value with several uses.
        if draw.below(4) == 0 {
            pool.push(value.tanh());
            pool.push(value.tanh() * value);
        }
    }
    for i in 0..1 + draw.below(2) {
        b.output(&format!("y{i}"), pool[pool.len() - 1 - i]);
    }
    b.output("again", pool[draw.below(pool.len())]);
    b.update("w", w * 0.5 + x.tanh());
    b.finish().expect("random graphs are well typed")
}

/// Standard normal inputs for a float graph.
pub fn random_inputs(graph: &Graph, seed: u64) -> Vec<Array> {
    let input = |(i, port): (usize, &overdrive_ir::Port)| {
        let ty = graph.ty(port.value);
        let values: Vec<f64> = philox::normals(seed, 1000 + i as u64).take(ty.elements()).collect();
        Array::from(&Tensor::from_f64(ty.dtype, ty.shape.clone(), &values))
    };
    graph.inputs().iter().enumerate().map(input).collect()
}

/// A stream of choices.
struct Draw {
    seed: u64,
    next: u64,
}

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.next += 1;
        philox::bits(self.seed, 77, self.next) as usize % n
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// A new value from earlier ones, its magnitude bounded so that long chains stay finite.
    fn step<'b>(&mut self, b: &'b Builder, pool: &[Expr<'b>]) -> Expr<'b> {
        let x = self.of(pool);
        let same = pool.iter().copied().filter(|y| y.shape() == x.shape()).collect::<Vec<_>>();
        let other = self.of(&same);
        match self.below(12) {
            0 => x.unary(self.of(&[
                Unary::Tanh,
                Unary::Sin,
                Unary::Erf,
                Unary::Logistic,
                Unary::Neg,
            ])),
            1 => x.binary(self.of(&[Binary::Add, Binary::Sub, Binary::Max, Binary::Min]), other),
            2 => (x * other).tanh(),
            3 => self.quotient(x, other),
            4 => self.neutral(x),
            5 => self.movement(b, x),
            6 => self.reduction(x),
            7 => self.contraction(b, x),
            8 => x.compare(Compare::Gt, other).select(x, other * 0.5),
            9 => self.rows(b, x),
            10 => self.region(b, x, other),
            _ => self.composite(x),
        }
    }

    fn quotient<'b>(&mut self, x: Expr<'b>, y: Expr<'b>) -> Expr<'b> {
        let positive = y * y + 1.0;
        match self.below(4) {
            0 => x / positive,
            1 => x * positive.rsqrt(),
            2 => x + positive.log(),
            _ => x / positive.sqrt(),
        }
    }

    /// Nodes that folding removes.
    fn neutral<'b>(&mut self, x: Expr<'b>) -> Expr<'b> {
        match self.below(7) {
            0 => x * 1.0,
            1 => x + 0.0,
            2 => x / 4.0,
            3 => -(-x),
            4 => x.binary(Binary::Pow, x.constant(2.0)).tanh(),
            5 => x * (x.constant(2.0) * 3.0 - 5.0),
            _ => x - x.builder().full(x.dtype(), x.shape(), 2.0).log(),
        }
    }

    fn movement<'b>(&mut self, b: &'b Builder, x: Expr<'b>) -> Expr<'b> {
        let sizes = x.sizes();
        let rank = sizes.len();
        if rank == 0 {
            return x.broadcast_in(&[2usize, 3].into(), &[]);
        }
        let axis = self.below(rank);
        let rotated: Vec<usize> = (0..rank).map(|i| (i + 1) % rank).collect();
        match self.below(7) {
            0 => x.transpose(&rotated),
            1 => x.transpose(&rotated).tanh().transpose(&rotated),
            2 => x.reshape([x.ty().elements()]),
            3 => x.reshape([1, x.ty().elements()]).reshape([x.ty().elements(), 1]),
            4 => x.slice_axis(axis, self.below(sizes[axis]), sizes[axis]),
            5 => {
                let mut pads = vec![Pad::default(); rank];
                pads[axis] =
                    Pad { low: self.below(3) as i64 - 1, high: 1, interior: self.below(2) };
                x.pad(pads, 0.5)
            }
            _ if x.ty().elements() * 2 <= MOST_ELEMENTS => b.concat(&[x, x.tanh()], axis),
            _ => x.sum(&[axis]).tanh(),
        }
    }

    fn reduction<'b>(&mut self, x: Expr<'b>) -> Expr<'b> {
        if x.rank() == 0 {
            return x.tanh();
        }
        let axis = self.below(x.rank());
        match self.below(5) {
            0 => x.mean_keep(&[axis]) - x,
            1 => x.sum(&[axis]).tanh(),
            2 => x.tanh().reduce(Reducer::Prod, &[axis]),
            3 => x.reduce_keep(Reducer::Max, &[axis]) - x,
            _ => x.reduce(Reducer::Min, &[axis]),
        }
    }

    fn contraction<'b>(&mut self, b: &'b Builder, x: Expr<'b>) -> Expr<'b> {
        let Some(&k) = x.sizes().last() else { return x.tanh() };
        let n = 1 + self.below(4);
        let values: Vec<f64> = philox::normals(self.seed, self.next).take(k * n).collect();
        let w = b.constant(Tensor::from_f64(x.dtype(), [k, n], &values));
        let last = x.rank() - 1;
        match self.below(3) {
            0 => x.linear(w, None).tanh(),
            1 => x.dot(w, &[], &[(last, 0)]).tanh(),
            _ if last == 0 => x.dot(x, &[], &[(0, 0)]).tanh(),
            _ => x.dot(x, &[], &[(last, last)]).tanh().reduce(Reducer::Max, &[0]),
        }
    }

    /// Rows at fixed indices, one of them out of range, and a scatter back.
    fn rows<'b>(&mut self, b: &'b Builder, x: Expr<'b>) -> Expr<'b> {
        let Some(&rows) = x.sizes().first() else { return x.tanh() };
        let picked = [self.below(rows) as i128, 99, 0];
        let indices = b.constant(Tensor::from_ints(DType::I64, [3usize, 1], &picked));
        let gathered = x.gather(indices, &[0]);
        let reducer = if self.below(2) == 0 { Some(Reducer::Sum) } else { None };
        b.op1(Prim::Scatter { axes: vec![0], reducer }, &[x, indices, gathered.tanh()])
    }

    fn region<'b>(&mut self, b: &'b Builder, x: Expr<'b>, y: Expr<'b>) -> Expr<'b> {
        let axes: Vec<usize> = (0..x.rank()).collect();
        let total = x.sum(&axes);
        // Not 0, about which sums that cancel would fall to either side.
        let large = total.compare(Compare::Gt, total.constant(0.1));
        let counter = b.constant(Tensor::scalar(DType::I32, 0.0));
        let types = |values: &[Expr<'b>]| values.iter().map(|v| v.ty()).collect::<Vec<_>>();
        if self.below(2) == 0 {
            let yes = region("then", &types(&[x, y]), |a| vec![a[0].tanh() * a[1] * 1.0, a[0]]);
            let no = region("else", &types(&[x, y]), |a| vec![a[0] + a[1].tanh(), a[1].tanh()]);
            let results = b.if_else(large, &[x, y], [yes, no]);
            return results[0] + results[1];
        }
        let operands = [counter, x, y];
        let condition = region("condition", &types(&operands), |a| {
            vec![a[0].compare(Compare::Lt, a[0].constant(2.0))]
        });
        let body =
            region("body", &types(&operands), |a| vec![a[0] + 1.0, (a[1] * a[2]).tanh() + a[1]]);
        b.node(Prim::While { carried: 2, max_trips: Some(3) }, &operands, vec![condition, body])[1]
    }

    fn composite<'b>(&mut self, x: Expr<'b>) -> Expr<'b> {
        match x.rank() {
            0 => x.relu(),
            rank => x.softmax(self.below(rank)),
        }
    }
}

fn region(
    name: &str,
    inputs: &[TensorType],
    body: impl for<'r> FnOnce(&[Expr<'r>]) -> Vec<Expr<'r>>,
) -> Graph {
    let b = Builder::new(name);
    let args: Vec<Expr<'_>> =
        inputs.iter().enumerate().map(|(i, ty)| b.input(&i.to_string(), ty.clone())).collect();
    body(&args).iter().enumerate().for_each(|(i, value)| b.output(&i.to_string(), *value));
    b.finish().expect("the regions of random graphs are well typed")
}
