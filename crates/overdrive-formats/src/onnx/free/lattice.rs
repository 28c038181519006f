//! `Lattice`: a constant as a function of the free dimensions and of where its elements stand.
//!
//! Readers of models compute positions, index grids and causal masks ahead, for the sizes at hand.
//! Such a constant is one of a few functions of its coordinates. It is the same along every free
//! axis, or holds whole numbers that rise evenly, their reciprocals, or a step where two
//! coordinates meet. Invariant: the function has every element of the constant at every corner and
//! at the witness.

use super::sizes::Sizes;
use super::sum::Sum;
use crate::onnx::export::Unsaid;
use overdrive_ir::{DType, Shape, Tensor};

/// The sum that has these values at the corners and the witness, if one has.
type Fit<'f> = &'f dyn Fn(&[i128]) -> Option<Sum>;

/// The constant.
pub(super) struct Lattice {
    dtype: DType,
    shape: Vec<Sum>,
    rule: LatticeRule,
}

enum LatticeRule {
    /// These elements, repeated along every free axis, along which they have an extent of 1.
    Repeated(Tensor),
    /// At each place of the axes that are not free `base`, and along a free axis as much more for
    /// each step.
    Rising { base: Vec<Sum>, slopes: Vec<(usize, Vec<Sum>)>, inverse: Inverse },
    /// `above` if the coordinate of the first axis, less that of the second, is at least `from`;
    /// otherwise `below`.
    Step { axes: (usize, Option<usize>), from: Sum, above: f64, below: f64 },
}

/// Whether the numbers are those that were found or one over them.
#[derive(Copy, Clone, PartialEq)]
enum Inverse {
    No,
    Yes,
}

impl Lattice {
    /// The function that is these tensors, one for each corner.
    pub(super) fn find(tensors: &[Tensor], fit: Fit<'_>) -> Option<Self> {
        let (dtype, rank) = (tensors[0].ty().dtype, tensors[0].ty().rank());
        if tensors
            .iter()
            .any(|t| t.ty().dtype != dtype || t.ty().rank() != rank || t.ty().elements() == 0)
        {
            return None;
        }
        let extent = |axis: usize| {
            let values: Vec<i128> = tensors.iter().map(|t| t.ty().sizes()[axis] as i128).collect();
            fit(&values)
        };
        let shape = (0..rank).map(extent).collect::<Option<Vec<Sum>>>()?;
        let free: Vec<usize> = (0..rank).filter(|&axis| shape[axis].constant().is_none()).collect();
        let grids: Vec<Grid> = tensors.iter().map(|tensor| Grid::of(tensor, &free)).collect();
        let rule = repeated(tensors, &grids)
            .or_else(|| rising(&grids, fit, Inverse::No))
            .or_else(|| rising(&grids, fit, Inverse::Yes).filter(|_| dtype.is_arithmetic_float()))
            .or_else(|| step(&grids, fit))?;
        Some(Self { dtype, shape, rule })
    }

    /// Writes the nodes that compute it, and returns the name of the result.
    pub(super) fn write(&self, sizes: &mut Sizes) -> Result<String, Unsaid> {
        let rank = self.shape.len();
        let is_free = |axis: &usize| self.shape[*axis].constant().is_none();
        let free: Vec<usize> = (0..rank).filter(is_free).collect();
        let (value, axes) = match &self.rule {
            LatticeRule::Repeated(tensor) => (sizes.writer().tensor(tensor)?, vec![]),
            LatticeRule::Rising { base, slopes, inverse } => {
                let thin: Vec<usize> =
                    self.shape.iter().map(|n| n.constant().unwrap_or(1) as usize).collect();
                let thin = if rank == 0 { vec![1] } else { thin };
                let mut value = sizes.field(base, &thin);
                for (axis, slope) in slopes {
                    let steps = sizes.along(*axis, rank, &self.shape[*axis]);
                    let slope = sizes.field(slope, &thin);
                    let rise = sizes.writer().one("Mul", &[&steps, &slope], vec![]);
                    value = sizes.writer().one("Add", &[&value, &rise], vec![]);
                }
                if rank == 0 {
                    value = sizes.number(&value);
                }
                let w = sizes.writer();
                if self.dtype != DType::I64 {
                    value = w.cast(&value, self.dtype)?;
                }
                if *inverse == Inverse::Yes {
                    value = w.one("Reciprocal", &[&value], vec![]);
                }
                (value, slopes.iter().map(|(axis, _)| *axis).collect())
            }
            LatticeRule::Step { axes: (first, second), from, above, below } => {
                let mut place = sizes.along(*first, rank, &self.shape[*first]);
                if let Some(second) = second {
                    let other = sizes.along(*second, rank, &self.shape[*second]);
                    place = sizes.writer().one("Sub", &[&place, &other], vec![]);
                }
                let from = sizes.list(std::slice::from_ref(from));
                let w = sizes.writer();
                let mut value = w.one("GreaterOrEqual", &[&place, &from], vec![]);
                if self.dtype == DType::Bool {
                    if *above == 0.0 {
                        value = w.one("Not", &[&value], vec![]);
                    }
                } else {
                    let [above, below] = [above, below].map(|x| w.number(self.dtype, *x));
                    value = w.one("Where", &[&value, &above?, &below?], vec![]);
                }
                (value, [*first].into_iter().chain(*second).collect())
            }
        };
        if free.iter().all(|axis| axes.contains(axis)) {
            return Ok(value);
        }
        let shape = sizes.list(&self.shape);
        Ok(sizes.writer().one("Expand", &[&value, &shape], vec![]))
    }
}

