// The number formats of `overdrive_ir::DType` by their names there, with the conversions of
// `DType::round`.
//
// CUDA's own cuda_bf16.h and kin are part of the toolkit, which a user's machine need not have;
// NVRTC brings only the types of the compiler itself. Small floats and i4 are held as codes;
// arithmetic on them is that of f32.
#pragma once

typedef double f64;
typedef float f32;
typedef long long i64;
typedef int i32;
typedef short i16;
typedef signed char i8;
typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;

enum class Specials { ieee, nan_only, none, scale };
enum class Overflow { ieee, saturate };

// Waits until all that kernels before this one wrote can be read.
__device__ __forceinline__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel begin where there is room; it waits for this one in turn.
__device__ __forceinline__ void let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The first thing that a kernel does which touches memory, unless it has a better moment for the
// next one to begin.
__device__ __forceinline__ void after_previous() {
    wait_for_previous();
    let_next_begin();
}

// A float of at most 16 bits, as its code.
template <int Exponent, int Mantissa, Specials S, class Code>
struct SmallFloat {
    static constexpr int exponent = Exponent, mantissa = Mantissa, bias = (1 << (Exponent - 1)) - 1;
    static constexpr Specials specials = S;
    static constexpr int bits = Exponent + Mantissa + (S == Specials::scale ? 0 : 1);
    static constexpr u32 magnitude = (1u << (Exponent + Mantissa)) - 1;
    static constexpr u32 sign = S == Specials::scale ? 0 : magnitude + 1;
    static constexpr u32 max_code = S == Specials::ieee   ? magnitude - (1u << Mantissa)
                                    : S == Specials::none ? magnitude
                                                          : magnitude - 1;
    static constexpr u32 nan_code = S == Specials::ieee
                                        ? max_code + 1 + (1u << (Mantissa > 0 ? Mantissa - 1 : 0))
                                    : S == Specials::none ? max_code
                                                          : max_code + 1;
    Code code;
};

typedef SmallFloat<5, 10, Specials::ieee, u16> f16;
typedef SmallFloat<8, 7, Specials::ieee, u16> bf16;
typedef SmallFloat<4, 3, Specials::nan_only, u8> f8e4m3;
typedef SmallFloat<5, 2, Specials::ieee, u8> f8e5m2;
typedef SmallFloat<8, 0, Specials::scale, u8> e8m0;
typedef SmallFloat<2, 3, Specials::none, u8> f6e2m3;
typedef SmallFloat<3, 2, Specials::none, u8> f6e3m2;
typedef SmallFloat<2, 1, Specials::none, u8> f4e2m1;

// A signed integer of four bits, as its value.
struct i4 {
    i8 value;
};

template <class A, class B>
constexpr bool same = false;
template <class A>
constexpr bool same<A, A> = true;
template <class T>
constexpr bool is_small = false;
template <int E, int M, Specials S, class C>
constexpr bool is_small<SmallFloat<E, M, S, C>> = true;
template <class T>
constexpr bool is_float = same<T, f32> || same<T, f64> || is_small<T>;
template <class T>
constexpr bool is_signed =
    same<T, i64> || same<T, i32> || same<T, i16> || same<T, i8> || same<T, i4>;

// Width of a stored element in bits.
template <class T>
constexpr int width = sizeof(T) * 8;
template <>
constexpr int width<i4> = 4;
template <int E, int M, Specials S, class C>
constexpr int width<SmallFloat<E, M, S, C>> = SmallFloat<E, M, S, C>::bits;

// Range of an integer type.
template <class T>
constexpr i64 lowest = is_signed<T> ? -(i64)(1ull << (width<T> - 1)) : 0;
template <class T>
constexpr u64 highest = is_signed<T> ? (1ull << (width<T> - 1)) - 1 : ~0ull >> (64 - width<T>);

constexpr u32 f32_infinity = 0x7f800000;

