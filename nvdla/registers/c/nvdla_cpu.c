/* The operations that NVIDIA's runtime computes on the processor: softmax and power, the same bits as the emulator's.
 *
 * Floating point must be IEEE 754 single and double, without contraction (gcc and clang: -std=c99 or
 * -ffp-contract=off) and without -ffast-math. Softmax is exact by construction. Power uses the logarithm and
 * exponential below, at most 4e-13 off in double precision: once in about a hundred thousand numbers the rounding to
 * single precision may go the other way. NVDLA_POW(x, y) replaces it, for instance by pow() of a C library. */
#include "nvdla_runner.h"
#include "nvdla_port.h"

typedef union {
    float number;
    uint32_t bits;
} float_bits;

typedef union {
    double number;
    uint64_t bits;
} double_bits;

static float float_of(uint32_t bits) {
    float_bits value;
    value.bits = bits;
    return value.number;
}

/* 2^exponent, -1022 <= exponent <= 1023 */
static double power_of_two(int32_t exponent) {
    double_bits value;
    value.bits = (uint64_t)(exponent + 1023) << 52;
    return value.number;
}

static int is_nan(double value) {
    return value != value;
}

/* Round to the nearest integer, ties to even, |value| < 2^51. */
static double rounded(double value) {
    volatile double shifted = value + 6755399441055744.0;
    return shifted - 6755399441055744.0;
}

static float half_to_float(uint32_t half) {
    uint32_t sign = (half & 0x8000u) << 16;
    uint32_t exponent = half >> 10 & 31u;
    uint32_t fraction = half & 0x3ffu;
    if (exponent == 31u) {
        return float_of(sign | 0x7f800000u | fraction << 13);
    }
    if (exponent != 0u) {
        return float_of(sign | (exponent + 112u) << 23 | fraction << 13);
    }
    return (float)fraction * (sign != 0u ? -5.9604644775390625e-8f : 5.9604644775390625e-8f);
}

/* Round to the nearest fp16 value, ties away from zero; a NaN keeps the top ten bits of its fraction. */
static uint32_t float_to_half(float number) {
    float_bits value;
    uint32_t sign, fraction, significand, result;
    int32_t exponent, lost;
    value.number = number;
    sign = value.bits >> 16 & 0x8000u;
    exponent = (int32_t)(value.bits >> 23 & 0xffu);
    fraction = value.bits & 0x7fffffu;
    if (exponent == 0xff) {
        return sign | 0x7c00u | fraction >> 13;
    }
    lost = 113 - exponent;
    lost = lost < 0 ? 0 : lost > 12 ? 12 : lost;
    significand = fraction | (exponent > 0 ? 1u << 23 : 0u);
    result = (significand + (1u << (12 + lost))) >> (13 + lost);
    if (lost == 0) {
        result += (uint32_t)(exponent - 113) << 10;
    }
    return sign | (result > 0x7c00u ? 0x7c00u : result);
}

static uint8_t saturated(float value) {
    if (is_nan(value) || value >= 127.0f) {
        return 127u;
    }
    return (uint8_t)(value <= -128.0f ? -128 : (int32_t)value);
}

/* 2^(k / 32) */
static const double ROOTS[32] = {
    0x1.0000000000000p+0, 0x1.059b0d3158574p+0, 0x1.0b5586cf9890fp+0, 0x1.11301d0125b51p+0,
    0x1.172b83c7d517bp+0, 0x1.1d4873168b9aap+0, 0x1.2387a6e756238p+0, 0x1.29e9df51fdee1p+0,
    0x1.306fe0a31b715p+0, 0x1.371a7373aa9cbp+0, 0x1.3dea64c123422p+0, 0x1.44e086061892dp+0,
    0x1.4bfdad5362a27p+0, 0x1.5342b569d4f82p+0, 0x1.5ab07dd485429p+0, 0x1.6247eb03a5585p+0,
    0x1.6a09e667f3bcdp+0, 0x1.71f75e8ec5f74p+0, 0x1.7a11473eb0187p+0, 0x1.82589994cce12p+0,
    0x1.8ace5422aa0dbp+0, 0x1.93737b0cdc5e5p+0, 0x1.9c49182a3f090p+0, 0x1.a5503b23e255cp+0,
    0x1.ae89f995ad3adp+0, 0x1.b7f76f2fb5e47p+0, 0x1.c199bdd85529cp+0, 0x1.cb720dcef9069p+0,
    0x1.d5818dcfba487p+0, 0x1.dfc97337b9b5fp+0, 0x1.ea4afa2a490dap+0, 0x1.f50765b6e4540p+0
};

