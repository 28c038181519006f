// Attention of few queries (the next token of a decoder) on plain multiply-adds. The time is how
// long one thread reads, so the keys are cut among the warps of all blocks of a cluster.
//
// The query heads of a key head are rows that share its keys and values: each is read once. LANES
// neighbouring lanes hold one key, eight channels each. Every such group has its own maximum, sum
// and outputs, as in Milakov and Gimelshein, arXiv:1805.02867. Groups are merged within a warp,
// warps in shared memory, blocks in the shared memory of the block that stores. The order is always
// the same. If there are many keys, those that no row sees are not read.
//
// Keys and values may be codes, each row with a scale. They are widened here, in registers. The
// scale of a key multiplies its product, and that of a value its weight. Rows may lie in pages
// (`pages.cuh`).
//
// Text before gives ROWS (query heads of a key head times queries, up to a power of two), SPLIT
// (blocks of a cluster) and WARPS. If there are more rows, PARTS blocks take ROWS each. WHOLE says
// that eight channels lie in one aligned vector. With codes it gives CODES, their type, and strides
// of scales.

constexpr int up_to_a_power(int n) {
    int power = 1;
    while (power < n) power *= 2;
    return power;
}
constexpr int LANES = up_to_a_power((D + 7) / 8), KEYS_AT_ONCE = 32 / LANES;
// Whether the last lanes of a key have no channels, or less than eight.
constexpr bool IDLE = LANES * 8 != D;
// From one row of a block's sums to the next: channels, maximum, sum.
constexpr int WIDTH = D + 2;
// UNDER_WAY: keys of a step of a lane, which are under way at once.
#ifdef CODES
typedef CODES Row;
#define SCALES const f32 *k_scale, const f32 *v_scale,
#else
typedef Element Row;
#define SCALES
#endif
constexpr int UNDER_WAY = WHOLE || sizeof(Row) > 1 ? 2 : 1;
// If rows are codes, the next step is under way while one is computed. Both are as many bytes as a
// step of floats, which gains nothing by that.
constexpr bool AHEAD = sizeof(Row) == 1;
// Blocks that a multiprocessor takes, as far as registers last. Sixteen clusters of eight blocks
// have fifteen places if each block takes a multiprocessor, and one cluster waits for all others.
constexpr int BESIDE = AHEAD && SPLIT > 1 && ROWS <= 2 ? 2 : 1;

template <class T>
struct alignas(sizeof(T) == 1 ? 8 : 16) Eight {
    T at[8];
};

// Eight channels of a row: `from` is at the first of them if they are one vector.
template <class T>
__device__ __forceinline__ Eight<T> eight(const T* from, i32 channel) {
    if constexpr (WHOLE) {
        return *reinterpret_cast<const Eight<T>*>(from);
    } else {
        Eight<T> result;
#pragma unroll
        for (int i = 0; i < 8; ++i) result.at[i] = from[min(channel + i, D - 1)];
        return result;
    }
}

template <class T>
__device__ __forceinline__ void widen(f32 (&to)[8], const Eight<T>& from) {
#pragma unroll
    for (int i = 0; i < 8; ++i) to[i] = convert<f32>(from.at[i]);
}

// A byte in the last place of 2^23 is a whole number above it.
__device__ __forceinline__ void widen(f32 (&to)[8], const Eight<i8>& from) {
    const u32* const words = reinterpret_cast<const u32*>(from.at);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const u32 above = __byte_perm(words[i / 4] ^ 0x80808080u, 0x4b000000u, 0x7540u + i % 4);
        to[i] = __uint_as_float(above) - 8388736.0f;
    }
}

#if __CUDA_ARCH__ >= 890
// Two codes are two f16, exactly.
__device__ __forceinline__ void widen(f32 (&to)[8], const Eight<f8e4m3>& from) {
    const u16* const pairs = reinterpret_cast<const u16*>(from.at);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        u32 both;
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(both) : "h"(pairs[i]));
        to[2 * i] = decode(f16{(u16)both});
        to[2 * i + 1] = decode(f16{(u16)(both >> 16)});
    }
}
#endif

// e^(from - to), where both may be -infinity.
__device__ __forceinline__ f32 shrink(f32 from, f32 to) {
    return from == to ? 1.0f : __expf(from - to);
}

__device__ __forceinline__ f32 of_block(const f32* here, u32 rank) {
#if SPLIT > 1
    u32 there;
    f32 value;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(there)
                 : "r"((u32)__cvta_generic_to_shared(here)), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(there) : "memory");
    return value;
#else
    return *here;
#endif
}