// The value of a code; exact.
template <class T>
__device__ __forceinline__ f32 decode(T x) {
    if constexpr (same<T, f16>) {
        f32 value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.code));
        return value;
    } else if constexpr (same<T, bf16>) {
        return __uint_as_float((u32)x.code << 16);
    } else if constexpr (same<T, f8e5m2>) {
        return decode(f16{(u16)(x.code << 8)});
    } else if constexpr (T::specials == Specials::scale) {
        const u32 bits = x.code == 0 ? 0x400000u : (u32)x.code << 23;
        return __uint_as_float(x.code == T::nan_code ? 0x7fffffffu : bits);
    } else {
        // As the subnormal or normal f32 with the same fields, moved to this format's bias; no step
        // rounds.
        const u32 code = x.code & T::magnitude;
        const f32 value =
            __uint_as_float(code << (23 - T::mantissa)) * __uint_as_float((254u - T::bias) << 23);
        const u32 sign = (x.code & T::sign) ? 0x80000000u : 0u;
        if (T::specials != Specials::none && code > T::max_code)
            return __uint_as_float(0x7fffffffu);
        return __uint_as_float(__float_as_uint(value) | sign);
    }
}

// The code nearest to `x`, ties to even, as `FloatFormat::encode`.
template <class T, Overflow O>
__device__ __forceinline__ T encode_by_bits(f32 x) {
    const u32 bits = __float_as_uint(x), magnitude = bits & 0x7fffffffu;
    using Code = decltype(T::code);
    if (magnitude > f32_infinity) return T{(Code)T::nan_code};
    constexpr u32 beyond = O == Overflow::saturate || T::specials == Specials::none ? T::max_code
                           : T::specials == Specials::ieee ? T::max_code + 1
                                                           : T::nan_code;
    u32 code;
    if constexpr (T::specials == Specials::scale) {
        // Rounded where log2 is: at the square root of 2.
        if (bits > 0x80000000u) return T{(Code)T::nan_code};
        const u32 field = magnitude >> 23, fraction = magnitude & 0x7fffffu;
        code = field == 0 ? fraction > 0x5a8279u : field + (fraction > 0x3504f3u);
        return T{(Code)(magnitude == f32_infinity || code > T::max_code ? beyond : code)};
    } else {
        const u32 sign = (bits >> 31) ? T::sign : 0u;
        constexpr u32 smallest_normal = (128u - T::bias) << 23;
        if (magnitude < smallest_normal) {
            // Adding a number whose last place is the format's quantum rounds there, once.
            constexpr u32 magic = (151u - T::bias - T::mantissa) << 23;
            code = __float_as_uint(__fadd_rn(__uint_as_float(magnitude), __uint_as_float(magic))) -
                   magic;
        } else {
            constexpr int drop = 23 - T::mantissa;
            const u32 odd = (magnitude >> drop) & 1;
            code = (magnitude + ((1u << (drop - 1)) - 1) + odd >> drop) -
                   ((127u - T::bias) << T::mantissa);
        }
        if (magnitude == f32_infinity)
            code = T::specials == Specials::ieee ? T::max_code + 1 : beyond;
        else if (code > T::max_code) code = beyond;
        return T{(Code)(sign | code)};
    }
}

template <class T, Overflow O>
__device__ __forceinline__ T encode(f32 x) {
    if constexpr (same<T, f16> || same<T, bf16>) {
        u16 code;
        if constexpr (same<T, f16>) asm("cvt.rn.f16.f32 %0, %1;" : "=h"(code) : "f"(x));
        else asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(code) : "f"(x));
        if (O == Overflow::saturate && (code & T::magnitude) == T::max_code + 1 &&
            fabsf(x) < __uint_as_float(f32_infinity))
            code -= 1;
        return T{code};
    }
#if __CUDA_ARCH__ >= 890
    if constexpr (same<T, f8e4m3>) {
        u16 pair;
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
        // Half way to the next binade still rounds down to 448.
        return T{(u8)(O == Overflow::ieee && !(fabsf(x) <= 464.0f) ? T::nan_code : pair)};
    }
    if constexpr (same<T, f8e5m2>) {
        u16 pair;
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
        const bool infinite =
            O == Overflow::ieee ? fabsf(x) >= 61440.0f : fabsf(x) == __uint_as_float(f32_infinity);
        return T{(u8)(infinite ? (pair & T::sign) | (T::max_code + 1) : pair)};
    }
#endif
    return encode_by_bits<T, O>(x);
}

// f64 to f32, rounded to odd where it is not exact, so that rounding on to a small float rounds
// once.
__device__ __forceinline__ f32 to_odd(f64 x) {
    const f32 truncated = __double2float_rz(x);
    return (f64)truncated == x || !(x == x) ? truncated
                                            : __uint_as_float(__float_as_uint(truncated) | 1u);
}

