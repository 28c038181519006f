// Convolution as a matrix product that is never written down: weights [O, K] by columns [K, pixels]
// of each group.
//
// K counts taps, then channels. So a step of K has one tap where the channels of a group are a
// multiple of it, and its bounds are tested once. Weights are packed beforehand to [K, O] of whole
// tiles (`pack`). Columns are gathered from the input as it lies, whatever its strides. They go
// through registers into shared memory, one step ahead of the product. Sums pass through shared
// memory, so that threads of a warp finish neighbouring pixels of one channel. Source: Chetlur et
// al., "cuDNN: efficient primitives for deep learning", arXiv:1410.0759 (implicit GEMM).
//
// Text before this file (geometry.rs) gives:
//
// - `Element`, `Partial`, the extents, `Pixel`, `pixel`, `Tap`, `tap`, `source` and `weight`;
// - `epilogue` of LANES neighbouring pixels over `SLOTS` (parameters) and `NAMES` (arguments);
// - BM, channels of a tile.
//
// -D TENSOR: 16-bit floats on the tensor cores.

constexpr int BN = 128, THREADS = 256;
#ifdef TENSOR
constexpr int BK = 32;
typedef Element Staged;
#else
constexpr int BK = sizeof(Partial) == 8 ? 8 : 16;
typedef Partial Staged;
#endif
constexpr int STEPS = (K + BK - 1) / BK;
constexpr int PADDED_O = (OUTPUTS + BM - 1) / BM * BM;
constexpr int SKEW = 16 / sizeof(Staged);  // Keeps rows 16-byte aligned and off each other's banks.
// Channels that pass through shared memory at once.
#ifdef TENSOR
constexpr int ROWS = 64;
#else
constexpr int ROWS = 32;
#endif

extern "C" __global__ void pack(const Element* weights, Staged* packed) {
    const u32 i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= (u32)GROUPS * STEPS * BK * PADDED_O) return;
    const u32 o = i % PADDED_O, k = i / PADDED_O % (STEPS * BK),
              group = i / PADDED_O / (STEPS * BK);
    const bool real = o < OUTPUTS && k < K;
    packed[i] =
        real ? convert<Staged>(weights[weight(group * OUTPUTS + o, k % CHANNELS, k / CHANNELS)])
             : Staged{};
}

union Shared {
    struct {
        Staged a[2][BK][BM + SKEW];
        Staged b[2][BK][BN + SKEW];
    } tiles;
    Partial sums[ROWS][BN + 4];
};

// A thread gathers two neighbouring pixels at every fourth row of a step.
constexpr int LOADS = BK / 4;
struct Columns {
    Pixel pixels[2];
    Element values[LOADS][2];

    __device__ __forceinline__ void read(const Element* input, int step) {
        const int row = threadIdx.x / 64;
        if constexpr (CHANNELS % BK == 0) {
            const Tap at = tap(step * BK / CHANNELS);
            const int channel = step * BK % CHANNELS + row;
#pragma unroll
            for (int p = 0; p < 2; p++) {
                Offset from;
                const bool inside = source(pixels[p], at, from);
#pragma unroll
                for (int i = 0; i < LOADS; i++) {
                    values[i][p] =
                        inside ? input[from + (channel + 4 * i) * CHANNEL_STRIDE] : Element{};
                }
            }
        } else {
#pragma unroll
            for (int i = 0; i < LOADS; i++) {
                const int k = step * BK + row + 4 * i;
                const Tap at = tap(k / CHANNELS);
#pragma unroll
                for (int p = 0; p < 2; p++) {
                    Offset from;
                    const bool inside = k < K && source(pixels[p], at, from);
                    values[i][p] = inside ? input[from + k % CHANNELS * CHANNEL_STRIDE] : Element{};
                }
            }
        }
    }

