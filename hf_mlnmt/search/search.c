/* The inner loops of a search on a CPU, without PyTorch's price for every small operation: `run`, the sublayers of a
 * decoder for one new position of every beam (steps/baseline.py writes them out in PyTorch), and `choose`, the best
 * continuations (candidates.py). native_library.py compiles them. Equations as in layers.py and attention.py:
 *
 *   (1) head_h = softmax(Q_h K_h^T scaling + mask) V_h      (2) output = concat(head_1 .. head_H) W_o
 *   (3) post: x = LN(x + f(x)), pre: x = x + f(LN(x))       (4) f(x) = W_2 relu(W_1 x + b_1) + b_2
 *
 * All matrices are row-major. A row is one beam of one sentence. A weight is packed, in panels of 64 outputs,
 * (outputs / 64 rounded up, inputs, 64): a panel lies in one piece, which the processor's cache likes. The order in
 * which a row's numbers are added depends neither on the other rows nor on the threads.
 */
#include <math.h>
#include <string.h>
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
typedef real vec __attribute__((vector_size(BYTES), aligned(sizeof(real)), may_alias)); /* at any address */

enum { SELF_ATTENTION, SOURCE_ATTENTION, FEED_FORWARD }; /* kinds of units */
enum { PANEL = 64, BLOCK = 64 };

typedef struct {
    long kind, pre;                       /* pre: equation 3 with the norm first */
    double eps, scaling;
    const real *norm_weight, *norm_bias;  /* (d_model) */
    const real *in, *in_bias;             /* (d_model, inner): q|k|v, q or W_1; a bias may be null */
    const real *out, *out_bias;           /* (d_model or inner, d_model): W_o or W_2 */
    long inner, heads;
    real *keys, *values;                  /* (sentences, heads, d_h, capacity), (.., capacity, d_h) */
    long capacity, slots, start;          /* `slots` are looked at; SELF_ATTENTION writes `width` from `start` on */
    const real *mask;                     /* (sentences, width or 1, slots), added to the scores */
    long mask_rows;                       /* width or 1 */
} Unit;

