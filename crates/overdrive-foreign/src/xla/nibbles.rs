//! Elements of four bits: two to a byte with us, one to a byte on the host's side of PJRT.

use overdrive_ir::{Tensor, TensorType};

/// Bytes that a value has on the host's side.
pub(super) fn host_bytes(ty: &TensorType) -> usize {
    if ty.dtype.bits() < 8 { ty.elements() } else { ty.bytes() }
}

/// One element to a byte, where that is another form.
pub(super) fn spread(tensor: &Tensor) -> Option<Vec<u8>> {
    let ty = tensor.ty();
    let element = |i: usize| tensor.bytes()[i / 2] >> (4 * (i % 2)) & 0xF;
    (ty.dtype.bits() == 4).then(|| (0..ty.elements()).map(element).collect())
}

/// Two elements to a byte again.
pub(super) fn gather(ty: &TensorType, bytes: Vec<u8>) -> Vec<u8> {
    if ty.dtype.bits() != 4 {
        return bytes;
    }
    let byte = |pair: &[u8]| pair[0] & 0xF | pair.get(1).copied().unwrap_or(0) << 4;
    bytes.chunks(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_ir::DType;

    #[test]
    fn what_is_spread_is_gathered_again() {
        let tensor = Tensor::from_ints(DType::I4, [5], &[-8, 7, 0, -1, 3]);
        let wide = spread(&tensor).unwrap();
        assert_eq!(wide, [0x8, 0x7, 0x0, 0xF, 0x3]);
        assert_eq!(wide.len(), host_bytes(tensor.ty()));
        assert_eq!(gather(tensor.ty(), wide), tensor.bytes());
        assert!(spread(&Tensor::from_f32([1], &[1.0])).is_none());
    }
}
