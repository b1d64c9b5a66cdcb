/* The inner loops of a search on a CPU, without PyTorch's overhead for each small operation: `run`, the sublayers of a
 * decoder for one new position of every beam (step.py), and `choose`, the best continuations (strategies.py). native.py
 * compiles this file. Equations as in layers.py and attention.py:
 *
 *   (1) head_h = softmax(Q_h K_h^T scaling + mask) V_h      (2) output = concat(head_1 .. head_H) W_o
 *   (3) post: x = LN(x + f(x)), pre: x = x + f(LN(x))       (4) f(x) = W_2 act(W_1 x + b_1) + b_2, act relu or swish
 *
 * and of ssru.py c = g c + (1 - g) W x, g = sigmoid(W_f x + b_f), f(x) = relu(c), the state c a row of each beam.
 *
 * `linear` is a product with a weight in int8 (int8.py); `run` reads these too. All matrices are row-major; a row is
 * one beam of one sentence. There are three kinds of products:
 *
 *   a small weight    packed in panels of 64 outputs, (outputs / 64 rounded up, inputs, 64), each contiguous, so that
 *                     it is read in order; `multiply_weight`
 *   a large weight    the matrix product of PyTorch's own library, `gemm`
 *   a weight in int8  `multiply_rounded`, by AVX-512 VNNI or AMX
 *
 * Except in `gemm`, the order in which a row's numbers are added depends neither on other rows nor on the threads.
 */
#include <math.h>
#include <string.h>
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#include <immintrin.h>
#endif
#if defined(__AMX_INT8__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif

#ifndef REAL
#define REAL float
#endif
typedef REAL real;

#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif
#define LANES ((long)(BYTES / sizeof(real)))
typedef real vec __attribute__((vector_size(BYTES), aligned(sizeof(real)), may_alias)); /* any alignment */

enum { SELF_ATTENTION, SOURCE_ATTENTION, FEED_FORWARD, SOURCE, STATE }; /* kinds of units; STATE: of ssru.py */
enum { PACKED, TRANSPOSED, AS_IT_LIES };                 /* a weight: in panels, (inputs, outputs), (outputs, inputs) */
enum { RELU, SWISH };                                    /* of FEED_FORWARD */
enum { PANEL = 64, BLOCK = 64, ROWS = 32, INPUTS = 64 }; /* ROWS, INPUTS: of int8, what a weight is padded to */

/* native.py parses Rounded, Unit, Stack, Search and the heads of all functions that are not static: their fields and
 * arguments must be longs, doubles (of fields), pointers, or structures that are declared before. */

/* A weight in int8: W = numbers * scales, numbers from -127 to 127. `numbers`: panels (outputs / PANEL rounded up,
 * inputs / 4, PANEL, 4), with zeros after the last input up to a multiple of INPUTS, and after the last output; sums:
 * 128 times the sum of an output's numbers. `numbers` NULL: the weight is not in int8. */
typedef struct {
    const signed char *numbers;
    const float *scales;
    const int *sums;
} Rounded;

typedef struct {
    long kind, pre;                       /* pre: equation 3 with the norm first */
    double eps, scaling;
    const real *norm_weight, *norm_bias;  /* (d_model) */
    const real *weight_in, *bias_in;      /* (d_model, inner): q|k|v, q, W_1 or W_f; a bias may be null */
    const real *weight_out, *bias_out;    /* (d_model or inner, d_model): W_o, W_2 or W */
    long inner, heads;                    /* inner: of STATE both products' outputs, 2 d_model */
    real *keys, *values;                  /* (sentences, heads, d_h, capacity), (.., capacity, d_h); of STATE keys are
                                             its rows, (sentences x width, d_model), and values room for them */
    long capacity, slots, start;          /* attends to `slots`; SELF_ATTENTION writes `width` of them from `start` */
    const real *mask;                     /* (sentences, width or 1, slots), added to the scores */
    long mask_rows;                       /* width or 1 */
    long activation;
    Rounded rounded_in, rounded_out;      /* the weights in int8, instead of weight_in and weight_out */
    long plain_in, plain_out;             /* memory layout: PACKED, or TRANSPOSED or AS_IT_LIES for `gemm` */
} Unit;

typedef struct {
    long width, d_model, threads;         /* threads: that share a product */
    real *inner, *normed, *scores;        /* working memory */
    void *bytes;                          /* working memory of bytes_for(rows, widest input) */
} Task;

/* y (rows, vecs vectors) += x (rows, k) w (k, vecs vectors); rows and vecs are constants where this is inlined. */
static inline __attribute__((always_inline)) void tile(
    const int rows, const int vecs, long k, const real *x, long ldx, const real *w, long ldw, real *y, long ldy)
{
    vec sum[6][4];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vecs; v++) sum[r][v] = *(const vec *)(y + r * ldy + v * LANES);
    for (long i = 0; i < k; i++) {
        vec factor[4];
        for (int v = 0; v < vecs; v++) factor[v] = *(const vec *)(w + i * ldw + v * LANES);
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < vecs; v++) sum[r][v] += x[r * ldx + i] * factor[v];
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vecs; v++) *(vec *)(y + r * ldy + v * LANES) = sum[r][v];
}