extern "C" __global__ void
#if SPLIT > 1
__cluster_dims__(SPLIT, 1, 1)
#endif
__launch_bounds__(WARPS * 32, BESIDE)
attention(const Element* q, const Row* k, const Row* v, SCALES PAGES Element* out, Sum* lse,
          AttentionShape s CAPTURES) {
    __shared__ f32 sums[WARPS][ROWS][WIDTH];
    const i32 rank = blockIdx.x % SPLIT, task = blockIdx.x / SPLIT;
    const i32 matrix = task / PARTS, skipped = task % PARTS * ROWS;
    const i32 heads = s.heads / s.group, b = matrix / heads, head = matrix % heads;
    const i32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const i32 channel = lane % LANES * 8, own = lane / LANES;
    const i32 rows = s.group * s.queries;
    const i32 here = WHOLE ? min(channel, D - 8) : 0;
    const i64 sequence = PAGED ? 0 : b;
    const i32* const table = PAGES_OF(b);
    k += sequence * s.k[0] + head * s.k[1] + here;
    v += sequence * s.v[0] + head * s.v[1] + here;
#ifdef CODES
    k_scale += sequence * K_SCALE_B + head * K_SCALE_H;
    v_scale += sequence * V_SCALE_B + head * V_SCALE_H;
#endif
    constexpr i32 STRIDE = SPLIT * WARPS * KEYS_AT_ONCE;
    const i32 first = (rank * WARPS + warp) * KEYS_AT_ONCE + own;
    // The caches are far away, and all but one row of them stays as it is.
#pragma unroll
    for (int u = 0; u < UNDER_WAY; ++u) {
        const KeyRow row = row_to_prefetch(table, min(first + u * STRIDE, s.keys - 1));
        asm volatile("prefetch.global.L2 [%0];" ::"l"(k + row.at(s.k[0], s.k[2])));
        asm volatile("prefetch.global.L2 [%0];" ::"l"(v + row.at(s.v[0], s.v[2])));
#ifdef CODES
        const f32* const scales[2] = {k_scale + row.at(K_SCALE_B, K_SCALE_T),
                                      v_scale + row.at(V_SCALE_B, V_SCALE_T)};
        asm volatile("prefetch.global.L2 [%0];" ::"l"(scales[0]));
        asm volatile("prefetch.global.L2 [%0];" ::"l"(scales[1]));
#endif
    }
    after_previous();

    f32 asked[ROWS][8], given[ROWS][8], largest[ROWS], total[ROWS];
    Eight<Element> row_of[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const i32 row = min(skipped + r, rows - 1), h = head * s.group + row / s.queries;
        const Element* const from = q + b * s.q[0] + h * s.q[1] + row % s.queries * s.q[2];
        row_of[r] = eight(from + here, channel);
        largest[r] = -infinity(f32()), total[r] = 0;
#pragma unroll
        for (int c = 0; c < 8; ++c) given[r][c] = 0;
    }
    struct Step {
        Eight<Row> keys[UNDER_WAY], values[UNDER_WAY];
#ifdef CODES
        f32 key_scales[UNDER_WAY], value_scales[UNDER_WAY];
#endif
    };
    // The first step from here on that a row sees.
    const auto seen_from = [&](i32 step) {
#ifdef MASK
        for (; SKIPS && step - own < s.keys; step += UNDER_WAY * STRIDE) {
            bool seen = false;
#pragma unroll
            for (int u = 0; u < UNDER_WAY; ++u) {
                const i32 key = min(step + u * STRIDE, s.keys - 1);
#pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    const i32 row = min(skipped + r, rows - 1);
                    const i32 h = head * s.group + row / s.queries;
                    seen |= visible(b, h, row % s.queries, key CAPTURED);
                }
            }
            if (__any_sync(~0u, seen)) break;
        }
#endif
        return step;
    };
    const auto fetch = [&](Step& to, i32 step) {
#pragma unroll
        for (int u = 0; u < UNDER_WAY; ++u) {
            const KeyRow row = row_of_key(table, min(step + u * STRIDE, s.keys - 1));
            to.keys[u] = eight(k + row.at(s.k[0], s.k[2]), channel);
            to.values[u] = eight(v + row.at(s.v[0], s.v[2]), channel);
#ifdef CODES
            to.key_scales[u] = k_scale[row.at(K_SCALE_B, K_SCALE_T)];
            to.value_scales[u] = v_scale[row.at(V_SCALE_B, V_SCALE_T)];
#endif
        }
    };
    const auto compute = [&](const Step& of, i32 step) {
#pragma unroll
        for (int u = 0; u < UNDER_WAY; ++u) {
            const i32 key = step + u * STRIDE;
            f32 of_key[8], of_value[8], scores[ROWS];
            widen(of_key, of.keys[u]);
            widen(of_value, of.values[u]);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                scores[r] = 0;
#pragma unroll
                for (int c = 0; c < 8; ++c) scores[r] = fmaf(asked[r][c], of_key[c], scores[r]);
            }
#pragma unroll
            for (int mask = 1; mask < LANES; mask *= 2)
#pragma unroll
                for (int r = 0; r < ROWS; ++r) scores[r] += __shfl_xor_sync(~0u, scores[r], mask);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const i32 row = min(skipped + r, rows - 1), h = head * s.group + row / s.queries;
                const i32 query = row % s.queries, last = min(key, s.keys - 1);
                const i32 seen = key < s.keys ? s.seen(query) : 0;
#ifdef CODES
                scores[r] *= of.key_scales[u];
#endif
                const f32 score = refined(scores[r], b, h, query, last, seen CAPTURED);
                const f32 top = fmaxf(largest[r], score), before = shrink(largest[r], top);
                const f32 weight = score == -infinity(f32()) ? 0.0f : __expf(score - top);
                largest[r] = top;
                total[r] = fmaf(total[r], before, weight);
                f32 given_weight = weight;
#ifdef CODES
                given_weight *= of.value_scales[u];
#endif
#ifdef DROPS
                const u64 matrix = b * s.heads + h;
                given_weight *= kept(SEED, (matrix * s.queries + query) * s.keys + last);
#endif
#pragma unroll
                for (int c = 0; c < 8; ++c)
                    given[r][c] = fmaf(given[r][c], before, given_weight * of_value[c]);
            }
        }
    };
    // Ahead, the next step is under way while one is computed. Copies from one to the other would
    // wait for it.
    Step even, odd;
    i32 step = seen_from(first);
    if (step - own < s.keys) fetch(even, step);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        widen(asked[r], row_of[r]);