/* e^value: 2^(k / 32) times a polynomial of degree 3 in the rest. */
static float exponential(float value) {
    double bounded = value > 200.0f ? 200.0 : value < -200.0f ? -200.0 : (double)value;
    double scaled = bounded * 0x1.71547652b82fep+5;
    double whole = rounded(scaled);
    double rest = scaled - whole;
    int32_t steps = is_nan(whole) ? 0 : (int32_t)whole;
    int32_t step = (int32_t)((uint32_t)steps & 31u);
    double cubic = 0x1.c6af84b912394p-20 * rest + 0x1.ebfce50fac4f3p-13;
    double linear = 0x1.62e42ff0c52d6p-6 * rest + 1.0;
    double result = cubic * (rest * rest) + linear;
    return (float)(result * (ROOTS[step] * power_of_two((steps - step) / 32)));
}

static double logarithm(double value, double *low) {
    double_bits bits;
    int32_t exponent = 0;
    double quotient, square, series;
    int term;
    if (value < 2.2250738585072014e-308) {
        value *= 18014398509481984.0;
        exponent = -54;
    }
    bits.number = value;
    exponent += (int32_t)(bits.bits >> 52) - 1023;
    bits.bits = (bits.bits & 0xfffffffffffffu) | (uint64_t)1023 << 52;
    if (bits.number > 1.4142135623730951) {
        bits.number *= 0.5;
        exponent++;
    }
    quotient = (bits.number - 1.0) / (bits.number + 1.0);
    square = quotient * quotient;
    series = 0.0;
    for (term = 25; term >= 3; term -= 2) {
        series = (series + 1.0 / term) * square;
    }
    *low = exponent * 1.9082149292705877e-10 + 2.0 * quotient * series;
    return exponent * 6.93147180369123816490e-01 + 2.0 * quotient;
}

static double exponential_of(double high, double low) {
    double count = rounded((high + low) * 1.4426950408889634);
    double rest, sum = 1.0;
    int32_t exponent, half;
    int term;
    if (high > 720.0) {
        return power_of_two(1023) * 2.0;
    }
    if (high < -760.0) {
        return 0.0;
    }
    rest = high - count * 6.93147180369123816490e-01 + (low - count * 1.90821492927058770002e-10);
    for (term = 14; term >= 1; term--) {
        sum = 1.0 + sum * rest / term;
    }
    exponent = (int32_t)count;
    half = exponent / 2;
    return sum * power_of_two(half) * power_of_two(exponent - half);
}

static double raised(double base, double power) {
    int whole = rounded(power) == power || power >= 2251799813685248.0 || power <= -2251799813685248.0;
    int odd = whole && rounded(power * 0.5) != power * 0.5 && power < 2251799813685248.0 && power > -2251799813685248.0;
    double magnitude = base < 0.0 ? -base : base;
    double infinite = power_of_two(1023) * 2.0;
    double high, low, result;
    double_bits bits;
    bits.number = base;
    if (power == 0.0 || base == 1.0) {
        return 1.0;
    }
    if (is_nan(base) || is_nan(power)) {
        return base + power;
    }
    if (power == 1.0) {
        return base;
    }
    if (power == infinite || power == -infinite) {
        return magnitude == 1.0 ? 1.0 : (magnitude > 1.0) == (power > 0.0) ? infinite : 0.0;
    }
    if (magnitude == 0.0 || magnitude == infinite) {
        result = (magnitude == 0.0) == (power > 0.0) ? 0.0 : infinite;
        return odd && (bits.bits >> 63) != 0u ? -result : result;
    }
    if (base < 0.0 && !whole) {
        return (base - base) / (base - base);
    }
    high = logarithm(magnitude, &low);
    result = exponential_of(high * power, low * power);
    return odd && base < 0.0 ? -result : result;
}

