/* Convolution, gated delta rule and cross-entropy for training, forwards and backwards, on one thread.

   model.py holds the same in PyTorch; check.py compares the two. The recurrence runs token by token with a state of
   [KD][VD] floats that stays in the first-level cache; going back, the states of a block of tokens are computed again from
   the one at its start. Rows of `x` are the channels of one token: queries, keys, values. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { KD = 64, VD = 64, LANES = 16, PARTS = VD / LANES, BLOCK = 64, TAPS = 4 };
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4)));

static float sum(vec x) {
    float s = 0;
    for (int i = 0; i < LANES; i++) s += x[i];
    return s;
}

static float sigmoid(float x) { return 1 / (1 + expf(-x)); }

/* y = silu(causal depthwise convolution of x), over [batch][time][channels], with w as [TAPS][channels]. */
void conv_forward(const float *x, const float *w, float *y, long batch, long time, long channels) {
    for (long b = 0; b < batch; b++)
        for (long t = 0; t < time; t++) {
            float *out = y + (b * time + t) * channels;
            memset(out, 0, channels * sizeof(float));
            for (long k = 0; k < TAPS; k++) {
                long from = t + k - (TAPS - 1);
                if (from < 0) continue;
                const float *in = x + (b * time + from) * channels, *wk = w + k * channels;
                for (long c = 0; c < channels; c++) out[c] += in[c] * wk[c];
            }
            for (long c = 0; c < channels; c++) out[c] *= sigmoid(out[c]);
        }
}

/* Adds to dx and dw, which the caller has cleared. */
void conv_backward(const float *x, const float *w, const float *dy, float *dx, float *dw, long batch, long time, long channels) {
    float *g = malloc(channels * sizeof(float));
    for (long b = 0; b < batch; b++)
        for (long t = 0; t < time; t++) {
            const float *up = dy + (b * time + t) * channels;
            memset(g, 0, channels * sizeof(float));
            for (long k = 0; k < TAPS; k++) {
                long from = t + k - (TAPS - 1);
                if (from < 0) continue;
                const float *in = x + (b * time + from) * channels, *wk = w + k * channels;
                for (long c = 0; c < channels; c++) g[c] += in[c] * wk[c];
            }
            for (long c = 0; c < channels; c++) {
                float s = sigmoid(g[c]);
                g[c] = up[c] * s * (1 + g[c] * (1 - s));
            }
            for (long k = 0; k < TAPS; k++) {
                long from = t + k - (TAPS - 1);
                if (from < 0) continue;
                const float *in = x + (b * time + from) * channels, *wk = w + k * channels;
                float *din = dx + (b * time + from) * channels, *dwk = dw + k * channels;
                for (long c = 0; c < channels; c++) {
                    din[c] += g[c] * wk[c];
                    dwk[c] += g[c] * in[c];
                }
            }
        }
    free(g);
}

/* to = from / |from| * scale; returns the factor. */
static float unit(const float *from, float *to, float scale) {
    float s = 1e-6f;
    for (int i = 0; i < KD; i++) s += from[i] * from[i];
    float factor = scale / sqrtf(s);
    for (int i = 0; i < KD; i++) to[i] = from[i] * factor;
    return factor;
}

/* One token: next = decay * state + k d', out = next' q, where d = beta (v - decay * state' k). `next` may be `state`. */
static void advance(const float *state, float *next, const float *q, const float *k, const float *v, float decay, float beta,
                    vec d[PARTS], vec miss[PARTS], float *out) {
    vec r[PARTS] = {0}, o[PARTS] = {0};
    for (int i = 0; i < KD; i++)
        for (int p = 0; p < PARTS; p++) r[p] += k[i] * *(const vec *)(state + i * VD + p * LANES);
    for (int p = 0; p < PARTS; p++) {
        miss[p] = *(const vec *)(v + p * LANES) - decay * r[p];
        d[p] = beta * miss[p];
    }
    for (int i = 0; i < KD; i++)
        for (int p = 0; p < PARTS; p++) {
            vec s = decay * *(const vec *)(state + i * VD + p * LANES) + k[i] * d[p];
            *(vec *)(next + i * VD + p * LANES) = s;
            o[p] += q[i] * s;
        }
    if (out)
        for (int p = 0; p < PARTS; p++) *(vec *)(out + p * LANES) = o[p];
}

/* x [batch][time][(2 kh + vh) * 64] after the convolution, log_decay and beta [batch][time][vh], out [batch][time][vh][64];
   starts [batch][vh][blocks][64][64] takes the state at the start of every block. */
void rule_forward(const float *x, const float *log_decay, const float *beta, float *out, float *starts, long batch, long time, long kh, long vh) {
    long row = (2 * kh + vh) * 64, blocks = (time + BLOCK - 1) / BLOCK;
    float q[KD], k[KD], *state = aligned_alloc(64, KD * VD * sizeof(float));
    vec d[PARTS], miss[PARTS];
    for (long b = 0; b < batch; b++)
        for (long h = 0; h < vh; h++) {
            long key = h / (vh / kh);
            memset(state, 0, KD * VD * sizeof(float));
            for (long t = 0; t < time; t++) {
                const float *in = x + (b * time + t) * row;
                long at = (b * time + t) * vh + h;
                if (t % BLOCK == 0) memcpy(starts + ((b * vh + h) * blocks + t / BLOCK) * KD * VD, state, KD * VD * sizeof(float));
                unit(in + key * KD, q, 1 / sqrtf(KD));
                unit(in + (kh + key) * KD, k, 1);
                advance(state, state, q, k, in + (2 * kh + h) * 64, expf(log_decay[at]), beta[at], d, miss, out + at * VD);
            }
        }
    free(state);
}

