/* A plugin that does, stage by stage, what plugins do: right things and wrong ones. */
#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "device/plugin.h"

#ifndef SAMPLE_VERSION
#define SAMPLE_VERSION MONOREF_PLUGIN_VERSION
#endif

static const monoref_tensor* find(const monoref_tensor* tensors, size_t count, const char* name) {
  for (size_t i = 0; i < count; ++i)
    if (strcmp(tensors[i].name, name) == 0) return &tensors[i];
  return NULL;
}

/* out = factor * x + y over two strided int32 matrices; the factor is a scalar. */
static int multiply_add(const monoref_call* call) {
  const monoref_tensor* x = find(call->inputs, call->input_count, "x");
  const monoref_tensor* y = find(call->inputs, call->input_count, "y");
  const monoref_tensor* out = find(call->outputs, call->output_count, "out");
  int64_t factor = 0;
  for (size_t i = 0; i < call->scalar_count; ++i)
    if (strcmp(call->scalars[i].name, "factor") == 0) factor = call->scalars[i].integer;
  if (x == NULL || y == NULL || out == NULL) {
    snprintf(call->message, call->message_capacity, "a tensor is missing");
    return MONOREF_FAILED;
  }
  for (int64_t i = 0; i < out->dims[0]; ++i)
    for (int64_t j = 0; j < out->dims[1]; ++j)
      ((int32_t*)out->data)[i * out->strides[0] + j * out->strides[1]] =
          (int32_t)factor * ((const int32_t*)x->data)[i * x->strides[0] + j * x->strides[1]] +
          ((const int32_t*)y->data)[i * y->strides[0] + j * y->strides[1]];
  return MONOREF_DONE;
}

/* Says back what the call holds besides tensors' contents. */
static int describe(const monoref_call* call) {
  const monoref_tensor* out = &call->outputs[0];
  snprintf(call->message, call->message_capacity,
           "%s|%s|%s=%lld|%s=%g|%s=%s|%s %s rank %d|%d extents, second at %lld of %lld",
           call->stage, call->contract, call->scalars[0].name, (long long)call->scalars[0].integer,
           call->scalars[1].name, call->scalars[1].real, call->scalars[2].name,
           call->scalars[2].text, out->name, out->dtype, (int)out->rank, (int)out->extent_count,
           (long long)out->extents[1].offset, (long long)out->extents[1].count);
  return MONOREF_REFUSED;
}

static int touch(const monoref_tensor* tensor, int64_t at) {
  volatile uint8_t* bytes = tensor->data;
  return bytes[at];
}

static void spin(void) {
  for (volatile int i = 0;; i = !i) {
  }
}

/* Leaves a child behind, and says which. */
static int leave_child(const monoref_call* call) {
  const pid_t child = fork();
  if (child == 0)
    for (;;) pause();
  snprintf(call->message, call->message_capacity, "%d", (int)child);
  return MONOREF_REFUSED;
}

/* The same, with one in a session of its own whose parent is gone. */
static int leave_daemon(const monoref_call* call) {
  int ends[2];
  if (pipe(ends) != 0) return MONOREF_FAILED;
  const pid_t child = fork();
  if (child == 0) {
    setsid();
    const pid_t daemon = fork();
    if (daemon == 0)
      for (;;) pause();
    _exit(write(ends[1], &daemon, sizeof daemon) == sizeof daemon ? 0 : 1);
  }
  pid_t daemon = 0;
  waitpid(child, NULL, 0);
  if (read(ends[0], &daemon, sizeof daemon) != sizeof daemon) return MONOREF_FAILED;
  close(ends[0]);
  close(ends[1]);
  snprintf(call->message, call->message_capacity, "%d", (int)daemon);
  return MONOREF_REFUSED;
}

static pid_t parent_of(pid_t process) {
  char path[64];
  int parent = 0;
  snprintf(path, sizeof path, "/proc/%d/stat", (int)process);
  FILE* const file = fopen(path, "r");
  if (file == NULL || fscanf(file, "%*d (%*[^)]) %*c %d", &parent) != 1) exit(9);
  fclose(file);
  return parent;
}

/* What a plugin does with processes and with time. */
static void run_processes(const char* stage) {
  if (strcmp(stage, "kill_parent") == 0) {
    kill(getppid(), SIGKILL);
    for (;;) pause();
  }
  if (strcmp(stage, "kill_supervisor") == 0) {
    kill(parent_of(getppid()), SIGKILL);
    for (;;) pause();
  }
  if (strcmp(stage, "hang") == 0) spin();
  if (strcmp(stage, "hang_in_child") == 0 || strcmp(stage, "hang_in_session") == 0) {
    const pid_t child = fork();
    if (child == 0 && strcmp(stage, "hang_in_session") == 0) setsid();
    if (child == 0) spin();
    waitpid(child, NULL, 0);
  }
  if (strcmp(stage, "crash_before_child") == 0) {
    if (fork() == 0)
      for (;;) pause();
    abort();
  }
  if (strcmp(stage, "sleep") == 0)
    for (;;) pause();
  if (strcmp(stage, "nap") == 0) {
    const struct timespec half_a_second = {0, 500000000};
    nanosleep(&half_a_second, NULL);
  }
  if (strcmp(stage, "print") == 0) {
    fputs("to output", stdout);
    fflush(stdout);
    fputs(" and error", stderr);
  }
}

static int run(const monoref_call* call) {
  const char* stage = call->stage;
  volatile uint8_t* output = call->output_count > 0 ? call->outputs[0].data : NULL;
  if (strcmp(stage, "multiply_add") == 0) return multiply_add(call);
  if (strcmp(stage, "describe") == 0) return describe(call);
  if (strcmp(stage, "fail") == 0) return MONOREF_FAILED;
  if (strcmp(stage, "nonsense") == 0) return 7;
  volatile uintptr_t nowhere = 8; /* volatile: the compiler would warn of what is the point here */
  if (strcmp(stage, "null") == 0) *(volatile int*)nowhere = 1;
  if (strcmp(stage, "read_past") == 0) return touch(&call->inputs[0], 4096) == 300;
  if (strcmp(stage, "write_input") == 0) *(uint8_t*)call->inputs[0].data = 1;
  if (strcmp(stage, "write_past") == 0) output[40] = 24;
  if (strcmp(stage, "write_far_past") == 0) output[64] = 24;
  if (strcmp(stage, "write_before") == 0) output[-3] = 24;
  if (strcmp(stage, "abort") == 0) abort();
  if (strcmp(stage, "exit") == 0) exit(3);
  if (strcmp(stage, "leave_child") == 0) return leave_child(call);
  if (strcmp(stage, "leave_daemon") == 0) return leave_daemon(call);
  run_processes(stage);
  return MONOREF_DONE;
}

static int offers(const char* stage) {
  if (strcmp(stage, "crash_over_offers") == 0) abort();
  if (strcmp(stage, "hang_over_offers") == 0) spin();
  return strcmp(stage, "unknown") != 0;
}

#ifndef SAMPLE_WITHOUT_ENTRY
static const monoref_plugin plugin = {SAMPLE_VERSION, sizeof(monoref_plugin), "sample", offers,
                                      run};
const monoref_plugin* monoref_plugin_entry(void) {
  return &plugin;
}
#else
int (*const unused_offers)(const char*) = offers;
int (*const unused_run)(const monoref_call*) = run;
#endif
