// Kernels that are nothing of this project's: each executes one instruction on operands from
// memory, so that what the executor makes of it can be held against arithmetic in C++.
using u32 = unsigned;
using u64 = unsigned long;

#define KERNEL extern "C" __attribute__((global, amdgpu_flat_work_group_size(1, 64))) void
#define LANE __builtin_amdgcn_workitem_id_x()
#define WAVE __builtin_amdgcn_workgroup_id_x()

#define OPERANDS                                                                               \
  [[maybe_unused]] const u32 *a, [[maybe_unused]] const u32 *b, [[maybe_unused]] const u32 *c, \
      [[maybe_unused]] const u64 *masks, u32 *out

// d = NAME(x, y, z) in the lanes of a mask; what an instruction leaves alone stays as it was.
#define INSTRUCTION(name, text)                                                                \
  KERNEL test_##name(OPERANDS) {                                                               \
    const u32 i = WAVE * 64 + LANE;                                                            \
    const u32 x = a[i], y = b[i], z = c[i];                                                    \
    u32 d = out[i];                                                                            \
    if ((masks[WAVE] >> LANE & 1) != 0) asm volatile(text : "+v"(d) : "v"(x), "v"(y), "v"(z)); \
    out[i] = d;                                                                                \
  }
// The same of an instruction that writes a mask.
#define COMPARISON(name, text)                       \
  KERNEL test_##name(OPERANDS) {                     \
    const u32 i = WAVE * 64 + LANE;                  \
    const u32 x = a[i], y = b[i];                    \
    u32 d = out[i];                                  \
    if ((masks[WAVE] >> LANE & 1) != 0) {            \
      u64 m;                                         \
      asm volatile(text : "=s"(m) : "v"(x), "v"(y)); \
      d = m >> LANE & 1;                             \
    }                                                \
    out[i] = d;                                      \
  }

#include "instructions.inc"

// Two operands change places.
#define SWAP(name)                                    \
  KERNEL test_##name(OPERANDS) {                      \
    u32 x = a[LANE], y = b[LANE];                     \
    asm volatile(#name " %0, %1" : "+v"(x), "+v"(y)); \
    out[LANE] = x;                                    \
    out[64 + LANE] = y;                               \
  }

// Memory through a buffer descriptor of `records` bytes.
KERNEL test_buffer_words(const u32* from, u32* to, u32 records, u32 step) {
  auto rsrc_from = __builtin_amdgcn_make_buffer_rsrc((void*)from, 0, records, 0x00020000);
  auto rsrc_to = __builtin_amdgcn_make_buffer_rsrc((void*)to, 0, records, 0x00020000);
  const auto v = __builtin_amdgcn_raw_buffer_load_b128(rsrc_from, LANE * step, 0, 0);
  __builtin_amdgcn_raw_buffer_store_b128(v + 1, rsrc_to, LANE * step, 0, 0);
}
KERNEL test_buffer_bytes(const u32* from, u32* to, u32 records, u32 step) {
  auto rsrc_from = __builtin_amdgcn_make_buffer_rsrc((void*)from, 0, records, 0x00020000);
  auto rsrc_to = __builtin_amdgcn_make_buffer_rsrc((void*)to, 0, records, 0x00020000);
  const unsigned char v = __builtin_amdgcn_raw_buffer_load_b8(rsrc_from, LANE * step, 0, 0);
  __builtin_amdgcn_raw_buffer_store_b8(v + 1, rsrc_to, LANE * step, 0, 0);
}

// Matrix products: each lane's registers lie together in memory.
#define MATRIX(name, product, factor_a, factor_b, sum)                                       \
  KERNEL test_##name(OPERANDS) {                                                             \
    const factor_a x = ((const factor_a*)a)[LANE];                                           \
    const factor_b y = ((const factor_b*)b)[LANE];                                           \
    const sum z = ((const sum*)c)[LANE];                                                     \
    const u32 scale_a = ((const u32*)masks)[LANE], scale_b = ((const u32*)masks)[64 + LANE]; \
    static_cast<void>(scale_a + scale_b);                                                    \
    ((sum*)out)[LANE] = product;                                                             \
  }