/// The elements of a tensor with their coordinates.
struct Grid {
    sizes: Vec<usize>,
    strides: Vec<usize>,
    free: Vec<usize>,
    /// Elements whose coordinates along free axes are all 0.
    places: Vec<usize>,
    values: Vec<f64>,
    /// Keys that distinguish elements: their bits, or exact integers.
    codes: Vec<i128>,
    /// The elements again, where all are whole numbers.
    integers: Option<Vec<i128>>,
}

impl Grid {
    fn of(tensor: &Tensor, free: &[usize]) -> Self {
        let (sizes, values) = (tensor.ty().sizes(), tensor.to_f64());
        let strides = overdrive_ir::row_major(&sizes);
        let bits = |x: &f64| i128::from(x.to_bits());
        let whole = |x: &f64| x.fract() == 0.0 && x.abs() < 2f64.powi(53) && bits(x) != bits(&-0.0);
        let (codes, integers) = match tensor.ty().dtype.is_float() {
            false => (tensor.to_ints(), Some(tensor.to_ints())),
            true => {
                let integers =
                    values.iter().all(whole).then(|| values.iter().map(|&x| x as i128).collect());
                (values.iter().map(bits).collect(), integers)
            }
        };
        let mut grid =
            Self { sizes, strides, free: free.to_vec(), places: vec![], values, codes, integers };
        grid.places = (0..grid.values.len()).filter(|&at| grid.origin(at) == at).collect();
        grid
    }

    fn coordinate(&self, at: usize, axis: usize) -> usize {
        at / self.strides[axis] % self.sizes[axis]
    }

    /// The element with the same coordinates along axes that are not free, and 0 along the others.
    fn origin(&self, at: usize) -> usize {
        let moved: usize =
            self.free.iter().map(|&axis| self.coordinate(at, axis) * self.strides[axis]).sum();
        at - moved
    }

    /// Whole numbers whose reciprocals are the elements.
    fn inverses(&self) -> Option<Vec<i128>> {
        let whole = |x: &f64| {
            let n = (1.0 / x).round();
            // As near as f32 comes to it.
            (n.abs() < 2f64.powi(24) && n != 0.0 && (n * x - 1.0).abs() < 1e-7).then_some(n as i128)
        };
        self.values.iter().map(whole).collect()
    }
}

fn repeated(tensors: &[Tensor], grids: &[Grid]) -> Option<LatticeRule> {
    let first = &grids[0];
    for grid in grids {
        if grid.places.len() != first.places.len() {
            return None;
        }
        for (place, origin) in grid.places.iter().zip(&first.places) {
            if grid.codes[*place] != first.codes[*origin] {
                return None;
            }
        }
        if !(0..grid.codes.len()).all(|at| grid.codes[at] == grid.codes[grid.origin(at)]) {
            return None;
        }
    }
    let dtype = tensors[0].ty().dtype;
    let mut shape = first.sizes.clone();
    first.free.iter().for_each(|&axis| shape[axis] = 1);
    let shape = Shape::from(shape);
    let tensor = match (&first.integers, dtype.is_float()) {
        (Some(integers), false) => {
            let picked: Vec<i128> = first.places.iter().map(|&at| integers[at]).collect();
            Tensor::from_ints(dtype, shape, &picked)
        }
        _ => {
            let picked: Vec<f64> = first.places.iter().map(|&at| first.values[at]).collect();
            Tensor::from_f64(dtype, shape, &picked)
        }
    };
    Some(LatticeRule::Repeated(tensor))
}