    __device__ __forceinline__ void write(Staged (&to)[BK][BN + SKEW]) const {
        const int row = threadIdx.x / 64, column = threadIdx.x % 64 * 2;
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            Staged* at = &to[row + 4 * i][column];
#ifdef TENSOR
            *reinterpret_cast<u32*>(at) = (u32)values[i][1].code << 16 | values[i][0].code;
#else
            at[0] = convert<Staged>(values[i][0]);
            at[1] = convert<Staged>(values[i][1]);
#endif
        }
    }
};

__device__ __forceinline__ void copy_async(void* to, const void* from) {
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)),
        "l"(from)
        : "memory");
}

// Weights of a step; `packed` is at the tile's first channel.
__device__ __forceinline__ void copy_weights(Staged (&to)[BK][BM + SKEW], const Staged* packed,
                                             int step) {
    constexpr int each = 16 / sizeof(Staged), row_parts = BM / each;
    static_assert(BK * row_parts % THREADS == 0, "threads have equal parts");
#pragma unroll
    for (int part = 0; part < BK * row_parts / THREADS; part++) {
        const int i = part * THREADS + threadIdx.x, row = i / row_parts,
                  column = i % row_parts * each;
        copy_async(&to[row][column], packed + (i64)(step * BK + row) * PADDED_O + column);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

#ifdef TENSOR
// Eight warps, two along the channels: fragments of 16 x 8 sums each.
constexpr int WM = BM / 2, WN = BN / 4, FM = WM / 16, FN = WN / 8;

__device__ __forceinline__ void load_transposed(u32 (&to)[4], const void* at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((u32)__cvta_generic_to_shared(at)));
}

__device__ __forceinline__ void multiply(f32 (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#define MMA(type)                                                         \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type   \
                 ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "           \
                 "{%0,%1,%2,%3};"                                         \
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
    if constexpr (same<Element, bf16>) MMA("bf16");
    else MMA("f16");
#undef MMA
}

struct Sums {
    f32 at[FM][FN][4] = {};

    __device__ __forceinline__ void add(const Staged (&a)[BK][BM + SKEW],
                                        const Staged (&b)[BK][BN + SKEW]) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const int m = warp / 4 * WM, n = warp % 4 * WN;
#pragma unroll
        for (int k = 0; k < BK; k += 16) {
            u32 left[FM][4], right[FN / 2][4];
#pragma unroll
            for (int i = 0; i < FM; i++) {
                // Quarters (m, k), (m + 8, k), (m, k + 8), (m + 8, k + 8) of a fragment that is
                // stored [k][m].
                load_transposed(left[i],
                                &a[k + lane % 8 + lane / 16 * 8][m + i * 16 + lane / 8 % 2 * 8]);
            }
#pragma unroll
            for (int j = 0; j < FN / 2; j++) {
                load_transposed(right[j], &b[k + lane % 16][n + j * 16 + lane / 16 * 8]);
            }
#pragma unroll
            for (int i = 0; i < FM; i++) {
#pragma unroll
                for (int j = 0; j < FN; j++)
                    multiply(at[i][j], left[i], right[j / 2][j % 2 * 2],
                             right[j / 2][j % 2 * 2 + 1]);
            }
        }
    }

    // Fragments and channels of a warp in a pass.
    static constexpr int EACH = ROWS / 32, CHANNELS_EACH = 16 * EACH, PASSES = FM / EACH;

    // Channel of row `row` of pass `pass`, in the tile.
    static __device__ __forceinline__ int channel(int pass, int row) {
        return row / CHANNELS_EACH * WM + pass * CHANNELS_EACH + row % CHANNELS_EACH;
    }

    template <int PASS>
    __device__ __forceinline__ void put(Partial (&to)[ROWS][BN + 4]) const {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const int column = warp % 4 * WN + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int row = warp / 4 * CHANNELS_EACH + i * 16 + lane / 4;
            const f32(&from)[FN][4] = at[PASS * EACH + i];
#pragma unroll
            for (int j = 0; j < FN; j++) {
                *reinterpret_cast<float2*>(&to[row][column + j * 8]) =
                    make_float2(from[j][0], from[j][1]);
                *reinterpret_cast<float2*>(&to[row + 8][column + j * 8]) =
                    make_float2(from[j][2], from[j][3]);
            }
        }
    }
};
#else
// 16 x 16 threads, each with BM / 16 channels (16 apart) of 8 pixels (16 apart).
constexpr int FM = BM / 16, FN = BN / 16;

