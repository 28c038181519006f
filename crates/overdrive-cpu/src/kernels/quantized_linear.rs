//! `quantized_linear` of float activations: codes are read as they lie, and become numbers in registers or in panels.
//!
//! Activations below f32 are widened on their way in, and results narrowed on their way out. What has no kernel (f64,
//! weights that do not lie row after row, or have no elements) is the reference's.
#![allow(unsafe_code)] // Slices over slots, and the step's own room.

use half::{bf16, f16};
use overdrive_ir::ops::QuantizedLinear;
use overdrive_ir::plan::{KernelCall, View};
use overdrive_ir::{DType, Plan, SlotId, row_major};

use super::place::Strided;
use super::transfer::Transfer;
use crate::exec::{Format, Host, Runnable, Unsupported};
use crate::gemm::{Narrow, Widen};
use crate::memory::AlignedBytes;
use crate::quantized::{Numbers, Weights, product, room_floats};
use crate::slots::SlotTable;
use crate::threads::Pool;

/// Compiles a product by quantized weights.
pub(super) fn compile(
    plan: &Plan,
    call: &KernelCall,
    op: &QuantizedLinear,
) -> Result<Box<dyn Runnable>, Unsupported> {
    let (Some(Some(y)), names) = (call.results.first(), op.operands()) else {
        return Ok(Box::new(Host::new(plan, call)?));
    };
    let weights = || names.iter().zip(&call.operands).skip(1);
    let kept = |(_, view): (&&str, &View)| Numbers::takes(view.ty.dtype) && is_dense(view);
    let forward = [&call.operands[0], y].iter().all(|view| view.strides.iter().all(|&stride| stride >= 0));
    let empty = call.operands[1].ty.elements() == 0;
    if !forward || empty || !weights().all(kept) {
        return Ok(Box::new(Host::new(plan, call)?));
    }
    Ok(match call.operands[0].ty.dtype {
        DType::F32 => Box::new(Product::<f32>::new(call, y, &names)?),
        DType::F16 => Box::new(Product::<f16>::new(call, y, &names)?),
        DType::BF16 => Box::new(Product::<bf16>::new(call, y, &names)?),
        _ => Box::new(Host::new(plan, call)?),
    })
}

fn is_dense(view: &View) -> bool {
    let dense = row_major(&view.ty.sizes()).into_iter().map(|stride| stride as i64);
    let sizes = view.ty.sizes();
    view.offset == 0
        && dense.zip(&view.strides).zip(sizes).all(|((dense, &found), size)| dense == found || size <= 1)
}

/// An operand of the weights, as it lies in its slot.
#[derive(Debug)]
struct Kept {
    slot: SlotId,
    dtype: DType,
    elements: usize,
}

impl Kept {
    fn new(view: &View) -> Self {
        Self { slot: view.slot, dtype: view.ty.dtype, elements: view.ty.elements() }
    }

    /// # Safety
    /// The slot has its memory, initialised, and nobody writes it while the numbers live.
    unsafe fn numbers<'a>(&self, slots: &'a SlotTable) -> Numbers<'a> {
        // SAFETY: as the caller promised.
        let bytes = unsafe { slots.slice::<u8>(self.slot, self.dtype.bytes_for(self.elements)) };
        Numbers::new(bytes, self.dtype, self.elements)
    }
}

/// Rows of numbers that a slot holds, and where they are when they are f32 and side by side.
struct Rows<T> {
    place: Strided,
    /// Between the slot and dense rows, where the slot's are not.
    transfer: Option<Transfer>,
    dense: AlignedBytes,
    wide: AlignedBytes,
    elements: usize,
    format: std::marker::PhantomData<T>,
}

impl<T: Format> Rows<T> {
    fn new(view: &View, [from, to]: [Side; 2]) -> Result<Self, Unsupported> {
        let (place, elements) = (Strided::new(view), view.ty.elements());
        let dense: Vec<i64> = row_major(&place.sizes).into_iter().map(|stride| stride as i64).collect();
        let strides = |side| if side == Side::Slot { &place.strides } else { &dense };
        let transfer =
            (!is_dense(view)).then(|| Transfer::new(&place.sizes, strides(from), strides(to), place.width()));
        let room = |wanted: bool, width: usize| {
            let bytes = if wanted { elements * width } else { 0 };
            AlignedBytes::filled(bytes, 0).map_err(|e| Unsupported::new(e.to_string()))
        };
        let dense = room(transfer.is_some(), place.width())?;
        let wide = room(T::DTYPE != DType::F32, size_of::<f32>())?;
        Ok(Self { place, transfer, dense, wide, elements, format: std::marker::PhantomData })
    }

    /// The first of the dense rows.
    fn dense(&self, slots: &SlotTable) -> *mut u8 {
        if self.transfer.is_some() { self.dense.start() } else { self.place.get(slots) }
    }

    /// The first of the dense rows of f32.
    fn wide(&self, slots: &SlotTable) -> *mut f32 {
        if T::DTYPE == DType::F32 { self.dense(slots).cast() } else { self.wide.start().cast() }
    }