fn rising(grids: &[Grid], fit: Fit<'_>, inverse: Inverse) -> Option<LatticeRule> {
    let numbers = |grid: &Grid| match inverse {
        Inverse::No => grid.integers.clone(),
        Inverse::Yes => grid.inverses(),
    };
    let first = &grids[0];
    // By corner: the base at each place, and the slope along each free axis.
    let mut bases = Vec::new();
    let mut slopes = vec![Vec::new(); first.free.len()];
    for grid in grids {
        let values = numbers(grid)?;
        if grid.places.len() != first.places.len()
            || grid.free.iter().any(|&axis| grid.sizes[axis] < 2)
        {
            return None;
        }
        let step = |axis: usize, at: usize| values[at + grid.strides[axis]] - values[at];
        let rise = |at: usize| {
            let origin = grid.origin(at);
            let along = |&axis: &usize| step(axis, origin) * grid.coordinate(at, axis) as i128;
            values[origin] + grid.free.iter().map(along).sum::<i128>()
        };
        if !(0..values.len()).all(|at| values[at] == rise(at)) {
            return None;
        }
        bases.push(grid.places.iter().map(|&at| values[at]).collect::<Vec<i128>>());
        for (slopes, &axis) in slopes.iter_mut().zip(&grid.free) {
            slopes.push(grid.places.iter().map(|&at| step(axis, at)).collect::<Vec<i128>>());
        }
    }
    let sums = |corners: &[Vec<i128>]| -> Option<Vec<Sum>> {
        let at =
            |place: usize| fit(&corners.iter().map(|corner| corner[place]).collect::<Vec<_>>());
        (0..first.places.len()).map(at).collect()
    };
    let is_flat = |sums: &Vec<Sum>| sums.iter().all(|sum| sum.constant() == Some(0));
    let base = sums(&bases)?;
    let slopes = slopes.iter().map(|corners| sums(corners)).collect::<Option<Vec<_>>>()?;
    let slopes =
        first.free.iter().copied().zip(slopes).filter(|(_, slope)| !is_flat(slope)).collect();
    Some(LatticeRule::Rising { base, slopes, inverse })
}

fn step(grids: &[Grid], fit: Fit<'_>) -> Option<LatticeRule> {
    let first = &grids[0];
    let other = first.codes.iter().position(|code| *code != first.codes[0])?;
    if first.places.len() != 1 {
        return None;
    }
    let sides = [0, other].map(|at| (first.codes[at], first.values[at]));
    let seconds = || [None].into_iter().chain(first.free.iter().copied().map(Some));
    for &axis in &first.free {
        for second in seconds().filter(|second| *second != Some(axis)) {
            for [above, below] in [[0, 1], [1, 0]].map(|order| order.map(|side| sides[side])) {
                let codes = [above.0, below.0];
                let places: Option<Vec<i128>> =
                    grids.iter().map(|grid| threshold(grid, (axis, second), codes)).collect();
                if let Some(from) = places.and_then(|places| fit(&places)) {
                    let (above, below) = (above.1, below.1);
                    return Some(LatticeRule::Step { axes: (axis, second), from, above, below });
                }
            }
        }
    }
    None
}

/// The least difference of coordinates at which elements are `above`, where all others are `below`.
fn threshold(
    grid: &Grid,
    (first, second): (usize, Option<usize>),
    [above, below]: [i128; 2],
) -> Option<i128> {
    let (mut least, mut most) = (None::<i128>, None::<i128>);
    for (at, &code) in grid.codes.iter().enumerate() {
        let of = |axis: usize| grid.coordinate(at, axis) as i128;
        let place = of(first) - second.map_or(0, of);
        if code == above {
            least = Some(least.map_or(place, |least| least.min(place)));
        } else if code == below {
            most = Some(most.map_or(place, |most| most.max(place)));
        } else {
            return None;
        }
    }
    least.filter(|least| most.is_some_and(|most| most < *least))
}
