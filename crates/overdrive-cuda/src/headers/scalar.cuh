// The functions of `overdrive_ir::{Unary, Binary, Compare}` by their names there, for every type
// that takes them.
//
// Integers wrap; division by zero gives 0; shifts by the width or more give 0; max and min keep
// NaN. Small floats are computed in f32 and rounded once.
#pragma once
#include "number.cuh"

#define FLOAT_UNARY(name, in_f32, in_f64)                                          \
    __device__ __forceinline__ f32 name(f32 x) { return in_f32; }                  \
    __device__ __forceinline__ f64 name(f64 x) { return in_f64; }                  \
    template <int E, int M, Specials S, class C>                                   \
    __device__ __forceinline__ SmallFloat<E, M, S, C> name(SmallFloat<E, M, S, C> x) { \
        return convert<SmallFloat<E, M, S, C>>(name(decode(x)));                   \
    }

FLOAT_UNARY(op_neg, -x, -x)
FLOAT_UNARY(op_abs, fabsf(x), fabs(x))
FLOAT_UNARY(op_sign, (x == 0.0f || !(x == x)) ? x : copysignf(1.0f, x),
            (x == 0.0 || !(x == x)) ? x : copysign(1.0, x))
FLOAT_UNARY(op_exp, expf(x), exp(x))
FLOAT_UNARY(op_expm1, expm1f(x), expm1(x))
FLOAT_UNARY(op_log, logf(x), log(x))
FLOAT_UNARY(op_log1p, log1pf(x), log1p(x))
FLOAT_UNARY(op_sqrt, sqrtf(x), sqrt(x))
FLOAT_UNARY(op_rsqrt, rsqrtf(x), rsqrt(x))
FLOAT_UNARY(op_reciprocal, __frcp_rn(x), 1.0 / x)
FLOAT_UNARY(op_sin, sinf(x), sin(x))
FLOAT_UNARY(op_cos, cosf(x), cos(x))
FLOAT_UNARY(op_tanh, tanhf(x), tanh(x))
FLOAT_UNARY(op_erf, erff(x), erf(x))
FLOAT_UNARY(op_logistic, 1.0f / (1.0f + expf(-x)), 1.0 / (1.0 + exp(-x)))
FLOAT_UNARY(op_floor, floorf(x), floor(x))
FLOAT_UNARY(op_ceil, ceilf(x), ceil(x))
FLOAT_UNARY(op_round, rintf(x), rint(x))
#undef FLOAT_UNARY