typedef struct {
    long width, d_model;
    real *inner, *normed, *scores;        /* memory for what a task computes */
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

/* All n rows for `vecs` vectors of columns: six at a time. */
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

/* y (n, m) += x (n, k) w (k, m). Few rows take more columns at once, so that enough sums are under way. */
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

/* A weight as PyTorch keeps it, (outputs, inputs), packed; the places of missing outputs are 0 already. */
void pack(long outputs, long inputs, const real *weight, real *packed)
{
    for (long o = 0; o < outputs; o += PANEL)
        for (long i = 0; i < inputs; i++)
            for (long j = 0; j < (outputs - o < PANEL ? outputs - o : PANEL); j++)
                packed[o * inputs + i * PANEL + j] = weight[(o + j) * inputs + i];
}

/* y (n, m) += x (n, k) times a packed weight. */
static void multiply_weight(long n, long k, long m, const real *x, const real *w, real *y)
{
    for (long c = 0; c < m; c += PANEL)
        multiply_add(n, k, m - c < PANEL ? m - c : PANEL, x, k, w + c * k, PANEL, y + c, m);
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

/* e^x for x <= 0. In single precision 2^n p(r) with x = n ln 2 + r, |r| <= ln 2 / 2: a loop of it becomes vectors. What
 * is next to nothing is 0: the smallest numbers of a processor are its slowest. */
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

/* One row of equation 1's softmax, in place. */
static void softmax(long slots, real *scores, const real *mask, real scaling)
{
    real largest = -INFINITY, sum = 0;
#pragma omp simd reduction(max : largest)
    for (long j = 0; j < slots; j++) {
        scores[j] = scores[j] * scaling + mask[j];
        largest = scores[j] > largest ? scores[j] : largest;
    }
#pragma omp simd reduction(+ : sum)
    for (long j = 0; j < slots; j++) {
        scores[j] = exponential(scores[j] - largest);
        sum += scores[j];
    }
    for (long j = 0; j < slots; j++) scores[j] /= sum;
}

/* SELF_ATTENTION: the new keys and values (of q|k|v, `inner`) go to their slots. */
static void append(const Unit *unit, const Task *task, long first, long count)
{
    long d = task->d_model, size = d / unit->heads;
    for (long s = 0; s < count; s++)
        for (long b = 0; b < task->width; b++) {
            const real *key = task->inner + (s * task->width + b) * unit->inner + d, *value = key + d;
            for (long h = 0; h < unit->heads; h++) {
                long head = (first + s) * unit->heads + h;
                real *keys = unit->keys + head * size * unit->capacity + unit->start + b;
                for (long i = 0; i < size; i++) keys[i * unit->capacity] = key[h * size + i];
                real *values = unit->values + (head * unit->capacity + unit->start + b) * size;
                memcpy(values, value + h * size, size * sizeof(real));
            }
        }
}

/* Equation 1 for sentences first .. first + count - 1: queries in `inner`, contexts to `normed`. */
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

/* One sublayer, equation 3, for sentences first .. first + count - 1; states (their rows, d_model) in place. */
static void sublayer(const Unit *unit, const Task *task, real *states, long first, long count)
{
    long n = count * task->width, d = task->d_model, inner = unit->inner;
    const real *x = states;
    if (unit->pre) {
        layer_norm(n, d, states, task->normed, unit);
        x = task->normed;
    }
    fill(n, inner, unit->in_bias, task->inner, inner);
    multiply_weight(n, d, inner, x, unit->in, task->inner);
    const real *computed = task->inner;
    if (unit->kind == FEED_FORWARD) {
        for (long i = 0; i < n * inner; i++) task->inner[i] = task->inner[i] > 0 ? task->inner[i] : 0;
    } else {
        if (unit->kind == SELF_ATTENTION) append(unit, task, first, count);
        attend(unit, task, first, count);
        computed = task->normed;
    }
    long k = unit->kind == FEED_FORWARD ? inner : d;
    if (unit->out_bias)
        for (long r = 0; r < n; r++)
            for (long j = 0; j < d; j++) states[r * d + j] += unit->out_bias[j];
    multiply_weight(n, k, d, computed, unit->out, states);
    if (!unit->pre) layer_norm(n, d, states, states, unit);
}

/* All units, one after the other, on states (sentences x width, d_model) in place. The sentences are shared out in
 * tasks of about `rows` rows. `scratch` is memory for `size` numbers; returns 0, or,
 * having done nothing, how many are needed. */
long run(const Unit *units, long count, long sentences, long width, long d_model, real *states, long rows, long threads,
         real *scratch, long size)
{
    long each = rows / width > 1 ? rows / width : 1;
    each = each < sentences ? each : sentences;
    long tasks = (sentences + each - 1) / each, inner = 0, slots = 0;
    for (long u = 0; u < count; u++) {
        inner = units[u].inner > inner ? units[u].inner : inner;
        slots = units[u].slots > slots ? units[u].slots : slots;
    }
    long needed = each * width * (inner + d_model) + width * slots; /* of a task */
    threads = threads < tasks ? threads : tasks;
    if (needed * threads > size) return needed * threads;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (long t = 0; t < tasks; t++) {
#ifdef _OPENMP
        real *start = scratch + needed * omp_get_thread_num();
#else
        real *start = scratch;
#endif
        long first = t * each, here = sentences - first < each ? sentences - first : each;
        Task task = {width, d_model, start, start + here * width * inner, start + here * width * (inner + d_model)};
        for (long u = 0; u < count; u++) sublayer(units + u, &task, states + first * width * d_model, first, here);
    }
    return 0;
}

/* Put a candidate at its place among the `count` best, the best first; the worst goes. */
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

/* Put a beam's tokens among the `count` best. Few blocks of the vocabulary hold one that is good enough. */
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

/* The `count` best of running[beam] + log softmax(logits)[beam, token] for every sentence, the best first; without
 * `running` the tokens with the largest logits. logits: float, a beam's row of `vocabulary` numbers at
 * sentence * of_sentence + beam * of_beam; running (sentences, width); scores, beams, tokens (sentences, count). */
void choose(const float *logits, long of_sentence, long of_beam, long sentences, long width, long vocabulary,
            const float *running, long count, float *scores, long *beams, long *tokens, long threads)
{
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && sentences > 1)
    for (long s = 0; s < sentences; s++) {
        for (long c = s * count; c < (s + 1) * count; c++) {
            scores[c] = -INFINITY;
            beams[c] = tokens[c] = 0;
        }
        for (long b = 0; b < width; b++) {
            const float *row = logits + s * of_sentence + b * of_beam;
            float largest = 0, log_sum = 0, start = 0;
            if (running) {
                float most = -INFINITY, sum = 0;
#pragma omp simd reduction(max : most)
                for (long j = 0; j < vocabulary; j++) most = row[j] > most ? row[j] : most;
#pragma omp simd reduction(+ : sum)
                for (long j = 0; j < vocabulary; j++) sum += exponential_float(row[j] - most);
                largest = most;
                log_sum = logf(sum);
                start = running[s * width + b];
            }
            insert_row(vocabulary, row, largest, log_sum, start, b, count, scores + s * count, beams + s * count,
                       tokens + s * count);
        }
    }
}