/* `tile` for all n rows and `vecs` vectors of columns, six rows at a time. */
static inline __attribute__((always_inline)) void panel(
    const int vecs, long n, long k, const real *x, long ldx, const real *w, long ldw, real *y, long ldy)
{
    for (; n >= 6; n -= 6, x += 6 * ldx, y += 6 * ldy) tile(6, vecs, k, x, ldx, w, ldw, y, ldy);
    switch (n) {
    case 5: tile(5, vecs, k, x, ldx, w, ldw, y, ldy); break;
    case 4: tile(4, vecs, k, x, ldx, w, ldw, y, ldy); break;
    case 3: tile(3, vecs, k, x, ldx, w, ldw, y, ldy); break;
    case 2: tile(2, vecs, k, x, ldx, w, ldw, y, ldy); break;
    case 1: tile(1, vecs, k, x, ldx, w, ldw, y, ldy); break;
    }
}

/* y (n, m) += x (n, k) w (k, m). For few rows more columns at once, so that enough sums are independent. */
static void multiply_add(long n, long k, long m, const real *x, long ldx, const real *w, long ldw, real *y, long ldy)
{
    long c = 0;
    if (n <= 2)
        for (; c + 4 * LANES <= m; c += 4 * LANES) panel(4, n, k, x, ldx, w + c, ldw, y + c, ldy);
    for (; c + 2 * LANES <= m; c += 2 * LANES) panel(2, n, k, x, ldx, w + c, ldw, y + c, ldy);
    for (; c + LANES <= m; c += LANES) panel(1, n, k, x, ldx, w + c, ldw, y + c, ldy);
    if (c == m) return;
    for (long r = 0; r < n; r++)
        for (long i = 0; i < k; i++)
            for (long j = c; j < m; j++) y[r * ldy + j] += x[r * ldx + i] * w[i * ldw + j];
}

/* Packs a weight (outputs, inputs) into panels; `packed` has zeros, which stay where the last panel has no outputs. */
void pack(long outputs, long inputs, const real *weight, real *packed)
{
    for (long o = 0; o < outputs; o += PANEL)
        for (long i = 0; i < inputs; i++)
            for (long j = 0; j < (outputs - o < PANEL ? outputs - o : PANEL); j++)
                packed[o * inputs + i * PANEL + j] = weight[(o + j) * inputs + i];
}

/* The matrix product of a library, as BLAS has it: column by column. */
typedef void Gemm(const char *, const char *, const int *, const int *, const int *, const real *, const real *,
                  const int *, const real *, const int *, const real *, real *, const int *);
static Gemm *gemm;
void use_gemm(Gemm *given) { gemm = given; }

/* y (n, m) += x (n, k) times a weight. */
static void multiply_weight(long n, long k, long m, const real *x, const real *w, long plain, real *y, long threads)
{
    if (plain) {
        const int rows = (int)n, inputs = (int)k, outputs = (int)m;
        const real one = 1;
        if (plain == TRANSPOSED)
            gemm("N", "N", &outputs, &rows, &inputs, &one, w, &outputs, x, &inputs, &one, y, &outputs);
        else
            gemm("T", "N", &outputs, &rows, &inputs, &one, w, &inputs, x, &inputs, &one, y, &outputs);
        return;
    }
    threads = n * k * m < 1 << 17 ? 1 : threads;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (long c = 0; c < m; c += PANEL)
        multiply_add(n, k, m - c < PANEL ? m - c : PANEL, x, k, w + c * k, PANEL, y + c, m);
}

/* ---- int8 ----
 * An input row is rounded to 127 steps of its largest number either way, 128 is added, and products with the weight's
 * numbers are summed up in whole numbers: the order changes nothing. */

static long padded(long number, long to) { return (number + to - 1) / to * to; }

/* Bytes for n rounded rows of k inputs, and their scales. */
static long bytes_for(long n, long k) { return padded(n, ROWS) * (padded(k, INPUTS) + (long)sizeof(float)) + 64; }

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)

/* How a processor multiplies in int8: 0 not in this code, 1 by vectors, 2 by tiles (AMX). */
long int8_kind(void)
{
#if defined(__AMX_INT8__) && defined(__linux__)
    static long kind; /* found once: Linux must grant a process the use of tiles */
    if (!kind) kind = syscall(SYS_arch_prctl, 0x1023, 18) == 0 ? 2 : 1;
    return kind;
#else
    return 1;
#endif
}

/* x (k) to bytes; returns the scale: x is about (bytes - 128) * scale. */
static float round_row(long k, const float *x, unsigned char *bytes)
{
    float largest = 0;
#pragma omp simd reduction(max : largest)
    for (long i = 0; i < k; i++) largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    float inverse = largest > 0 ? 127.0f / largest : 0;
    for (long i = 0; i < k; i++) bytes[i] = (unsigned char)(int)(rintf(x[i] * inverse) + 128.0f);
    return largest / 127.0f;
}

