// Draws a random state of `count` elements of type ELEMENT, four a thread. They come from the
// random bits that the host takes for them, by the same f64 operations.
#include "scalar.cuh"

__device__ __forceinline__ f64 unit(u32 word) { return ((f64)word + 0.5) / 4294967296.0; }

// Box and Muller (1958): two words become two normal numbers.
__device__ __forceinline__ void pair(u32 a, u32 b, f64* to) {
    const f64 radius = sqrt(-2.0 * log(unit(a))), angle = 6.283185307179586 * unit(b);
    to[0] = radius * cos(angle), to[1] = radius * sin(angle);
}

extern "C" __global__ void draw_normal(ELEMENT* to, u64 count, u64 seed, u64 site, f64 std) {
    const u64 block = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const uint4 words = philox_block(seed, site, block);
    f64 values[4];
    pair(words.x, words.y, values), pair(words.z, words.w, values + 2);
#pragma unroll
    for (u32 i = 0; i < 4; ++i)
        if (4 * block + i < count) to[4 * block + i] = convert<ELEMENT>(values[i] * std);
}

extern "C" __global__ void draw_uniform(ELEMENT* to, u64 count, u64 seed, u64 site, f64 bound) {
    const u64 block = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const uint4 bits = philox_block(seed, site, block);
    const u32 words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (u32 i = 0; i < 4; ++i)
        if (4 * block + i < count) {
            const f64 u = (f64)(words[i] >> 8) / 16777216.0;
            to[4 * block + i] = convert<ELEMENT>((2.0 * u - 1.0) * bound);
        }
}
