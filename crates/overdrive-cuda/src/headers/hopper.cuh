// The parts that kernels for Hopper share: barriers in shared memory, the bulk copy engine (TMA),
// clusters, registers that move from one warpgroup to another. PTX ISA, "mbarrier",
// "cp.async.bulk", "setmaxnreg".
#pragma once
#include "number.cuh"

constexpr int WARPGROUP = 128;

struct alignas(128) TensorMap {
    u64 opaque[16];
};

__device__ __forceinline__ u32 shared_address(const void* pointer) {
    return (u32)__cvta_generic_to_shared(pointer);
}

__device__ __forceinline__ void barrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ __forceinline__ void barriers_are_set() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    u32 done;
    do {
        asm volatile(
            "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n}"
            : "=r"(done)
            : "r"(barrier), "r"(parity)
            : "memory");
    } while (!done);
}
// Arrives in block `rank` of a cluster of `Blocks`. Only the tensor cores have read the tile, and
// that is over. So nothing needs the device-wide barrier that a release at cluster scope is.
template <int Blocks>
__device__ __forceinline__ void barrier_arrive(u32 barrier, u32 rank) {
    if constexpr (Blocks == 1) {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
    } else {
        asm volatile(
            "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
            "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
            "r"(rank)
            : "memory");
    }
}
template <int Blocks>
__device__ __forceinline__ u32 cluster_rank() {
    if constexpr (Blocks == 1) return 0;
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
template <int Blocks>
__device__ __forceinline__ void cluster_sync() {
    if constexpr (Blocks > 1)
        asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
// Writes a number to the place of block `rank` that is here at `to`, and tells the barrier there,
// which waits for bytes.
__device__ __forceinline__ void push(u32 to, u32 barrier, u32 rank, f32 value) {
    asm volatile(
        "{\n.reg .b32 there, told;\nmapa.shared::cluster.u32 there, %0, %2;\n"
        "mapa.shared::cluster.u32 told, %1, %2;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [there], %3, [told];\n}" ::"r"(
            to),
        "r"(barrier), "r"(rank), "r"(__float_as_uint(value))
        : "memory");
}
// The halves of `cluster_sync`, for threads that have something to do in between.
template <int Blocks>
__device__ __forceinline__ void arrive_in_cluster() {
    if constexpr (Blocks > 1) asm volatile("barrier.cluster.arrive;" ::: "memory");
}
template <int Blocks>
__device__ __forceinline__ void wait_for_cluster() {
    if constexpr (Blocks > 1) asm volatile("barrier.cluster.wait;" ::: "memory");
}
template <int Id>
__device__ __forceinline__ void named_sync(int which, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(Id + which), "r"(threads) : "memory");
}
template <int Id>
__device__ __forceinline__ void named_arrive(int which, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(Id + which), "r"(threads) : "memory");
}

// Whether `value` holds in any of the threads, which wait for each other.
template <int Id>
__device__ __forceinline__ bool named_any(int which, int threads, bool value) {
    u32 any;
    asm volatile(
        "{\n.reg .pred p, q;\nsetp.ne.u32 p, %1, 0;\nbarrier.cta.red.or.pred q, %2, %3, p;\n"
        "selp.u32 %0, 1, 0, q;\n}"
        : "=r"(any)
        : "r"((u32)value), "r"(Id + which), "r"(threads)
        : "memory");
    return any != 0;
}