/* sums (rows, PANEL) = x (rows, k) times a panel; rows is a constant where this is inlined. */
static inline __attribute__((always_inline)) void vector_panel(
    const int rows, long k, const unsigned char *x, const signed char *w, int *sums)
{
    __m512i sum[4][4];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 4; v++) sum[r][v] = _mm512_setzero_si512();
    for (long i = 0; i < k; i += 4) {
        __m512i factor[4];
        for (int v = 0; v < 4; v++) factor[v] = _mm512_loadu_si512(w + i * PANEL + v * 64);
        for (int r = 0; r < rows; r++) {
            int four;
            memcpy(&four, x + r * k + i, sizeof four);
            __m512i row = _mm512_set1_epi32(four);
            for (int v = 0; v < 4; v++) sum[r][v] = _mm512_dpbusd_epi32(sum[r][v], row, factor[v]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 4; v++) _mm512_storeu_si512(sums + r * PANEL + v * 16, sum[r][v]);
}

#ifdef __AMX_INT8__
/* The same by AMX for up to ROWS rows, in tiles of 16 rows by 16 outputs: the rows are read up to a multiple of 16. */
static void tile_panel(long rows, long k, const unsigned char *x, const signed char *w, int *sums)
{
    for (int half = 0; half < PANEL; half += 32) { /* outputs */
        const signed char *part = w + half * 4;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (long i = 0; i < k; i += INPUTS) {
            _tile_loadd(6, part + i * PANEL, PANEL * 4);
            _tile_loadd(7, part + i * PANEL + 64, PANEL * 4);
            _tile_loadd(4, x + i, k);
            _tile_dpbusd(0, 4, 6);
            _tile_dpbusd(1, 4, 7);
            if (rows <= 16) continue;
            _tile_loadd(5, x + 16 * k + i, k);
            _tile_dpbusd(2, 5, 6);
            _tile_dpbusd(3, 5, 7);
        }
        _tile_stored(0, sums + half, PANEL * 4);
        _tile_stored(1, sums + half + 16, PANEL * 4);
        if (rows <= 16) continue;
        _tile_stored(2, sums + 16 * PANEL + half, PANEL * 4);
        _tile_stored(3, sums + 16 * PANEL + half + 16, PANEL * 4);
    }
}

typedef struct {
    unsigned char palette, start, unused[14];
    unsigned short columns[16]; /* bytes */
    unsigned char rows[16];
} Tiles;
#endif

/* The panels from..to-1 of y (n, m) += x W. */
static void multiply_panels(long from, long to, long n, long k, long m, const unsigned char *x, const float *row_scales,
                            const Rounded *w, float *y)
{
    int sums[ROWS * PANEL];
    for (long p = from; p < to; p++) {
        const signed char *numbers = w->numbers + p * PANEL * k;
        long c = p * PANEL, columns = m - c < PANEL ? m - c : PANEL;
        for (long r = 0; r < n; r += ROWS) {
            long rows = n - r < ROWS ? n - r : ROWS;
#ifdef __AMX_INT8__
            if (n > 2 && int8_kind() == 2)
                tile_panel(rows, k, x + r * k, numbers, sums);
            else
#endif
            {
                long a = 0;
                for (; a + 4 <= rows; a += 4) vector_panel(4, k, x + (r + a) * k, numbers, sums + a * PANEL);
                for (; a < rows; a++) vector_panel(1, k, x + (r + a) * k, numbers, sums + a * PANEL);
            }
            for (long a = 0; a < rows; a++) {
                float *row = y + (r + a) * m + c, scale = row_scales[r + a];
                for (long j = 0; j < columns; j++)
                    row[j] += (float)(sums[a * PANEL + j] - w->sums[c + j]) * (scale * w->scales[c + j]);
            }
        }
    }
}

/* y (n, m) += x (n, k) times a rounded weight; `memory` is bytes_for(n, k). */
static void multiply_rounded(long n, long k, long m, const float *x, const Rounded *w, float *y, void *memory,
                             long threads)
{
    long wide = padded(k, INPUTS), panels = (m + PANEL - 1) / PANEL;
    float *scales = memory;
    unsigned char *bytes = (unsigned char *)(scales + padded(n, ROWS));
    /* Bytes after a row's end are multiplied by zeros of the weight. */
    for (long r = 0; r < n; r++) scales[r] = round_row(k, x + r * k, bytes + r * wide);
    threads = n * k * m < 1 << 17 ? 1 : threads;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#ifdef _OPENMP
        long own = omp_get_thread_num(), all = omp_get_num_threads();
#else
        long own = 0, all = 1;
#endif
#ifdef __AMX_INT8__
        Tiles tiles = {.palette = 1};
        if (n > 2 && int8_kind() == 2) {
            for (int t = 0; t < 8; t++) tiles.columns[t] = 64, tiles.rows[t] = 16;
            _tile_loadconfig(&tiles);
        }
#endif
        multiply_panels(panels * own / all, panels * (own + 1) / all, n, wide, m, bytes, scales, w, y);
#ifdef __AMX_INT8__
        if (n > 2 && int8_kind() == 2) _tile_release(); /* callers keep nothing in tiles across a call */
#endif
    }
}

#else
long int8_kind(void) { return 0; }
static void multiply_rounded(long n, long k, long m, const float *x, const Rounded *w, float *y, void *memory,
                             long threads)
{
}
#endif

