// `sparse_linear` on Hopper, with the printed epilogue. Two of each four weights stay, and sparse
// tensor cores multiply them by the two inputs that they stand for. A matrix instruction takes the
// sparse operand on its left alone, so that this forms `y^T = W x^T`.
//
// A producer warp copies values and x to shared memory by TMA, consumer warpgroups multiply them.
// The places need no memory of their own. A thread reads bits of the mask, 32 bytes of a row in
// four lanes, long before they are wanted. It turns them into the metadata of wgmma: two numbers of
// two bits for each four places. Sums are transposed on their way through shared memory (stmatrix
// with transposition), so that rows of y are contiguous again.
//
// The bounds: for a tile of 256 rows wgmma reads x from shared memory at full rate, 128 bytes a
// cycle, and reads values besides. A block takes in no more than 64 bytes a cycle. Each bound
// leaves some three quarters of the sparse peak. At the power limit the lower clock takes the rest.
//
// Metadata: PTX ISA, "Sparse wgmma", figures of metadata of .m64nNk32. A warp has 16 rows. Lane 4g
// + h has 16 places of row g in the low half, and of row g + 8 in the high one. Selector 0 is for h
// of 0 and 1, selector 1 for h of 2 and 3.
//
// CONSUMERS: warpgroups, each with 64 outputs of a block's. TILE_N: rows of x of a block. STAGES:
// tiles in flight. GROUP: tiles of outputs that are walked before the next rows of x. BLOCKS: of
// the grid. STORE_BY_TMA: the result, of two bytes, goes through shared memory. M rows of x in each
// of BATCH that the epilogue tells apart, N outputs, K inputs. From the printed text: wgmma, Slots,
// epilogue, store_result.

#include "hopper.cuh"

constexpr int ROWS = M * (int)BATCH, INPUTS = (int)K;
constexpr int TILE_M = CONSUMERS * 64;
constexpr int TILE_K = 64;                       // inputs, of which 32 stay
constexpr int VALUES_BYTES = TILE_M * TILE_K;    // 64 bytes a row
constexpr int X_BYTES = TILE_N * TILE_K * 2;     // 128 bytes a row
constexpr int TILES_K = INPUTS / TILE_K;
constexpr int TILES_M = (N + TILE_M - 1) / TILE_M, TILES_N = (ROWS + TILE_N - 1) / TILE_N;
constexpr int TILES = TILES_M * TILES_N;
constexpr int SLICE = TILE_N < 64 ? TILE_N : 64;
constexpr int STORE_BYTES = SLICE * 128; // 64 outputs of a slice's rows
constexpr int WINDOW = 4;                // tiles whose places a thread reads at once
constexpr int MASK_ROW = INPUTS / 8;
constexpr bool WHOLE = N % TILE_M == 0 && ROWS % TILE_N == 0;

typedef f32 Sums[TILE_N / 2];
template <int V>
struct Number {
    static constexpr int value = V;
};
struct alignas(16) Bits {
    u32 at[4];
};

// The numbers of the first two bits that are set in each four bits. The second is one, two or three
// after the first.
__device__ __forceinline__ u32 places(u32 mask) {
    constexpr u32 FIRST = 0x11111111;
    const u32 a = mask, b = mask >> 1, c = mask >> 2;
    const u32 first_low = ~a & b & FIRST, first_high = ~(a | b) & FIRST;
    const u32 second_low = ~(c & (a ^ b)) & FIRST, second_high = ~(a & b) & FIRST;
    return first_low | first_high << 1 | second_low << 2 | second_high << 3;
}

struct Tile {
    int output, row;
};

// Tiles in groups of GROUP tiles of outputs, so that tiles that run at once share operands in L2.
__device__ __forceinline__ Tile tile_at(int index) {
    const int per_group = GROUP * TILES_N, group = index / per_group, within = index % per_group;
    const int outputs = min(GROUP, TILES_M - group * GROUP);
    return {(group * GROUP + within % outputs) * TILE_M, within / outputs * TILE_N};
}

__device__ __forceinline__ void fence_sums(Sums& sums) {
#pragma unroll
    for (int i = 0; i < TILE_N / 2; ++i) fence_sum(sums[i]);
}

// Bits of a thread's two rows of weights. Lanes 0 and 1 of four have the first half of a window,
// lanes 2 and 3 the second. Bits beyond the last stand for values that are not there, zeros of the
// copy engine.
__device__ __forceinline__ void read_bits(Bits (&bits)[2], const u8* mask, int output, int window) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % WARPGROUP / 32;
    const int at = min(window * WINDOW * TILE_K / 8 + (lane & 2) * 8, MASK_ROW - 16);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = min(output + warp * 16 + lane / 4 + half * 8, N - 1);
        bits[half] = *(const Bits*)(mask + (i64)row * MASK_ROW + at);
    }
}

