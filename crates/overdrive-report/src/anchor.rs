//! Names of places in a page, so that a sentence can point at the record behind it and a link
//! survives a new run.

/// The anchor of the record with this [`id`](overdrive_bench::case::Case::id). It is readable, safe
/// in a URL and in HTML, and the same in every report of that case.
///
/// Two ids may read alike once only letters and digits are left (`a=1` and `a 1`), so a hash of the
/// whole id ends it. FNV-1a (Fowler, Noll and Vo) is the same in every release, which the standard
/// library's hasher is not.
pub fn anchor(case_id: &str) -> String {
    let words = case_id.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let slug = words.collect::<Vec<_>>().join("-").to_ascii_lowercase();
    let fnv = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let hash = case_id.bytes().fold(0x811c_9dc5, fnv);
    format!("r-{slug}-{hash:08x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_anchor_is_readable_safe_and_its_own() {
        let id = anchor("kernels: matmul k=64,m=512: cpu compile f32 t2 fused");
        assert!(id.starts_with("r-kernels-matmul-k-64-m-512-cpu-compile-f32-t2-fused-"), "{id}");
        assert_ne!(anchor("a: b=1"), anchor("a: b 1"));
        let hostile = anchor("\"><script>alert(1)</script> ü");
        assert!(
            hostile.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'),
            "{hostile}"
        );
        assert_eq!(
            anchor("a"),
            "r-a-e40c292c",
            "FNV-1a's published value: links of old reports stay good"
        );
    }
}