/* y (n, m) = x (n, k) times a rounded weight, plus the bias, if there is one; returns 0, or, having done nothing, how
 * many bytes of memory are needed. */
long linear(long n, long k, long m, const float *x, const signed char *numbers, const float *scales, const int *sums,
            const float *bias, float *y, void *memory, long size, long threads)
{
    Rounded weight = {numbers, scales, sums};
    if (bytes_for(n, k) > size) return bytes_for(n, k);
    for (long r = 0; r < n; r++)
        if (bias) memcpy(y + r * m, bias, m * sizeof(float));
        else memset(y + r * m, 0, m * sizeof(float));
    multiply_rounded(n, k, m, x, &weight, y, memory, threads);
    return 0;
}

/* y (n, m) = bias, or 0. */
static void fill(long n, long m, const real *bias, real *y, long ldy)
{
    for (long r = 0; r < n; r++)
        if (bias) memcpy(y + r * ldy, bias, m * sizeof(real));
        else memset(y + r * ldy, 0, m * sizeof(real));
}

static void layer_norm(long n, long d, const real *x, real *y, const Unit *unit)
{
    for (long r = 0; r < n; r++, x += d, y += d) {
        real sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
        for (long j = 0; j < d; j++) sum += x[j];
        real mean = sum / d;
#pragma omp simd reduction(+ : squares)
        for (long j = 0; j < d; j++) squares += (x[j] - mean) * (x[j] - mean);
        real scale = 1 / (real)sqrt(squares / d + unit->eps);
        for (long j = 0; j < d; j++) y[j] = (x[j] - mean) * scale * unit->norm_weight[j] + unit->norm_bias[j];
    }
}

/* e^x for x <= 0 as 2^n p(r) with x = n ln 2 + r, |r| <= ln 2 / 2, which compilers vectorise in loops. 0 for x < -80:
 * processors are slow with denormal numbers. */
static inline float exponential_float(float value)
{
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    float bounded = value < -80.0f ? -80.0f : value, whole = bounded * 1.44269504f + shift, power = 1.0f / 720, scale;
    int bits;
    memcpy(&bits, &whole, sizeof bits);
    bits = (bits + 127) << 23;
    memcpy(&scale, &bits, sizeof scale);
    whole -= shift;
    float r = bounded - whole * 0.693359375f + whole * 2.12194440e-4f;
    power = power * r + 1.0f / 120;
    power = power * r + 1.0f / 24;
    power = power * r + 1.0f / 6;
    power = power * r + 0.5f;
    power = power * r + 1.0f;
    power = power * r + 1.0f;
    return value < -80.0f ? 0.0f : power * scale;
}

static inline real exponential(real x)
{
    return sizeof(real) == sizeof(float) ? (real)exponential_float((float)x) : (real)exp((double)x);
}

/* scores = softmax(scores * scaling + mask), one row of equation 1, in place; mask NULL: 0. */
static void softmax(long slots, real *scores, const real *mask, real scaling)
{
    real largest = -INFINITY, sum = 0;
#pragma omp simd reduction(max : largest)
    for (long j = 0; j < slots; j++) {
        scores[j] = scores[j] * scaling + (mask ? mask[j] : 0);
        largest = scores[j] > largest ? scores[j] : largest;
    }
#pragma omp simd reduction(+ : sum)
    for (long j = 0; j < slots; j++) {
        scores[j] = exponential(scores[j] - largest);
        sum += scores[j];
    }
    for (long j = 0; j < slots; j++) scores[j] /= sum;
}

/* Copies new keys and values to their slots; of SELF_ATTENTION `inner` has q|k|v, of SOURCE k|v. */
static void append(const Unit *unit, const Task *task, long first, long count)
{
    long d = task->d_model, size = d / unit->heads;
    for (long s = 0; s < count; s++)
        for (long b = 0; b < task->width; b++) {
            const real *value = task->inner + (s * task->width + b + 1) * unit->inner - d, *key = value - d;
            for (long h = 0; h < unit->heads; h++) {
                long head = (first + s) * unit->heads + h;
                real *keys = unit->keys + head * size * unit->capacity + unit->start + b;
                for (long i = 0; i < size; i++) keys[i * unit->capacity] = key[h * size + i];
                real *values = unit->values + (head * unit->capacity + unit->start + b) * size;
                memcpy(values, value + h * size, size * sizeof(real));
            }
        }
}

/* Equation 1 for sentences first .. first + count - 1: reads queries from `inner`, writes contexts to `normed`. */
static void attend(const Unit *unit, const Task *task, long first, long count)
{
    long d = task->d_model, size = d / unit->heads, width = task->width, slots = unit->slots;
    fill(count * width, d, 0, task->normed, d);
    for (long s = 0; s < count; s++) {
        const real *mask = unit->mask + (first + s) * unit->mask_rows * slots;
        for (long h = 0; h < unit->heads; h++) {
            long head = (first + s) * unit->heads + h;
            const real *query = task->inner + s * width * unit->inner + h * size;
            fill(width, slots, 0, task->scores, slots);
            multiply_add(width, size, slots, query, unit->inner, unit->keys + head * size * unit->capacity,
                         unit->capacity, task->scores, slots);
            for (long b = 0; b < width; b++)
                softmax(slots, task->scores + b * slots, mask + (unit->mask_rows == 1 ? 0 : b * slots),
                        (real)unit->scaling);
            multiply_add(width, slots, size, task->scores, slots, unit->values + head * unit->capacity * size, size,
                         task->normed + s * width * d + h * size, d);
        }
    }
}

