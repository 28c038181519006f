//! Lines of one to four channels interleaved into one line of units: the inner copy of staging.
//!
//! Written with intrinsics, because compilers handle a step of two elements and shuffles across
//! lanes worst. Every vector is masked, so that nothing is read past the last element that is
//! wanted.
#![allow(unsafe_code)] // Raw pointers; `Interleave` says what they point to.

/// Columns of a line that are interleaved, and those of them that are inside of the input; the
/// others are zeros.
#[derive(Clone, Copy, Debug)]
pub(super) struct InterleavedColumns {
    pub(super) count: usize,
    pub(super) inside: [usize; 2],
}

/// Writes a unit for each column: of each line its elements, `step` bytes apart, side by side with
/// those of the other lines. A null line is zeros.
///
/// # Safety
/// Each line that is not null has the elements of the columns inside, and `to` has room for the
/// units.
pub(super) type Interleave =
    unsafe fn(lines: [*const u8; 4], step: isize, to: *mut u8, columns: InterleavedColumns);

/// The function for elements of `width` bytes, `interleaved` lines at a time, and a step of `step`
/// elements.
pub(super) fn interleaver(width: usize, interleaved: usize, step: isize) -> Interleave {
    #[cfg(target_arch = "x86_64")]
    if crate::isa::InstructionSet::Avx512.is_usable() {
        match (width, interleaved, step) {
            (4, 1, 1) => return x86::units::<1>,
            (4, 1, 2) => return x86::units::<2>,
            (2, 2, 1) => return x86::pairs::<1>,
            (2, 2, 2) => return x86::pairs::<2>,
            (1, 4, 1) => return x86::quads::<1>,
            (1, 4, 2) => return x86::quads::<2>,
            _ => {}
        }
    }
    match (width, interleaved, step) {
        (1, 1, 1) => copy::<1>,
        (2, 1, 1) => copy::<2>,
        (4, 1, 1) => copy::<4>,
        (8, 1, 1) => copy::<8>,
        (1, 1, _) => elements::<u8, 1>,
        (1, 2, _) => elements::<u8, 2>,
        (1, 4, _) => elements::<u8, 4>,
        (2, 1, _) => elements::<u16, 1>,
        (2, 2, _) => elements::<u16, 2>,
        (4, 1, _) => elements::<u32, 1>,
        (8, 1, _) => elements::<u64, 1>,
        _ => unreachable!("kernels take groups of at most four bytes"),
    }
}

/// One line as it is.
unsafe fn copy<const WIDTH: usize>(
    [line, ..]: [*const u8; 4],
    _: isize,
    to: *mut u8,
    columns: InterleavedColumns,
) {
    let InterleavedColumns { count, inside: [low, high] } = columns;
    let [low, high] = if line.is_null() { [count; 2] } else { [low, high] };
    // SAFETY: by `Interleave` the line, if there is one, has the units inside of it, and `to` has
    // room for `count`.
    unsafe {
        to.write_bytes(0, low * WIDTH);
        to.add(low * WIDTH)
            .copy_from_nonoverlapping(line.wrapping_add(low * WIDTH), (high - low) * WIDTH);
        to.add(high * WIDTH).write_bytes(0, (count - high) * WIDTH);
    }
}

/// Any step.
unsafe fn elements<T: Copy + Default, const G: usize>(
    lines: [*const u8; 4],
    step: isize,
    to: *mut u8,
    InterleavedColumns { count, inside }: InterleavedColumns,
) {
    let to = to.cast::<[T; G]>();
    for i in 0..count {
        // SAFETY: by `Interleave` lines have the units inside of them, and `to` has room for
        // `count`.
        unsafe {
            let element =
                |line: *const u8| match line.is_null() || !(inside[0]..inside[1]).contains(&i) {
                    true => T::default(),
                    false => line.offset(i as isize * step).cast::<T>().read_unaligned(),
                };
            to.add(i).write_unaligned(std::array::from_fn(|line| element(lines[line])));
        }
    }
}

/// Channels of an image that is interleaved as a whole.
#[cfg(target_arch = "x86_64")]
pub(super) const FEW: usize = 4;