// A box of a tensor to shared memory, here or in every block of the cluster.
__device__ __forceinline__ void copy_in(u32 to, const TensorMap& map, u32 barrier, int x, int y,
                                        int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%3, %4, %5}], [%2];" ::
            "r"(to),
        "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z)
        : "memory");
}
template <int Blocks>
__device__ __forceinline__ void copy_to_all(u32 to, const TensorMap& map, u32 barrier, int x, int y,
                                            int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster "
        "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"((u16)((1 << Blocks) - 1))
        : "memory");
}
// Prefetches a box before anybody may read it: L2 always holds the bytes that were written last.
__device__ __forceinline__ void ask_for(const TensorMap& map, int x, int y, int z) {
    asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(&map),
                 "r"(x), "r"(y), "r"(z)
                 : "memory");
}
__device__ __forceinline__ void copy_out(const TensorMap& map, u32 from, int x, int y, int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];\n"
        "cp.async.bulk.commit_group;" ::
            "l"(&map),
        "r"(from), "r"(x), "r"(y), "r"(z)
        : "memory");
}
// Waits until all but the last `Left` copies out of this thread have read their source.
template <int Left>
__device__ __forceinline__ void copies_have_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Left) : "memory");
}
__device__ __forceinline__ void copies_are_done() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
// Between ordinary writes to shared memory and a copy or a product that reads them.
__device__ __forceinline__ void fence_shared() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

template <int Registers>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

__device__ __forceinline__ void products_begin() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void products_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until all but the last `Left` groups of products are done.
template <int Left>
__device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Left) : "memory");
}
// Keeps the compiler from moving reads or writes of a sum past this point.
__device__ __forceinline__ void fence_sum(f32& sum) { asm volatile("" : "+f"(sum)::"memory"); }
__device__ __forceinline__ void fence_sum(i32& sum) { asm volatile("" : "+r"(sum)::"memory"); }

// The part of an operand's tile that a block copies: rows (or columns) `first` on of `EXTENT`, as
// boxes.
//
// If the operand is contiguous along k, a box is 128 bytes of k by up to 256 rows. Otherwise it is
// one swizzle's width of rows by as many k as fill 128 bytes.
template <int ELEMENT_BYTES, bool BY_K, int EXTENT>
struct Operand {
    // Bytes of an atom's line where k is not contiguous.
    static constexpr int LINE =
        BY_K ? 128 : (EXTENT * ELEMENT_BYTES < 128 ? EXTENT * ELEMENT_BYTES : 128);
    static constexpr int WIDTH = BY_K ? EXTENT : LINE / ELEMENT_BYTES;
    static constexpr int BOX_BYTES = BY_K ? EXTENT * 128 : LINE * (128 / ELEMENT_BYTES);
    static constexpr u64 SWIZZLE = LINE == 128 ? 1 : LINE == 64 ? 2 : 3;
    // Matrix descriptor (PTX ISA, "Matrix Descriptor Format"). The leading byte offset is from one
    // atom to the next along rows, the stride byte offset from eight lines to the next eight.
    static constexpr u64 DESCRIPTOR =
        SWIZZLE << 62 | (u64)(LINE * 8 / 16) << 32 | (u64)(BY_K ? 1 : BOX_BYTES / 16) << 16;
    // From one instruction's bytes to the next along k, in 16 bytes.
    static constexpr u32 STEP = (BY_K ? 32 : 32 / ELEMENT_BYTES * LINE) / 16;

    // From the tile's first row to row `r`, a multiple of an atom's, in bytes.
    __device__ static constexpr u32 row(int r) { return BY_K ? r * 128 : r / WIDTH * BOX_BYTES; }

    __device__ static u64 descriptor(u32 address) {
        return DESCRIPTOR | (u64)((address & 0x3ffff) >> 4);
    }

    __device__ static void ask(const TensorMap& map, int first, int k, int batch) {
#pragma unroll
        for (int r = 0; r < EXTENT; r += WIDTH)
            ask_for(map, BY_K ? k : first + r, BY_K ? first + r : k, batch);
    }

    // To all `Blocks` of the cluster.
    template <int Blocks>
    __device__ static void copy(u32 to, const TensorMap& map, u32 barrier, int first, int k,
                                int batch) {
#pragma unroll
        for (int r = 0; r < EXTENT; r += WIDTH) {
            const u32 at = to + row(r);
            const int x = BY_K ? k : first + r, y = BY_K ? first + r : k;
            if constexpr (Blocks > 1) copy_to_all<Blocks>(at, map, barrier, x, y, batch);
            else copy_in(at, map, barrier, x, y, batch);
        }
    }
};