    fn bytes(&self) -> usize {
        self.dense.len() + self.wide.len()
    }
}

/// A side of a transfer.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Slot,
    Rows,
}

/// A compiled product.
struct Product<T> {
    x: Rows<T>,
    y: Rows<T>,
    /// N, K.
    shape: [usize; 2],
    codes: Kept,
    scales: Kept,
    zeros: Option<Kept>,
    tensor_scale: Option<Kept>,
    group: usize,
    /// For `product`.
    room: AlignedBytes,
}

/// Elements that are widened or narrowed by one task.
const CHUNK: usize = 16 << 10;

impl<T: Format> Product<T> {
    fn new(call: &KernelCall, y: &View, names: &[&str]) -> Result<Self, Unsupported> {
        let operand =
            |name: &str| names.iter().position(|n| *n == name).map(|i| Kept::new(&call.operands[i]));
        let sizes = call.operands[1].ty.sizes();
        let (shape, groups) = ([sizes[0], sizes[1]], call.operands[2].ty.sizes()[1]);
        let group = shape[1].checked_div(groups).unwrap_or(1).max(1);
        let always = "quantized_linear has codes and a scale";
        let rows = y.ty.elements().checked_div(shape[0]).unwrap_or(0);
        let room = AlignedBytes::filled(size_of::<f32>() * room_floats(rows, shape[1]), 0);
        Ok(Self {
            x: Rows::new(&call.operands[0], [Side::Slot, Side::Rows])?,
            y: Rows::new(y, [Side::Rows, Side::Slot])?,
            shape,
            codes: operand("codes").expect(always),
            scales: operand("scale").expect(always),
            zeros: operand("zero"),
            tensor_scale: operand("tensor_scale"),
            group,
            room: room.map_err(|e| Unsupported::new(e.to_string()))?,
        })
    }
}

/// A pointer that tasks share; each touches a chunk of its own.
#[derive(Clone, Copy)]
struct Shared<T>(*mut T);

// SAFETY: see above.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// # Safety
    /// The elements exist, and nobody else touches them.
    unsafe fn chunk<'a>(self, first: usize, len: usize) -> &'a mut [T] {
        // SAFETY: as the caller promised.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(first), len) }
    }
}

/// Calls `convert` with the chunks of two arrays of `elements`.
fn by_chunks<A: Copy, B: Copy>(
    pool: &Pool,
    elements: usize,
    (from, to): (*mut A, *mut B),
    convert: impl Fn(&[A], &mut [B]) + Sync,
) {
    let (from, to) = (Shared(from), Shared(to));
    pool.run(elements.div_ceil(CHUNK), |task, _| {
        let (first, len) = (task * CHUNK, (elements - task * CHUNK).min(CHUNK));
        // SAFETY: both arrays have their elements, and chunks are apart.
        unsafe { convert(from.chunk(first, len), to.chunk(first, len)) }
    });
}

impl<T: Format + Narrow + Widen<f32> + crate::gemm::Element<Acc = f32>> Runnable for Product<T> {
    fn run(&self, pool: &Pool, slots: &SlotTable) {
        let (x, y) = (&self.x, &self.y);
        if let Some(transfer) = &x.transfer {
            // SAFETY: the view lies in its slot, and the room has all of its elements.
            pool.run(transfer.parts(), |part, _| unsafe {
                transfer.run_part(part, x.place.get(slots), x.dense.start());
            });
        }
        if T::DTYPE != DType::F32 {
            by_chunks(pool, x.elements, (x.dense(slots).cast::<T>(), x.wide(slots)), T::widen);
        }
        // SAFETY: earlier steps wrote the operands; nobody else touches the result and the step's own room.
        unsafe {
            let numbers = |kept: &Kept| kept.numbers(slots);
            let factor = self.tensor_scale.as_ref().map_or(1.0, |kept| numbers(kept).first());
            let zeros = self.zeros.as_ref().map(numbers);
            let weights =
                Weights::new(self.shape, self.group, numbers(&self.codes), numbers(&self.scales), zeros);
            let (from, to) = (x.wide(slots), y.wide(slots));
            let slice = |start: *mut f32, len| {
                if len == 0 { &mut [][..] } else { std::slice::from_raw_parts_mut(start, len) }
            };
            let room = slice(self.room.start().cast(), self.room.len() / size_of::<f32>());
            product(pool, slice(from, x.elements), &weights.times(factor), slice(to, y.elements), room);
        }
        if T::DTYPE != DType::F32 {
            by_chunks(pool, y.elements, (y.wide(slots), y.dense(slots).cast::<T>()), T::narrow);
        }
        if let Some(transfer) = &y.transfer {
            // SAFETY: likewise.
            pool.run(transfer.parts(), |part, _| unsafe {
                transfer.run_part(part, y.dense.start(), y.place.get(slots));
            });
        }
    }

    fn workspace_bytes(&self) -> usize {
        self.x.bytes() + self.y.bytes() + self.room.len()
    }
}