/* y (n, m) += x (n, k) times the weight: `rounded` if there is one, else w. */
static void multiply(long n, long k, long m, const real *x, const real *w, long plain, const Rounded *rounded, real *y,
                     const Task *task)
{
    if (rounded->numbers)
        multiply_rounded(n, k, m, (const float *)x, rounded, (float *)y, task->bytes, task->threads);
    else
        multiply_weight(n, k, m, x, w, plain, y, task->threads);
}

/* relu(x), or swish(x) = x / (1 + e^-x). */
static void activate(long n, real *x, long activation)
{
    if (activation == RELU) {
        for (long i = 0; i < n; i++) x[i] = x[i] > 0 ? x[i] : 0;
        return;
    }
#pragma omp simd
    for (long i = 0; i < n; i++) {
        real power = exponential(x[i] > 0 ? -x[i] : x[i]); /* e^-|x| */
        x[i] *= (x[i] > 0 ? 1 : power) / (1 + power);
    }
}

/* The unit of ssru.py for n rows of inputs x: updates their states `own`, and adds relu of these to `states`. */
static void pass_state(const Unit *unit, const Task *task, long n, const real *x, real *own, real *states)
{
    long d = task->d_model;
    real *forget = task->inner, *added = forget + n * d;
    fill(n, d, unit->bias_in, forget, d);
    fill(n, d, unit->bias_out, added, d);
    multiply(n, d, d, x, unit->weight_in, unit->plain_in, &unit->rounded_in, forget, task);
    multiply(n, d, d, x, unit->weight_out, unit->plain_out, &unit->rounded_out, added, task);
#pragma omp simd
    for (long i = 0; i < n * d; i++) {
        real power = exponential(forget[i] > 0 ? -forget[i] : forget[i]); /* e^-|x| */
        own[i] = added[i] + (forget[i] > 0 ? 1 : power) / (1 + power) * (own[i] - added[i]);
        states[i] += own[i] > 0 ? own[i] : 0;
    }
}

/* One sublayer, equation 3, for sentences first .. first + count - 1; changes their states (rows, d_model) in place. */
static void sublayer(const Unit *unit, const Task *task, real *states, long first, long count)
{
    long n = count * task->width, d = task->d_model, inner = unit->inner;
    const real *x = states;
    if (unit->pre) {
        layer_norm(n, d, states, task->normed, unit);
        x = task->normed;
    }
    if (unit->kind == STATE) {
        pass_state(unit, task, n, x, unit->keys + first * task->width * d, states);
        if (!unit->pre) layer_norm(n, d, states, states, unit);
        return;
    }
    fill(n, inner, unit->bias_in, task->inner, inner);
    multiply(n, d, inner, x, unit->weight_in, unit->plain_in, &unit->rounded_in, task->inner, task);
    const real *computed = task->inner;
    if (unit->kind == SOURCE) {
        append(unit, task, first, count);
        return;
    }
    if (unit->kind == FEED_FORWARD) {
        activate(n * inner, task->inner, unit->activation);
    } else {
        if (unit->kind == SELF_ATTENTION) append(unit, task, first, count);
        attend(unit, task, first, count);
        computed = task->normed;
    }
    long k = unit->kind == FEED_FORWARD ? inner : d;
    if (unit->bias_out)
        for (long r = 0; r < n; r++)
            for (long j = 0; j < d; j++) states[r * d + j] += unit->bias_out[j];
    multiply(n, k, d, computed, unit->weight_out, unit->plain_out, &unit->rounded_out, states, task);
    if (!unit->pre) layer_norm(n, d, states, states, unit);
}

/* Applies all units in order to states (sentences x width, d_model) in place. Threads share the sentences in tasks of
 * about `rows` rows; where there is one task, they share the outputs of each product. `scratch` is working memory of
 * `size` numbers; where that is too little, does nothing and returns how many are needed, else 0. */
long run(const Unit *units, long count, long sentences, long width, long d_model, real *states, long rows, long threads,
         real *scratch, long size)
{
    long each = rows / width > 1 ? rows / width : 1;
    each = each < sentences ? each : sentences;
    long tasks = (sentences + each - 1) / each, inner = d_model, slots = 0, bytes = 0;
    for (long u = 0; u < count; u++) {
        inner = units[u].inner > inner ? units[u].inner : inner;
        slots = units[u].slots > slots ? units[u].slots : slots;
    }
    for (long u = 0; u < count; u++)
        if (units[u].rounded_in.numbers || units[u].rounded_out.numbers) bytes = bytes_for(each * width, inner);
    long needed = each * width * (inner + d_model) + width * slots; /* of a task */
    long places = padded(needed + bytes / (long)sizeof(real) + 1, 16);
    long inside = tasks == 1 ? threads : 1;
    threads = threads < tasks ? threads : tasks;
    if (places * threads > size) return places * threads;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (long t = 0; t < tasks; t++) {
#ifdef _OPENMP
        real *start = scratch + places * omp_get_thread_num();
#else
        real *start = scratch;
#endif
        long first = t * each, here = sentences - first < each ? sentences - first : each;
        real *normed = start + here * width * inner;
        Task task = {width, d_model, inside, start, normed, normed + here * width * d_model, start + needed};
        for (long u = 0; u < count; u++) sublayer(units + u, &task, states + first * width * d_model, first, here);
    }
    return 0;
}