struct Sums {
    Partial at[FM][FN] = {};

    __device__ __forceinline__ void add(const Staged (&a)[BK][BM + SKEW],
                                        const Staged (&b)[BK][BN + SKEW]) {
        const int m = threadIdx.x / 16, n = threadIdx.x % 16;
#pragma unroll 4
        for (int k = 0; k < BK; k++) {
            Partial left[FM], right[FN];
#pragma unroll
            for (int i = 0; i < FM; i++) left[i] = a[k][m + 16 * i];
#pragma unroll
            for (int j = 0; j < FN; j++) right[j] = b[k][n + 16 * j];
#pragma unroll
            for (int i = 0; i < FM; i++) {
#pragma unroll
                for (int j = 0; j < FN; j++) at[i][j] += left[i] * right[j];
            }
        }
    }

    static constexpr int PASSES = FM / 2;

    static __device__ __forceinline__ int channel(int pass, int row) { return pass * 32 + row; }

    template <int PASS>
    __device__ __forceinline__ void put(Partial (&to)[ROWS][BN + 4]) const {
        const int m = threadIdx.x / 16, n = threadIdx.x % 16;
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int j = 0; j < FN; j++) to[m + 16 * i][n + 16 * j] = at[2 * PASS + i][j];
        }
    }
};
#endif

// A thread finishes LANES neighbouring pixels of a channel at a time.
template <int PASS>
__device__ __forceinline__ void finish(const Sums& sums, Shared& shared, SLOTS) {
    if constexpr (PASS < Sums::PASSES) {
        constexpr int ACROSS = BN / LANES, DOWN = THREADS / ACROSS, PART = 16 / sizeof(Partial),
                      WIDE = LANES < PART ? LANES : PART;
        __syncthreads();
        sums.put<PASS>(shared.sums);
        __syncthreads();
        const int column = threadIdx.x % ACROSS * LANES;
        const Offset n = (Offset)blockIdx.x * BN + column;
#pragma unroll
        for (int i = 0; i < ROWS / DOWN; i++) {
            const int row = threadIdx.x / ACROSS + i * DOWN,
                      o = blockIdx.y * BM + Sums::channel(PASS, row);
            if (o >= OUTPUTS || n >= PIXELS) continue;
            Partial values[LANES];
            load<WIDE>(values, &shared.sums[row][column]);
            epilogue(values, blockIdx.z * OUTPUTS + o, n, NAMES);
        }
        finish<PASS + 1>(sums, shared, NAMES);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BM == 64 ? 3 : 2)
    convolution(const Element* __restrict__ input, const Staged* __restrict__ packed, SLOTS) {
    __shared__ __align__(16) unsigned char bytes[sizeof(Shared)];
    Shared& shared = *reinterpret_cast<Shared*>(bytes);
    input += (Offset)blockIdx.z * CHANNELS * CHANNEL_STRIDE;
    packed += (i64)blockIdx.z * STEPS * BK * PADDED_O + blockIdx.y * BM;
    Columns columns;
    for (int p = 0; p < 2; p++)
        columns.pixels[p] = pixel((Offset)blockIdx.x * BN + threadIdx.x % 64 * 2 + p);
    Sums sums;
    if (STEPS > 0) {
        copy_weights(shared.tiles.a[0], packed, 0);
        columns.read(input, 0);
        columns.write(shared.tiles.b[0]);
    }
    for (int step = 0; step < STEPS; step++) {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        const int now = step % 2, next = 1 - now;
        if (step + 1 < STEPS) {
            copy_weights(shared.tiles.a[next], packed, step + 1);
            columns.read(input, step + 1);
        }
        sums.add(shared.tiles.a[now], shared.tiles.b[now]);
        if (step + 1 < STEPS) columns.write(shared.tiles.b[next]);
    }
    finish<0>(sums, shared, NAMES);
}
