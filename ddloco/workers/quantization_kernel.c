/* Compression of differences between parameters, block by block, each block in a core's first cache.
 *
 * Every function gives the bytes of the numpy version in ddloco/workers/quantization.py, whose
 * docstring says what the formats are: elements go through the same operations in the same order,
 * without fused multiply-add, and sums run in the order of numpy's einsum.
 * ddloco/workers/quantization_kernel.py compares both before it uses this file.
 *
 * Differences are made and added up in these functions, so that none is written to memory as float32.
 */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define BLOCK 256
#define SCALE_BYTES 4

/* As in quantization_kernel.py. */
enum form { BFLOAT16, INT8, INT4, E3M0, INT2, INT1 };

#define SCALE_MIN 1e-30f
#define ROUND 12582912.0f /* 1.5 * 2**23: adding it leaves the nearest integer in the lowest bits. */
#define E3M0_LEVELS 8
#define E3M0_LEAST 0.015625f /* 2**-6 */
#define E3M0_LEAST_EXPONENT 120

#define INLINE static inline __attribute__((always_inline))

#if defined(__x86_64__) && defined(__gnu_linux__)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif

/* Codes of one byte each, and the same as wider integers, in which they are packed. */
union codes {
    uint8_t bytes[BLOCK];
    uint16_t pairs[BLOCK / 2];
    uint32_t fours[BLOCK / 4];
    uint64_t eights[BLOCK / 8];
};

INLINE uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

INLINE float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE int bits_per_code(enum form form)
{
    return form == INT8 ? 8 : form == INT2 ? 2 : form == INT1 ? 1 : 4;
}

INLINE float offset_of(enum form form)
{
    return form == INT8 ? 127.0f : form == INT4 ? 7.0f : form == INT2 ? 1.5f : 0.5f;
}

/* numpy's generator SFC64; `state` is that of numpy.random.SFC64. */
INLINE uint64_t next_random(uint64_t *state)
{
    uint64_t sum = state[0] + state[1] + state[3]++;
    state[0] = state[1] ^ (state[1] >> 11);
    state[1] = state[2] + (state[2] << 3);
    state[2] = ((state[2] << 24) | (state[2] >> 40)) + sum;
    return sum;
}

INLINE void draw(uint64_t *state, uint16_t *noise, size_t count)
{
    for (size_t i = 0; i < count; i += 4) {
        uint64_t word = next_random(state);
        for (size_t j = 0; j < 4 && i + j < count; j++)
            noise[i + j] = (uint16_t)(word >> (16 * j));
    }
}

/* values - base + error of one block, filled up with zeros. */
INLINE void subtract(float *out, const float *values, const float *base, const float *error,
                     size_t count)
{
    if (base)
        for (size_t j = 0; j < count; j++)
            out[j] = values[j] - base[j];
    else
        memcpy(out, values, count * sizeof *out);
    if (error)
        for (size_t j = 0; j < count; j++)
            out[j] += error[j];
    memset(out + count, 0, (BLOCK - count) * sizeof *out);
}