#pragma unroll
        for (int c = 0; c < 8; ++c) {
            asked[r][c] *= (f32)s.factor;
            if (IDLE && channel + c >= D) asked[r][c] = 0;
        }
    }
    while (step - own < s.keys) {
        i32 next = seen_from(step + UNDER_WAY * STRIDE);
        if (AHEAD && next - own < s.keys) fetch(odd, next);
        compute(even, step);
        step = next;
        if (step - own >= s.keys) break;
        if (!AHEAD) {
            fetch(even, step);
            continue;
        }
        next = seen_from(step + UNDER_WAY * STRIDE);
        if (next - own < s.keys) fetch(even, next);
        compute(odd, step);
        step = next;
    }
    // The groups of a warp.
#pragma unroll
    for (int mask = LANES; mask < 32; mask *= 2) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const f32 other = __shfl_xor_sync(~0u, largest[r], mask);
            const f32 top = fmaxf(largest[r], other), before = shrink(largest[r], top);
            largest[r] = top;
            total[r] *= before;
            total[r] += __shfl_xor_sync(~0u, total[r], mask);
#pragma unroll
            for (int c = 0; c < 8; ++c) {
                given[r][c] *= before;
                given[r][c] += __shfl_xor_sync(~0u, given[r][c], mask);
            }
        }
    }
    if (own == 0) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
#pragma unroll
            for (int c = 0; c < 8; ++c)
                if (!IDLE || channel + c < D) sums[warp][r][channel + c] = given[r][c];
            if (channel == 0) sums[warp][r][D] = largest[r], sums[warp][r][D + 1] = total[r];
        }
    }
    __syncthreads();
    // The warps of a block, in the place of the first.
    const auto merged = [&](int parts, i32 r, i32 c, auto&& at) {
        f32 top = -infinity(f32());
        for (int part = 0; part < parts; ++part) top = fmaxf(top, at(part, r, D));
        f32 sum = 0, weights = 0;
        for (int part = 0; part < parts; ++part) {
            const f32 before = shrink(at(part, r, D), top);
            sum = fmaf(at(part, r, c), before, sum);
            weights = fmaf(at(part, r, D + 1), before, weights);
        }
        struct Merged {
            f32 top, sum, weights;
        };
        return Merged{top, sum, weights};
    };
    constexpr int EACH = (ROWS * D + WARPS * 32 - 1) / (WARPS * 32);
    f32 kept[EACH][3];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const i32 place = min((i32)(threadIdx.x + i * WARPS * 32), ROWS * D - 1);
        const auto all = merged(WARPS, place / D, place % D,
                                [&](int w, i32 r, i32 c) { return sums[w][r][c]; });
        kept[i][0] = all.top, kept[i][1] = all.sum, kept[i][2] = all.weights;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const i32 place = threadIdx.x + i * WARPS * 32;
        if (place >= ROWS * D) continue;
        f32* const to = sums[0][place / D];
        to[place % D] = kept[i][1];
        if (place % D == 0) to[D] = kept[i][0], to[D + 1] = kept[i][2];
    }
#if SPLIT > 1
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
#else
    __syncthreads();
#endif
    const i32 own_rows = min(ROWS, rows - skipped);
    for (i32 place = rank * WARPS * 32 + threadIdx.x; place < own_rows * D;
         place += SPLIT * WARPS * 32) {
        const i32 r = place / D, c = place % D, row = skipped + r;
        const i32 h = head * s.group + row / s.queries, query = row % s.queries;
        const auto all = merged(SPLIT, r, c, [&](int part, i32 r, i32 c) {
            return of_block(&sums[0][r][c], part);
        });
        const f32 inverse = all.weights > 0 ? 1 / all.weights : 0.0f;
        if (out)
            out[b * s.out[0] + h * s.out[1] + query * s.out[2] + c * s.out[3]] =
                convert<Element>(all.sum * inverse);
        if (lse && c == 0)
            lse[b * s.lse[0] + h * s.lse[1] + query * s.lse[2]] =
                all.weights > 0 ? all.top + logarithm(all.weights) : -infinity(f32());
    }
#if SPLIT > 1
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}