/// Writes the channels of each of `count` pixels side by side, zeros for those up to [`FEW`] that
/// there are not.
///
/// # Safety
/// The channels, `apart` elements from each other, have so many elements, and `to` has room for the
/// pixels.
#[inline]
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn interleave_image(
    from: *const u16,
    (channels, apart): (usize, isize),
    count: usize,
    to: *mut [u16; FEW],
) {
    // SAFETY: each of `channels` has `count` elements. Another one is read from the first and not
    // used.
    let line = |channel: usize| unsafe {
        let channel = if channel < channels { channel as isize } else { 0 };
        std::slice::from_raw_parts(from.wrapping_offset(channel * apart), count)
    };
    // SAFETY: `to` has room for `count` pixels.
    let to = unsafe { std::slice::from_raw_parts_mut(to, count) };
    let (a, b, c, d) = (line(0), line(1), line(2), line(3));
    let [b_mask, c_mask, d_mask] =
        [1, 2, 3].map(|channel| if channel < channels { u16::MAX } else { 0 });
    for ((((to, a), b), c), d) in to.iter_mut().zip(a).zip(b).zip(c).zip(d) {
        *to = [*a, *b & b_mask, *c & c_mask, *d & d_mask];
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::InterleavedColumns;

    /// Units of four bytes in a vector.
    const UNITS: usize = 16;

    /// Calls `vector` for each vector's worth of units. Its arguments are the first unit, the mask
    /// of the units that are stored, and the mask of the elements that are read. The last mask ends
    /// with the element of the last unit: the elements that its step would skip are not read.
    #[inline(always)]
    fn vectors<const STEP: usize>(
        columns: InterleavedColumns,
        mut vector: impl FnMut(usize, u16, u32),
    ) {
        let InterleavedColumns { count, inside: [low, high] } = columns;
        for first in (0..count).step_by(UNITS) {
            let (low, high) =
                (low.saturating_sub(first).min(UNITS), high.saturating_sub(first).min(UNITS));
            let below = |elements: usize| ((1u64 << elements) - 1) as u32;
            let read =
                if low < high { below(STEP * (high - 1) + 1) & !below(STEP * low) } else { 0 };
            vector(first, below((count - first).min(UNITS)) as u16, read);
        }
    }

    /// The mask of the elements that are read of a line that may be null.
    #[inline(always)]
    fn of(line: *const u8, read: u32) -> u32 {
        if line.is_null() { 0 } else { read }
    }

    /// Every `STEP`-th element of four bytes, of one line.
    ///
    /// # Safety
    /// As for [`Interleave`](super::Interleave), on a CPU with AVX-512 BW and VL, for the step.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn units<const STEP: usize>(
        [line, ..]: [*const u8; 4],
        _: isize,
        to: *mut u8,
        columns: InterleavedColumns,
    ) {
        let index: [i32; 16] = std::array::from_fn(|i| (STEP * i) as i32);
        // SAFETY: a line has the elements that `columns` reads, or is null, and `to` has room for
        // the units. Masks leave out the rest.
        unsafe {
            let index = _mm512_loadu_si512(index.as_ptr().cast());
            vectors::<STEP>(columns, |first, stored, read| {
                let mask = of(line, read);
                let from = line.wrapping_add(4 * STEP * first);
                let low = _mm512_maskz_loadu_epi32(mask as u16, from.cast());
                let high =
                    _mm512_maskz_loadu_epi32((mask >> 16) as u16, from.wrapping_add(64).cast());
                let units = _mm512_permutex2var_epi32(low, index, high);
                _mm512_mask_storeu_epi32(to.add(4 * first).cast(), stored, units);
            });
        }
    }

    /// Pairs of elements of two bytes, of two lines.
    ///
    /// # Safety
    /// As for [`units`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn pairs<const STEP: usize>(
        [a, b, ..]: [*const u8; 4],
        _: isize,
        to: *mut u8,
        columns: InterleavedColumns,
    ) {
        // Index bit 5 chooses the second line.
        let index: [i16; 32] = std::array::from_fn(|i| (i / 2 * STEP + i % 2 * 32) as i16);
        // SAFETY: each line has the elements that `columns` reads, or is null, and `to` has room
        // for the units. Masks leave out the rest.
        unsafe {
            let index = _mm512_loadu_si512(index.as_ptr().cast());
            vectors::<STEP>(columns, |first, stored, read| {
                let load = |line: *const u8| {
                    let from = line.wrapping_add(2 * STEP * first).cast();
                    _mm512_maskz_loadu_epi16(of(line, read), from)
                };
                let units = _mm512_permutex2var_epi16(load(a), index, load(b));
                _mm512_mask_storeu_epi32(to.add(4 * first).cast(), stored, units);
            });
        }
    }

    /// Fours of bytes, of four lines.
    ///
    /// # Safety
    /// As for [`units`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn quads<const STEP: usize>(
        lines: [*const u8; 4],
        _: isize,
        to: *mut u8,
        columns: InterleavedColumns,
    ) {
        // SAFETY: each line has the elements that `columns` reads, or is null, and `to` has room
        // for the units. Masks leave out the rest.
        unsafe {
            vectors::<STEP>(columns, |first, stored, read| {
                let [a, b, c, d] = lines.map(|line| {
                    let (from, mask) = (line.wrapping_add(STEP * first).cast(), of(line, read));
                    match STEP {
                        1 => _mm_maskz_loadu_epi8(mask as u16, from),
                        _ => _mm256_cvtepi16_epi8(_mm256_maskz_loadu_epi8(mask, from)),
                    }
                });
                let (ab, cd) = (_mm_unpacklo_epi8(a, b), _mm_unpacklo_epi8(c, d));
                let units = _mm512_castsi128_si512(_mm_unpacklo_epi16(ab, cd));
                let units = _mm512_inserti32x4::<1>(units, _mm_unpackhi_epi16(ab, cd));
                let (ab, cd) = (_mm_unpackhi_epi8(a, b), _mm_unpackhi_epi8(c, d));
                let units = _mm512_inserti32x4::<2>(units, _mm_unpacklo_epi16(ab, cd));
                let units = _mm512_inserti32x4::<3>(units, _mm_unpackhi_epi16(ab, cd));
                _mm512_mask_storeu_epi32(to.add(4 * first).cast(), stored, units);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_interleaves_as_the_definition_does() {
        let bytes: Vec<u8> = (0..4096u32).map(|i| (i * 167 % 251) as u8).collect();
        let cases = [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1), (8, 1)];
        for ((width, interleaved), step) in
            cases.into_iter().flat_map(|case| [1, 2, 3].map(|s| (case, s)))
        {
            for count in [0, 1, 2, 15, 16, 17, 40_usize] {
                // One column at either end is outside.
                let inside = [1.min(count), count.saturating_sub(1).max(1.min(count))];
                // The last line ends where its last element does; one of several is not there.
                let reach =
                    if inside[0] == inside[1] { 0 } else { ((inside[1] - 1) * step + 1) * width };
                let lines: [*const u8; 4] = std::array::from_fn(|i| match i {
                    1 if interleaved > 1 => std::ptr::null(),
                    _ => bytes[i * 777..][..reach].as_ptr(),
                });
                let mut units = vec![0xEE_u8; count * width * interleaved + 64];
                let function = interleaver(width, interleaved, step as isize);
                let columns = InterleavedColumns { count, inside };
                // SAFETY: the lines have `reach` bytes, the target has room.
                unsafe { function(lines, (step * width) as isize, units.as_mut_ptr(), columns) };
                let expected = (0..count)
                    .flat_map(|i| (0..interleaved).map(move |line| (i, line)))
                    .flat_map(|(i, line)| {
                        let at = line * 777 + i * step * width;
                        let zero =
                            line == 1 && interleaved > 1 || !(inside[0]..inside[1]).contains(&i);
                        (0..width).map(move |byte| (at + byte, zero)).collect::<Vec<_>>()
                    });
                let expected = expected.map(|(at, zero)| if zero { 0 } else { bytes[at] });
                let expected: Vec<u8> = expected.chain([0xEE; 64]).collect();
                assert_eq!(units, expected, "{width} x {interleaved}, step {step}, {count} units");
            }
        }
    }
}