/* numpy's order: four running sums, elements 12 to 15 of each sixteen first. */
INLINE float sum_of_squares(const float *values)
{
    float sums[4] = {0};
    for (size_t i = 0; i < BLOCK; i += 16)
        for (size_t part = 4; part-- > 0;)
            for (size_t j = 0; j < 4; j++)
                sums[j] = values[i + 4 * part + j] * values[i + 4 * part + j] + sums[j];
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

INLINE float sum_of_magnitudes(const float *values)
{
    float sums[4] = {0};
    for (size_t i = 0; i < BLOCK; i += 16)
        for (size_t j = 0; j < 4; j++) {
            float first = fabsf(values[i + j]) + fabsf(values[i + 4 + j]);
            float second = fabsf(values[i + 8 + j]) + fabsf(values[i + 12 + j]);
            sums[j] = (first + second) + sums[j];
        }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

INLINE float scale_of(const float *values, const enum form form, size_t count)
{
    if (form == INT2)
        return sqrtf(sum_of_squares(values) / (float)count);
    if (form == INT1)
        return 2.0f * (sum_of_magnitudes(values) / (float)count);
    int32_t largest = 0; /* Without their signs, the bits are in the order of the numbers. */
    for (size_t j = 0; j < BLOCK; j++) {
        int32_t bits = (int32_t)(bits_of(values[j]) & 0x7FFFFFFF);
        largest = bits > largest ? bits : largest;
    }
    float magnitude = float_of((uint32_t)largest);
    return form == E3M0 ? magnitude : magnitude / offset_of(form);
}

INLINE uint8_t level_of(float value, const enum form form, const int noisy, uint16_t noise)
{
    float random = (float)noise * 0x1p-16f;
    if (form == E3M0) { /* The exponents of float32 are the levels. */
        uint32_t bits = bits_of(value), sign = (bits >> 28) & E3M0_LEVELS;
        bits &= 0x7FFFFFFF;
        uint32_t small = noisy ? float_of(bits) * (1.0f / E3M0_LEAST) + random >= 1.0f
                               : float_of(bits) >= 0.5f * E3M0_LEAST;
        bits += noisy ? (uint32_t)(int32_t)(random * 0x1p23f) : 1u << 22;
        bits >>= 23;
        uint32_t level = bits > E3M0_LEAST_EXPONENT ? bits - E3M0_LEAST_EXPONENT : 0;
        level = level > small ? level : small;
        level = level < E3M0_LEVELS - 1 ? level : E3M0_LEVELS - 1;
        return (uint8_t)(level | sign);
    }
    if (!noisy && (form == INT8 || form == INT4))
        return (uint8_t)bits_of(value + (ROUND + offset_of(form)));
    float highest = 2.0f * offset_of(form);
    float level = value + offset_of(form);
    level = level + (noisy ? random - 0.5f : 0.0f);
    level = level > 0.0f ? level : 0.0f;
    level = level < highest ? level : highest;
    return (uint8_t)bits_of(level + ROUND);
}

/* The first element is in the lowest bits. */
INLINE void pack(const union codes *codes, const enum form form, uint8_t *out)
{
    const int bits = bits_per_code(form);
    if (bits == 8)
        memcpy(out, codes->bytes, BLOCK);
    else if (bits == 4)
        for (size_t i = 0; i < BLOCK / 2; i++)
            out[i] = (uint8_t)(codes->pairs[i] | (codes->pairs[i] >> 4));
    else if (bits == 2)
        for (size_t i = 0; i < BLOCK / 4; i++) {
            uint32_t four = codes->fours[i];
            out[i] = (uint8_t)(four | (four >> 6) | (four >> 12) | (four >> 18));
        }
    else
        for (size_t i = 0; i < BLOCK / 8; i++)
            out[i] = (uint8_t)((codes->eights[i] * 0x0102040810204080u) >> 56);
}

INLINE void unpack(const uint8_t *packed, const enum form form, union codes *codes)
{
    const int bits = bits_per_code(form);
    if (bits == 8)
        memcpy(codes->bytes, packed, BLOCK);
    else if (bits == 4)
        for (size_t i = 0; i < BLOCK / 2; i++)
            codes->pairs[i] = (uint16_t)((packed[i] | ((uint32_t)packed[i] << 4)) & 0x0F0F);
    else if (bits == 2)
        for (size_t i = 0; i < BLOCK / 4; i++) {
            uint32_t byte = packed[i];
            codes->fours[i] = (byte | (byte << 6) | (byte << 12) | (byte << 18)) & 0x03030303;
        }
    else
        for (size_t i = 0; i < BLOCK / 8; i++) {
            uint64_t each = (packed[i] * 0x0101010101010101u) & 0x8040201008040201u;
            codes->eights[i] = ((each + 0x7F7F7F7F7F7F7F7Fu) >> 7) & 0x0101010101010101u;
        }
}

/* What a code stands for, before scaling. */
INLINE float value_of(uint8_t code, const enum form form)
{
    if (form != E3M0)
        return (float)code - offset_of(form);
    uint32_t level = code & (E3M0_LEVELS - 1), sign = code & E3M0_LEVELS;
    uint32_t bits = ((level + E3M0_LEAST_EXPONENT) << 23) | (sign << 28);
    return float_of(level ? bits : 0);
}

INLINE void encode_block(float *values, const enum form form, size_t count, uint64_t *random,
                         uint8_t *scale_out, uint8_t *packed, float *lost)
{
    union codes codes;
    uint16_t noise[BLOCK] = {0};
    float scale = scale_of(values, form, count);
    scale = isnan(scale) ? float_of(0x7FC00000) : scale; /* One of many. */
    float factor = scale >= SCALE_MIN ? 1.0f / scale : 0.0f;
    int sound = isfinite(scale);
    if (random)
        draw(random, noise, BLOCK);
    if (!sound) /* The scale alone makes the block's values not finite. */
        memset(values, 0, BLOCK * sizeof *values);
    if (random)
        for (size_t j = 0; j < BLOCK; j++)
            codes.bytes[j] = level_of(values[j] * factor, form, 1, noise[j]);
    else
        for (size_t j = 0; j < BLOCK; j++)
            codes.bytes[j] = level_of(values[j] * factor, form, 0, 0);
    memcpy(scale_out, &scale, SCALE_BYTES);
    pack(&codes, form, packed);
    if (lost)
        for (size_t j = 0; j < count; j++) {
            float rest = values[j] - value_of(codes.bytes[j], form) * scale;
            lost[j] = sound && isfinite(rest) ? rest : 0.0f;
        }
}

INLINE void encode_blocks(const float *values, const float *base, const float *error,
                          size_t elements, const enum form form, uint64_t *random, uint8_t *out,
                          float *lost)
{
    size_t blocks = (elements + BLOCK - 1) / BLOCK, packed = BLOCK * bits_per_code(form) / 8;
    uint8_t *codes = out + blocks * SCALE_BYTES;
    for (size_t k = 0; k < blocks; k++) {
        size_t start = k * BLOCK, count = elements - start < BLOCK ? elements - start : BLOCK;
        float block[BLOCK];
        subtract(block, values + start, base ? base + start : NULL, error ? error + start : NULL,
                 count);
        encode_block(block, form, count, random, out + k * SCALE_BYTES, codes + k * packed,
                     lost ? lost + start : NULL);
    }
}

INLINE void decode_blocks(const uint8_t *scales, const uint8_t *packs, const float *base,
                          size_t elements, const enum form form, float *out)
{
    size_t blocks = (elements + BLOCK - 1) / BLOCK, packed = BLOCK * bits_per_code(form) / 8;
    for (size_t k = 0; k < blocks; k++) {
        size_t start = k * BLOCK, count = elements - start < BLOCK ? elements - start : BLOCK;
        union codes codes;
        float scale, values[BLOCK];
        memcpy(&scale, scales + k * SCALE_BYTES, SCALE_BYTES);
        unpack(packs + k * packed, form, &codes);
        for (size_t j = 0; j < BLOCK; j++)
            values[j] = value_of(codes.bytes[j], form) * scale;
        if (base)
            for (size_t j = 0; j < count; j++)
                out[start + j] = base[start + j] + values[j];
        else
            memcpy(out + start, values, count * sizeof *out);
    }
}

INLINE uint16_t half_of(float value)
{
    uint32_t bits = bits_of(value);
    uint32_t nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16; /* To even where two are as near. */
    uint32_t nan = ((bits >> 16) & 0x8000) | 0x7FC0;
    return (uint16_t)((bits & 0x7FFFFFFF) > 0x7F800000 ? nan : nearest);
}

INLINE uint16_t noisy_half_of(float value, uint16_t noise)
{
    uint32_t bits = bits_of(value);
    int sound = (bits & 0x7F800000) != 0x7F800000; /* A carry must not turn NaN into a number. */
    return (uint16_t)(sound ? (bits + noise) >> 16 : (bits >> 16) | 0x40);
}

INLINE void encode_bfloat16(const float *values, const float *base, const float *error,
                            size_t elements, uint64_t *random, uint8_t *out, float *lost)
{
    for (size_t start = 0; start < elements; start += BLOCK) {
        size_t count = elements - start < BLOCK ? elements - start : BLOCK;
        float block[BLOCK];
        uint16_t noise[BLOCK], halves[BLOCK];
        subtract(block, values + start, base ? base + start : NULL, error ? error + start : NULL,
                 count);
        if (random) {
            draw(random, noise, count);
            for (size_t j = 0; j < count; j++)
                halves[j] = noisy_half_of(block[j], noise[j]);
        } else
            for (size_t j = 0; j < count; j++)
                halves[j] = half_of(block[j]);
        memcpy(out + 2 * start, halves, 2 * count);
        if (lost)
            for (size_t j = 0; j < count; j++) {
                float rest = block[j] - float_of((uint32_t)halves[j] << 16);
                lost[start + j] = isfinite(rest) ? rest : 0.0f;
            }
    }
}

INLINE void decode_bfloat16(const uint8_t *data, const float *base, size_t elements, float *out)
{
    const uint16_t *halves = (const uint16_t *)data;
    if (base)
        for (size_t j = 0; j < elements; j++)
            out[j] = base[j] + float_of((uint32_t)halves[j] << 16);
    else
        for (size_t j = 0; j < elements; j++)
            out[j] = float_of((uint32_t)halves[j] << 16);
}

#define WITH_CONSTANT_FORM(call)       \
    switch (form) {                    \
    case INT8: call(INT8); break;      \
    case INT4: call(INT4); break;      \
    case E3M0: call(E3M0); break;      \
    case INT2: call(INT2); break;      \
    case INT1: call(INT1); break;      \
    }

/* Compress values - base + error; what its receiver will not have goes to `lost`. `base`, `error`,
 * `random` (the state of SFC64; without it levels are the nearest) and `lost` may be NULL. */
CLONES void ddloco_encode(const float *values, const float *base, const float *error,
                          size_t elements, int form, uint64_t *random, uint8_t *out, float *lost)
{
#define ENCODE(constant) encode_blocks(values, base, error, elements, constant, random, out, lost)
    if (form == BFLOAT16)
        encode_bfloat16(values, base, error, elements, random, out, lost);
    else
        WITH_CONSTANT_FORM(ENCODE)
}

/* Write base + differences, from the scales of all blocks and their codes; `base` may be NULL. In
 * bfloat16, which has no scales, the elements are where scales would be. */
CLONES void ddloco_decode(const uint8_t *scales, const uint8_t *codes, const float *base,
                          size_t elements, int form, float *out)
{
#define DECODE(constant) decode_blocks(scales, codes, base, elements, constant, out)
    if (form == BFLOAT16)
        decode_bfloat16(scales, base, elements, out);
    else
        WITH_CONSTANT_FORM(DECODE)
}