using f32x4 = float __attribute__((ext_vector_type(4)));
using f32x16 = float __attribute__((ext_vector_type(16)));
using i32x4 = int __attribute__((ext_vector_type(4)));
using i32x8 = int __attribute__((ext_vector_type(8)));
using i32x16 = int __attribute__((ext_vector_type(16)));
using f16x4 = _Float16 __attribute__((ext_vector_type(4)));
using i16x4 = short __attribute__((ext_vector_type(4)));

MATRIX(f32_16x16x4, __builtin_amdgcn_mfma_f32_16x16x4f32(x, y, z, 0, 0, 0), float, float, f32x4)
MATRIX(f16_16x16x16, __builtin_amdgcn_mfma_f32_16x16x16f16(x, y, z, 0, 0, 0), f16x4, f16x4, f32x4)
MATRIX(f16_4x4x4, __builtin_amdgcn_mfma_f32_4x4x4f16(x, y, z, 0, 0, 0), f16x4, f16x4, f32x4)
MATRIX(f16_4x4x4_broadcast, __builtin_amdgcn_mfma_f32_4x4x4f16(x, y, z, 2, 1, 0), f16x4, f16x4,
       f32x4)
MATRIX(bf16_32x32x8, __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(x, y, z, 0, 0, 0), i16x4, i16x4,
       f32x16)
MATRIX(i8_32x32x16, __builtin_amdgcn_mfma_i32_32x32x16_i8(x, y, z, 0, 0, 0), u64, u64, i32x16)
MATRIX(fp8_16x16x32, __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(x, y, z, 0, 0, 0), u64, u64, f32x4)

#ifdef __gfx950__
SWAP(v_permlane16_swap_b32)
SWAP(v_permlane32_swap_b32)

using f16x8 = _Float16 __attribute__((ext_vector_type(8)));
using bf16x8 = __bf16 __attribute__((ext_vector_type(8)));
MATRIX(f16_32x32x16, __builtin_amdgcn_mfma_f32_32x32x16_f16(x, y, z, 0, 0, 0), f16x8, f16x8, f32x16)
MATRIX(bf16_16x16x32, __builtin_amdgcn_mfma_f32_16x16x32_bf16(x, y, z, 0, 0, 0), bf16x8, bf16x8,
       f32x4)
MATRIX(i8_16x16x64, __builtin_amdgcn_mfma_i32_16x16x64_i8(x, y, z, 0, 0, 0), i32x4, i32x4, i32x4)
MATRIX(mx8_16x16x128,
       __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(x, y, z, 0, 0, 1, scale_a, 2, scale_b),
       i32x8, i32x8, f32x4)
MATRIX(mx4_32x32x64,
       __builtin_amdgcn_mfma_scale_f32_32x32x64_f8f6f4(x, y, z, 4, 4, 0, scale_a, 3, scale_b),
       i32x8, i32x8, f32x16)

// A transposing read of LDS, which first is filled with its lanes' words.
KERNEL test_transposed(OPERANDS) {
  __attribute__((shared)) static u64 words[64];
  words[LANE] = ((const u64*)a)[LANE];
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  u64 halves, bytes;
  const u32 at = LANE * 8;
  asm volatile("ds_read_b64_tr_b16 %0, %1\n s_waitcnt lgkmcnt(0)"
               : "=v"(halves)
               : "v"(at), "v"(words)
               : "memory");
  asm volatile("ds_read_b64_tr_b8 %0, %1\n s_waitcnt lgkmcnt(0)"
               : "=v"(bytes)
               : "v"(at), "v"(words)
               : "memory");
  ((u64*)out)[LANE] = halves;
  ((u64*)out)[64 + LANE] = bytes;
}
#endif
