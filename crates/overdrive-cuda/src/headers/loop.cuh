// The base of printed loops: vector access, and folds over the threads of a row.
#pragma once
#include "number.cuh"
#include "scalar.cuh"

template <class T, int N>
struct alignas(sizeof(T) * N) Vector {
    T at[N];
};

// The last of the parts of a grid that begin at a block or before it.
template <class Part, int N>
__device__ __forceinline__ int last_from(const Part (&parts)[N], u32 block) {
    int low = 0, high = N;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (parts[middle].first <= block) low = middle;
        else high = middle;
    }
    return low;
}

// Reads `V` neighbours, `A` at a time; where only `count` of them exist, one by one.
template <int A, class T, int V>
__device__ __forceinline__ void load(T (&to)[V], const T* from, int count = V) {
    if (count >= V) {
#pragma unroll
        for (int i = 0; i < V; i += A) {
            const Vector<T, A> part = *reinterpret_cast<const Vector<T, A>*>(from + i);
#pragma unroll
            for (int j = 0; j < A; ++j) to[i + j] = part.at[j];
        }
    } else {
#pragma unroll
        for (int i = 0; i < V; ++i)
            if (i < count) to[i] = from[i];
    }
}

template <int A, class T, int V>
__device__ __forceinline__ void store(T* to, const T (&from)[V], int count = V) {
    if (count >= V) {
#pragma unroll
        for (int i = 0; i < V; i += A) {
            Vector<T, A> part;
#pragma unroll
            for (int j = 0; j < A; ++j) part.at[j] = from[i + j];
            *reinterpret_cast<Vector<T, A>*>(to + i) = part;
        }
    } else {
#pragma unroll
        for (int i = 0; i < V; ++i)
            if (i < count) to[i] = from[i];
    }
}

// Reads `V` elements that are `stride` apart.
template <class T, int V>
__device__ __forceinline__ void gather(T (&to)[V], const T* from, i64 stride, int count = V) {
#pragma unroll
    for (int i = 0; i < V; ++i)
        if (i < count) to[i] = from[i * stride];
}

template <class T, int V>
__device__ __forceinline__ void scatter(T* to, const T (&from)[V], i64 stride, int count = V) {
#pragma unroll
    for (int i = 0; i < V; ++i)
        if (i < count) to[i * stride] = from[i];
}

// Loaded neighbours between the passes over a row, as they lay in memory.
template <class T, int V>
struct Kept {
    static constexpr int words = (sizeof(T) * V + 3) / 4;
    u32 bits[words];

    __device__ __forceinline__ void keep(const T (&x)[V]) { memcpy(bits, x, sizeof(x)); }

    __device__ __forceinline__ void recall(T (&x)[V]) const { memcpy(x, bits, sizeof(x)); }

    // Adds `zero`, which is `hidden_zero`, so that the compiler treats the values as read again.
    __device__ __forceinline__ void recall(T (&x)[V], u32 zero) {
#pragma unroll
        for (int i = 0; i < words; ++i) bits[i] += zero;
        recall(x);
    }
};

// Asks for a sector of 32 bytes that is read later.
__device__ __forceinline__ void ask_for(const void* from) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

// The part of a row that a block folds next, on its way to shared memory while the block folds this
// one. From Hopper on.
extern __shared__ __align__(128) u8 brought[];

template <u32 Bytes>
struct Ahead {
    u32 barrier, parity = 0;

    __device__ __forceinline__ Ahead() {
        __shared__ u64 arrived;
        barrier = (u32)__cvta_generic_to_shared(&arrived);
        if (threadIdx.x == 0)
            asm volatile(
                "mbarrier.init.shared::cta.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;" ::
                    "r"(barrier)
                : "memory");
        __syncthreads();
    }

