#ifndef TENSORFLOW_CORE_PLATFORM_COMPILE_FAULTS_H_
#define TENSORFLOW_CORE_PLATFORM_COMPILE_FAULTS_H_

// Faults on demand, so that a test breaks a build by a flag and not by editing the tree:
//   --copt=-DMINIATURE_FAIL_COMPILE      the compiler stops with an error
//   --copt=-DMINIATURE_SLOW_COMPILE=N    the assembler is busy for about N seconds
//   --copt=-DMINIATURE_HUNGRY_COMPILE=N  the compiler instantiates 2^N types: 14 takes 0.2 GB, 16 0.4 GB, 18 1.6 GB
// Only the file that includes this header is affected (relu_op.cc).

#include "tensorflow/core/platform/compile_memory.h"

#ifdef MINIATURE_FAIL_COMPILE
#error "MINIATURE_FAIL_COMPILE is defined: this compilation fails because it was asked to"
#endif

#ifdef MINIATURE_SLOW_COMPILE
// Nothing, repeated: the assembler works through it line by line and keeps none of it in memory.
#define MINIATURE_TEXT(value) #value
#define MINIATURE_TEXT_OF(value) MINIATURE_TEXT(value)
asm(".rept " MINIATURE_TEXT_OF(MINIATURE_SLOW_COMPILE) "\n.rept 4000\n.rept 1000\n.if 0\n.endif\n.endr\n.endr\n.endr\n");
#endif

#ifdef MINIATURE_HUNGRY_COMPILE
static_assert(miniature::Tree<MINIATURE_HUNGRY_COMPILE, 0>::value > 0, "");
#endif

#endif  // TENSORFLOW_CORE_PLATFORM_COMPILE_FAULTS_H_
