// Element types, what they are combined in, and how. Own definitions, because NVRTC at a user's machine has no headers.

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;
typedef float f32;
typedef double f64;
struct f16 { u16 bits; };
struct bf16 { u16 bits; };
struct boolean { u8 bits; };

// Wide<T>: the type that values of T are folded in.
template <class T> struct WideOf { typedef T type; };
template <> struct WideOf<f16> { typedef f32 type; };
template <> struct WideOf<bf16> { typedef f32 type; };
template <> struct WideOf<boolean> { typedef u8 type; };
template <class T> using Wide = typename WideOf<T>::type;

template <class T> T widen(T x) { return x; }
inline f32 widen(f16 x) { f32 y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }
inline f32 widen(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
inline u8 widen(boolean x) { return x.bits; }

template <class T> struct Narrow { static T from(Wide<T> x) { return x; } };
template <> struct Narrow<f16> {
    static f16 from(f32 x) { f16 y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); return y; }
};
template <> struct Narrow<bf16> {
    static bf16 from(f32 x) { bf16 y; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); return y; }
};
template <> struct Narrow<boolean> { static boolean from(u8 x) { return boolean{x}; } };
template <class T> T narrow(Wide<T> x) { return Narrow<T>::from(x); }

template <class T> struct IsFloat { static const bool value = false; };
template <> struct IsFloat<f32> { static const bool value = true; };
template <> struct IsFloat<f64> { static const bool value = true; };

// Integers wrap, so they are added and multiplied as unsigned numbers.
template <class W> struct Sum {
    static W of(W a, W b) {
        if constexpr (IsFloat<W>::value) return a + b;
        else if constexpr (sizeof(W) == 8) return (W)((u64)a + (u64)b);
        else return (W)((u32)a + (u32)b);
    }
};
template <class W> struct Prod {
    static W of(W a, W b) {
        if constexpr (IsFloat<W>::value) return a * b;
        else if constexpr (sizeof(W) == 8) return (W)((u64)a * (u64)b);
        else return (W)((u32)a * (u32)b);
    }
};
// NaN if either is.
template <class W> struct Max { static W of(W a, W b) { return a > b || a != a ? a : b; } };
template <class W> struct Min { static W of(W a, W b) { return a < b || a != a ? a : b; } };
template <class W> struct And { static W of(W a, W b) { return a & b; } };
template <class W> struct Or { static W of(W a, W b) { return a | b; } };

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

    // Offsets of position `i` in row-major order. The innermost dimension needs no remainder of the outermost's quotient.
    template <class I> void locate(I i, i64 (&at)[N]) const {
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
template <class T> i64 saturated(T x) { return (i64)x; }
inline i64 saturated(u64 x) { return x > 0x7fffffffffffffffull ? 0x7fffffffffffffffll : (i64)x; }

inline i64 clamped(i64 x, i64 high) { return x < 0 ? 0 : x > high ? high : x; }
