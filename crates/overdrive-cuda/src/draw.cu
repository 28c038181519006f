// Draws a random state of `count` elements of type ELEMENT, four a thread. They are bit for bit
// those of the host: the same random bits, and the same f64 operations in the same order.
#include "scalar.cuh"

// A number of f64. Sums and products of it are rounded one by one, as on the host; a compiler may
// fuse those of plain numbers.
struct Exact {
    f64 value;
    __device__ __forceinline__ Exact(f64 value) : value(value) {}
};
__device__ __forceinline__ Exact operator+(Exact a, Exact b) { return __dadd_rn(a.value, b.value); }
__device__ __forceinline__ Exact operator-(Exact a, Exact b) { return __dsub_rn(a.value, b.value); }
__device__ __forceinline__ Exact operator*(Exact a, Exact b) { return __dmul_rn(a.value, b.value); }
__device__ __forceinline__ Exact operator/(Exact a, Exact b) { return __ddiv_rn(a.value, b.value); }

// fdlibm's logarithm (Sun Microsystems, 1993) of a number between 0 and 1, no subnormal.
__device__ __forceinline__ Exact logarithm(Exact number) {
    u32 high = (u32)__double2hiint(number.value) + (0x3ff00000 - 0x3fe6a09e);
    const Exact k = (f64)((i32)(high >> 20) - 0x3ff);
    high = (high & 0xfffff) + 0x3fe6a09e;
    const Exact f = Exact(__hiloint2double((i32)high, __double2loint(number.value))) - 1.0;
    const Exact half_square = Exact(0.5) * f * f, s = f / (Exact(2.0) + f), z = s * s, w = z * z;
    const Exact even = w * (Exact(3.999999999940941908e-01) +
                            w * (Exact(2.222219843214978396e-01) + w * 1.531383769920937332e-01));
    Exact odd = Exact(1.818357216161805012e-01) + w * 1.479819860511658591e-01;
    odd = Exact(6.666666666666735130e-01) + w * (Exact(2.857142874366239149e-01) + w * odd);
    odd = z * odd;
    return s * (half_square + (odd + even)) + k * 1.90821492927058770002e-10 - half_square + f +
           k * 6.93147180369123816490e-01;
}

// fdlibm's sine and cosine of an angle of at most an eighth of a turn.
__device__ __forceinline__ Exact sine(Exact x) {
    const Exact z = x * x, w = z * z;
    const Exact r = Exact(8.33333333332248946124e-03) +
                    z * (Exact(-1.98412698298579493134e-04) + z * 2.75573137070700676789e-06) +
                    z * w * (Exact(-2.50507602534068634195e-08) + z * 1.58969099521155010221e-10);
    return x + z * x * (Exact(-1.66666666666666324348e-01) + z * r);
}

__device__ __forceinline__ Exact cosine(Exact x) {
    const Exact z = x * x, w = z * z;
    const Exact low = Exact(-1.38888888888741095749e-03) + z * 2.48015872894767294178e-05;
    const Exact high = Exact(2.08757232129817482790e-09) + z * -1.13596475577881948265e-11;
    const Exact r = z * (Exact(4.16666666666666019037e-02) + z * low) +
                    w * w * (Exact(-2.75573143513906633035e-07) + z * high);
    const Exact half = Exact(0.5) * z, near = Exact(1.0) - half;
    return near + (((Exact(1.0) - near) - half) + z * r);
}

// Box and Muller (1958): two words become two normal numbers. The second one is a part of a turn:
// whole quarters, and an angle beside them.
__device__ __forceinline__ void pair(u32 a, u32 b, f64* to) {
    const Exact part = (Exact((f64)a) + 0.5) / 4294967296.0;
    const Exact radius = __dsqrt_rn((Exact(-2.0) * logarithm(part)).value);
    const i32 beside = (i32)(b << 2) >> 2;
    const u32 quarters = (b - (u32)beside) >> 30;
    const Exact angle = (Exact((f64)beside) + 0.5) * (6.283185307179586 / 4294967296.0);
    const f64 x = cosine(angle).value, y = sine(angle).value;
    const f64 cos = quarters == 0 ? x : quarters == 1 ? -y : quarters == 2 ? -x : y;
    const f64 sin = quarters == 0 ? y : quarters == 1 ? x : quarters == 2 ? -y : -x;
    to[0] = (radius * cos).value, to[1] = (radius * sin).value;
}

// Numbers in fewer bits than f32 are those of f32, rounded.
__device__ __forceinline__ ELEMENT rounded(f64 value) {
    if constexpr (sizeof(ELEMENT) < sizeof(f32)) return convert<ELEMENT>(convert<f32>(value));
    else return convert<ELEMENT>(value);
}

extern "C" __global__ void draw_normal(ELEMENT* to, u64 count, u64 seed, u64 site, f64 std) {
    const u64 block = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const uint4 words = philox_block(seed, site, block);
    f64 values[4];
    pair(words.x, words.y, values), pair(words.z, words.w, values + 2);
#pragma unroll
    for (u32 i = 0; i < 4; ++i)
        if (4 * block + i < count) to[4 * block + i] = rounded(values[i] * std);
}

extern "C" __global__ void draw_uniform(ELEMENT* to, u64 count, u64 seed, u64 site, f64 bound) {
    const u64 block = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const uint4 bits = philox_block(seed, site, block);
    const u32 words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (u32 i = 0; i < 4; ++i)
        if (4 * block + i < count) {
            const f64 u = (f64)(words[i] >> 8) / 16777216.0;
            to[4 * block + i] = rounded((2.0 * u - 1.0) * bound);
        }
}