/* Adds to dx, which the caller has cleared; writes d_log_decay and d_beta. */
void rule_backward(const float *x, const float *log_decay, const float *beta, const float *starts, const float *d_out, float *dx,
                   float *d_log_decay, float *d_beta, long batch, long time, long kh, long vh) {
    long row = (2 * kh + vh) * 64, blocks = (time + BLOCK - 1) / BLOCK, size = KD * VD;
    float *states = aligned_alloc(64, (BLOCK + 1) * size * sizeof(float)), *ds = aligned_alloc(64, size * sizeof(float));
    static float q[BLOCK][KD], k[BLOCK][KD], q_factor[BLOCK], k_factor[BLOCK];
    static vec d[BLOCK][PARTS], miss[BLOCK][PARTS];
    for (long b = 0; b < batch; b++)
        for (long h = 0; h < vh; h++) {
            long key = h / (vh / kh);
            memset(ds, 0, size * sizeof(float));
            for (long block = blocks - 1; block >= 0; block--) {
                long first = block * BLOCK, length = time - first < BLOCK ? time - first : BLOCK;
                memcpy(states, starts + ((b * vh + h) * blocks + block) * size, size * sizeof(float));
                for (long j = 0; j < length; j++) {
                    const float *in = x + (b * time + first + j) * row;
                    long at = (b * time + first + j) * vh + h;
                    q_factor[j] = unit(in + key * KD, q[j], 1 / sqrtf(KD));
                    k_factor[j] = unit(in + (kh + key) * KD, k[j], 1);
                    advance(states + j * size, states + (j + 1) * size, q[j], k[j], in + (2 * kh + h) * 64, expf(log_decay[at]), beta[at], d[j], miss[j], NULL);
                }
                for (long j = length - 1; j >= 0; j--) {
                    long at = (b * time + first + j) * vh + h;
                    const float *before = states + j * size, *after = before + size, *up = d_out + at * VD;
                    float decay = expf(log_decay[at]), dq[KD], dk[KD];
                    vec dd[PARTS] = {0}, dr[PARTS], d_decay = {0}, u[PARTS];
                    for (int p = 0; p < PARTS; p++) u[p] = *(const vec *)(up + p * LANES);
                    for (int i = 0; i < KD; i++) {
                        vec to_q = {0}, to_k = {0};
                        for (int p = 0; p < PARTS; p++) {
                            vec *s = (vec *)(ds + i * VD + p * LANES);
                            *s += q[j][i] * u[p];
                            to_q += *(const vec *)(after + i * VD + p * LANES) * u[p];
                            to_k += *s * d[j][p];
                            dd[p] += k[j][i] * *s;
                        }
                        dq[i] = sum(to_q);
                        dk[i] = sum(to_k);
                    }
                    vec to_beta = {0};
                    float *dv = dx + (b * time + first + j) * row + (2 * kh + h) * 64;
                    for (int p = 0; p < PARTS; p++) {
                        to_beta += dd[p] * miss[j][p];
                        *(vec *)(dv + p * LANES) += beta[at] * dd[p];
                        dr[p] = -beta[at] * decay * dd[p];
                    }
                    d_beta[at] = sum(to_beta);
                    for (int i = 0; i < KD; i++) {
                        vec to_k = {0};
                        for (int p = 0; p < PARTS; p++) {
                            vec *s = (vec *)(ds + i * VD + p * LANES), old = *(const vec *)(before + i * VD + p * LANES);
                            to_k += old * dr[p];
                            vec whole = decay * *s + k[j][i] * dr[p];
                            d_decay += whole * old;
                            *s = whole;
                        }
                        dk[i] += sum(to_k);
                    }
                    d_log_decay[at] = sum(d_decay);
                    /* Through the normalisation: the part along the vector has no effect. */
                    float *dxq = dx + (b * time + first + j) * row + key * KD, *dxk = dxq + kh * KD;
                    float along_q = 0, along_k = 0;
                    for (int i = 0; i < KD; i++) along_q += q[j][i] * dq[i], along_k += k[j][i] * dk[i];
                    for (int i = 0; i < KD; i++) {
                        dxq[i] += q_factor[j] * (dq[i] - q[j][i] * along_q * KD);
                        dxk[i] += k_factor[j] * (dk[i] - k[j][i] * along_k);
                    }
                }
            }
        }
    free(states);
    free(ds);
}

/* Replaces logits (bf16, [rows][n]) by the gradient of sum over rows of scale * -log softmax(logits)[target]; adds that sum to *loss. */
void softmax_gradient(uint16_t *logits, const float *scales, const int64_t *targets, float *loss, long rows, long n) {
    float *x = malloc(n * sizeof(float));
    for (long r = 0; r < rows; r++) {
        uint16_t *row = logits + r * n;
        float top = -INFINITY, total = 0;
        for (long i = 0; i < n; i++) {
            union { uint32_t bits; float value; } u = {(uint32_t)row[i] << 16};
            x[i] = u.value;
            top = x[i] > top ? x[i] : top;
        }
        *loss += scales[r] * (top - x[targets[r]]);
        for (long i = 0; i < n; i++) {
            x[i] = expf(x[i] - top);
            total += x[i];
        }
        *loss += scales[r] * logf(total);
        float factor = scales[r] / total;
        for (long i = 0; i < n; i++) x[i] *= factor;
        x[targets[r]] -= scales[r];
        for (long i = 0; i < n; i++) {
            union { float value; uint32_t bits; } u = {x[i]};
            row[i] = (u.bits + 0x7fff + ((u.bits >> 16) & 1)) >> 16;
        }
    }
    free(x);
}