// Keeps the low bits of an integer.
template <class T>
__device__ __forceinline__ T wrap(u64 x) {
    if constexpr (same<T, i4>) return i4{(i8)((i8)(x << 4) >> 4)};
    else if constexpr (same<T, bool>) return (x & 1) != 0;
    else return (T)x;
}

// An integer or bool as i64 or u64.
template <class T>
__device__ __forceinline__ auto widened(T x) {
    if constexpr (same<T, i4>) return (i64)x.value;
    else if constexpr (is_signed<T>) return (i64)x;
    else return (u64)x;
}

template <class T>
__device__ __forceinline__ T of_integer(i64 x) {
    return wrap<T>((u64)x);
}

// Value conversion: floats round to nearest even, floats to integers truncate and saturate with NaN
// to 0, integers wrap unless they are to saturate.
template <class D, Overflow O = Overflow::ieee, class A>
__device__ __forceinline__ D convert(A x) {
    if constexpr (same<A, D>) {
        return x;
    } else if constexpr (same<D, bool>) {
        if constexpr (is_small<A>) return decode(x) != 0.0f;
        else if constexpr (same<A, i4>) return x.value != 0;
        else return x != 0;
    } else if constexpr (is_small<A>) {
        return convert<D, O>(decode(x));
    } else if constexpr (is_float<A> && is_small<D>) {
        if constexpr (same<A, f64>) return encode<D, O>(to_odd(x));
        else return encode<D, O>(x);
    } else if constexpr (same<A, f64> && same<D, f32>) {
        const f32 y = (f32)x;
        const bool overflowed = O == Overflow::saturate &&
                                fabsf(y) == __uint_as_float(f32_infinity) &&
                                fabs(x) <= 1.7976931348623157e308;
        return overflowed ? copysignf(__uint_as_float(f32_infinity - 1), y) : y;
    } else if constexpr (is_float<A> && is_float<D>) {
        return (D)x;
    } else if constexpr (is_float<A> && width<D> < 32) {
        if (!(x == x)) return of_integer<D>(0);
        const i32 whole = same<A, f64> ? __double2int_rz(x) : __float2int_rz(x);
        return of_integer<D>(min(max(whole, (i32)lowest<D>), (i32)highest<D>));
    } else if constexpr (is_float<A>) {
        if (!(x == x)) return 0;
        if constexpr (same<A, f64>) {
            if constexpr (same<D, i32>) return __double2int_rz(x);
            else if constexpr (same<D, u32>) return __double2uint_rz(x);
            else if constexpr (same<D, i64>) return __double2ll_rz(x);
            else return __double2ull_rz(x);
        } else {
            if constexpr (same<D, i32>) return __float2int_rz(x);
            else if constexpr (same<D, u32>) return __float2uint_rz(x);
            else if constexpr (same<D, i64>) return __float2ll_rz(x);
            else return __float2ull_rz(x);
        }
    } else if constexpr (is_small<D>) {
        if constexpr (width<A> <= 16) return encode<D, O>((f32)widened(x));
        else return encode<D, O>(to_odd((f64)widened(x)));
    } else if constexpr (is_float<D>) {
        return (D)widened(x);
    } else if constexpr (O == Overflow::saturate) {
        const auto wide = widened(x);
        if constexpr (is_signed<A>) {
            if (wide < lowest<D>) return of_integer<D>(lowest<D>);
            if (wide > 0 && (u64)wide > highest<D>) return of_integer<D>((i64)highest<D>);
        } else {
            if (wide > highest<D>) return of_integer<D>((i64)highest<D>);
        }
        return wrap<D>((u64)wide);
    } else {
        return wrap<D>((u64)widened(x));
    }
}

// The same bits as another type of the same width.
template <class D, class A>
__device__ __forceinline__ D bitcast(A x) {
    static_assert(width<A> == width<D>, "a bitcast keeps the width");
    if constexpr (same<A, D>) {
        return x;
    } else {
        u64 bits;
        if constexpr (is_small<A>) bits = x.code;
        else if constexpr (same<A, f32>) bits = __float_as_uint(x);
        else if constexpr (same<A, f64>) bits = (u64)__double_as_longlong(x);
        else bits = (u64)widened(x);
        if constexpr (is_small<D>) return D{(decltype(D::code))(bits & (~0ull >> (64 - width<D>)))};
        else if constexpr (same<D, f32>) return __uint_as_float((u32)bits);
        else if constexpr (same<D, f64>) return __longlong_as_double((i64)bits);
        else return wrap<D>(bits);
    }
}
