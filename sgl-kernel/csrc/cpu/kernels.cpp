// The one source behind every CPU instruction set: the build compiles it once per set, with
// SMARTGEN_ISA naming the table and SMARTGEN_SIMD the lanes that the templates use.
#include "smartgen/block_fold.h"
#include "smartgen/block_mass.h"
#include "smartgen/block_scores.h"
#include "smartgen/decode.h"
#include "smartgen/elementwise.h"
#include "smartgen/extend.h"
#include "smartgen/linear.h"
#ifdef __x86_64__
#ifdef __AVX512F__
#include "smartgen/simd_avx512.h"
#elif defined(__AVX2__)
#include "smartgen/simd_avx2.h"
#endif
#endif
#include "smartgen/simd_portable.h"

#define SMARTGEN_TEXT_(x) #x
#define SMARTGEN_TEXT(x) SMARTGEN_TEXT_(x)
#define SMARTGEN_JOIN_(a, b) a##b
#define SMARTGEN_JOIN(a, b) SMARTGEN_JOIN_(a, b)

namespace smartgen {

extern const KernelTable SMARTGEN_JOIN(kernels_, SMARTGEN_ISA);
const KernelTable SMARTGEN_JOIN(kernels_, SMARTGEN_ISA) = {
    SMARTGEN_TEXT(SMARTGEN_ISA), extend_attention<SMARTGEN_SIMD>, decode_attention<SMARTGEN_SIMD>,
    rms_norm<SMARTGEN_SIMD>,     silu_and_mul<SMARTGEN_SIMD>,     rotary<SMARTGEN_SIMD>,
    linear<SMARTGEN_SIMD>,       block_mass<SMARTGEN_SIMD>,       block_digest<SMARTGEN_SIMD>,
    block_bounds<SMARTGEN_SIMD>, block_scores<SMARTGEN_SIMD>,
};

}  // namespace smartgen