    // Call it after a barrier that all threads passed once they had read the row brought before.
    __device__ __forceinline__ void ask(const void* from) const {
        if (threadIdx.x != 0) return;
        const u32 to = (u32)__cvta_generic_to_shared(brought);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                     "r"(Bytes)
                     : "memory");
        constexpr u32 piece = 32 << 10;
        for (u32 at = 0; at < Bytes; at += piece)
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
                "[%3];" ::
                    "r"(to + at),
                "l"((const u8*)from + at), "r"(min(piece, Bytes - at)), "r"(barrier)
                : "memory");
    }

    __device__ __forceinline__ void wait() {
        u32 done;
        do {
            asm volatile(
                "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                "selp.u32 %0, 1, 0, p;\n}"
                : "=r"(done)
                : "r"(barrier), "r"(parity)
                : "memory");
        } while (!done);
        parity ^= 1;
    }

    template <class T>
    __device__ __forceinline__ const T* part() const { return reinterpret_cast<const T*>(brought); }
};

// A zero that the assembler cannot know to be one: grids have one dimension. Without it the
// assembler would see that two passes recall the same bits. It would then keep every value that the
// first computed from them, and there are no registers for those.
__device__ __forceinline__ u32 hidden_zero() { return blockIdx.z; }

template <class T>
__device__ __forceinline__ u32 code_of(T x) {
    if constexpr (same<T, i4>) return (u32)x.value & 15;
    else return x.code;
}

// Element `index` of a slot whose elements are packed to less than a byte.
template <class T>
__device__ __forceinline__ T packed(const u8* slot, i64 index) {
    const i64 bit = index * width<T>;
    const u32 shift = (u32)bit & 7;
    u32 word = slot[bit >> 3];
    if (shift + width<T> > 8) word |= (u32)slot[(bit >> 3) + 1] << 8;
    const u32 code = (word >> shift) & ((1u << width<T>) - 1);
    if constexpr (same<T, i4>) return wrap<i4>(code);
    else return T{(u8)code};
}

// Writes `V` packed neighbours from element `index` on, which begins a byte; `count` of them exist.
template <class T, int V>
__device__ __forceinline__ void store_packed(u8* slot, i64 index, const T (&from)[V],
                                             int count = V) {
    static_assert(V * width<T> % 8 == 0 && V * width<T> <= 64, "whole bytes");
    u64 word = 0;
#pragma unroll
    for (int i = 0; i < V; ++i)
        if (i < count) word |= (u64)code_of(from[i]) << (i * width<T>);
#pragma unroll
    for (int byte = 0; byte < V * width<T> / 8; ++byte)
        if (byte * 8 < count * width<T>)
            slot[index * width<T> / 8 + byte] = (u8)(word >> (8 * byte));
}

// How two values combine, with the value that changes nothing; as `overdrive_ir::Reducer`.
struct Sum {
    template <class T>
    __device__ static T identity() { return convert<T>(0); }
    template <class T>
    __device__ static T of(T x, T y) { return op_add(x, y); }
};
struct Prod {
    template <class T>
    __device__ static T identity() { return convert<T>(1); }
    template <class T>
    __device__ static T of(T x, T y) { return op_mul(x, y); }
};
struct Max {
    template <class T>
    __device__ static T identity() {
        if constexpr (is_float<T>) return convert<T>(__uint_as_float(0xff800000u));
        else return of_integer<T>(lowest<T>);
    }
    template <class T>
    __device__ static T of(T x, T y) { return op_max(x, y); }
};
struct Min {
    template <class T>
    __device__ static T identity() {
        if constexpr (is_float<T>) return convert<T>(__uint_as_float(0x7f800000u));
        else return of_integer<T>((i64)highest<T>);
    }
    template <class T>
    __device__ static T of(T x, T y) { return op_min(x, y); }
};
struct And {
    template <class T>
    __device__ static T identity() { return of_integer<T>(-1); }
    template <class T>
    __device__ static T of(T x, T y) { return op_and(x, y); }
};
struct Or {
    template <class T>
    __device__ static T identity() { return of_integer<T>(0); }
    template <class T>
    __device__ static T of(T x, T y) { return op_or(x, y); }
};

