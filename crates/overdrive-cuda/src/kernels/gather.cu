// Windows of an operand at positions that are data. -D BYTES, POSITION as in transfer.cu; INDEX:
// type of the indices; EMPTY: there is nothing to gather from, and the specification says zeros.

typedef BitsOf<BYTES>::type Bits;

extern "C" __global__ void gather(const Bits* operand, const INDEX* indices, Bits* result,
                                  IndexedRows rows, Nest<2> window) {
    POSITION i = (POSITION)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows.nest.count * window.count) return;
    POSITION row = i / (POSITION)window.count;
    i64 from, to, at[2];
    rows.place(row, indices, from, to);
    window.locate(i - row * (POSITION)window.count, at);
#ifdef EMPTY
    result[to + at[1]] = Bits{};
#else
    result[to + at[1]] = operand[from + at[0]];
#endif
}
