/* Hides the lines of cgroup v1 in /proc/PID/cgroup from the program that this is preloaded into.

   Slurm's plugin cgroup/v2 refuses a machine that has both, though it needs nothing of v1. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int is_list(const char *path) {
  const char *end = path ? strrchr(path, '/') : NULL;
  if (!end || strncmp(path, "/proc/", 6) != 0 || strcmp(end, "/cgroup") != 0) return 0;
  return end - path < 3 || strncmp(end - 3, "/ns", 3) != 0; /* /proc/PID/ns/cgroup is a namespace */
}

/* Return a file in memory with the line of v2 out of a list. */
static int without_v1(int list) {
  int copy = memfd_create("cgroup", MFD_CLOEXEC);
  FILE *in = fdopen(list, "r");
  char *line = NULL;
  size_t size = 0;
  ssize_t length;
  while (in && copy >= 0 && (length = getline(&line, &size, in)) > 0)
    if (strncmp(line, "0::", 3) == 0 && write(copy, line, length) != length) break;
  if (in) fclose(in);
  lseek(copy, 0, SEEK_SET);
  return copy;
}

static int open_as(const char *name, const char *path, int flags, mode_t mode) {
  int (*real)(const char *, int, mode_t) = (int (*)(const char *, int, mode_t))dlsym(RTLD_NEXT, name);
  int found = real(path, flags, mode);
  return found >= 0 && is_list(path) ? without_v1(found) : found;
}

static FILE *fopen_as(const char *name, const char *path, const char *kind) {
  FILE *(*real)(const char *, const char *) = (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, name);
  FILE *found = real(path, kind);
  if (!found || !is_list(path)) return found;
  int list = dup(fileno(found));
  fclose(found);
  return fdopen(without_v1(list), "r");
}

#define OPEN(name)                                  \
  int name(const char *path, int flags, ...) {      \
    va_list more;                                   \
    va_start(more, flags);                          \
    mode_t mode = va_arg(more, mode_t);             \
    va_end(more);                                   \
    return open_as(#name, path, flags, mode);       \
  }
OPEN(open)
OPEN(open64)
FILE *fopen(const char *path, const char *kind) { return fopen_as("fopen", path, kind); }
FILE *fopen64(const char *path, const char *kind) { return fopen_as("fopen64", path, kind); }
