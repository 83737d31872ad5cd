/* The loops of a merge over the rows of a block, each in one pass over memory.
 *
 * Every function gives the bits of the numpy version in ddloco/machines/outer/block_kernel.py: elements are
 * computed in float32 in the same order of operations, without fused multiply-add, and sums of
 * squares run per lane over the rows and are then added in float64, pairwise, as numpy adds them.
 * ddloco/workers/merge_kernel.py compares both before it uses this file.
 *
 * Arrays are float32, or bfloat16 as the upper half of one. A row has LANES elements; what remains
 * of a block after its last row is left to numpy.
 *
 * Contributions that are compressed differences are decompressed a row at a time, into the first
 * cache, where they are read.
 */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LANES 1024
#define LEAF 128

/* Sums of this many elements stay in a core's first cache while contributions are added. */
#define TILE (4 * LANES)

#define INLINE static inline __attribute__((always_inline))

#if defined(__x86_64__) && defined(__gnu_linux__)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif

static inline float widened(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* numpy's pairwise sum: halves down to LEAF values, eight running sums in each leaf. */
static double pairwise(const float *values, size_t count)
{
    if (count > LEAF)
        return pairwise(values, count / 2) + pairwise(values + count / 2, count / 2);
    double sums[8];
    for (size_t j = 0; j < 8; j++)
        sums[j] = values[j];
    for (size_t i = 8; i < LEAF; i += 8)
        for (size_t j = 0; j < 8; j++)
            sums[j] += values[i + j];
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

INLINE float element(const void *raw, int bfloat16, size_t at)
{
    return bfloat16 ? widened(((const uint16_t *)raw)[at]) : ((const float *)raw)[at];
}

/* Contributions are read four at a time: a core reads memory faster from several places at once,
 * and the anchor and the sums are loaded once for all four. */

INLINE void change_squares(const float *anchor, const void *const *raws, const int bfloat16,
                           size_t count, size_t rows, double *squares)
{
    size_t i = 0;
    for (; i + 4 <= count; i += 4) {
        const void *const *r = raws + i;
        float lanes[4][LANES] = {{0}};
        for (size_t row = 0; row < rows * LANES; row += LANES)
            for (size_t j = 0; j < LANES; j++) {
                float first = anchor[row + j] - element(r[0], bfloat16, row + j);
                float second = anchor[row + j] - element(r[1], bfloat16, row + j);
                float third = anchor[row + j] - element(r[2], bfloat16, row + j);
                float fourth = anchor[row + j] - element(r[3], bfloat16, row + j);
                lanes[0][j] += first * first;
                lanes[1][j] += second * second;
                lanes[2][j] += third * third;
                lanes[3][j] += fourth * fourth;
            }
        for (size_t k = 0; k < 4; k++)
            squares[i + k] = pairwise(lanes[k], LANES);
    }
    for (; i < count; i++) {
        float lanes[LANES] = {0};
        for (size_t row = 0; row < rows * LANES; row += LANES)
            for (size_t j = 0; j < LANES; j++) {
                float change = anchor[row + j] - element(raws[i], bfloat16, row + j);
                lanes[j] += change * change;
            }
        squares[i] = pairwise(lanes, LANES);
    }
}

INLINE double weighted_change(const float *anchor, const void *const *raws, const int bfloat16,
                              const float *factors, size_t count, size_t rows, float *restrict out)
{
    float lanes[LANES] = {0};
    for (size_t start = 0; start < rows * LANES; start += TILE) {
        size_t rest = rows * LANES - start, stop = start + (rest < TILE ? rest : TILE), i = 0;
        memset(out + start, 0, (stop - start) * sizeof *out);
        for (; i + 4 <= count; i += 4) {
            const void *const *r = raws + i;
            const float *f = factors + i;
            for (size_t at = start; at < stop; at++) {
                float sum = out[at] + (anchor[at] - element(r[0], bfloat16, at)) * f[0];
                sum += (anchor[at] - element(r[1], bfloat16, at)) * f[1];
                sum += (anchor[at] - element(r[2], bfloat16, at)) * f[2];
                out[at] = sum + (anchor[at] - element(r[3], bfloat16, at)) * f[3];
            }
        }
        for (; i < count; i++)
            for (size_t at = start; at < stop; at++)
                out[at] += (anchor[at] - element(raws[i], bfloat16, at)) * factors[i];
        for (size_t row = start; row < stop; row += LANES)
            for (size_t j = 0; j < LANES; j++)
                lanes[j] += out[row + j] * out[row + j];
    }
    return pairwise(lanes, LANES);
}

/* The sum of squares of anchor - raw for each of `count` contributions. */
CLONES void ddloco_change_squares(const float *anchor, const void *const *raws, int bfloat16,
                                  size_t count, size_t rows, double *squares)
{
    if (bfloat16)
        change_squares(anchor, raws, 1, count, rows, squares);
    else
        change_squares(anchor, raws, 0, count, rows, squares);
}

/* Write the sum of factor * (anchor - raw) to `out`; returns its sum of squares. */
CLONES double ddloco_weighted_change(const float *anchor, const void *const *raws, int bfloat16,
                                     const float *factors, size_t count, size_t rows, float *out)
{
    if (bfloat16)
        return weighted_change(anchor, raws, 1, factors, count, rows, out);
    return weighted_change(anchor, raws, 0, factors, count, rows, out);
}

/* `ddloco_decode` of quantization_kernel.c. */
typedef void decode_function(const uint8_t *scales, const uint8_t *codes, const float *base,
                             size_t elements, int form, float *out);

/* How compressed contributions are read, and how many bytes of scales and of codes a row has. */
struct format {
    decode_function *decode;
    size_t form, scale_bytes, code_bytes;
};

/* Compressed differences to `base`, which may be NULL. */
struct compressed {
    const uint8_t *scales, *codes;
    const float *base;
};

INLINE void decode_row(const struct format *format, const struct compressed *from, size_t row,
                       float *out)
{
    format->decode(from->scales + row * format->scale_bytes, from->codes + row * format->code_bytes,
                   from->base ? from->base + row * LANES : NULL, LANES, (int)format->form, out);
}

/* As ddloco_change_squares. */
CLONES void ddloco_compressed_squares(const float *anchor, const struct compressed *raws,
                                      const struct format *format, size_t count, size_t rows,
                                      double *squares)
{
    for (size_t i = 0; i < count; i += 4) {
        size_t group = count - i < 4 ? count - i : 4;
        float lanes[4][LANES] = {{0}}, values[LANES];
        for (size_t row = 0; row < rows; row++)
            for (size_t k = 0; k < group; k++) {
                decode_row(format, raws + i + k, row, values);
                for (size_t j = 0; j < LANES; j++) {
                    float change = anchor[row * LANES + j] - values[j];
                    lanes[k][j] += change * change;
                }
            }
        for (size_t k = 0; k < group; k++)
            squares[i + k] = pairwise(lanes[k], LANES);
    }
}

/* As ddloco_weighted_change. */
CLONES double ddloco_compressed_change(const float *anchor, const struct compressed *raws,
                                       const struct format *format, const float *factors,
                                       size_t count, size_t rows, float *restrict out)
{
    float lanes[LANES] = {0}, values[LANES];
    for (size_t row = 0; row < rows; row++) {
        const float *from = anchor + row * LANES;
        float *sums = out + row * LANES;
        memset(sums, 0, LANES * sizeof *sums);
        for (size_t i = 0; i < count; i++) {
            decode_row(format, raws + i, row, values);
            for (size_t j = 0; j < LANES; j++)
                sums[j] += (from[j] - values[j]) * factors[i];
        }
        for (size_t j = 0; j < LANES; j++)
            lanes[j] += sums[j] * sums[j];
    }
    return pairwise(lanes, LANES);
}

/* One Nesterov step of `count` elements; `delta` becomes the new theta. */
CLONES void ddloco_nesterov(const float *restrict theta, const float *restrict momentum,
                            float *restrict delta, float *restrict momentum_out, float scale,
                            float rate, float factor, size_t count)
{
    for (size_t j = 0; j < count; j++) {
        float scaled = delta[j] * scale;
        float running = momentum[j] * factor;
        running = scaled + running;
        momentum_out[j] = running;
        float step = running * factor;
        step = scaled + step;
        step = step * rate;
        delta[j] = theta[j] - step;
    }
}
