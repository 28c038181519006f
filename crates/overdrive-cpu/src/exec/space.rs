//! Rearranging the iteration space of an epilogue: its meaning stays, its dimensions change.

use overdrive_ir::plan::{Access, Instr, Program};

/// Every load and store of a program.
pub(crate) fn accesses(program: &mut Program) -> impl Iterator<Item = &mut Access> {
    let loads = program.instrs.iter_mut().filter_map(|instr| match instr {
        Instr::Load(access) => Some(access),
        _ => None,
    });
    loads.chain(program.stores.iter_mut().map(|store| &mut store.access))
}

fn indices(program: &mut Program) -> impl Iterator<Item = &mut usize> {
    program.instrs.iter_mut().filter_map(|instr| match instr {
        Instr::Index(dim) => Some(dim),
        _ => None,
    })
}

/// The program where dimension `d` is always `at`.
pub(crate) fn fixed(program: &Program, d: usize, at: usize) -> Program {
    let mut result = program.clone();
    result.extents.remove(d);
    for access in accesses(&mut result) {
        access.offset += at as i64 * access.strides.remove(d);
    }
    for instr in &mut result.instrs {
        match instr {
            Instr::Index(dim) if *dim == d => *instr = Instr::Constant(at as f64),
            Instr::Index(dim) if *dim > d => *dim -= 1,
            _ => {}
        }
    }
    result
}

/// Whether dimensions `d - 1` and `d` can be one.
pub(crate) fn merges(program: &Program, d: usize, follows: impl Fn(&[i64]) -> bool) -> bool {
    let mut program = program.clone();
    let strided = accesses(&mut program).all(|access| follows(&access.strides));
    strided && indices(&mut program).all(|dim| *dim != d && *dim != d - 1)
}

/// Makes dimensions `d - 1` and `d` one.
pub(crate) fn merge(program: &mut Program, d: usize) {
    for access in accesses(program) {
        access.strides.remove(d - 1);
    }
    indices(program).filter(|dim| **dim > d).for_each(|dim| *dim -= 1);
    program.extents[d] *= program.extents[d - 1];
    program.extents.remove(d - 1);
}

/// Adds dimension `d`, which nothing depends on.
pub(crate) fn insert(program: &mut Program, d: usize, extent: usize) {
    accesses(program).for_each(|access| access.strides.insert(d, 0));
    indices(program).filter(|dim| **dim >= d).for_each(|dim| *dim += 1);
    program.extents.insert(d, extent);
}

/// The program over dimensions in another order: dimension `i` of the result is dimension
/// `order[i]`. Programs with random bits, which are numbered by the order, are not for this.
pub(crate) fn permuted(program: &Program, order: &[usize]) -> Program {
    let mut result = program.clone();
    result.extents = order.iter().map(|&d| program.extents[d]).collect();
    for access in accesses(&mut result) {
        access.strides = order.iter().map(|&d| access.strides[d]).collect();
    }
    for dim in indices(&mut result) {
        *dim = order.iter().position(|d| d == dim).expect("an order names every dimension");
    }
    result
}

/// Whether the program draws random bits.
pub(crate) fn is_random(program: &Program) -> bool {
    program.instrs.iter().any(|instr| matches!(instr, Instr::RandomBits { .. }))
}

/// Gives the last dimension, where it is 1, the stride that it would have if it were longer: an
/// epilogue stores along it.
pub(crate) fn along_columns(program: &mut Program) {
    if program.extents.last() == Some(&1) {
        for store in &mut program.stores {
            *store.access.strides.last_mut().expect("an epilogue has columns") = 1;
        }
    }
}
