//! Elements of known matrices in another order, on the host, while a file is read.
//!
//! Exporters write the weights of a product as `[K, N]`. Kernels read codes output by output,
//! `[N, K]`, two codes of 4 bits to a byte. Nothing on a device moves half a byte, so the host
//! does. Invariant: the memory allocated is at most twice the bytes that are there.

use overdrive_ir::{DType, Tensor, TensorType};

/// Rows and columns that are moved together, so that both sides stay in the nearest cache.
const TILE: usize = 64;

/// The matrix `[rows, columns]` whose element at row and column is the one of `tensor` that
/// `source` names, or 0.
fn moved(
    tensor: &Tensor,
    [rows, columns]: [usize; 2],
    source: impl Fn(usize, usize) -> Option<usize>,
) -> Tensor {
    let ty = TensorType::new(tensor.ty().dtype, [rows, columns]);
    let (bits, from) = (ty.dtype.bits(), tensor.bytes());
    let mut bytes = vec![0u8; ty.bytes()];
    for row_tile in (0..rows).step_by(TILE) {
        for column_tile in (0..columns).step_by(TILE) {
            for row in row_tile..rows.min(row_tile + TILE) {
                for column in column_tile..columns.min(column_tile + TILE) {
                    let Some(at) = source(row, column) else { continue };
                    let to = row * columns + column;
                    if bits == 4 {
                        let code = (from[at / 2] >> (at % 2 * 4)) & 15;
                        bytes[to / 2] |= code << (to % 2 * 4);
                    } else {
                        let width = bits / 8;
                        bytes[to * width..][..width].copy_from_slice(&from[at * width..][..width]);
                    }
                }
            }
        }
    }
    Tensor::sharing(ty, bytes.into()).expect("as many bytes as the type has")
}

/// Whether elements of this type can be moved here: they are of 4 bits, or of whole bytes.
pub(super) fn is_movable(dtype: DType) -> bool {
    dtype.bits() == 4 || dtype.bits().is_multiple_of(8)
}

/// A matrix of this shape, transposed.
pub(super) fn turned(tensor: &Tensor, [rows, columns]: [usize; 2]) -> Tensor {
    moved(tensor, [columns, rows], |column, row| Some(row * columns + column))
}

/// The picked columns of a matrix of this shape; `None` picks a column of zeros.
pub(super) fn columns(
    tensor: &Tensor,
    [rows, columns]: [usize; 2],
    picked: &[Option<usize>],
) -> Tensor {
    moved(tensor, [rows, picked.len()], |row, column| picked[column].map(|at| row * columns + at))
}

/// A matrix of this shape with zeros after the last row and the last column, `to` so many.
pub(super) fn filled(tensor: &Tensor, [rows, columns]: [usize; 2], to: [usize; 2]) -> Tensor {
    moved(tensor, to, |row, column| {
        (row < rows && column < columns).then_some(row * columns + column)
    })
}

/// The same elements in order, as a tensor of another shape.
pub(super) fn reshaped(tensor: &Tensor, shape: &[usize]) -> Tensor {
    let ty = tensor.ty().with_shape(shape.to_vec());
    Tensor::from_bytes(ty, tensor.bytes()).expect("as many elements as before")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_go_where_they_belong_at_every_width() {
        let (rows, across) = (5, 67);
        let values: Vec<i128> = (0..rows * across).map(|i| (i as i128 * 7) % 16 - 8).collect();
        for dtype in [DType::I4, DType::I8, DType::I32] {
            let matrix = Tensor::from_ints(dtype, [rows, across], &values);
            let turned_back = turned(&turned(&matrix, [rows, across]), [across, rows]);
            assert_eq!(turned_back, matrix, "{dtype}");
            let other = turned(&matrix, [rows, across]).to_ints();
            assert_eq!(other[3 * rows + 2], values[2 * across + 3], "{dtype}");
            let picked = columns(&matrix, [rows, across], &[Some(66), None, Some(1)]).to_ints();
            assert_eq!(
                picked[6..9],
                [values[2 * across + 66], 0, values[2 * across + 1]],
                "{dtype}"
            );
            let wider = filled(&matrix, [rows, across], [rows + 1, across + 2]).to_ints();
            assert_eq!(
                wider[2 * across + 1..2 * across + 5],
                [values[2 * across - 1], 0, 0, values[2 * across]],
                "{dtype}"
            );
            assert!(wider[rows * (across + 2)..].iter().all(|&x| x == 0), "{dtype}");
        }
    }
}
