//! Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
//!
//! The generator is counter-based, so that a random bit depends on (seed, site, index) and on
//! nothing else. It does not depend on the order of execution, the device, or how often a
//! rematerialised clone draws it again.

/// The four words for a 128-bit counter and a 64-bit key.
pub fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let p0 = 0xD251_1F53u64 * counter[0] as u64;
        let p1 = 0xCD9E_8D57u64 * counter[2] as u64;
        counter = [
            (p1 >> 32) as u32 ^ counter[1] ^ key[0],
            p1 as u32,
            (p0 >> 32) as u32 ^ counter[3] ^ key[1],
            p0 as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

/// The 32 random bits of element `index` at `site`: word `index % 4` of block `index / 4`.
pub fn bits(seed: u64, site: u64, index: u64) -> u32 {
    words(seed, site, index / 4)[(index % 4) as usize]
}

/// The random bits of elements `4 * block` to `4 * block + 3` at `site`.
fn words(seed: u64, site: u64, block: u64) -> [u32; 4] {
    let counter = [block as u32, (block >> 32) as u32, site as u32, (site >> 32) as u32];
    philox4x32(counter, [seed as u32, (seed >> 32) as u32])
}

/// A site id for a name (FNV-1a).
pub fn site_of(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |h, byte| (h ^ byte as u64).wrapping_mul(0x100_0000_01b3))
}

/// Uniform numbers in `[0, 1)` with 24 bits each.
pub fn uniforms(seed: u64, site: u64) -> impl Iterator<Item = f64> {
    uniforms_from(seed, site, 0)
}

/// The same from element `4 * block` on, so that parts can be drawn side by side.
pub fn uniforms_from(seed: u64, site: u64, block: u64) -> impl Iterator<Item = f64> {
    let unit = |word: u32| (word >> 8) as f64 / (1u64 << 24) as f64;
    (block..).flat_map(move |block| words(seed, site, block).map(unit))
}

/// Standard normal numbers (Box and Muller, "A note on the generation of random normal deviates",
/// 1958; both of each pair). They are the same bits on every machine and device. Logarithm, cosine
/// and sine are those of fdlibm: sums, products and quotients of f64 in one order.
pub fn normals(seed: u64, site: u64) -> impl Iterator<Item = f64> {
    normals_from(seed, site, 0)
}

/// The same from element `4 * block` on, so that parts can be drawn side by side.
pub fn normals_from(seed: u64, site: u64, block: u64) -> impl Iterator<Item = f64> {
    (block..).flat_map(move |block| {
        let [a, b, c, d] = words(seed, site, block);
        let ([x, y], [z, w]) = (pair(a, b), pair(c, d));
        [x, y, z, w]
    })
}

/// Two words become two normal numbers.
fn pair(a: u32, b: u32) -> [f64; 2] {
    const WORDS: f64 = (1u64 << 32) as f64;
    let radius = (-2.0 * libm::log((f64::from(a) + 0.5) / WORDS)).sqrt();
    // `b` is a part of a turn: whole quarters, and an angle of at most half a quarter beside them.
    // There sine and cosine are one polynomial each.
    let beside = ((b << 2) as i32) >> 2;
    let quarters = b.wrapping_sub(beside as u32) >> 30;
    let angle = (f64::from(beside) + 0.5) * (std::f64::consts::TAU / WORDS);
    let (cos, sin) = (libm::cos(angle), libm::sin(angle));
    let [x, y] = match quarters {
        0 => [cos, sin],
        1 => [-sin, cos],
        2 => [-cos, -sin],
        _ => [sin, -cos],
    };
    [radius * x, radius * y]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_the_known_answers_of_the_reference_implementation() {
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        assert_eq!(
            philox4x32([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]
        );
        assert_eq!(
            philox4x32([0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344], [0xa4093822, 0x299f31d0]),
            [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]
        );
    }

    #[test]
    fn a_part_is_a_part_of_the_whole() {
        let whole: Vec<f64> = normals(3, 4).skip(20).take(9).collect();
        assert_eq!(normals_from(3, 4, 5).take(9).collect::<Vec<_>>(), whole);
    }

    #[test]
    fn normals_are_those_of_the_definition() {
        let unit = |index| (f64::from(bits(5, 6, index)) + 0.5) / (1u64 << 32) as f64;
        for (pair, found) in normals(5, 6).take(40_000).collect::<Vec<_>>().chunks(2).enumerate() {
            let [a, b] = [0, 1].map(|word| unit(2 * pair as u64 + word));
            let (radius, angle) = ((-2.0 * a.ln()).sqrt(), std::f64::consts::TAU * b);
            for (found, share) in found.iter().zip([angle.cos(), angle.sin()]) {
                // A turn is rounded before its cosine is taken; that moves it by 2^-51 at most.
                let off = (found - radius * share).abs();
                assert!(off <= radius * 8.0 * f64::EPSILON, "{pair}: {off}");
            }
        }
    }

    #[test]
    fn normals_have_unit_variance() {
        let values: Vec<f64> = normals(1, 2).take(100_000).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64;
        assert!(mean.abs() < 0.01 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
    }
}
