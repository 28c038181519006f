// Fills `count` elements of type ELEMENT with numbers of about normal distribution. Products are
// timed on them, because zeros would be faster than any data.
#include "number.cuh"

extern "C" __global__ void noise(ELEMENT* to, u64 count) {
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        // splitmix64 (Steele et al., OOPSLA 2014); the sum of its four 16-bit parts is nearly
        // normal.
        u64 z = (i + 1) * 0x9E3779B97F4A7C15ull;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ z >> 27) * 0x94D049BB133111EBull;
        z ^= z >> 31;
        const i32 sum = (i32)(z & 0xffff) + (i32)(z >> 16 & 0xffff) + (i32)(z >> 32 & 0xffff) +
                        (i32)(z >> 48) - 131070;
        to[i] = convert<ELEMENT>((f32)sum * (is_float<ELEMENT> ? 1.0f / 37837.0f : 1.0f / 1024.0f));
    }
}