// Within 2^-17 of the result, for values that are rounded to at most 16 bits.
__device__ __forceinline__ f32 fast_exp2(f32 x) {
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ f32 fast_exp(f32 x) { return fast_exp2(x * 1.4426950408889634f); }
__device__ __forceinline__ f32 fast_div(f32 x, f32 y) {
    f32 z;
    asm("div.full.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}
__device__ __forceinline__ f32 fast_reciprocal(f32 x) { return fast_div(1.0f, x); }
// Expects x of at least 1, which needs no scaling.
__device__ __forceinline__ f32 reciprocal_of_large(f32 x) {
    f32 y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ f32 fast_logistic(f32 x) {
    return reciprocal_of_large(1.0f + fast_exp(-x));
}
// Around 0 the first terms of its series, since the difference there keeps too few bits.
__device__ __forceinline__ f32 fast_tanh(f32 x) {
    const f32 power = fast_exp2(fabsf(x) * -2.8853900817779268f);
    const f32 far = copysignf((1.0f - power) * reciprocal_of_large(1.0f + power), x);
    return fabsf(x) < 0.0625f ? fmaf(x * x * x, -1.0f / 3, x) : far;
}

#define INTEGER_UNARY(name, value)                                \
    template <class T>                                            \
    __device__ __forceinline__ T name(T a) {                      \
        const auto x = widened(a);                                \
        return wrap<T>((u64)(value));                             \
    }

INTEGER_UNARY(op_neg, 0 - (u64)x)
INTEGER_UNARY(op_abs, x < 0 ? 0 - (u64)x : (u64)x)
INTEGER_UNARY(op_sign, x > 0 ? 1 : x < 0 ? -1 : 0)
INTEGER_UNARY(op_not, ~(u64)x)
#undef INTEGER_UNARY

__device__ __forceinline__ f32 nan_max(f32 x, f32 y) {
    f32 z;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}
__device__ __forceinline__ f32 nan_min(f32 x, f32 y) {
    f32 z;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}
__device__ __forceinline__ f64 nan_max(f64 x, f64 y) {
    return !(x == x) ? x : !(y == y) ? y : fmax(x, y);
}
__device__ __forceinline__ f64 nan_min(f64 x, f64 y) {
    return !(x == x) ? x : !(y == y) ? y : fmin(x, y);
}

#define FLOAT_BINARY(name, in_f32, in_f64)                                             \
    __device__ __forceinline__ f32 name(f32 x, f32 y) { return in_f32; }               \
    __device__ __forceinline__ f64 name(f64 x, f64 y) { return in_f64; }               \
    template <int E, int M, Specials S, class C>                                       \
    __device__ __forceinline__ SmallFloat<E, M, S, C> name(SmallFloat<E, M, S, C> x,   \
                                                           SmallFloat<E, M, S, C> y) { \
        return convert<SmallFloat<E, M, S, C>>(name(decode(x), decode(y)));            \
    }

FLOAT_BINARY(op_add, x + y, x + y)
FLOAT_BINARY(op_sub, x - y, x - y)
FLOAT_BINARY(op_mul, x* y, x* y)
FLOAT_BINARY(op_div, x / y, x / y)
FLOAT_BINARY(op_rem, fmodf(x, y), fmod(x, y))
FLOAT_BINARY(op_pow, powf(x, y), pow(x, y))
FLOAT_BINARY(op_max, nan_max(x, y), nan_max(x, y))
FLOAT_BINARY(op_min, nan_min(x, y), nan_min(x, y))
#undef FLOAT_BINARY

// The number as a lane holds it: in 32 bits where they suffice.
template <class T>
__device__ __forceinline__ auto lane(T x) {
    if constexpr (width<T> == 64) return x;
    else if constexpr (same<T, i4>) return (i32)x.value;
    else if constexpr (is_signed<T>) return (i32)x;
    else return (u32)x;
}

#define INTEGER_BINARY(name, value)                      \
    template <class T>                                   \
    __device__ __forceinline__ T name(T a, T b) {        \
        const auto x = lane(a);                          \
        const auto y = lane(b);                          \
        return wrap<T>((u64)(value));                    \
    }

INTEGER_BINARY(op_add, (u64)x + (u64)y)
INTEGER_BINARY(op_sub, (u64)x - (u64)y)
INTEGER_BINARY(op_mul, (u64)x * (u64)y)
INTEGER_BINARY(op_div, y == 0 ? 0 : is_signed<T> && y + 1 == 0 ? 0 - (u64)x : (u64)(x / y))
INTEGER_BINARY(op_rem, y == 0 || is_signed<T> && y + 1 == 0 ? 0 : (u64)(x % y))
INTEGER_BINARY(op_max, x > y ? x : y)
INTEGER_BINARY(op_min, x < y ? x : y)
INTEGER_BINARY(op_and, x & y)
INTEGER_BINARY(op_or, x | y)
INTEGER_BINARY(op_xor, x ^ y)
INTEGER_BINARY(op_shl, (u64)y >= width<T> ? 0 : (u64)x << (u32)y)
INTEGER_BINARY(op_shr, (u64)y >= width<T> ? 0 : x >> (u32)y)
#undef INTEGER_BINARY

#define COMPARE(name, operation)                                                            \
    template <class T>                                                                      \
    __device__ __forceinline__ bool name(T x, T y) {                                        \
        if constexpr (is_small<T>) return decode(x) operation decode(y);                    \
        else if constexpr (same<T, i4>) return x.value operation y.value;                   \
        else return x operation y;                                                          \
    }

COMPARE(op_eq, ==)
COMPARE(op_ne, !=)
COMPARE(op_lt, <)
COMPARE(op_le, <=)
COMPARE(op_gt, >)
COMPARE(op_ge, >=)
#undef COMPARE

// Philox 4x32-10 (Salmon et al., SC 2011): word `index % 4` of block `index / 4`, as
// `overdrive_ir::eval::philox`.
__device__ __forceinline__ uint4 philox_block(u64 seed, u64 site, u64 block) {
    u32 a = (u32)block, b = (u32)(block >> 32), c = (u32)site, d = (u32)(site >> 32);
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const u64 p0 = 0xD2511F53ull * a, p1 = 0xCD9E8D57ull * c;
        const u32 next_a = (u32)(p1 >> 32) ^ b ^ k0, next_c = (u32)(p0 >> 32) ^ d ^ k1;
        b = (u32)p1, d = (u32)p0, a = next_a, c = next_c;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return make_uint4(a, b, c, d);
}
__device__ __forceinline__ u32 random_bits(u64 seed, u64 site, u64 index) {
    const uint4 words = philox_block(seed, site, index >> 2);
    const u32 word = (u32)index & 3;
    return word < 2 ? (word == 0 ? words.x : words.y) : (word == 2 ? words.z : words.w);
}