/* Inserts a candidate into the list of the `count` best, the best first, and drops the worst. */
static void insert(long count, float *scores, long *beams, long *tokens, float score, long beam, long token)
{
    long at = count - 1;
    for (; at > 0 && scores[at - 1] < score; at--) {
        scores[at] = scores[at - 1];
        beams[at] = beams[at - 1];
        tokens[at] = tokens[at - 1];
    }
    scores[at] = score;
    beams[at] = beam;
    tokens[at] = token;
}

/* Inserts a beam's tokens into the list of the `count` best, skipping blocks of the vocabulary that have none. */
static void insert_row(long vocabulary, const float *row, float largest, float log_sum, float start, long beam,
                       long count, float *scores, long *beams, long *tokens)
{
    for (long first = 0; first < vocabulary; first += BLOCK) {
        long end = first + BLOCK < vocabulary ? first + BLOCK : vocabulary;
        float most = -INFINITY;
#pragma omp simd reduction(max : most)
        for (long j = first; j < end; j++) most = row[j] > most ? row[j] : most;
        if (!(most - largest - log_sum + start > scores[count - 1])) continue;
        for (long j = first; j < end; j++) {
            float score = row[j] - largest - log_sum + start;
            if (score > scores[count - 1]) insert(count, scores, beams, tokens, score, beam, j);
        }
    }
}

/* Computes largest and log_sum such that log softmax(row)[j] = row[j] - largest - log_sum. */
static void normalize(long vocabulary, const float *row, float *largest, float *log_sum)
{
    float most = -INFINITY, sum = 0;
#pragma omp simd reduction(max : most)
    for (long j = 0; j < vocabulary; j++) most = row[j] > most ? row[j] : most;
#pragma omp simd reduction(+ : sum)
    for (long j = 0; j < vocabulary; j++) sum += exponential_float(row[j] - most);
    *largest = most;
    *log_sum = logf(sum);
}

/* The `count` best of running[beam] + log softmax(logits)[beam, token] for each sentence, the best first; `normalized`:
 * logits are log P already. logits: float, `vocabulary` numbers of a beam at sentence * of_sentence + beam * of_beam;
 * running (sentences, width); the others (sentences, count). */
void choose(const float *logits, long of_sentence, long of_beam, long sentences, long width, long vocabulary,
            const float *running, long normalized, long count, float *scores, long *beams, long *tokens, long threads)
{
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && sentences > 1)
    for (long s = 0; s < sentences; s++) {
        for (long c = s * count; c < (s + 1) * count; c++) {
            scores[c] = -INFINITY;
            beams[c] = tokens[c] = 0;
        }
        for (long b = 0; b < width; b++) {
            const float *row = logits + s * of_sentence + b * of_beam;
            float largest = 0, log_sum = 0;
            if (!normalized) normalize(vocabulary, row, &largest, &log_sum);
            insert_row(vocabulary, row, largest, log_sum, running[s * width + b], b, count, scores + s * count,
                       beams + s * count, tokens + s * count);
        }
    }
}

/* ---- one sentence ----
 * The whole of a greedy or beam search in single precision; its reference is loop.py with Greedy or BeamSearch of
 * strategies.py. The beams' slots and the mask of each beam's history are as in cache.py and transformer.py. */

enum { SLOTS = 16 };                         /* attention is computed over a multiple of this many slots */
enum { LATE, EARLY, NEVER };                 /* early_stopping: False, True, "never" */
static const real hidden = (real)-3.402823466e38; /* value of hidden positions in additive masks */

/* Encoder or decoder: embeddings, layers, and a norm before and after the layers, where it has a weight. */
typedef struct {
    const real *embeddings, *positions;      /* (vocabulary, d_model), (places, d_model) */
    double scale;                            /* of embeddings */
    Unit *units;
    long count;
    Unit before, behind;                     /* units of which only the norms are used */
} Stack;

