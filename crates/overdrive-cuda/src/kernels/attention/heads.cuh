// Code that Hopper's kernels of attention and of its gradients share: boxes of heads, rings of
// stages, rounding.

#include "hopper.cuh"

constexpr f32 LOG2E = 1.4426950408889634f;
// Rows of a warpgroup.
constexpr int OWN = 64;
// A box is 128 bytes of channels by all rows of a tile.
constexpr int LINE = 128 / (int)sizeof(Element);
constexpr int PARTS = (D + LINE - 1) / LINE, PARTS_V = (DV + LINE - 1) / LINE;

// Matrix descriptors of 128-byte swizzle: eight lines to the next eight. Along rows also one box to
// the next.
constexpr u64 BY_CHANNEL = 1ull << 62 | 64ull << 32 | 1ull << 16;
constexpr u64 by_row(int box_bytes) {
    return 1ull << 62 | 64ull << 32 | (u64)(box_bytes / 16) << 16;
}
__device__ __forceinline__ u64 descriptor(u64 kind, u32 address) {
    return kind | (u64)((address & 0x3ffff) >> 4);
}

// A ring of stages: which one, and the parity of its turn.
template <int Count>
struct Turn {
    int stage = 0;
    u32 parity = 0;
    __device__ __forceinline__ void next() {
        if (++stage == Count) stage = 0, parity ^= 1;
    }
};

__device__ __forceinline__ void copy_head(u32 to, const TensorMap& map, u32 barrier, int channel,
                                          int row, int head, int batch) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%3, %4, %5, %6}], [%2];" ::
            "r"(to),
        "l"(&map), "r"(barrier), "r"(channel), "r"(row), "r"(head), "r"(batch)
        : "memory");
}
__device__ __forceinline__ void copy_head_out(const TensorMap& map, u32 from, int channel, int row,
                                              int head, int batch) {
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
            &map),
        "r"(from), "r"(channel), "r"(row), "r"(head), "r"(batch)
        : "memory");
}

__device__ __forceinline__ f32 power_of_two(f32 x) {
    f32 result;
    asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

template <int Count>
__device__ __forceinline__ void fence_sums(f32 (&sums)[Count]) {
#pragma unroll
    for (int i = 0; i < Count; i++) fence_sum(sums[i]);
}

// Issues the products of 64 rows and a block of others over `Channels` channels. A box of the left
// tile has `LeftBox` bytes, one of the right tile `RightBox`.
template <int Channels, int LeftBox, int RightBox, int Count>
__device__ __forceinline__ void issue_by_channel(f32 (&sums)[Count], u64 left, u64 right) {
    products_begin();
#pragma unroll
    for (int c = 0; c < (Channels + 15) / 16; c++) {
        const u32 part = c * 16 / LINE, step = c * 16 % LINE / 8;
        wgmma(sums, left + part * (LeftBox / 16) + step, right + part * (RightBox / 16) + step,
              c > 0);
    }
    products_commit();
}
// Issues the products of weights in registers and the rows of a block, added to `sums`.
template <int Count, int Weights>
__device__ __forceinline__ void issue_by_row(f32 (&sums)[Count], u32 (&weights)[Weights],
                                             u64 rows) {
    fence_sums(sums);
#pragma unroll
    for (int i = 0; i < Weights; i++) asm volatile("" : "+r"(weights[i])::"memory");
    products_begin();
#pragma unroll
    for (int c = 0; c < Weights / 4; c++) {
        const u32 chunk[4] = {weights[4 * c], weights[4 * c + 1], weights[4 * c + 2],
                              weights[4 * c + 3]};
        wgmma_of_registers(sums, chunk, rows + c * (16 * 128 / 16));
    }
    products_commit();
}

// Rounds 64 rows of sums to their place in boxes of `BoxBytes`; rows r and r + 8 of a thread have a
// factor each.
template <int Channels, int BoxBytes>
__device__ __forceinline__ void round_sums(u32 own, int thread, const f32 (&sums)[Channels / 2],
                                           const f32 (&factor)[2]) {
    const int lane = thread % 32;
    const u32 at_row = thread / 32 * 16 + lane % 16;
#pragma unroll
    for (int c = 0; c < Channels / 16; c++) {
        const f32* from = &sums[8 * c];
        const u32 unit = (c * 16 % LINE) / 8 + lane / 16;
        const u32 to = own + c * 16 / LINE * BoxBytes + at_row * 128 + ((unit ^ at_row % 8) << 4);
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                     "r"(pair(from[0] * factor[0], from[1] * factor[0])),
                     "r"(pair(from[2] * factor[1], from[3] * factor[1])),
                     "r"(pair(from[4] * factor[0], from[5] * factor[0])),
                     "r"(pair(from[6] * factor[1], from[7] * factor[1]))
                     : "memory");
    }
}
