// GELU for results of at most 16 bits.

__device__ __forceinline__ f32 exp2_fast(f32 x) {
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// x Phi(x). The tail Phi(-t) is two to the power of a polynomial in t, so that no digits cancel: relative error below
// 7e-6 for |x| < 6, where a minimax fit of log2(erfc(t / sqrt 2) / 2) was made, and zero where Phi(-t) is below 1e-30.
// -inf gives NaN as the definition does.
__device__ __forceinline__ f32 gelu_erf(f32 x) {
    const f32 t = fabsf(x);
    f32 p = fmaf(-1.7937835536940838e-06f, t, 6.0726226365659386e-05f);
    p = fmaf(p, t, -0.0009231862495653331f);
    p = fmaf(p, t, 0.008476849645376205f);
    p = fmaf(p, t, -0.05389094352722168f);
    p = fmaf(p, t, -0.4585415720939636f);
    p = fmaf(p, t, -1.151214361190796f);
    p = fmaf(p, t, -1.0f);
    const f32 tail = exp2_fast(p);
    return x * (x < 0.0f ? tail : 1.0f - tail);
}

// x / (1 + exp(-2 u)) with u = sqrt(2 / pi) (x + 0.044715 x^3): the logistic function for (1 + tanh u) / 2.
__device__ __forceinline__ f32 gelu_tanh(f32 x) {
    const f32 power = x * fmaf(x * x, -0.1029432397082f, -2.3022081985f);
    return __fdividef(x, 1.0f + exp2_fast(power));
}
