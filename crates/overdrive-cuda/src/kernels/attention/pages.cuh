// The place of a key's row: in order, or in pages of a pool that sequences share.
//
// With pages, text before gives PAGE, their tokens; POOL, how many the pool has; and the strides of
// their numbers. The first stride of k and v is then that of pages.

#ifdef PAGE
#define PAGES const i32 *pages,
constexpr bool PAGED = true;
struct KeyRow {
    i32 page, row;
    __device__ __forceinline__ i64 at(i64 of_page, i64 of_row) const {
        return page * of_page + row * of_row;
    }
};
// Pages are clamped, as those of `gather` are.
__device__ __forceinline__ KeyRow in_page(i32 page, i32 key) {
    return {max(0, min(page, POOL - 1)), key % PAGE};
}
__device__ __forceinline__ KeyRow row_of_key(const i32* pages, i32 key) {
    return in_page(pages[key / PAGE * PAGES_N], key);
}
// The same before other kernels have ended: what it reads must not stay in the L1.
__device__ __forceinline__ KeyRow row_to_prefetch(const i32* pages, i32 key) {
    i32 page;
    asm volatile("ld.global.cg.s32 %0, [%1];" : "=r"(page) : "l"(pages + key / PAGE * PAGES_N));
    return in_page(page, key);
}
#define PAGES_OF(b) (pages + (b) * PAGES_B)
#else
#define PAGES
constexpr bool PAGED = false;
struct KeyRow {
    i32 row;
    __device__ __forceinline__ i64 at(i64, i64 of_row) const { return row * of_row; }
};
__device__ __forceinline__ KeyRow row_of_key(const i32*, i32 key) { return {key}; }
__device__ __forceinline__ KeyRow row_to_prefetch(const i32*, i32 key) { return {key}; }
#define PAGES_OF(b) nullptr
#endif
