// Fragments of 16-bit floats for `mma.sync`: rows of a matrix into shared memory, from there into
// registers, and the product of two fragments. Blocks have 128 threads.

// Sixteen bytes past each row keep the eight rows of an `ldmatrix` on banks of their own.
constexpr int SKEW = 8;

__device__ __forceinline__ u32 address(const void* at) { return (u32)__cvta_generic_to_shared(at); }

// Rows `first..` of a matrix; rows past `count` become zeros.
template <int ROWS, int WIDTH>
__device__ __forceinline__ void copy(Element (&to)[ROWS][WIDTH + SKEW], const Element* from,
                                     i64 stride, i32 first, i32 count) {
    constexpr int PARTS = WIDTH / 8;
#pragma unroll
    for (int n = 0; n < (ROWS * PARTS + 127) / 128; n++) {
        const int i = n * 128 + threadIdx.x, row = i / PARTS, part = i % PARTS * 8;
        if (ROWS * PARTS % 128 != 0 && i >= ROWS * PARTS) break;
        const bool real = first + row < count;
        const Element* at = from + (real ? (first + row) * stride + part : 0);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address(&to[row][part])),
                     "l"(at), "r"(real ? 16 : 0)
                     : "memory");
    }
}

__device__ __forceinline__ void load(u32 (&to)[4], const void* at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address(at)));
}
__device__ __forceinline__ void load_transposed(u32 (&to)[4], const void* at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address(at)));
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