#ifndef NVDLA_POW
#define NVDLA_POW(x, y) raised(x, y)
#endif

static float loaded(const uint8_t *bytes, uint32_t half) {
    if (half != 0u) {
        return half_to_float((uint32_t)bytes[0] | (uint32_t)bytes[1] << 8);
    }
    return (float)(bytes[0] < 128u ? (int32_t)bytes[0] : (int32_t)bytes[0] - 256);
}

static void store_half(uint8_t *bytes, uint32_t value) {
    bytes[0] = (uint8_t)(value & 0xffu);
    bytes[1] = (uint8_t)(value >> 8);
}

/* Operand of softmax: int8 elements are first converted to fp16. */
static float softmax_input(const nvdla_cpu_operation *operation, const uint8_t *source, uint32_t index) {
    if (operation->half != 0u) {
        return loaded(source + 2u * index, 1u);
    }
    return half_to_float(float_to_half(loaded(source + index, 0u) * operation->input_scale));
}

static void softmax(const nvdla_cpu_operation *operation, const uint8_t *source, uint8_t *destination) {
    uint32_t count = operation->source.channels;
    uint32_t kept = operation->half != 0u || operation->destination.channels > count ? count
                                                                                       : operation->destination.channels;
    float largest, total = 0.0f;
    uint32_t index;
    if (count == 0u) {
        return;
    }
    largest = softmax_input(operation, source, 0u);
    for (index = 1; index < count; index++) {
        float value = softmax_input(operation, source, index);
        if (value > largest || is_nan(value)) {
            largest = value;
        }
    }
    for (index = 0; index < count; index++) {
        float term = exponential(softmax_input(operation, source, index) - largest);
        total = index == 0u ? term : total + term;
    }
    /* In ascending order: the destination may be the source. */
    for (index = 0; index < kept; index++) {
        uint32_t half = float_to_half(exponential(softmax_input(operation, source, index) - largest) / total);
        if (operation->half != 0u) {
            store_half(destination + 2u * index, half);
        } else {
            destination[index] = saturated(half_to_float(half) / operation->output_scale);
        }
    }
}

static uint32_t offset_in(const nvdla_cpu_cube *cube, uint32_t size, uint32_t channel, uint32_t y, uint32_t x) {
    uint32_t elements = cube->atom / size;
    return channel / elements * cube->surface_stride + y * cube->line_stride + x * cube->atom + channel % elements * size;
}

static void power(const nvdla_cpu_operation *operation, const uint8_t *source, uint8_t *destination) {
    const nvdla_cpu_cube *cube = &operation->source;
    uint32_t size = operation->half != 0u ? 2u : 1u;
    uint32_t channel, y, x;
    for (channel = 0; channel < cube->channels; channel++) {
        for (y = 0; y < cube->height; y++) {
            for (x = 0; x < cube->width; x++) {
                uint8_t *target = destination + offset_in(&operation->destination, size, channel, y, x);
                float value = loaded(source + offset_in(cube, size, channel, y, x), operation->half);
                float scaled, result;
                if (operation->half == 0u) {
                    value = value * operation->input_scale;
                }
                scaled = operation->scale * value;
                scaled = operation->shift + scaled;
                result = (float)NVDLA_POW((double)scaled, (double)operation->power);
                if (operation->half != 0u) {
                    store_half(target, float_to_half(result));
                } else {
                    *target = saturated(result / operation->output_scale);
                }
            }
        }
    }
}

int nvdla_compute(nvdla_device *device, const nvdla_cpu_operation *operation) {
    uint8_t *source = device->memory[operation->source.memory];
    uint8_t *destination = device->memory[operation->destination.memory];
    if (source == 0 || destination == 0) {
        return NVDLA_NO_MEMORY;
    }
    source += operation->source.offset;
    destination += operation->destination.offset;
    NVDLA_CACHE_INVALIDATE(device, source, operation->source.size);
    if (operation->kind == NVDLA_SOFTMAX) {
        softmax(operation, source, destination);
    } else {
        power(operation, source, destination);
    }
    NVDLA_CACHE_FLUSH(device, destination, operation->destination.size);
    NVDLA_BARRIER(device);
    return NVDLA_OK;
}