typedef struct {
    Stack decoder;
    Unit output;                             /* (d_model, vocabulary), as the last product */
    long vocabulary, d_model, threads;
    /* the options */
    long beams, candidates, longest, early;  /* longest: steps */
    const long *ends, *forced;               /* end tokens; of each step the one token that is allowed, or -1 */
    const long *forbidden, *until;           /* tokens, and the step from which on each is allowed */
    long count_ends, count_forbidden;
    const float *length_penalties;           /* length^penalty of each length, 0 .. longest */
    /* the state; capacity: slots of the caches, looks: length of a row of `sees` */
    long step, used, capacity, looks;
    float *running, *scores;                 /* (beams), (candidates) */
    long *tokens, *parents, *places;         /* (beams), (candidates) twice */
    long *table;                             /* (longest, 2, beams): tokens and parents of each step */
    float *best;                             /* of finished hypotheses (beams) */
    long *last;                              /* (beams, 4): whether finished, last step, last token, parent beam */
    unsigned char *sees;                     /* (2, beams, looks): slots of each beam's history, now and next step */
    real *states, *logits, *mask, *memory;   /* (beams, d_model), (beams, vocabulary), (beams, looks) */
} Search;

/* Returns how many numbers of memory `task_in` needs. */
long memory_for(long rows, long inner, long d_model, long slots)
{
    return rows * (inner + d_model + slots) + (bytes_for(rows, inner) + 63) / (long)sizeof(real) + 1;
}

static Task task_in(real *memory, long rows, long inner, long d_model, long slots, long threads)
{
    real *normed = memory + rows * inner, *scores = normed + rows * d_model;
    return (Task){rows, d_model, threads, memory, normed, scores, scores + rows * slots};
}

static long widest(const Stack *stack, long d_model)
{
    for (long u = 0; u < stack->count; u++) d_model = stack->units[u].inner > d_model ? stack->units[u].inner : d_model;
    return d_model;
}

/* states (n, d_model): embeddings of tokens at positions first, first + step, first + 2 step ... */
static void embed(const Stack *stack, long n, const long *tokens, long first, long step, long d, real *states)
{
    for (long r = 0; r < n; r++) {
        const real *row = stack->embeddings + tokens[r] * d, *here = stack->positions + (first + r * step) * d;
        for (long j = 0; j < d; j++) states[r * d + j] = here[j] + (real)stack->scale * row[j];
    }
    if (stack->before.norm_weight) layer_norm(n, d, states, states, &stack->before);
}

static void run_stack(const Stack *stack, const Task *task, real *states)
{
    for (long u = 0; u < stack->count; u++) sublayer(stack->units + u, task, states, 0, 1);
    if (stack->behind.norm_weight) layer_norm(task->width, task->d_model, states, states, &stack->behind);
}

/* Computes the encoder's states (length, d_model), and keys and values of every unit of kind SOURCE. `mask` (slots): 0
 * for the sentence's positions; keys, values: memory that layers share, 0 after the sentence; memory: memory_for(). */
void encode(Stack *encoder, const long *tokens, long length, long d_model, real *states, real *keys, real *values,
            const real *mask, long slots, Unit *sources, long count, real *memory, long threads)
{
    Task task = task_in(memory, length, widest(encoder, 2 * d_model), d_model, slots, threads);
    for (long u = 0; u < encoder->count; u++) {
        Unit *unit = encoder->units + u;
        unit->keys = keys, unit->values = values, unit->mask = mask;
        unit->capacity = unit->slots = slots;
        unit->start = 0, unit->mask_rows = 1;
    }
    embed(encoder, length, tokens, 0, 1, d_model, states);
    run_stack(encoder, &task, states);
    for (long u = 0; u < count; u++) sublayer(sources + u, &task, states, 0, 1);
}

/* Reads a token of each of `rows` beams into a new slot, and computes the logits of the next tokens. */
static void read_tokens(Search *s, long rows)
{
    long d = s->d_model, slots = padded(s->used + rows, SLOTS), first = padded(s->used, SLOTS);
    Task task = task_in(s->memory, rows, widest(&s->decoder, d), d, s->looks, s->threads);
    for (long b = 0; b < rows; b++) {
        unsigned char *sees = s->sees + b * s->looks;
        memset(sees + s->used, 0, slots - s->used);
        sees[s->used + b] = 1;
        for (long j = 0; j < slots; j++) s->mask[b * slots + j] = sees[j] ? 0 : hidden;
    }
    for (long u = 0; u < s->decoder.count; u++) {
        Unit *unit = s->decoder.units + u;
        if (unit->kind != SELF_ATTENTION) continue;
        long size = d / unit->heads;
        for (long i = 0; slots > first && i < d; i++)
            memset(unit->keys + i * s->capacity + first, 0, (slots - first) * sizeof(real));
        for (long h = 0; slots > first && h < unit->heads; h++)
            memset(unit->values + (h * s->capacity + first) * size, 0, (slots - first) * size * sizeof(real));
        unit->capacity = s->capacity, unit->slots = slots, unit->start = s->used;
        unit->mask = s->mask, unit->mask_rows = rows;
    }
    embed(&s->decoder, rows, s->tokens, s->step, 0, d, s->states);
    run_stack(&s->decoder, &task, s->states);
    fill(rows, s->vocabulary, s->output.bias_out, s->logits, s->vocabulary);
    multiply(rows, d, s->vocabulary, s->states, s->output.weight_out, s->output.plain_out, &s->output.rounded_out,
             s->logits, &task);
    s->used += rows;
}

