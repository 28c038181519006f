//! `unrolled`: a loop that folds a few terms for each result, as one that folds nothing.
//!
//! A rotation of pairs of channels is a sum of two products. Written out it reads and writes
//! neighbours at once, and can run beside other loops. Invariant: terms are added in their order.

use overdrive_ir::eval::for_each_index;
use overdrive_ir::plan::{Access, Instr, Program, Register, Store};

/// Most terms.
const TERMS: usize = 4;

/// The program without its reduced dimensions; `None` where they are too long, or where more than
/// results depends on them.
pub(super) fn unrolled(program: &Program) -> Option<Program> {
    if program.reduced == 0 {
        return Some(program.clone());
    }
    let kept = program.extents.len() - program.reduced;
    let (extents, folded) = program.extents.split_at(kept);
    let terms: usize = folded.iter().product();
    let spread = program.stores.iter().any(|store| program.is_spread(&store.access));
    if !(1..=TERMS).contains(&terms) || spread {
        return None;
    }
    let mut places: Vec<Vec<usize>> = Vec::new();
    for_each_index(folded, |index| places.push(index.to_vec()));
    let mut result = Program { extents: extents.to_vec(), ..Program::default() };
    // For each register: one for each term, or one for all.
    let mut known: Vec<Vec<Register>> = Vec::new();
    for (instr, &dtype) in program.instrs.iter().zip(&program.dtypes) {
        let at = |register: &Register, term: usize| {
            let each: &[Register] = &known[register.0 as usize];
            each[term.min(each.len() - 1)]
        };
        let each = match instr {
            Instr::Reduce(fold) => {
                let mut all = (0..terms).map(|term| at(&fold.value, term));
                let first = all.next()?;
                let rest: Vec<Register> = all.collect();
                let sum = rest.into_iter().fold(first, |sum, next| {
                    result.push(Instr::Binary(fold.reducer.binary(), sum, next), dtype)
                });
                vec![sum]
            }
            Instr::RandomBits { .. } => return None,
            _ => {
                let varies = match instr {
                    Instr::Load(access) => program.is_spread(access),
                    Instr::Index(d) => *d >= kept,
                    other => other.operands().iter().any(|r| known[r.0 as usize].len() > 1),
                };
                let count = if varies { terms } else { 1 };
                let copies: Vec<Instr> = (0..count)
                    .map(|term| copy(instr, kept, &places[term], |r| at(r, term)))
                    .collect();
                copies.into_iter().map(|instr| result.push(instr, dtype)).collect()
            }
        };
        known.push(each);
    }
    for store in &program.stores {
        let access = fixed(&store.access, kept, &places[0]);
        let [value] = known[store.value.0 as usize][..] else { return None };
        result.stores.push(Store { access, value });
    }
    Some(result)
}

/// An access at one place of the reduced dimensions.
fn fixed(access: &Access, kept: usize, place: &[usize]) -> Access {
    let (strides, folded) = access.strides.split_at(kept);
    let moved: i64 = folded.iter().zip(place).map(|(stride, &at)| stride * at as i64).sum();
    Access { slot: access.slot, offset: access.offset + moved, strides: strides.to_vec() }
}

/// An instruction for one term.
fn copy(instr: &Instr, kept: usize, place: &[usize], at: impl Fn(&Register) -> Register) -> Instr {
    match instr {
        Instr::Load(access) => Instr::Load(fixed(access, kept, place)),
        Instr::Index(d) if *d >= kept => Instr::Constant(place[*d - kept] as f64),
        Instr::Unary(kind, a) => Instr::Unary(*kind, at(a)),
        Instr::Binary(kind, a, b) => Instr::Binary(*kind, at(a), at(b)),
        Instr::Compare(kind, a, b) => Instr::Compare(*kind, at(a), at(b)),
        Instr::Select(c, a, b) => Instr::Select(at(c), at(a), at(b)),
        Instr::Convert(a, overflow) => Instr::Convert(at(a), *overflow),
        Instr::Bitcast(a) => Instr::Bitcast(at(a)),
        other => other.clone(),
    }
}
