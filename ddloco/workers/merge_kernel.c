/* The loops of a merge over the rows of a block, each in one pass over memory.
 *
 * Every function gives the bits of the numpy version in ddloco/outer/block_kernel.py: elements are
 * computed in float32 in the same order of operations, without fused multiply-add, and sums of
 * squares run per lane over the rows and are then added in float64, pairwise, as numpy adds them.
 * ddloco/workers/merge_kernel.py compares both before it uses this file.
 *
 * Arrays are float32, or bfloat16 as the upper half of one. A row has LANES elements; what remains
 * of a block after its last row is left to numpy.
 */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LANES 1024
#define LEAF 128

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

/* The sum of squares of anchor - raw for each of `count` contributions. */
CLONES void ddloco_change_squares(const float *anchor, const void *const *raws, int bfloat16,
                                  size_t count, size_t rows, double *squares)
{
    for (size_t i = 0; i < count; i++) {
        float lanes[LANES] = {0};
        for (size_t k = 0; k < rows; k++) {
            const float *a = anchor + k * LANES;
            if (bfloat16) {
                const uint16_t *r = (const uint16_t *)raws[i] + k * LANES;
                for (size_t j = 0; j < LANES; j++) {
                    float change = a[j] - widened(r[j]);
                    lanes[j] += change * change;
                }
            } else {
                const float *r = (const float *)raws[i] + k * LANES;
                for (size_t j = 0; j < LANES; j++) {
                    float change = a[j] - r[j];
                    lanes[j] += change * change;
                }
            }
        }
        squares[i] = pairwise(lanes, LANES);
    }
}

/* Write the sum of factor * (anchor - raw) to `out`; returns its sum of squares. */
CLONES double ddloco_weighted_change(const float *anchor, const void *const *raws, int bfloat16,
                                     const float *factors, size_t count, size_t rows, float *out)
{
    float lanes[LANES] = {0}, total[LANES];
    for (size_t k = 0; k < rows; k++) {
        const float *a = anchor + k * LANES;
        memset(total, 0, sizeof total);
        for (size_t i = 0; i < count; i++) {
            float factor = factors[i];
            if (bfloat16) {
                const uint16_t *r = (const uint16_t *)raws[i] + k * LANES;
                for (size_t j = 0; j < LANES; j++)
                    total[j] += (a[j] - widened(r[j])) * factor;
            } else {
                const float *r = (const float *)raws[i] + k * LANES;
                for (size_t j = 0; j < LANES; j++)
                    total[j] += (a[j] - r[j]) * factor;
            }
        }
        memcpy(out + k * LANES, total, sizeof total);
        for (size_t j = 0; j < LANES; j++)
            lanes[j] += total[j] * total[j];
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
