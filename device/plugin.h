/* monoref plugin interface, version 1: bring a kernel from somewhere else and ask "is it right?".
 *
 * A plugin is a shared library with one exported C function, monoref_plugin_entry. The harness
 * (`monoref check --backend plugin:/path/to/lib.so ...`) calls it at the level of a stage: it hands
 * over named scalars and input tensors in host memory, and the plugin fills the named output
 * tensors. How it gets them (a GPU, another CPU kernel, a framework) is its own affair.
 *
 *   #include "device/plugin.h"
 *
 *   static int run(const monoref_call* call) { ... return MONOREF_DONE; }
 *   static const monoref_plugin plugin = {MONOREF_PLUGIN_VERSION, sizeof(monoref_plugin),
 *                                         "my kernels", 0, run};
 *   const monoref_plugin* monoref_plugin_entry(void) { return &plugin; }
 *
 * What the harness promises
 *  - The library is loaded in a process of its own, which serves one case after the other. A crash,
 *    an abort and a call over its time limit are verdicts; a new process then takes over. So are a
 *    crash and a hang of `offers`. The limit counts processor time; a call may sleep
 *    for three times as long, waiting for a device.
 *  - All processes that the library starts die with its own. Whatever they print goes to standard
 *    error.
 *  - Names, dtypes and layouts of a stage's scalars and tensors are those of `monoref list` and of
 * the case files. Order within the arrays may be relied upon for one stage and version of monoref
 * only; look things up by name.
 *  - Everything a call points to lives until the call returns, and no longer.
 *  - Outputs hold poison at first, save those that a stage updates in place (caches), which hold
 *    their old content.
 *
 * What a plugin must do
 *  - Touch only elements that exist: input memory is read-only, the bytes behind a tensor fault,
 * and those before it are watched.
 *  - Fill every element of every output that the stage specifies; leave the rest as it is.
 *  - Let no C++ exception and no longjmp cross this interface.
 */
#ifndef MONOREF_DEVICE_PLUGIN_H
#define MONOREF_DEVICE_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN(modernize-use-using): this header is C. */

#define MONOREF_PLUGIN_VERSION 1u

/* What `run` returns. */
enum {
  MONOREF_DONE = 0,    /* the outputs are filled */
  MONOREF_REFUSED = 1, /* the input breaks the stage's contract; the message says how */
  MONOREF_FAILED = 2   /* something else went wrong; the message says what */
};

/* Which member of a scalar holds its value. */
enum { MONOREF_INT64 = 0, MONOREF_DOUBLE = 1, MONOREF_STRING = 2 };

typedef struct monoref_scalar {
  const char* name;
  int32_t kind; /* MONOREF_INT64, MONOREF_DOUBLE or MONOREF_STRING */
  int64_t integer;
  double real;
  const char* text; /* null unless kind is MONOREF_STRING */
} monoref_scalar;

/* A run of elements that exist, counted from the tensor's base. */
typedef struct monoref_extent {
  int64_t offset;
  int64_t count;
} monoref_extent;

/* Element (i0, i1, ...) lies at data + (i0 * strides[0] + i1 * strides[1] + ...) * element size. */
typedef struct monoref_tensor {
  const char* name;
  const char* dtype; /* int32, int64, uint8, float32, float64, bfloat16, float8_e4m3fn, ... */
  int32_t rank;
  const int64_t* dims;
  const int64_t* strides; /* in elements */
  void* data;             /* the base; inputs are read-only */
  /* The storage behind the base. One run from 0 for all ordinary tensors. A cache that is tested
   * with very large page ids has several short runs far apart, and no memory between them. */
  int32_t extent_count;
  const monoref_extent* extents;
} monoref_tensor;

typedef struct monoref_call {
  uint32_t version; /* MONOREF_PLUGIN_VERSION of the harness */
  uint32_t size;    /* sizeof(monoref_call) of the harness; later versions only add at the end */
  const char* stage;
  const char* contract; /* PRESET[,field=value...], see `monoref list` */
  const monoref_scalar* scalars;
  size_t scalar_count;
  const monoref_tensor* inputs;
  size_t input_count;
  const monoref_tensor* outputs;
  size_t output_count;
  char*
      message; /* room for a null-terminated text, empty at first; kept for refusals and failures */
  size_t message_capacity;
} monoref_call;

typedef struct monoref_plugin {
  uint32_t version; /* MONOREF_PLUGIN_VERSION of the header it was compiled with */
  uint32_t size;    /* sizeof(monoref_plugin) */
  const char* name; /* for reports */
  /* Whether `run` knows the stage: non-zero if so. Null: every stage. */
  int (*offers)(const char* stage);
  /* Runs one case. Never called from two threads at a time. */
  int (*run)(const monoref_call* call);
} monoref_plugin;

/* The one exported function. The struct it returns lives as long as the library is loaded. */
const monoref_plugin* monoref_plugin_entry(void);

/* NOLINTEND(modernize-use-using) */

#ifdef __cplusplus
}
#endif

#endif