/* (1) Finds the best continuations of `rows` beams, the best first: scores, and in `places` parents, then tokens. */
static void choose_next(Search *s, long rows)
{
    long count = s->beams > 1 ? s->candidates : 1, *parents = s->places, *tokens = s->places + count;
    for (long c = 0; c < count; c++) {
        s->scores[c] = -INFINITY;
        parents[c] = tokens[c] = 0;
    }
    if (s->forced[s->step] >= 0) {
        for (long b = 0; b < s->beams; b++) {
            s->scores[b] = s->running[b];
            parents[b] = b;
            tokens[b] = s->forced[s->step];
        }
        return;
    }
    for (long b = 0; b < rows; b++) {
        float *row = (float *)s->logits + b * s->vocabulary, largest = 0, log_sum = 0, start = 0;
        if (s->beams > 1) {
            normalize(s->vocabulary, row, &largest, &log_sum);
            start = s->running[b];
        }
        for (long f = 0; f < s->count_forbidden; f++)
            if (s->step < s->until[f]) row[s->forbidden[f]] = -INFINITY;
        insert_row(s->vocabulary, row, largest, log_sum, start, b, count, s->scores, parents, tokens);
    }
}

static long is_last(const Search *s, long token)
{
    for (long e = 0; e < s->count_ends; e++)
        if (token == s->ends[e]) return 1;
    return s->step + 1 == s->longest;
}

/* (2) `Hypotheses.finish` for one candidate that ends. */
static void finish(Search *s, float score, long token, long parent)
{
    long at = s->beams;
    while (at > 0 && s->best[at - 1] < score) at--;
    if (at == s->beams) return;
    memmove(s->best + at + 1, s->best + at, (s->beams - at - 1) * sizeof(float));
    memmove(s->last + 4 * (at + 1), s->last + 4 * at, 4 * (s->beams - at - 1) * sizeof(long));
    s->best[at] = score;
    long last[4] = {1, s->step, token, parent};
    memcpy(s->last + 4 * at, last, sizeof last);
}

/* `BeamSearch.step` after `candidates`; returns whether the search has ended. */
static long take_beams(Search *s)
{
    long beams = s->beams, count = s->candidates, *parents = s->places, *tokens = s->places + count, chosen = 0;
    long *table = s->table + s->step * 2 * beams, full = s->last[4 * (beams - 1)];
    float penalty = s->length_penalties[s->step + 1];
    unsigned char *next = s->sees + (s->step & 1 ? -1 : 1) * beams * s->looks;
    for (long c = 0; c < beams; c++) /* (2); with early_stopping none is added to `beams` finished ones */
        if (is_last(s, tokens[c]) && !(s->early == EARLY && full))
            finish(s, s->scores[c] / penalty, tokens[c], parents[c]);
    for (long c = 0; c < count && chosen < beams; c++) { /* (3) */
        if (is_last(s, tokens[c])) continue; /* `beams` others are left, except in the last step */
        table[chosen] = tokens[c];
        table[beams + chosen] = parents[c];
        s->running[chosen++] = s->scores[c];
    }
    if (s->step + 1 == s->longest) return 1;
    for (long b = 0; b < beams; b++) { /* after the prompt row 0 is the parent of all beams */
        s->tokens[b] = table[b];
        memcpy(next + b * s->looks, s->sees + (s->step ? table[beams + b] : 0) * s->looks, s->used);
    }
    s->sees = next;
    for (long u = 0; u < s->decoder.count; u++) {
        Unit *unit = s->decoder.units + u;
        real *rows = unit->keys;
        if (unit->kind != STATE) continue;
        for (long b = 0; b < beams; b++)
            memcpy(unit->values + b * s->d_model, rows + (s->step ? table[beams + b] : 0) * s->d_model,
                   s->d_model * sizeof(real));
        unit->keys = unit->values, unit->values = rows;
    }
    full = s->last[4 * (beams - 1)]; /* (4) */
    float hope = s->running[0] / s->length_penalties[s->early == NEVER ? s->longest : s->step + 1];
    return full && (s->early == EARLY || !(hope > s->best[beams - 1]));
}

/* Runs steps until the search has ended: returns 0, or 1 where the caches need more slots; called again, continues. */
long search(Search *s)
{
    for (;;) {
        long rows = s->step ? s->beams : 1, ended;
        if (padded(s->used + rows, SLOTS) > s->capacity) return 1;
        read_tokens(s, rows);
        choose_next(s, rows);
        if (s->beams > 1) {
            ended = take_beams(s);
        } else {
            s->table[s->step] = s->tokens[0] = s->places[1];
            ended = is_last(s, s->tokens[0]);
        }
        s->step++;
        if (ended) return 0;
    }
}

/* Returns whether the numbers on the wrapped diagonals of weights (rows, columns) equal those in `kept`. */
long unchanged(long count, const real **weights, const long *sizes, const real **kept)
{
    for (long w = 0; w < count; w++) {
        long rows = sizes[2 * w], columns = sizes[2 * w + 1], r = 0, c = 0;
        for (long t = 0; t < (rows > columns ? rows : columns); t++) {
            if (weights[w][r * columns + c] != kept[w][t]) return 0;
            r = r + 1 == rows ? 0 : r + 1;
            c = c + 1 == columns ? 0 : c + 1;
        }
    }
    return 1;
}
