//! The one signature of products of other libraries.

/// A product `c = a b` in f32: a `[m, k]`, b `[k, n]`, c `[m, n]`, row-major, on `threads` threads.
pub type Matmul = fn(threads: usize, a: &[f32], b: &[f32], c: &mut [f32], shape: [usize; 3]);

/// Panics unless the slices hold the matrices of `[m, n, k]`.
pub(crate) fn check([a, b, c]: [usize; 3], [m, n, k]: [usize; 3]) {
    assert_eq!(
        [a, b, c],
        [m * k, k * n, m * n],
        "slices must hold a [{m}, {k}], b [{k}, {n}], c [{m}, {n}]"
    );
}

#[cfg(test)]
mod tests {
    use crate::MATMULS;

    #[test]
    fn every_library_computes_the_product() {
        let [m, n, k] = [17, 33, 29];
        let noise = |len: usize, by: usize| -> Vec<f32> {
            (0..len).map(|i| ((i * by) % 23) as f32 - 11.0).collect()
        };
        let (a, b) = (noise(m * k, 7), noise(k * n, 5));
        let expected: Vec<f32> = (0..m * n)
            .map(|at| (0..k).map(|p| a[at / n * k + p] * b[p * n + at % n]).sum())
            .collect();
        for threads in [1, 2] {
            for (name, matmul) in MATMULS {
                let mut c = vec![f32::NAN; m * n];
                matmul(threads, &a, &b, &mut c, [m, n, k]);
                assert_eq!(
                    c, expected,
                    "{name} on {threads} threads: integers this small are exact"
                );
            }
        }
    }
}
