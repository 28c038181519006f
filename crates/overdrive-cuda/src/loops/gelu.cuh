// GELU for results of at most 16 bits.

// x Phi(x) for results with this many binary digits. The tail Phi(-t) is two to the power of a
// polynomial in t, so that no digits cancel. The polynomials are minimax fits of
// log2(erfc(t / sqrt 2) / 2) on [0, 6]. Their relative errors are 4.2e-4 (a tenth of an ulp of
// bf16) and 6.3e-6. Beyond 6 the tail falls to zero as it should. -inf gives NaN as the
// definition does.
template <int Digits>
__device__ __forceinline__ f32 gelu_erf(f32 x) {
    const f32 t = fabsf(x);
    f32 p;
    if constexpr (Digits <= 8) {
        p = fmaf(-0.00020946360018569976f, t, 0.004593905061483383f);
        p = fmaf(p, t, -0.043574586510658264f);
        p = fmaf(p, t, -0.4708951413631439f);
        p = fmaf(p, t, -1.1463350057601929f);
    } else {
        p = fmaf(-1.7937835536940838e-06f, t, 6.0726226365659386e-05f);
        p = fmaf(p, t, -0.0009231862495653331f);
        p = fmaf(p, t, 0.008476849645376205f);
        p = fmaf(p, t, -0.05389094352722168f);
        p = fmaf(p, t, -0.4585415720939636f);
        p = fmaf(p, t, -1.151214361190796f);
    }
    const f32 tail = fast_exp2(fmaf(p, t, -1.0f));
    return x * (x < 0.0f ? tail : 1.0f - tail);
}

// x / (1 + exp(-2 u)) with u = sqrt(2 / pi) (x + 0.044715 x^3). The logistic function stands for
// (1 + tanh u) / 2.
template <int Digits>
__device__ __forceinline__ f32 gelu_tanh(f32 x) {
    const f32 power = x * fmaf(x * x, -0.1029432395800235f, -2.302208198144325f);
    return __fdividef(x, 1.0f + fast_exp2(power));
}

// The derivative of that: s + x u' 2 s (1 - s), with the logistic function s of 2 u. Here 1 - s is
// computed as exp(-2 u) s, so that no digits cancel. Above 2^64 the exponential would meet an s of
// zero.
template <int Digits>
__device__ __forceinline__ f32 gelu_tanh_slope(f32 x) {
    const f32 square = x * x;
    const f32 power = x * fmaf(square, -0.1029432395800235f, -2.302208198144325f);
    const f32 e = fast_exp2(fminf(power, 64.0f)), s = __fdividef(1.0f, 1.0f + e);
    const f32 steep = x * fmaf(square, 0.2140644488f, 1.5957691216f);
    return fmaf(steep * s, e * s, s);
}