__device__ __forceinline__ void take_places(u32 (&meta)[WINDOW], const Bits (&bits)[2]) {
    const u32 selector = threadIdx.x & 1 ? 0x7632 : 0x5410;
#pragma unroll
    for (int i = 0; i < WINDOW; ++i)
        meta[i] = places(__byte_perm(bits[0].at[i], bits[1].at[i], selector));
}

// Applies the epilogue to a warpgroup's sums and stores them, a slice of rows of y at a time.
__device__ __forceinline__ void finish(Sums& sums, Tile tile, const TensorMap& map,
                                       const Slots& slots, u32 buffer) {
    const int warpgroup = threadIdx.x / WARPGROUP, thread = threadIdx.x % WARPGROUP,
              lane = thread % 32, warp = thread / 32;
#pragma unroll
    for (int slice = 0; slice < TILE_N; slice += SLICE) {
        // Waits until the last copy from the buffer has read it. The wait also separates the wait
        // for wgmma from the first use of its sums (see the kernel of dense products).
        if (thread == 0) copies_have_read<0>();
        if constexpr (STORE_BY_TMA) named_sync<1>(warpgroup, WARPGROUP);
#pragma unroll
        for (int j = 0; j < SLICE; j += 16) {
            // In each eight rows by eight outputs, a thread has two rows of one output. So it has
            // four such pairs of sixteen by sixteen.
            OUT values[4][2];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int next = 0; next < 2; ++next) {
                    const int row = tile.row + slice + j + i / 2 * 8 + lane % 4 * 2 + next;
                    const int output = tile.output + warp * 16 + i % 2 * 8 + lane / 4;
                    const f32 sum[1] = {sums[(slice + j) / 2 + i * 2 + next]};
                    OUT out[1];
                    if (WHOLE || (row < ROWS && output < N)) {
                        const u32 batch = BATCH == 1 ? 0 : row / M;
                        const int within = BATCH == 1 ? row : row % M;
                        epilogue<1>(slots, batch, within, output, sum, 1, out);
                        if constexpr (!STORE_BY_TMA)
                            store_result<1>(slots, batch, within, output, out, 1);
                    }
                    values[i][next] = out[0];
                }
            }
            if constexpr (STORE_BY_TMA) {
                u32 pairs[4];
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    pairs[i] = bitcast<u16>(values[i][0]) | (u32)bitcast<u16>(values[i][1]) << 16;
                const int row = j + lane / 16 * 8 + lane % 8, chunk = warp * 2 + lane / 8 % 2;
                const u32 to = buffer + row * 128 + ((chunk ^ (row & 7)) << 4);
                asm volatile(
                    "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                        to),
                    "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
                    : "memory");
            }
        }
        if constexpr (STORE_BY_TMA) {
            fence_shared();
            named_sync<1>(warpgroup, WARPGROUP);
            if (thread == 0) copy_out(map, buffer, tile.output, tile.row + slice, 0);
        }
    }
}