// The larger (or smaller) ones of two pairs of half floats, NaN where either is.
template <class R, class T>
__device__ __forceinline__ u32 of_pairs(u32 x, u32 y) {
    u32 z;
    if constexpr (same<R, Max> && same<T, bf16>)
        asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    if constexpr (same<R, Min> && same<T, bf16>)
        asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    if constexpr (same<R, Max> && same<T, f16>)
        asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    if constexpr (same<R, Min> && same<T, f16>)
        asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    return z;
}

// A thread's fold of half floats, two at a time and before they are widened, which keeps their
// order.
template <class R, class T, int V>
struct FoldOfPairs {
    u32 bits[V / 2];

    __device__ __forceinline__ FoldOfPairs() {
        const u32 code = convert<T>(R::template identity<f32>()).code;
#pragma unroll
        for (int i = 0; i < V / 2; ++i) bits[i] = code << 16 | code;
    }

    __device__ __forceinline__ void take(const T (&x)[V]) {
        u32 more[V / 2];
        memcpy(more, x, sizeof(x));
#pragma unroll
        for (int i = 0; i < V / 2; ++i) bits[i] = of_pairs<R, T>(bits[i], more[i]);
    }

    __device__ __forceinline__ f32 result() const {
        u32 all = bits[0];
#pragma unroll
        for (int i = 1; i < V / 2; ++i) all = of_pairs<R, T>(all, bits[i]);
        return R::of(decode(T{(u16)all}), decode(T{(u16)(all >> 16)}));
    }
};

// The fold over a thread's neighbours.
template <class R, class T, int V>
__device__ __forceinline__ T fold_lanes(const T (&x)[V]) {
    T parts[V];
#pragma unroll
    for (int v = 0; v < V; ++v) parts[v] = x[v];
#pragma unroll
    for (int half = V / 2; half > 0; half /= 2)
#pragma unroll
        for (int v = 0; v < half; ++v) parts[v] = R::of(parts[v], parts[v + half]);
    return parts[0];
}

// The largest element of a row so far, and the sum of the exponentials of the elements less it. The
// sum is 0 where there are none.
struct Online {
    f32 max, sum;

    // The shift of a sum; 0 if the largest element is -infinity.
    __device__ __forceinline__ static f32 shift(f32 max) {
        return max == __uint_as_float(0xff800000u) ? 0.0f : max;
    }

    // More elements, whose largest is `top`.
    template <int V>
    __device__ __forceinline__ void take(const f32 (&x)[V], f32 top) {
        top = Max::of(max, top);
        const f32 from = shift(top);
        f32 terms[V];
#pragma unroll
        for (int v = 0; v < V; ++v) terms[v] = fast_exp(x[v] - from);
        sum = fmaf(sum, fast_exp(max - from), fold_lanes<Sum>(terms));
        max = top;
    }

    // The sum by the definition: of nothing but negative infinities it is none.
    __device__ __forceinline__ f32 total() const {
        return max == __uint_as_float(0xff800000u) ? __uint_as_float(0x7fffffffu) : sum;
    }
};

// How two of them combine.
struct Grow {
    template <class T>
    __device__ static T identity() { return {__uint_as_float(0xff800000u), 0.0f}; }
    __device__ __forceinline__ static Online of(Online a, Online b) {
        const f32 max = Max::of(a.max, b.max), from = Online::shift(max);
        return {max, a.sum * fast_exp(a.max - from) + b.sum * fast_exp(b.max - from)};
    }
};

// The largest of a thread's neighbours.
template <class T, int V>
__device__ __forceinline__ f32 largest(const T (&x)[V]) {
    FoldOfPairs<Max, T, V> pairs;
    pairs.take(x);
    return pairs.result();
}

