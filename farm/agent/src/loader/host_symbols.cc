#include "loader/host_symbols.h"

#include <unordered_map>

// clang-format off: lists of names
// libm's functions, each in double and (with an f) in single precision.
#define FLOAT_FUNCTIONS(X) \
  X(exp) X(exp2) X(exp10) X(expm1) X(log) X(log2) X(log10) X(log1p) X(sin) X(cos) X(tan) \
  X(sincos) X(sinh) X(cosh) X(tanh) X(asin) X(acos) X(atan) X(asinh) X(acosh) X(atanh) X(floor) \
  X(ceil) X(round) X(trunc) X(rint) X(nearbyint) X(sqrt) X(fabs) X(erf) X(erfc) X(cbrt) X(pow) \
  X(atan2) X(fmod) X(hypot) X(fmin) X(fmax) X(copysign) X(nextafter) X(remainder) X(fma) \
  X(ldexp) X(frexp) X(modf) X(tgamma) X(lgamma)
// Half precision, where the target has no instruction for it.
#define HALF_FUNCTIONS(X) X(__extendhfsf2) X(__truncsfhf2) X(__truncdfhf2)
#define OTHER_FUNCTIONS(X) \
  X(TVMFFIErrorSetRaised) X(TVMFFIErrorSetRaisedFromCStr) X(TVMFFIErrorSetRaisedFromCStrParts) \
  X(TVMFFIErrorMoveFromRaised) X(TVMFFIFunctionCall) X(TVMFFIFunctionGetGlobal) \
  X(TVMFFIEnvModLookupFromImports) X(TVMFFIHandleInitOnce) X(TVMBackendParallelLaunch) \
  X(TVMBackendParallelBarrier) X(TVMBackendAllocWorkspace) X(TVMBackendFreeWorkspace) X(memcpy) \
  X(memset) X(memmove) X(memcmp) X(bcmp) X(strcmp) X(strlen) X(malloc) X(free) X(abort)
// Of Arm's run-time ABI (RTABI32), and GNU's names, which LLVM calls for integers too.
#if defined(__arm__)
#define MACHINE_FUNCTIONS(X) \
  X(__aeabi_memcpy) X(__aeabi_memcpy4) X(__aeabi_memcpy8) X(__aeabi_memset) X(__aeabi_memset4) \
  X(__aeabi_memset8) X(__aeabi_memclr) X(__aeabi_memclr4) X(__aeabi_memclr8) X(__aeabi_memmove) \
  X(__aeabi_memmove4) X(__aeabi_memmove8) X(__aeabi_idiv) X(__aeabi_uidiv) X(__aeabi_idivmod) \
  X(__aeabi_uidivmod) X(__aeabi_ldivmod) X(__aeabi_uldivmod) X(__aeabi_l2f) X(__aeabi_l2d) \
  X(__aeabi_ul2f) X(__aeabi_ul2d) X(__aeabi_f2lz) X(__aeabi_d2lz) X(__aeabi_f2ulz) \
  X(__aeabi_d2ulz) X(__aeabi_lmul) X(__aeabi_llsl) X(__aeabi_llsr) X(__aeabi_lasr) \
  X(__aeabi_unwind_cpp_pr0) X(__aeabi_unwind_cpp_pr1) X(__gnu_h2f_ieee) X(__gnu_f2h_ieee) \
  X(__divsi3) X(__modsi3) X(__udivsi3) X(__umodsi3) X(__divdi3) X(__moddi3) X(__udivdi3) \
  X(__umoddi3) X(__fixsfdi) X(__fixdfdi) X(__fixunssfdi) X(__fixunsdfdi) X(__floatdisf) \
  X(__floatdidf) X(__floatundisf) X(__floatundidf)
#else
#define MACHINE_FUNCTIONS(X)
#endif
// clang-format on

#if defined(__arm__)  // what zig's compiler-rt has under its name of RTABI32 only
extern "C" {
int __divsi3(int a, int b) { return a / b; }
unsigned __udivsi3(unsigned a, unsigned b) { return a / b; }
long long __fixsfdi(float a) { return static_cast<long long>(a); }
long long __fixdfdi(double a) { return static_cast<long long>(a); }
unsigned long long __fixunssfdi(float a) { return static_cast<unsigned long long>(a); }
unsigned long long __fixunsdfdi(double a) { return static_cast<unsigned long long>(a); }
float __floatdisf(long long a) { return static_cast<float>(a); }
double __floatdidf(long long a) { return static_cast<double>(a); }
float __floatundisf(unsigned long long a) { return static_cast<float>(a); }
double __floatundidf(unsigned long long a) { return static_cast<double>(a); }
}
#endif

// Declared as plain addresses, so that no prototype is needed.
#define DECLARE(f) extern "C" char farm_host_##f __asm__(#f);
#define DECLARE_BOTH(f) DECLARE(f) extern "C" char farm_host_##f##_single __asm__(#f "f");
// clang-format off
FLOAT_FUNCTIONS(DECLARE_BOTH) HALF_FUNCTIONS(DECLARE)
OTHER_FUNCTIONS(DECLARE) MACHINE_FUNCTIONS(DECLARE)
    // clang-format on

    namespace farm {
  void* HostSymbol(const std::string& name) {
    // clang-format off
#define ENTRY(f) {#f, &farm_host_##f},
#define ENTRY_BOTH(f) ENTRY(f) {#f "f", &farm_host_##f##_single},
  static const std::unordered_map<std::string, void*> table = {
      FLOAT_FUNCTIONS(ENTRY_BOTH) HALF_FUNCTIONS(ENTRY)
      OTHER_FUNCTIONS(ENTRY) MACHINE_FUNCTIONS(ENTRY)};
    // clang-format on
    auto found = table.find(name);
    return found == table.end() ? nullptr : found->second;
  }

}  // namespace farm
