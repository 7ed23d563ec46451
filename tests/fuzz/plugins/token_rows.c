/* A complete plugin for one stage: what somebody who brings a kernel of their own writes.
 * Built again with WITH_FAULT, it counts lengths one short for the last token; with IDLE it offers
 * every stage and does nothing, with ENDLESS it never returns, with SLOW it computes for half a
 * second first, with CRASHES_OVER_OFFERS it dies. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/plugin.h"

static const monoref_tensor* find(const monoref_tensor* tensors, size_t count, const char* name) {
  for (size_t i = 0; i < count; ++i)
    if (strcmp(tensors[i].name, name) == 0) return &tensors[i];
  return NULL;
}

static int64_t scalar(const monoref_call* call, const char* name) {
  for (size_t i = 0; i < call->scalar_count; ++i)
    if (strcmp(call->scalars[i].name, name) == 0) return call->scalars[i].integer;
  return 0;
}

static int run(const monoref_call* call) {
#ifdef IDLE
  return MONOREF_DONE;
#endif
#ifdef ENDLESS
  for (volatile int i = 0;; ++i) continue;
#endif
#ifdef SLOW
  for (const clock_t end = clock() + CLOCKS_PER_SEC / 2; clock() < end;) continue;
#endif
  const monoref_tensor* table = find(call->inputs, call->input_count, "block_table");
  const monoref_tensor* lengths = find(call->inputs, call->input_count, "seq_lens");
  const monoref_tensor* out_table = find(call->outputs, call->output_count, "block_table");
  const monoref_tensor* out_lengths = find(call->outputs, call->output_count, "seq_lens");
  if (table == NULL || lengths == NULL || out_table == NULL || out_lengths == NULL) {
    snprintf(call->message, call->message_capacity, "a tensor of token_rows is missing");
    return MONOREF_FAILED;
  }
  const int64_t q = scalar(call, "q");
  for (int64_t row = 0; row < out_table->dims[0]; ++row)
    for (int64_t column = 0; column < out_table->dims[1]; ++column)
      ((int32_t*)out_table->data)[row * out_table->strides[0] + column * out_table->strides[1]] =
          ((const int32_t*)table->data)[row / q * table->strides[0] + column * table->strides[1]];
  for (int64_t row = 0; row < out_lengths->dims[0]; ++row) {
    int64_t length = ((const int32_t*)lengths->data)[row / q * lengths->strides[0]];
    length -= q - 1 - row % q;
#ifdef WITH_FAULT
    if (row + 1 == out_lengths->dims[0]) --length;
#endif
    ((int32_t*)out_lengths->data)[row * out_lengths->strides[0]] = (int32_t)length;
  }
  return MONOREF_DONE;
}

static int offers(const char* stage) {
#ifdef CRASHES_OVER_OFFERS
  abort();
#endif
#ifdef IDLE
  return 1;
#endif
  return strcmp(stage, "token_rows") == 0;
}

static const monoref_plugin plugin = {MONOREF_PLUGIN_VERSION, sizeof(monoref_plugin),
                                      "token_rows example", offers, run};
const monoref_plugin* monoref_plugin_entry(void) {
  return &plugin;
}
