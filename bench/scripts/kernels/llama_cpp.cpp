// Calls one kernel of llama.cpp between trace_begin and trace_end: llama_cpp FORMAT TOKENS COLUMNS. FORMAT is a weight
// format (8 rows; repacked kernels where the processor has byte dot products, as llama.cpp chooses them) or
// f16-HEADS-LENGTH (attention over COLUMNS positions, as its flash attention does for one token).
#include "ggml.h"
#include "repack.h"
#include "vec.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

typedef void (*dot_t)(int, float *, size_t, const void *, size_t, const void *, size_t, int);
typedef void (*repacked_t)(int, float *, size_t, const void *, const void *, int, int);

extern "C" {
#define DOT(format, of) void ggml_vec_dot_##format##_##of(int, float *, size_t, const void *, size_t, const void *, size_t, int);
DOT(q4_0, q8_0) DOT(q8_0, q8_0) DOT(mxfp4, q8_0) DOT(iq4_nl, q8_0) DOT(q4_K, q8_K) DOT(q5_K, q8_K) DOT(q6_K, q8_K)
DOT(iq3_xxs, q8_K) DOT(iq3_s, q8_K) DOT(iq2_xxs, q8_K) DOT(iq2_xs, q8_K) DOT(iq2_s, q8_K)
__attribute__((noinline)) void trace_begin(void) { asm volatile(""); }
__attribute__((noinline)) void trace_end(void) { asm volatile(""); }
}

struct kernel {
    const char *format;
    size_t block, bytes, activation_bytes;
    dot_t dot;
    repacked_t one, four;
};

#ifdef __ARM_FEATURE_DOTPROD
#define REPACKED(name) ggml_gemv_##name, ggml_gemm_##name
#else
#define REPACKED(name) nullptr, nullptr
#endif

static const kernel KERNELS[] = {
    {"Q4_0", 32, 18, 34, ggml_vec_dot_q4_0_q8_0, REPACKED(q4_0_4x4_q8_0)},
    {"Q8_0", 32, 34, 34, ggml_vec_dot_q8_0_q8_0, REPACKED(q8_0_4x4_q8_0)},
    {"MXFP4", 32, 17, 34, ggml_vec_dot_mxfp4_q8_0, REPACKED(mxfp4_4x4_q8_0)},
    {"IQ4_NL", 32, 18, 34, ggml_vec_dot_iq4_nl_q8_0, REPACKED(iq4_nl_4x4_q8_0)},
    {"Q4_K", 256, 144, 292, ggml_vec_dot_q4_K_q8_K, REPACKED(q4_K_8x4_q8_K)},
    {"Q5_K", 256, 176, 292, ggml_vec_dot_q5_K_q8_K, REPACKED(q5_K_8x4_q8_K)},
    {"Q6_K", 256, 210, 292, ggml_vec_dot_q6_K_q8_K, REPACKED(q6_K_8x4_q8_K)},
    {"IQ3_XXS", 256, 98, 292, ggml_vec_dot_iq3_xxs_q8_K, nullptr, nullptr},
    {"IQ3_S", 256, 110, 292, ggml_vec_dot_iq3_s_q8_K, nullptr, nullptr},
    {"IQ2_XXS", 256, 66, 292, ggml_vec_dot_iq2_xxs_q8_K, nullptr, nullptr},
    {"IQ2_XS", 256, 74, 292, ggml_vec_dot_iq2_xs_q8_K, nullptr, nullptr},
    {"IQ2_S", 256, 82, 292, ggml_vec_dot_iq2_s_q8_K, nullptr, nullptr},
};

static const int ROWS = 8;

static void multiply(const kernel &kernel, int tokens, int columns) {
    size_t row = columns / kernel.block * kernel.bytes, token = columns / kernel.block * kernel.activation_bytes;
    std::vector<unsigned char> weights(ROWS * row), x(tokens * token);
    std::vector<float> out(tokens * ROWS);
    for (size_t at = 0; at < weights.size(); at++)
        weights[at] = at % 47;
    for (size_t at = 0; at < x.size(); at++)
        x[at] = at % 43;
    trace_begin();
    if (kernel.one) {
        (tokens == 1 ? kernel.one : kernel.four)(columns, out.data(), ROWS, weights.data(), x.data(), tokens, ROWS);
    } else {
        for (int t = 0; t < tokens; t++)
            for (int r = 0; r < ROWS; r++)
                kernel.dot(columns, &out[t * ROWS + r], 0, &weights[r * row], 0, &x[t * token], 0, 1);
    }
    trace_end();
}

static void attend(int heads, int length, int positions) {
    std::vector<ggml_fp16_t> keys(positions * length, 0x2c00), values = keys, query(length, 0x2c00), out(heads * length);
    std::vector<float> largest(heads, 1.0f), sums(heads);
    trace_begin();
    for (int head = 0; head < heads; head++)
        for (int position = 0; position < positions; position++) {
            float score;
            ggml_vec_dot_f16(length, &score, 0, &keys[position * length], 0, query.data(), 0, 1);
            // Each score is below the largest one, so the sums are not rescaled.
            float weight = expf(score - 100.0f * largest[head]);
            ggml_vec_mad_f16(length, &out[head * length], &values[position * length], weight);
            sums[head] += weight;
        }
    trace_end();
}

int main(int argc, char **argv) {
    if (argc != 4)
        return fprintf(stderr, "usage: %s FORMAT TOKENS COLUMNS\n", argv[0]), 2;
    int heads, length, tokens = atoi(argv[2]), columns = atoi(argv[3]);
    if (sscanf(argv[1], "f16-%d-%d", &heads, &length) == 2)
        return attend(heads, length, columns), 0;
    for (const kernel &kernel : KERNELS)
        if (!strcmp(kernel.format, argv[1]))
            return multiply(kernel, tokens, columns), 0;
    return fprintf(stderr, "%s is no format\n", argv[1]), 2;
}
