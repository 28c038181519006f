// How rows of indices become places in the operand: `IndexedRows` in rows.rs.

struct IndexedRows {
    Nest<2> nest;  // Over rows: strides in the indices, and among the windows.
    u32 axes;
    i64 limits[8];  // Last index of each indexed axis.
    i64 strides[8];
    i64 step;  // From one index of a row to the next.

    template <class I, class T>
    __device__ void place(I row, const T* indices, i64& window, i64& among) const {
        i64 at[2];
        nest.locate(row, at);
        window = 0;
        for (int a = 0; a < axes; a++) {
            window += clamped(saturated(indices[at[0] + a * step]), limits[a]) * strides[a];
        }
        among = at[1];
    }
};
