//! Lines of one to four channels woven into one line of units: the inner copy of staging.
//!
//! Written with intrinsics, because a step of two elements and shuffles across lanes are what compilers do worst. Every
//! vector is masked, so that nothing is read past the last element that is asked for.
#![allow(unsafe_code)] // Raw pointers; `Weave` says what they point to.

/// Writes `count` units: of each line its elements, `step` bytes apart, side by side with those of the other lines. A null
/// line is zeros.
///
/// # Safety
/// Each line that is not null has the elements, and `to` has room for the units.
pub(super) type Weave = unsafe fn(lines: [*const u8; 4], step: isize, to: *mut u8, count: usize);

/// The function for elements of `width` bytes, lines of which `interleaved` are woven, and a step of `step` elements.
pub(super) fn weave(width: usize, interleaved: usize, step: isize) -> Weave {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl") {
        match (width, interleaved, step) {
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
unsafe fn copy<const WIDTH: usize>([line, ..]: [*const u8; 4], _: isize, to: *mut u8, count: usize) {
    // SAFETY: as the caller promised; the one line of a unit is not null.
    unsafe { to.copy_from_nonoverlapping(line, count * WIDTH) }
}

/// Any step.
unsafe fn elements<T: Copy + Default, const G: usize>(
    lines: [*const u8; 4],
    step: isize,
    to: *mut u8,
    count: usize,
) {
    let to = to.cast::<[T; G]>();
    for i in 0..count {
        // SAFETY: as the caller promised.
        unsafe {
            let element = |line: *const u8| match line.is_null() {
                true => T::default(),
                false => line.offset(i as isize * step).cast::<T>().read_unaligned(),
            };
            to.add(i).write_unaligned(std::array::from_fn(|line| element(lines[line])));
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// Units of four bytes in a vector.
    const UNITS: usize = 16;

    /// The elements that `count` units read of a line, as a mask: the last is not followed by those that it steps over.
    fn mask<const STEP: usize>(line: *const u8, count: usize) -> u32 {
        if line.is_null() { 0 } else { ((1u64 << (STEP * (count - 1) + 1)) - 1) as u32 }
    }

    /// Calls `vector` for each vector's worth of units: the first of them, and how many.
    #[inline(always)]
    fn vectors(count: usize, mut vector: impl FnMut(usize, usize)) {
        for first in (0..count).step_by(UNITS) {
            vector(first, (count - first).min(UNITS));
        }
    }

    fn stored(count: usize) -> u16 {
        (u32::MAX >> (32 - count)) as u16
    }

    /// Every `STEP`-th element of four bytes, of one line.
    ///
    /// # Safety
    /// As for [`Weave`](super::Weave), on a CPU with AVX-512 BW and VL, for the step.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn units<const STEP: usize>(
        [line, ..]: [*const u8; 4],
        _: isize,
        to: *mut u8,
        count: usize,
    ) {
        let index: [i32; 16] = std::array::from_fn(|i| (STEP * i) as i32);
        // SAFETY: as the caller promised; masks leave out what does not exist.
        unsafe {
            let index = _mm512_loadu_si512(index.as_ptr().cast());
            vectors(count, |first, n| {
                let mask = mask::<STEP>(line, n);
                let from = line.wrapping_add(4 * STEP * first);
                let low = _mm512_maskz_loadu_epi32(mask as u16, from.cast());
                let high = _mm512_maskz_loadu_epi32((mask >> 16) as u16, from.wrapping_add(64).cast());
                let units = _mm512_permutex2var_epi32(low, index, high);
                _mm512_mask_storeu_epi32(to.add(4 * first).cast(), stored(n), units);
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
        count: usize,
    ) {
        // Index bit 5 chooses the second line.
        let index: [i16; 32] = std::array::from_fn(|i| (i / 2 * STEP + i % 2 * 32) as i16);
        // SAFETY: as the caller promised; masks leave out what does not exist.
        unsafe {
            let index = _mm512_loadu_si512(index.as_ptr().cast());
            vectors(count, |first, n| {
                let load = |line: *const u8| {
                    let from = line.wrapping_add(2 * STEP * first).cast();
                    _mm512_maskz_loadu_epi16(mask::<STEP>(line, n), from)
                };
                let units = _mm512_permutex2var_epi16(load(a), index, load(b));
                _mm512_mask_storeu_epi32(to.add(4 * first).cast(), stored(n), units);
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
        count: usize,
    ) {
        // SAFETY: as the caller promised; masks leave out what does not exist.
        unsafe {
            vectors(count, |first, n| {
                let [a, b, c, d] = lines.map(|line| {
                    let (from, mask) = (line.wrapping_add(STEP * first).cast(), mask::<STEP>(line, n));
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
                _mm512_mask_storeu_epi32(to.add(4 * first).cast(), stored(n), units);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_weaves_as_the_definition_does() {
        let bytes: Vec<u8> = (0..4096u32).map(|i| (i * 167 % 251) as u8).collect();
        let cases = [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1), (8, 1)];
        for ((width, interleaved), step) in cases.into_iter().flat_map(|case| [1, 2, 3].map(|s| (case, s))) {
            for count in [0, 1, 2, 15, 16, 17, 40] {
                // The last line ends where its last element does; one of several is not there.
                let reach = if count == 0 { 0 } else { ((count - 1) * step + 1) * width };
                let lines: [*const u8; 4] = std::array::from_fn(|i| match i {
                    1 if interleaved > 1 => std::ptr::null(),
                    _ => bytes[i * 777..][..reach].as_ptr(),
                });
                let mut woven = vec![0xEE_u8; count * width * interleaved + 64];
                let function = weave(width, interleaved, step as isize);
                // SAFETY: the lines have `reach` bytes, the target has room.
                unsafe { function(lines, (step * width) as isize, woven.as_mut_ptr(), count) };
                let expected = (0..count).flat_map(|i| (0..interleaved).map(move |line| (i, line))).flat_map(
                    |(i, line)| {
                        let at = line * 777 + i * step * width;
                        let zero = line == 1 && interleaved > 1;
                        (0..width).map(move |byte| (at + byte, zero)).collect::<Vec<_>>()
                    },
                );
                let expected = expected.map(|(at, zero)| if zero { 0 } else { bytes[at] });
                let expected: Vec<u8> = expected.chain([0xEE; 64]).collect();
                assert_eq!(woven, expected, "{width} x {interleaved}, step {step}, {count} units");
            }
        }
    }
}
