// The parts that the kernels of this folder share: the types that they fold in and move, and nested
// loops over strided buffers.
#include "loop.cuh"

// The type that values of T are folded in.
template <class T>
struct WideOf { typedef T type; };
template <int E, int M, Specials S, class C>
struct WideOf<SmallFloat<E, M, S, C>> { typedef f32 type; };
template <class T>
using Wide = typename WideOf<T>::type;

// Elements that are only moved, by their width in bytes.
template <int WIDTH> struct BitsOf;
template <> struct BitsOf<1> { typedef u8 type; };
template <> struct BitsOf<2> { typedef u16 type; };
template <> struct BitsOf<4> { typedef u32 type; };
template <> struct BitsOf<8> { typedef u64 type; };
template <> struct BitsOf<16> { typedef uint4 type; };

// Extents of nested loops, and how far each of N buffers moves per step: `Nest<N>` in nest.rs.
template <int N> struct Nest {
    u64 count;
    u32 rank;
    u32 sizes[8];
    i64 strides[N][8];

    // Offsets of position `i` in row-major order. The innermost dimension needs no remainder of the
    // outermost's quotient.
    template <class I>
    __device__ void locate(I i, i64 (&at)[N]) const {
        for (int n = 0; n < N; n++) at[n] = 0;
        for (int d = (int)rank - 1; d >= 0; d--) {
            I q = d == 0 ? 0 : i / sizes[d];
            I r = i - q * sizes[d];
            for (int n = 0; n < N; n++) at[n] += (i64)r * strides[n][d];
            i = q;
        }
    }
};

// An index of any integer type, saturated to i64.
template <class T>
__device__ i64 saturated(T x) { return (i64)x; }
__device__ inline i64 saturated(u64 x) {
    return x > 0x7fffffffffffffffull ? 0x7fffffffffffffffll : (i64)x;
}

__device__ inline i64 clamped(i64 x, i64 high) { return x < 0 ? 0 : x > high ? high : x; }