template <class T>
__device__ __forceinline__ T shuffled(T x, int mask) {
    if constexpr (sizeof(T) == 8) {
        u32 words[2];
        memcpy(words, &x, 8);
        words[0] = __shfl_xor_sync(~0u, words[0], mask),
        words[1] = __shfl_xor_sync(~0u, words[1], mask);
        memcpy(&x, words, 8);
        return x;
    } else if constexpr (same<T, bool>) {
        return __shfl_xor_sync(~0u, (u32)x, mask) != 0;
    } else if constexpr (is_small<T>) {
        return T{(decltype(T::code))__shfl_xor_sync(~0u, (u32)x.code, mask)};
    } else if constexpr (same<T, f32>) {
        return __shfl_xor_sync(~0u, x, mask);
    } else {
        return wrap<T>(__shfl_xor_sync(~0u, (u32)(u64)widened(x), mask));
    }
}

// The fold over the `Threads` threads of a row, neighbours in a block, in every one of them. The
// order of combination is that of a tree, so that equal inputs give equal bits.
template <class R, int Threads, class T>
__device__ __forceinline__ T fold_row(T x) {
#pragma unroll
    for (int mask = 1; mask < (Threads < 32 ? Threads : 32); mask *= 2)
        x = R::of(x, shuffled(x, mask));
    if constexpr (Threads > 32) {
        constexpr int warps = Threads / 32;
        __shared__ T parts[warps];
        __syncthreads();
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
        __syncthreads();
        x = parts[threadIdx.x % warps];
#pragma unroll
        for (int mask = 1; mask < warps; mask *= 2) x = R::of(x, shuffled(x, mask));
    }
    return x;
}

// Waits for all threads of a cluster; also the last thing that they do, since a block's memory goes
// when it ends.
__device__ __forceinline__ void meet_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

// Folds a value over the blocks of a cluster. The value is the same in all threads of a block, and
// every block gets the result. Two folds in a row have separate places for their values, so one
// meeting per fold is enough. A thread that writes a place again has met every other since they
// read it.
template <class R, int Blocks, class T>
__device__ __forceinline__ T fold_cluster(T x, u32& turn) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "words of shared memory");
    __shared__ __align__(8) T places[2];
    T& mine = places[turn];
    turn ^= 1;
    if (threadIdx.x == 0) mine = x;
    meet_cluster();
    const u32 here = (u32)__cvta_generic_to_shared(&mine);
    T all = R::template identity<T>();
#pragma unroll
    for (u32 block = 0; block < Blocks; ++block) {
        u32 there;
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(block));
        T part;
        if constexpr (sizeof(T) == 4) {
            u32 bits;
            asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(bits) : "r"(there));
            memcpy(&part, &bits, 4);
        } else {
            u64 bits;
            asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(bits) : "r"(there));
            memcpy(&part, &bits, 8);
        }
        all = R::of(all, part);
    }
    return all;
}

// The fold over `Rows` threads that are `Columns` apart in a block, in every one of them, for `V`
// neighbours each.
template <class R, int Columns, int Rows, class T, int V>
__device__ __forceinline__ void fold_columns(T (&x)[V]) {
    if constexpr (Rows > 1) {
        __shared__ T parts[V][Rows][Columns];
        const int column = threadIdx.x % Columns, row = threadIdx.x / Columns;
        __syncthreads();
#pragma unroll
        for (int v = 0; v < V; ++v) parts[v][row][column] = x[v];
#pragma unroll
        for (int half = Rows / 2; half > 0; half /= 2) {
            __syncthreads();
            if (row < half) {
#pragma unroll
                for (int v = 0; v < V; ++v)
                    parts[v][row][column] =
                        R::of(parts[v][row][column], parts[v][row + half][column]);
            }
        }
        __syncthreads();
#pragma unroll
        for (int v = 0; v < V; ++v) x[v] = parts[v][0][column];
    }
}