extern "C" __global__ void __launch_bounds__((CONSUMERS + 1) * WARPGROUP, 1)
    sparse_linear(const __grid_constant__ TensorMap values_map,
                  const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap y_map,
                  const u8* mask, const __grid_constant__ Slots slots) {
    extern __shared__ u8 dynamic[];
    __shared__ alignas(8) u64 full[STAGES], empty[STAGES];
    const u32 base = (shared_address(dynamic) + 1023) & ~1023u;
    const u32 x_tiles = base, values_tiles = x_tiles + STAGES * X_BYTES,
              stores = values_tiles + STAGES * VALUES_BYTES;
    const u32 filled = shared_address(full), freed = shared_address(empty);
    const int warpgroup = threadIdx.x / WARPGROUP;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(filled + s * 8, 1);
            barrier_init(freed + s * 8, 4 * CONSUMERS);
        }
        barriers_are_set();
    }
    __syncthreads();
    const int first = blockIdx.x;
    // Weights are far away: they set out while the kernel before this one still runs.
    if (threadIdx.x == 0) {
        const Tile tile = tile_at(first);
        for (int k = 0; k < (STAGES < TILES_K ? STAGES : TILES_K); ++k)
            ask_for(values_map, k * TILE_K / 2, tile.output, 0);
    }
    after_previous();
    if (warpgroup == 0) {
        if constexpr (CONSUMERS > 1) give_registers<40>();
        if (threadIdx.x == 0) {
            u32 stage = 0, parity = 1;
            for (int index = first; index < TILES; index += BLOCKS) {
                const Tile tile = tile_at(index);
                for (int k = 0; k < TILES_K; ++k) {
                    barrier_wait(freed + stage * 8, parity);
                    const u32 barrier = filled + stage * 8;
                    barrier_expect(barrier, VALUES_BYTES + X_BYTES);
                    copy_in(values_tiles + stage * VALUES_BYTES, values_map, barrier,
                            k * TILE_K / 2, tile.output, 0);
                    copy_in(x_tiles + stage * X_BYTES, x_map, barrier, k * TILE_K, tile.row, 0);
                    if (++stage == STAGES) stage = 0, parity ^= 1;
                }
            }
        }
    } else {
        if constexpr (CONSUMERS > 1) take_registers<232>();
        const int consumer = warpgroup - 1, lane = threadIdx.x % 32;
        const u32 buffer = stores + consumer * STORE_BYTES;
        u32 stage = 0, parity = 0, previous = 0;
        // Two windows: places are read by products that are still under way while the next ones are
        // made.
        u32 meta[2][WINDOW];
        Bits bits[2];
        const auto output_of = [&](int index) { return tile_at(index).output + consumer * 64; };
        if (first < TILES) read_bits(bits, mask, output_of(first), 0);
        for (int index = first; index < TILES; index += BLOCKS) {
            Tile tile = tile_at(index);
            tile.output += consumer * 64;
            Sums sums;
            // Tile k, whose place in two windows is known at compile time, since registers have no
            // run-time index.
            const auto multiply = [&](int k, auto place) {
                constexpr int at = decltype(place)::value;
                if constexpr (at % WINDOW == 0) {
                    take_places(meta[at / WINDOW], bits);
                    read_bits(bits, mask, tile.output, k / WINDOW + 1);
                }
                barrier_wait(filled + stage * 8, parity);
                // Matrix descriptors (PTX ISA, "Matrix Descriptor Format"): values in lines of 64
                // bytes, x in lines of 128.
                const u32 values_at = values_tiles + stage * VALUES_BYTES + consumer * 4096,
                          x_at = x_tiles + stage * X_BYTES;
                const u64 values = 2ull << 62 | (u64)(64 * 8 / 16) << 32 | 1ull << 16 |
                                   (u64)((values_at & 0x3ffff) >> 4);
                const u64 x = 1ull << 62 | (u64)(128 * 8 / 16) << 32 | 1ull << 16 |
                              (u64)((x_at & 0x3ffff) >> 4);
                const u32(&of_window)[WINDOW] = meta[at / WINDOW];
                constexpr int selector = at % WINDOW / 2, word = at % 2 * 2;
                fence_sums(sums);
                products_begin();
                wgmma<selector>(sums, values, x, of_window[word], k);
                wgmma<selector>(sums, values + 32 / 16, x + 64 / 16, of_window[word + 1], 1);
                products_commit();
                fence_sums(sums);
                // The tile before this one has been read once only this one's products are under
                // way.
                products_wait<1>();
                if (k > 0 && lane == 0) barrier_arrive<1>(freed + previous * 8, 0);
                previous = stage;
                if (++stage == STAGES) stage = 0, parity ^= 1;
            };
            constexpr int TURN = 2 * WINDOW, LEFT = TILES_K % TURN;
            int k = 0;
            for (; k + TURN <= TILES_K; k += TURN) {
                multiply(k, Number<0>());
                multiply(k + 1, Number<1>());
                multiply(k + 2, Number<2>());
                multiply(k + 3, Number<3>());
                multiply(k + 4, Number<4>());
                multiply(k + 5, Number<5>());
                multiply(k + 6, Number<6>());
                multiply(k + 7, Number<7>());
            }
            if constexpr (LEFT > 0) multiply(k, Number<0>());
            if constexpr (LEFT > 1) multiply(k + 1, Number<1>());
            if constexpr (LEFT > 2) multiply(k + 2, Number<2>());
            if constexpr (LEFT > 3) multiply(k + 3, Number<3>());
            if constexpr (LEFT > 4) multiply(k + 4, Number<4>());
            if constexpr (LEFT > 5) multiply(k + 5, Number<5>());
            if constexpr (LEFT > 6) multiply(k + 6, Number<6>());
            products_wait<0>();
            fence_sums(sums);
            if (lane == 0) barrier_arrive<1>(freed + previous * 8, 0);
            // The next tile's first bits come while this one is stored.
            if (index + BLOCKS < TILES) read_bits(bits, mask, output_of(index + BLOCKS), 0);
            finish(sums, tile, y_map, slots, buffer);
        }
        if (threadIdx.x % WARPGROUP == 0) copies_are_done();
    }
}
